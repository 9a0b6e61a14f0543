"""A transactional target that loses acknowledged commits: every row is there once, or an error says that it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.log import paths
from tests.house.protocol import Run, read_dead_letter
from tests.support.forgetting import Forgetful, Row, Target, raising, rows_of
from tests.support.small_run import Place, served_sink
from wal_sink.errors import DeliveryError, HistoryError
from wal_sink.operate.replay import DeadLetters
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.testing import simulated_runtime


def complete(place: Place, run: Run, batches: int = 1) -> None:
    """Batches that are staged and complete, and not delivered."""
    assert list(place.query().batches(run, batches))


def delivered(target: Target, *batches: list[int], **delivery: Any) -> Place:
    """Some batches, delivered by one run to its end."""
    place = Place(rows=lambda batch_id: batches[batch_id])
    run = place.open({"a": Delivery(Forgetful(target), **delivery)})
    complete(place, run, len(batches))
    run.deliver_all()
    run.committers[0].confirm_marked()
    return place


def marked(place: Place) -> int:
    return len(place.wal.list(paths.markers("a")))


def letters(place: Place, *, batch_id: int = 0) -> list[tuple[int, int]]:
    """Segment and row of everything that is kept as a dead letter, as often as it is kept."""
    folder = paths.dead_letter_folder("a", batch_id)
    names = [name for name in place.wal.list(folder) if name.endswith(".parquet")]
    found = [(name, read_dead_letter(place.wal, f"{folder}/{name}")) for name in names]
    return sorted((int(name.split("-")[0]), row) for name, letter in found for row in letter.chunk.rows)


# Within a batch.


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize(
    "at", [("write", 3), ("wrote", 2), ("write", 2), ("wrote", 1)], ids=lambda at: f"{at[0]}-{at[1]}"
)
def test_rows_that_one_segment_lost_in_the_middle_of_its_batch_are_sent_again(lost: int, at: tuple[str, int]) -> None:
    target = Target()
    target.happens(*at, lambda: target.forget(lost))

    place = delivered(target, [6])

    assert target.rows == rows_of([6])
    assert marked(place) == 1


def test_rows_that_a_finished_segment_lost_while_another_was_sent_are_sent_again() -> None:
    target = Target()
    target.happens("write", 3, lambda: target.forget(1, slot=0))

    delivered(target, [2, 4])

    assert target.rows == rows_of([2, 4])


def test_a_point_in_time_that_takes_from_both_segments_is_noticed_where_no_send_failed() -> None:
    target = Target()
    target.happens("wrote", 2, lambda: target.forget(2))

    delivered(target, [2, 2])

    assert target.rows == rows_of([2, 2])


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("most", [None, 1])
def test_rows_that_were_lost_after_the_last_chunk_are_sent_before_the_marker(lost: int, most: int | None) -> None:
    target = Target()
    target.happens("wrote", 3, lambda: target.forget(lost))

    place = delivered(target, [4, 1], max_concurrency=most)

    assert target.rows == rows_of([4, 1])
    assert marked(place) == 1


def test_a_question_before_the_marker_that_failed_is_asked_again() -> None:
    """Nothing is left to send then, and the question is all that stands between the target and the marker."""
    target = Target()
    target.happens("last", 2, raising(ConnectionError("not now"), after=target.forget))

    delivered(target, [4])

    assert target.met.count("last") >= 3
    assert target.rows == rows_of([4])


def test_a_loss_that_ended_a_run_is_told_again_when_it_goes_on() -> None:
    """It must not be taken for delivered because nothing was left to send."""
    target, place = Target(), Place(rows=lambda _: [2])
    run = place.open({"a": Forgetful(target)})
    complete(place, run, 2)
    assert run.advance(run.committers[0])
    target.happens("last", target.met.count("last") + 2, lambda: target.forget(2))

    for _ in range(2):
        with pytest.raises(HistoryError, match="batch 0 was delivered and marked, but the target holds nothing"):
            run.deliver_all()

    assert marked(place) == 1


# Before what was delivered last.


@pytest.mark.parametrize("at", [("last", 1), ("write", 1), ("wrote", 1), ("write", 2), ("wrote", 2)], ids=str)
@pytest.mark.parametrize("segments", [[3], [2, 2]], ids=str)
def test_what_was_lost_of_a_marked_batch_ends_the_run_with_what_is_missing(
    at: tuple[str, int], segments: list[int]
) -> None:
    target, place = Target(), Place(rows=lambda _: segments)
    run = place.open({"a": Forgetful(target)})
    complete(place, run)
    run.deliver_all()
    complete(place, run, 2)
    what, number = at
    target.happens(what, target.met.count(what) + number, lambda: target.forget(99))

    with pytest.raises(HistoryError, match=r"batch 0 was delivered and marked, but the target holds nothing in slot"):
        run.deliver_all()

    assert marked(place) == 1


def test_a_start_with_nothing_to_deliver_reads_the_last_delivered() -> None:
    target = Target()
    place = delivered(target, [3])
    target.forget(1)

    run = place.open({"a": Forgetful(target)})
    with pytest.raises(HistoryError, match="batch 0 was delivered and marked, but the target holds batch 0, row 2"):
        run.deliver_all()


def test_a_target_that_does_not_answer_at_the_end_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    target, place = Target(), Place(rows=lambda _: [3])
    run = place.open({"a": Forgetful(target)})
    complete(place, run)
    run.deliver_all()
    before = target.met.count("last")
    target.happens("last", before + 1, raising(ConnectionError("not now")))

    run.committers[0].confirm_marked()

    assert target.met.count("last") == before + 2
    (text,) = [text for text in caplog.messages if "not now" in text]
    assert text.startswith("batch 0, sink 'a': attempt 1 of 8 failed at ")


def test_a_run_that_marked_nothing_asks_nothing_when_it_starts_and_ends() -> None:
    target, place = Target(), Place(rows=lambda _: [3])
    run = place.open({"a": Forgetful(target)})

    run.deliver_all()
    run.committers[0].confirm_marked()

    assert target.met == []


def test_a_last_delivered_is_read_under_the_id_of_its_own_wal() -> None:
    """A process that opened the WAL before its first batch, and found a marker when it claimed its term."""
    target, place = Target(), Place(rows=lambda _: [3])
    create = place.wal.create

    def overtaken(path: str, data: bytes) -> None:
        if path.startswith("terms/committer") and not place.wal.list(paths.terms("committer-a")):
            place.wal.create = create  # type: ignore[method-assign]
            first = place.open({"a": Forgetful(target)})
            complete(place, first)
            first.deliver_all()
        create(path, data)

    place.wal.create = overtaken  # type: ignore[method-assign]
    second = Run(place.wal, place.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime(seed=99))
    second.open([served_sink(second, "a", Forgetful(target))])

    second.deliver_all()
    second.committers[0].confirm_marked()

    assert target.rows == rows_of([3])


# Refused rows.

BAD: Row = (0, 0, 3)
"""Of the second chunk of the first segment."""


def kept_once(place: Place, target: Target, *segments: int) -> None:
    """Every row is in the target once, the bad one among the dead letters once."""
    assert letters(place) == [BAD[1:]]
    assert target.rows == [row for row in rows_of(list(segments)) if row != BAD]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_refused_row_is_adopted_once_when_its_chunk_is_sent_again(lost: int) -> None:
    target = Target(bad=frozenset({BAD}))
    target.happens("write", 4, lambda: target.forget(lost))  # before the third chunk; the second was sent twice

    place = delivered(target, [6], on_rejected="dead_letter")

    kept_once(place, target, 6)


def test_a_row_that_was_refused_and_is_taken_when_it_comes_again_is_not_in_both() -> None:
    target = Target(bad=frozenset({BAD}))

    def repaired() -> None:
        target.bad = frozenset()
        target.forget(2)

    target.happens("wrote", 4, repaired)

    place = delivered(target, [6], on_rejected="dead_letter")

    kept_once(place, target, 6)


def test_a_second_process_adopts_what_the_first_one_kept() -> None:
    """The chunk with the refused row is not the one that the second process begins with."""
    target, place = Target(bad=frozenset({BAD})), Place(rows=lambda _: [6, 2])
    first = place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter", retry=Retry(attempts=1))})
    complete(place, first)
    target.happens("write", 4, raising(ConnectionError("unreachable")))
    with pytest.raises(DeliveryError):
        first.deliver_all()

    target.forget(99)
    second = place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter")})
    second.deliver_all()

    kept_once(place, target, 6, 2)


def test_a_second_process_under_another_policy_adopts_it_too() -> None:
    """Which would halt at the same row otherwise, though it was kept."""
    target, place = Target(bad=frozenset({BAD})), Place(rows=lambda _: [6])
    first = place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter", retry=Retry(attempts=1))})
    complete(place, first)
    target.happens("write", 4, raising(ConnectionError("unreachable")))
    with pytest.raises(DeliveryError):
        first.deliver_all()

    target.forget(99)
    place.open({"a": Delivery(Forgetful(target), on_rejected="halt")}).deliver_all()

    kept_once(place, target, 6)


def test_a_replay_of_dead_letters_follows_nothing() -> None:
    """Its slot is its own: whatever the other slots hold, it is written, once."""
    target = Target(bad=frozenset({BAD}))
    place = delivered(target, [6], on_rejected="dead_letter")
    run = place.open({"a": Forgetful(target)})
    target.bad = frozenset()
    target.forget(99)

    again = DeadLetters(run.log, name="a").replay(Forgetful(target))

    assert (again.letters, again.rows, again.rejected) == (1, 1, 0)
    assert [commit.slot.split("/")[1:3] for commit in target.commits] == [["a", "0"]]
    assert [number for commit in target.commits for _, _, number in commit.rows] == [BAD[2]]


# Late answers, and budgets.


def test_an_answer_that_comes_late_is_no_error() -> None:
    """The first chunk arrives between the next attempt's question and its first send."""
    target, place = Target(), Place(rows=lambda _: [4])
    sink = Forgetful(target)
    late: list[Any] = []
    commit = sink.commit

    def stalled(chunk: Any) -> Any:
        if not late:
            late.append(chunk)
            raise ConnectionError("no answer in time")
        if len(late) == 1:
            late.append(commit(late[0]))
        return commit(chunk)

    sink.commit = stalled  # type: ignore[method-assign]
    run = place.open({"a": sink})
    complete(place, run)

    run.deliver_all()

    assert target.rows == rows_of([4])
    assert marked(place) == 1


@pytest.mark.parametrize("what", ["wrote", "last"])
def test_a_target_that_forgets_for_ever_ends_with_a_spent_budget(what: str) -> None:
    target = Target()
    for number in range(3 if what == "last" else 1, 200):
        target.happens(what, number, lambda: target.forget(1))

    with pytest.raises(
        DeliveryError,
        match=r"batch 0, sink 'a': delivery stopped after 4 attempts .*(but it|lost rows that it) acknowledged",
    ):
        delivered(target, [4, 4], retry=Retry(attempts=4))

    assert target.met.count("write") < 60


def test_a_target_that_forgets_less_than_it_takes_comes_to_its_end() -> None:
    """Each attempt gets further than any before, which renews the budget."""
    target = Target()
    for number in range(3, 30, 3):
        target.happens("wrote", number, lambda: target.forget(1))

    delivered(target, [16], retry=Retry(attempts=2))

    assert target.rows == rows_of([16])


def test_a_loss_is_told_with_what_is_missing_and_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    target.happens("write", 2, lambda: target.forget(1))

    delivered(target, [4])

    told = "the slot is at nothing, expected it at batch 0, row 2. The target lost rows that it acknowledged"
    assert told in caplog.text
    assert "Find out whether it failed over to a standby that lagged" in caplog.text
