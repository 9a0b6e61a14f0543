"""Dead letters are counted with their rows, until they are sent again or deleted."""

from __future__ import annotations

from tests.support.repairs import log_on
from tests.support.small_run import Place, Recorder
from wal_sink.dead_letters.files import keep_unknown
from wal_sink.dead_letters.rejections import Rejections
from wal_sink.inspection.letters import Letters, read_letters
from wal_sink.replay import DeadLetters
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing import FaultyStore


def refuse(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "no"))


def refused(*, rows: int = 2, through: int = 2) -> Place:
    place = Place(rows=lambda _: [rows])
    place.stream(place.open({"a": Delivery(refuse, on_rejected="dead_letter")}), through)
    return place


def letters(place: Place) -> tuple[int, int, int, bool]:
    found = read_letters(place.wal, "a")
    assert (found.since is None) == (found.due == 0)
    return found.due, found.rows, found.replayed, found.is_exact


def test_a_sink_without_dead_letters_has_none() -> None:
    place = Place(rows=lambda _: [2])
    place.stream(place.open({"a": Recorder()}), 0)
    assert read_letters(place.wal, "a") == Letters()


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
        if what == "before read":
            place.wal.delete([where])

    assert read_letters(FaultyStore(place.wal, delete), "a") == Letters()


def test_the_cost_of_many_letters_is_bounded() -> None:
    place = refused(through=9)
    requests: list[str] = []
    store = FaultyStore(place.wal, lambda what, where: requests.append(f"{what} {where}"))

    found = read_letters(store, "a", most=4)

    assert (found.due, found.rows, found.is_exact) == (4, 8, False)
    assert len([request for request in requests if request.startswith("before read")]) == 4
