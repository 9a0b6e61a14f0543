"""A transactional target's answers about its slots: how they are read, and the effect of an invalid answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pytest

from tests.house.log import SegmentRef, paths
from tests.house.protocol import Run, SegmentResult, read_dead_letter
from tests.house.sinks import Chunk, FailureKind, Position, Sink, SinkSession, as_sink
from tests.house.support import DirectCall
from tests.support.forgetting import Forgetful, Row, Target, raising, rows_of
from tests.support.one_segment import Stage
from tests.support.small_run import Place, Recorder
from wal_sink.errors import CorruptError, DeliveryError, HistoryError, OutcomeUnknownError
from wal_sink.protocol.messages import LastDelivered
from wal_sink.settings import Delivery, Retry
from wal_sink.sinks.ledger import stored_position

BAD: Row = (0, 0, 3)


def confirmed(
    stage: Stage, sink: Sink, segments: Sequence[SegmentRef], last_delivered: LastDelivered | None = None
) -> list[SegmentResult]:
    given = replace(stage.given, last_delivered=last_delivered)
    session = SinkSession(sink, DirectCall(), given.context(on_executor=True), timeout_s=10)
    return stage.delivery(given, session).confirm(segments)


def complete(place: Place, run: Run, batches: int = 1) -> None:
    assert list(place.query().batches(run, batches))


# One question.


def test_a_target_without_positions_is_asked_nothing() -> None:
    stage, recorder = Stage(), Recorder()
    sink = as_sink(recorder)
    assert isinstance(sink, Sink)

    assert confirmed(stage, sink, [stage.segment]) == []
    assert recorder.tries == 0


def test_a_target_that_owes_nothing_is_asked_nothing() -> None:
    target = Target()

    assert confirmed(Stage(), Forgetful(target), []) == []
    assert target.met == []


def test_a_batch_and_what_was_marked_before_it_are_asked_for_at_once() -> None:
    stage, asked = Stage(), list[Sequence[str]]()

    class AtOnce(Forgetful):
        def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
            asked.append(slots)
            return {slot: Position(slot, 0, 5, stage.segment.id) for slot in slots}

    found = confirmed(stage, AtOnce(Target()), [stage.segment], LastDelivered(((-1, 2), (-1, 1))))

    assert asked == [["w/a/0", "w/a/1"]]
    assert found == [SegmentResult(0, 5)]


def test_a_segment_that_is_behind_is_told_with_what_the_target_has_of_it() -> None:
    stage = Stage()

    (found,) = confirmed(stage, Forgetful(Target()), [stage.segment])

    assert (found.ordinal, found.rows) == (0, 0)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.FORGOTTEN
    assert f"segment 0 ({stage.segment.id}): the target has 0 of 5 rows" in found.failure.message


def test_a_last_delivered_that_is_gone_is_history_and_a_target_that_does_not_answer_may_be_asked_again() -> None:
    stage, unreachable = Stage(), Target()
    unreachable.happens("last", 1, raising(ConnectionError("unreachable")))

    gone = confirmed(stage, Forgetful(Target()), [], LastDelivered(((-1, 2),)))
    unanswered = confirmed(stage, Forgetful(unreachable), [stage.segment])

    assert [(result.ordinal, result.failure and result.failure.kind) for result in [*gone, *unanswered]] == [
        (-1, FailureKind.HISTORY),
        (-1, FailureKind.RETRIABLE),
    ]


def test_positions_that_came_too_late_may_be_asked_for_again_since_nothing_was_sent() -> None:
    stage, late = Stage(), Target()
    late.happens("last", 1, raising(OutcomeUnknownError("too late")))

    (found,) = confirmed(stage, Forgetful(late), [stage.segment])

    assert found.failure is not None
    assert found.failure.kind is FailureKind.RETRIABLE
    assert found.failure.message.startswith("positions of 1 slots from 'w/a/0'")


@pytest.mark.parametrize("answer", [None, {}, {"another slot": None}, ["w"]], ids=str)
def test_an_answer_that_leaves_slots_out_is_refused_for_good(answer: Any) -> None:
    class Silent(Forgetful):
        def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:  # noqa: ARG002
            found: Mapping[str, Position | None] = answer
            return found

    place = Place(rows=lambda _: [2])
    run = place.open({"a": Silent(Target())})
    complete(place, run)

    with pytest.raises(DeliveryError, match=r"positions of 1 slots from '.*/a/0': expected a mapping with every slot"):
        run.deliver_all()
    assert not place.wal.list(paths.markers("a"))


ODD: dict[str, Callable[[str], object]] = {
    "a tuple": lambda slot: (slot, 0, 2, "x"),
    "false": lambda _: False,
    "zero": lambda _: 0,
    "another slot": lambda slot: Position(f"{slot}x", 0, 2, "x"),
    "text": lambda slot: Position(slot, cast("int", "0"), 2, "x"),
    "true": lambda slot: Position(slot, 0, True, "x"),
    "no rows": lambda slot: Position(slot, 0, cast("int", None), "x"),
    "below 0": lambda slot: Position(slot, 0, -1, "x"),
    "a half": lambda slot: Position(slot, 0, cast("int", 0.5), "x"),
    "no number": lambda slot: Position(slot, 0, cast("int", math.nan), "x"),
    "bytes": lambda slot: Position(slot, 0, 2, cast("str", b"x")),
}


@pytest.mark.parametrize("call", ["last", "positions"])
def test_an_answer_that_is_no_position_of_its_slot_is_refused_for_good(call: str) -> None:
    for answer in ODD.values():
        refuse_for_good(call, answer)


def refuse_for_good(call: str, odd: Callable[[str], object]) -> None:
    class Odd(Forgetful):
        def last(self, slot: str) -> Position | None:
            return cast("Position", odd(slot)) if call == "last" else super().last(slot)

        def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
            return {slot: cast("Position", odd(slot)) for slot in slots}

    place = Place(rows=lambda _: [2])
    run = place.open({"a": Odd(Target())})
    complete(place, run)

    asked = {"last": r"last\('.*/a/0'\)", "positions": "positions of 1 slots from '.*/a/0'"}[call]
    with pytest.raises(DeliveryError, match=rf"{asked} returned .*: expected None, or a Position of the slot '.*/a/0'"):
        run.deliver_all()
    assert not place.wal.list(paths.markers("a"))


def test_numbers_of_another_kind_are_taken_as_plain_ones() -> None:
    for number in [Decimal, float, np.int64]:
        found = stored_position("last", "w/a/0", Position("w/a/0", number(3), number(2), "x"))

        assert found is not None
        assert found == Position("w/a/0", 3, 2, "x")
        assert (type(found.batch_id), type(found.rows)) == (int, int)


def test_more_rows_than_the_segment_has_are_history() -> None:
    stage = Stage()

    class Boasting(Forgetful):
        def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
            return {slot: Position(slot, stage.given.batch_id, 6, stage.segment.id) for slot in slots}

    (found,) = confirmed(stage, Boasting(Target()), [stage.segment])

    assert found.failure is not None
    assert found.failure.kind is FailureKind.HISTORY
    told = f"holds 6 rows of segment {stage.segment.id}, but this segment has 5 rows, in slot 'w/a/0'"
    assert told in found.failure.message


# The batches that the newest marker stands for.


def test_a_marked_batch_without_its_release_or_manifest_is_damage() -> None:
    for doomed in ["release", "manifest"]:
        target, place = Target(), Place(rows=lambda _: [2])
        run = place.open({"a": Forgetful(target)})
        complete(place, run)
        run.deliver_all()
        names = [name for name in place.wal.list(paths.batch(0)) if name.startswith(doomed)]
        place.wal.delete(f"{paths.batch(0)}/{name}" for name in names)

        next_run = place.open({"a": Forgetful(target)})
        with pytest.raises(
            CorruptError,
            match=rf"/{doomed}\S* is gone, but it must have existed.*: sinks/a/markers/.*life-cycle rule",
        ):
            next_run.deliver_all()


def test_a_slot_that_the_newest_batch_did_not_use_is_watched_all_the_same() -> None:
    """Its rows are of an earlier batch, which had more segments."""
    target, place = Target(), Place(rows=lambda batch_id: [2, 1, 1] if batch_id == 0 else [1])
    run = place.open({"a": Forgetful(target)})
    complete(place, run, 3)
    run.deliver_all()

    target.forget(1, slot=2)

    with pytest.raises(
        HistoryError, match=r"batch 0 was delivered and marked, .* the target holds nothing in slot '.*/a/2'"
    ):
        run.committers[0].confirm_marked()


# Possible senders.


def test_who_takes_over_reads_the_names_of_dead_letters_and_of_nothing_else_beside_them() -> None:
    target, place = Target(bad=frozenset({BAD})), Place(rows=lambda _: [6])
    first = place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter", retry=Retry(attempts=1))})
    complete(place, first)
    target.happens("write", 4, raising(ConnectionError("unreachable")))
    with pytest.raises(DeliveryError):
        first.deliver_all()
    place.wal.create(f"{paths.dead_letter_folder('a', 0)}/notes.txt", b"by hand")

    place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter")}).deliver_all()

    assert target.rows == [row for row in rows_of([6]) if row != BAD]


def test_a_dead_letter_under_a_name_that_is_none_is_damage() -> None:
    """Where its chunk began is said by its name."""
    target, place = Target(bad=frozenset({BAD})), Place(rows=lambda _: [6])
    run = place.open({"a": Delivery(Forgetful(target), on_rejected="dead_letter")})
    complete(place, run)
    run.deliver_all()
    folder = paths.dead_letter_folder("a", 0)
    (name,) = place.wal.list(folder)
    place.wal.create(f"{folder}/copy-of-{name}", place.wal.read(f"{folder}/{name}"))

    assert read_dead_letter(place.wal, f"{folder}/{name}").chunk.start == 2
    with pytest.raises(CorruptError, match=r"copy-of-.*: expected the name of a dead letter; restore the object"):
        read_dead_letter(place.wal, f"{folder}/copy-of-{name}")


def test_damage_that_is_a_batch_which_a_predecessor_marked_late_is_none() -> None:
    """And may have been collected since: the process that met it goes on from that marker."""
    place = Place()
    first = place.open({"a": Recorder()})
    complete(place, first)
    staged = first.history.staged(0)
    assert staged is not None

    def overtaken(chunk: Chunk) -> None:
        if chunk.batch_id == 0:
            first.committers[0]._mark([staged], {})
            raise CorruptError("its segment is gone")

    sink = Recorder(fail=overtaken)
    second = place.open({"a": sink})
    complete(place, second, 2)
    second.deliver_all()

    assert sink.batches == [1]
    assert second.committers[0].marked_through == 1
