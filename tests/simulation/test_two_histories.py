"""Two histories of one batch id that meet while processes live: cases that the specification found, run on the code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.house.log import Manifest, paths
from tests.house.protocol import (
    Checkpoint,
    DeliveryContext,
    DispatcherLostError,
    Gate,
    Run,
    SegmentResult,
    SegmentTask,
    ServedSink,
)
from tests.house.sinks import Failure, FailureKind, as_sink, promise
from tests.simulation.histories.targets import LedgerTarget
from tests.simulation.world import World
from tests.support.small_run import Place, Recorder, numbers
from wal_sink.errors import ConfigError, FencedError, HistoryError
from wal_sink.protocol.history import KEPT_MANIFESTS
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import FakeQuery


def query_of(place: Place, *, first_row: int = 0) -> FakeQuery:
    """A query whose rows tell from which query they come."""
    return FakeQuery(place.checkpoint, lambda batch_id, _: [numbers(batch_id + first_row, 1)])


def completed(place: Place, run: Run, count: int) -> FakeQuery:
    """Stage and complete batches, and deliver none."""
    query = query_of(place)
    assert len(list(query.batches(run, count))) == count
    return query


def rows(sink: Recorder) -> list[int]:
    return [int(str(row)) for chunk in sink.chunks for row in chunk.table["batch"].to_pylist()]


# The gate.


def test_a_gate_that_was_open_before_a_roll_back_does_not_let_the_new_batch_through() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    query = completed(place, run, 3)
    run.gate.search()
    query.roll_back(0)
    again = query_of(place, first_row=1000)
    run.become_stager()
    again.start_batch(1, 77)
    again.stage(run, 1)

    run.deliver_all()
    assert rows(sink) == [0]

    again.complete_batch(1)
    run.deliver_all()
    assert rows(sink) == [0, 1001]


def test_a_drainer_asks_the_gate_again_before_it_releases_what_another_staged() -> None:
    place, sink = Place(), Recorder()
    stager = place.open({})
    query = completed(place, stager, 3)
    drainer = place.open({"a": Delivery(sink, start_from="earliest")})
    query.roll_back(0)
    again = query_of(place, first_row=1000)
    stager.become_stager()
    again.start_batch(1, 77)
    again.stage(stager, 1)

    drainer.deliver_all()
    assert rows(sink) == [0]

    again.complete_batch(1)
    drainer.deliver_all()
    assert rows(sink) == [0, 1001]


# The release.


def test_a_release_that_meets_another_history_is_not_delivered() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    query = completed(place, run, 1)
    create = place.wal.create

    def roll_back_first(path: str, data: bytes) -> None:
        if path.endswith("release.json"):
            query.roll_back(-1)
            query_of(place).start_batch(0, 77)
        create(path, data)

    place.wal.create = roll_back_first  # type: ignore[method-assign]

    with pytest.raises(HistoryError, match="under the same id"):
        run.deliver_all()
    assert rows(sink) == []


# The owner of the offsets.


def test_a_stager_whose_checkpoint_was_taken_over_stages_nothing() -> None:
    place = Place()
    late, fast = place.open({}), place.open({})
    slow_query, fast_query = query_of(place), query_of(place, first_row=1000)
    slow_query.start_batch(0, 0)
    slow_query.roll_back(-1)
    fast_query.start_batch(0, 77)

    with pytest.raises(FencedError):
        slow_query.stage(late, 0)

    assert not place.wal.list(paths.batch(0))
    assert fast_query.stage(fast, 0)


def test_a_query_started_again_reads_what_others_did_meanwhile() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    query = query_of(place)
    query.start_batch(0, 0)
    query.stage(run, 0)
    other = place.open({})
    query_of(place).stage(other, 0)
    query_of(place).complete_batch(0)
    assert list(query_of(place).batches(other, 3)) == [1, 2]

    run.become_stager()
    query.start_batch(3, 3)
    assert query.stage(run, 3)


# A delivery job that was given up.


class LosingDispatcher:
    """A dispatcher that loses its first job. The tasks of this job may still run."""

    whole_batch = False

    def __init__(self, how: str) -> None:
        self.how = how
        self.terms: list[int] = []

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,  # noqa: ARG002
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool = False,  # noqa: ARG002
    ) -> list[SegmentResult]:
        self.terms.append(delivery_context.term.number)
        if len(self.terms) > 1:
            return [SegmentResult(task.ordinal, task.segment.rows, chunks=1) for task in tasks]
        if self.how == "job":
            raise DispatcherLostError("the job is gone")
        return [SegmentResult(task.ordinal, 0, failure=Failure(FailureKind.LOST, "run again")) for task in tasks]


@pytest.mark.parametrize("how", ["job", "task"])
def test_after_a_lost_job_the_committer_goes_on_under_its_next_term(how: str) -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    completed(place, run, 1)
    dispatcher = _with_dispatcher(run, LosingDispatcher(how))

    run.deliver_all()

    assert dispatcher.terms == [1, 2]
    assert run.committers[0].term.number == 2
    assert place.wal.list(paths.markers("a"))


def test_a_committer_that_was_superseded_while_its_job_was_lost_sends_no_more() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    completed(place, run, 1)
    dispatcher = _with_dispatcher(run, LosingDispatcher("job"))
    lost = dispatcher.deliver

    def superseded_meanwhile(
        delivery_context: DeliveryContext, manifest: Manifest, tasks: Sequence[SegmentTask], *, confirm: bool = False
    ) -> list[SegmentResult]:
        if not dispatcher.terms:
            place.open({"a": Recorder()})
        return lost(delivery_context, manifest, tasks, confirm=confirm)

    dispatcher.deliver = superseded_meanwhile  # type: ignore[method-assign]

    with pytest.raises(FencedError):
        run.deliver_all()
    assert dispatcher.terms == [1]


def _with_dispatcher(run: Run, dispatcher: LosingDispatcher) -> LosingDispatcher:
    sink = as_sink(Recorder())
    delivery = Delivery(None)
    run.committers[0]._served_sink = ServedSink("a", delivery, promise(sink, delivery, "a"), dispatcher)
    return dispatcher


def test_at_most_once_checks_its_term_between_the_record_and_the_send() -> None:
    place = Place(rows=lambda _: [3])
    run = place.open({"a": Delivery(Recorder(), guarantee="at_most_once")})
    completed_batches = list(place.query().batches(run, 1))
    place.requests.clear()

    run.deliver_all()

    assert completed_batches == [0]
    seen = [name for name in place.requests if name.startswith(("create sinks/a/progress", "read terms/committer-a"))]
    assert [name.split()[0] for name in seen] == ["read", "create", "read", "create", "read"]


def test_at_most_once_a_record_made_after_everything_was_collected_sends_nothing() -> None:
    place, sink = Place(rows=lambda _: [3]), Recorder()
    run = place.open({"a": Delivery(sink, guarantee="at_most_once")})
    list(place.query().batches(run, 1))
    create = place.wal.create

    def overtaken(path: str, data: bytes) -> None:
        if "/progress/" in path and len(place.wal.list(paths.terms("committer-a"))) == 1:
            place.open({"a": Delivery(sink, guarantee="at_most_once")}).deliver_all()
            left = [name for name in place.wal.list("sinks/a", recursive=True) if name.startswith("progress")]
            place.wal.delete(f"sinks/a/{name}" for name in left)
        create(path, data)

    place.wal.create = overtaken  # type: ignore[method-assign]

    with pytest.raises(FencedError):
        run.deliver_all()
    assert len(sink.keys) == len(set(sink.keys)) == 2


# Names and kinds.


# The memory of a run.


# The memory of a transactional target.


def test_every_slot_of_the_last_batch_is_asked_for() -> None:
    world = World("transactional", batches=((3, 2), (1,)), lagging=True)
    life = world.life()
    run = life.open_run()
    batches = life.batches(run)
    next(batches)
    life.deliver_all(run)
    target = world.target
    assert isinstance(target, LedgerTarget)
    second_slot = next(slot for slot in target.ledger if slot.endswith("/1"))
    del target.ledger[second_slot]  # the target is restored to a time at which only the first segment had arrived

    next(batches)
    with pytest.raises(HistoryError, match=r"batch 0 was delivered and marked, .* nothing in slot .*/1'"):
        life.deliver_all(run)

    assert {batch for _, batch, _ in world.rows} == {0}


def test_an_answer_that_was_under_way_when_the_gate_closed_is_not_remembered() -> None:
    class Closing:
        root = "x"

        def read(self, path: str) -> bytes:
            assert path == "commits/5"
            gate.close_from(5)
            return b"v1\n{}"

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:  # noqa: ARG002
            return []

    gate = Gate(Checkpoint(Closing()))

    assert gate.is_open(5)
    assert gate.search() < 5


def test_a_refused_start_registers_none_of_its_sinks() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)

    with pytest.raises(ConfigError, match="'c' is new"):
        place.open({"b": Delivery(Recorder(), start_from="next"), "c": Recorder()})

    assert place.wal.list(paths.SINKS) == ["a/"]


def test_a_backlog_larger_than_the_memory_for_manifests_arrives_all_the_same() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    completed(place, run, KEPT_MANIFESTS + 20)
    assert len(run.history._staged) == KEPT_MANIFESTS
    assert run.history.pending(before=10_000)[0] == KEPT_MANIFESTS + 20

    run.deliver_all()

    assert sink.batches == list(range(KEPT_MANIFESTS + 20))
    assert run.history.pending(before=10_000) == (0, 0)


def test_a_parked_sink_costs_no_manifests() -> None:
    def broken(_: object) -> None:
        raise ValueError("no")

    place = Place()
    run = place.open({"a": Recorder(), "b": Delivery(broken, retry=Retry(attempts=1), on_failure="park")})
    query = query_of(place)
    for _ in query.batches(run, 3):
        run.advance(run.committers[0])
        with pytest.raises(Exception, match="delivery stopped after 1 attempts"):
            run.advance(run.committers[1])

    assert run.advance(run.committers[0]) is False
    assert run.history.staged(1) is None
    assert run.history.pending(before=10) != (0, 0)
