"""Dead letters are counted with their rows, until they are sent again or deleted."""

from __future__ import annotations

import pytest

import wal_sink.operate.health
from tests.house.operate import WalFacts
from tests.house.protocol import Rejections, keep_unknown
from tests.house.sinks import Chunk, Rejected
from tests.house.stores import Store
from tests.support.repairs import log_on
from tests.support.small_run import Place, Recorder
from wal_sink.operate.health import MOST_LETTERS, Letters, read_letters
from wal_sink.operate.replay import DeadLetters
from wal_sink.settings import Delivery
from wal_sink.testing import FaultyStore


def refuse(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "no"))


def refused(*, rows: int = 2, through: int = 2) -> Place:
    place = Place(rows=lambda _: [rows])
    place.stream(place.open({"a": Delivery(refuse, on_rejected="dead_letter")}), through)
    return place


def look(store: Store) -> Letters:
    facts = WalFacts(store)
    return read_letters(facts.log, "a", next(sink.letters for sink in facts.sinks if sink.folder == "a"))


def letters(place: Place) -> tuple[int, int, int, bool]:
    found = look(place.wal)
    assert (found.since is None) == (found.due == 0)
    return found.due, found.rows, found.replayed, found.is_exact


def test_a_sink_without_dead_letters_has_none() -> None:
    place = Place(rows=lambda _: [2])
    place.stream(place.open({"a": Recorder()}), 0)
    assert look(place.wal) == Letters()


def test_letters_count_with_their_rows_until_they_are_sent_again() -> None:
    place = refused()
    assert letters(place) == (3, 6, 0, True)

    DeadLetters(log_on(place.wal), name="a").replay(Recorder(), only=lambda kept: kept.chunk.batch_id == 1)
    assert letters(place) == (2, 4, 1, True)

    DeadLetters(log_on(place.wal), name="a").replay(Recorder())
    assert letters(place) == (0, 0, 3, True)


def test_a_file_without_rows_is_no_letter() -> None:
    """A process that takes over a chunk leaves one, and so does each replay to a transactional target."""
    place = refused()
    for kept in list(DeadLetters(log_on(place.wal), name="a").all()):
        taken = Rejections(log_on(place.wal), "a", kept.name.ordinal, kept.letter.chunk, replayed=kept.letter)
        list(taken.read())
        taken.close(kept.letter.chunk)
    assert len(place.wal.list("sinks/a/dead-letters", recursive=True)) == 6
    assert letters(place) == (3, 6, 0, True)

    DeadLetters(log_on(place.wal), name="a").replay(Recorder())
    assert letters(place) == (0, 0, 3, True)


def test_rows_that_are_refused_again_count_once() -> None:
    place = refused()
    result = DeadLetters(log_on(place.wal), name="a").replay(lambda _chunk: Rejected({0: "still not"}))
    assert (result.letters, result.rejected) == (3, 3)
    assert letters(place) == (3, 3, 3, True)


def test_rows_of_unknown_outcome_count_too() -> None:
    place = refused(through=0)
    (kept,) = DeadLetters(log_on(place.wal), name="a").all()
    keep_unknown(log_on(place.wal), "a", 7, kept.letter.chunk, reason="no answer")
    assert letters(place) == (2, 4, 0, True)


def test_a_letter_that_is_deleted_meanwhile_counts_no_longer() -> None:
    place = refused()

    def delete(what: str, where: str) -> None:
        if what == "before read" and where.startswith("sinks/a/dead-letters/"):
            place.wal.delete([where])

    assert look(FaultyStore(place.wal, delete)) == Letters()


def reads(requests: list[str]) -> int:
    return len([request for request in requests if request.startswith("before read sinks/a/dead-letters/")])


def test_the_cost_of_many_letters_is_bounded() -> None:
    place = refused(through=MOST_LETTERS + 4)
    requests: list[str] = []
    store = FaultyStore(place.wal, lambda what, where: requests.append(f"{what} {where}"))

    found = look(store)

    assert (found.due, found.rows, found.is_exact) == (MOST_LETTERS, 2 * MOST_LETTERS, False)
    assert (found.files, found.note) == (MOST_LETTERS + 5, f"{MOST_LETTERS} of {MOST_LETTERS + 5} files were read")
    assert reads(requests) == MOST_LETTERS
    assert len([request for request in requests if request.startswith("before list sinks/a/dead-letters")]) == 1


def test_large_letters_are_not_read_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.operate.health, "MOST_BYTES", 1)
    place = refused(through=9)
    requests: list[str] = []
    found = look(FaultyStore(place.wal, lambda what, path: requests.append(f"{what} {path}")))
    assert (found.due, found.files, found.is_exact, reads(requests)) == (4, 10, False, 4)


def damage(place: Place, which: int) -> None:
    path = f"sinks/a/dead-letters/{place.wal.list('sinks/a/dead-letters', recursive=True)[which]}"
    data = bytearray(place.wal.read(path))
    data[40] ^= 1
    place.wal.delete([path])
    place.wal.create(path, bytes(data))


def test_a_damaged_letter_is_told_and_hides_no_other() -> None:
    place = refused()
    damage(place, 0)
    found = look(place.wal)
    assert (found.due, found.rows, found.files, found.is_exact) == (2, 4, 3, False)
    assert found.note.startswith("1 file cannot be read, the first: ")


def test_letters_that_a_damaged_one_may_repeat_do_not_count() -> None:
    """Else the numbers would not be those of which there are at least as many."""
    place = refused(through=0)
    DeadLetters(log_on(place.wal), name="a").replay(lambda _chunk: Rejected({0: "still not"}))
    place.wal.delete([f"sinks/a/dead-letters/{name}" for name in _records_of_replays(place)])
    assert letters(place) == (2, 2, 0, True)
    damage(place, 1)
    found = look(place.wal)
    assert (found.due, found.rows, found.since, found.files, found.is_exact) == (0, 0, None, 2, False)


def _records_of_replays(place: Place) -> list[str]:
    return [name for name in place.wal.list("sinks/a/dead-letters", recursive=True) if name.endswith(".replayed.json")]


def test_a_number_that_cannot_be_excluded_is_too_many() -> None:
    """The files tell the most that there can be."""
    assert not Letters(due=3, files=3).may_exceed(3)
    assert not Letters(due=1, files=5).may_exceed(3)
    assert Letters(due=4, files=4).may_exceed(3)
    assert Letters(due=1, files=5, is_exact=False).may_exceed(3)
    assert not Letters(due=1, files=3, is_exact=False).may_exceed(3)
