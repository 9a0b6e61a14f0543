"""The dispatcher of the driver: which object it calls, and the result of one that cannot be made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.house.log import SegmentRef, Term
from tests.house.protocol import SMALL_BATCH_BYTES, DeliveryContext, LocalDispatcher, Run, SegmentResult, SegmentTask
from tests.house.sinks import Chunk, Failure, FailureKind, Sink, SinkContext, as_sink
from tests.house.support import DirectCall, StoppedError, host_name
from tests.support.forgetting import Forgetful, Target
from tests.support.hanging_calls import Hangs
from tests.support.small_run import Place, Recorder, served_sink
from wal_sink.errors import DeliveryError, PermanentError
from wal_sink.protocol.dispatch import SMALL_BATCH_SEGMENTS, carry_out, copier, is_small
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import simulated_runtime

LIMIT_S = 0.05


class Hanging(Sink):
    """Its first write in this process hangs until it is released. Every instance notes what it was called with."""

    hangs = Hangs()
    made: ClassVar[list[Hanging]] = []

    def __init__(self, *, thing: object = None) -> None:
        self.thing = thing
        self.__setstate__({"thing": thing})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.thing = state["thing"]
        self.calls = 0
        Hanging.made.append(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"thing": self.thing}

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002
        self.calls += 1
        if not Hanging.hangs.is_hung:
            Hanging.hangs.wait()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Hanging.hangs, Hanging.made = Hangs(), []
    yield
    Hanging.hangs.release.set()


def with_batch(sink: Sink) -> Run:
    """A run with one complete batch for a sink that is served in this process, as `where="driver"` is."""
    place = Place(rows=lambda _: [1])
    run = place.open(
        {"a": Recorder()}, runtime=replace(simulated_runtime(seed=99), new_timed_call=Hanging.hangs.new_timed_call)
    )
    given = served_sink(run, "a", Delivery(sink, retry=Retry(attempt_timeout_s=LIMIT_S)))
    dispatcher = LocalDispatcher(lambda: sink, run.log, should_stop=lambda: False, copy_sink=copier(sink))
    run.committers[0]._served_sink = replace(given, dispatcher=dispatcher)
    next(place.query().batches(run, 1))
    return run


def test_a_copy_is_called_while_a_call_may_still_run_in_the_sink() -> None:
    sink = Hanging()
    run = with_batch(sink)

    run.deliver_all()

    assert [made.calls for made in Hanging.made] == [1, 1]
    assert Hanging.made[0] is sink


def test_the_sink_itself_is_called_again_once_the_call_that_timed_out_came_back() -> None:
    sink = Hanging(thing=threading.Lock())
    run = with_batch(sink)
    dispatcher = run.committers[0].served_sink.dispatcher
    real = dispatcher.deliver

    def deliver(*args: Any, **options: Any) -> Any:
        results = real(*args, **options)
        Hanging.hangs.release.set()
        assert isinstance(dispatcher, LocalDispatcher)
        holder = dispatcher._holder
        while holder is not None and holder.busy:
            time.sleep(0.01)
        return results

    dispatcher.deliver = deliver  # type: ignore[method-assign]
    run.deliver_all()

    assert sink.calls == 2


def test_without_a_copy_a_sink_in_which_a_call_still_runs_has_failed_for_good() -> None:
    sink = Hanging(thing=threading.Lock())
    run = with_batch(sink)

    with pytest.raises(
        DeliveryError, match=r"a call of this sink is still running after 0\.05 s\. The sink cannot be called"
    ):
        run.deliver_all()

    assert sink.calls == 1


def test_other_runs_of_this_process_leave_a_sink_of_a_wal_alone_while_a_call_of_it_runs() -> None:
    made = list[DirectCall]()

    def new_timed_call() -> DirectCall:
        made.append(DirectCall())
        return made[-1]

    run, _ = staged(Place(), Told())
    manifest = run.history.staged(0)
    assert manifest is not None
    log = replace(run.log, runtime=replace(run.log.runtime, new_timed_call=new_timed_call))
    sink = Told()
    for run_id, name in [("one", "a"), ("another", "a"), ("one", "b")]:
        given = DeliveryContext("w", name, Term("r", 1), 0, ("batch", "row"), "", 2, 1, False, False, 7, None)
        dispatcher = LocalDispatcher(
            lambda: sink, replace(log, run_id=run_id), should_stop=lambda: False, objects=[sink]
        )
        dispatcher.deliver(given, manifest, [], confirm=False)

    of_one, of_another, of_other_sink = (each.claim for each in made)
    assert (of_one.run_id, of_another.run_id) == ("one", "another")
    assert of_one.things == of_another.things
    assert set(of_one.things) & set(of_other_sink.things) == {id(sink)}


# Copies.


def test_a_sink_that_is_bound_to_the_driver_is_not_copied() -> None:
    sink = Told()
    sink.driver_only = True
    assert copier(sink) is None


def test_a_function_that_holds_state_is_not_copied() -> None:
    seen: list[Chunk] = []
    sink = as_sink(lambda chunk: seen.insert(0, chunk))
    assert isinstance(sink, Sink)
    assert copier(sink) is None


class Plain(Sink):
    def write(self, chunk: Chunk) -> None:
        raise NotImplementedError


class Changing(Sink):
    """Idempotent, until it travels."""

    idempotent = True

    def __init__(self, becomes: Callable[[], object]) -> None:
        self.becomes = becomes

    def write(self, chunk: Chunk) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return self.becomes, ()


@pytest.mark.parametrize(("becomes", "found"), [(Plain, "plain"), (dict, "dict")])
def test_a_copy_of_another_kind_is_not_called(becomes: Callable[[], object], found: str) -> None:
    make, make_other = copier(Plain()), copier(Changing(becomes))
    assert make is not None
    assert make_other is not None
    assert isinstance(make(), Plain)

    with pytest.raises(PermanentError, match=f"a copy of the sink is “{found}”, expected “idempotent”"):
        make_other()


# The context of a sink and its dispatcher.


class Told(Sink):
    def __init__(self) -> None:
        self.on_executor: list[bool] = []
        self.written = 0

    def open(self, context: SinkContext) -> None:
        self.on_executor.append(context.on_executor)

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002
        self.written += 1


def staged(place: Place, sink: Sink, *, should_stop: Callable[[], bool] = lambda: False) -> tuple[Run, LocalDispatcher]:
    run = place.open({"a": sink})
    dispatcher = LocalDispatcher(lambda: sink, run.log, should_stop=should_stop)
    run.committers[0]._served_sink = replace(run.committers[0].served_sink, dispatcher=dispatcher)
    next(place.query().batches(run, 1))
    return run, dispatcher


def test_making_a_sink_is_bounded_in_time_as_its_calls_are() -> None:
    limits: list[float] = []

    class Noting(DirectCall):
        def call(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
            limits.append(timeout_s)
            return super().call(function, *args, timeout_s=timeout_s)

    run, _ = staged(Place(), Told())
    manifest = run.history.staged(0)
    assert manifest is not None
    given = DeliveryContext("w", "a", Term("r", 1), 0, ("batch", "row"), "", 2, 1, False, False, 7, None)

    carry_out(
        given, [SegmentTask(0, manifest.segments[0], 0, maybe_sent=False)], Told, Noting(), run.log, on_executor=True
    )

    assert limits == [7, 7, 7, 7]  # make, open, write, close


def test_of_a_sink_that_cannot_be_made_no_row_has_arrived_and_a_question_has_no_answer() -> None:
    run, _ = staged(Place(rows=lambda _: [1, 2]), Told())
    manifest = run.history.staged(0)
    assert manifest is not None
    tasks = [SegmentTask(number, segment, number, maybe_sent=False) for number, segment in enumerate(manifest.segments)]
    given = DeliveryContext("w", "a", Term("r", 1), 0, ("batch", "row"), "", 2, 2, False, False, 10, None)

    def make() -> Sink:
        raise ConnectionError("down")

    def results_of(tasks: list[SegmentTask]) -> list[SegmentResult]:
        return carry_out(
            given,
            tasks,
            make,
            DirectCall(),
            run.log,
            on_executor=True,
            confirms=manifest.segments,
        )

    failure = Failure(FailureKind.RETRIABLE, "making the sink raised ConnectionError: down")
    assert results_of(tasks) == [SegmentResult(0, 0, failure=failure), SegmentResult(1, 1, failure=failure)]
    assert results_of([]) == [SegmentResult(-1, 0, failure=failure)]


def test_a_target_is_asked_for_its_whole_batch_only_where_that_is_wanted() -> None:
    place = Place(rows=lambda _: [1, 2])
    run = place.open({"a": Delivery(Forgetful(Target()), max_concurrency=1)})
    dispatcher = run.committers[0].served_sink.dispatcher
    deliver, met = dispatcher.deliver, list[tuple[bool, int]]()

    def noted(*given: Any, confirm: bool) -> list[SegmentResult]:
        results = deliver(*given, confirm=confirm)
        met.append((confirm, len(results)))
        return results

    dispatcher.deliver = noted  # type: ignore[method-assign, assignment]
    place.stream(run, 0)

    assert met == [(False, 1), (True, 1 + 2)]


def test_after_a_segment_that_failed_the_others_are_left_for_the_next_attempt() -> None:
    tried: list[int] = []

    def fail(chunk: Chunk) -> None:
        tried.append(chunk.num_rows)
        raise PermanentError("no")

    place = Place(rows=lambda _: [1, 2])
    run = place.open({"a": fail})
    next(place.query().batches(run, 1))

    with pytest.raises(DeliveryError):
        run.deliver_all()

    assert tried == [1]


@pytest.mark.parametrize(
    ("segments", "size", "handles", "small"),
    [
        (1, SMALL_BATCH_BYTES, 0, True),
        (1, SMALL_BATCH_BYTES + 1, 0, False),
        (SMALL_BATCH_SEGMENTS, 1, 0, True),
        (SMALL_BATCH_SEGMENTS + 1, 1, 0, False),
        (2, SMALL_BATCH_BYTES, 2, True),
        (2, SMALL_BATCH_BYTES, 1, False),
        (SMALL_BATCH_SEGMENTS + 1, 1, SMALL_BATCH_SEGMENTS + 1, False),
    ],
)
def test_small_is_what_has_few_bytes_to_move_and_few_segments(
    segments: int, size: int, handles: int, small: bool
) -> None:
    """`size` is that of each segment."""
    refs = [SegmentRef(path="p", id=str(number), rows=1, bytes=size, crc32=0) for number in range(segments)]
    tasks = [
        SegmentTask(number, ref, 0, maybe_sent=False, handle="h" if number < handles else None)
        for number, ref in enumerate(refs)
    ]
    manifest: Any = SimpleNamespace(bytes=sum(ref.bytes for ref in refs), segments=refs)
    assert is_small(manifest, tasks) is small


def test_a_sink_in_this_process_is_told_that_it_is_not_on_an_executor() -> None:
    sink = Told()
    run, _ = staged(Place(), sink)

    run.deliver_all()

    assert [where is False for where in sink.on_executor] == [True]


def test_a_sink_on_an_executor_is_told_so() -> None:
    place, sink = Place(), Told()
    run, _ = staged(place, sink)
    manifest = run.history.staged(0)
    assert manifest is not None
    tasks = [SegmentTask(0, manifest.segments[0], 0, maybe_sent=False)]
    given = DeliveryContext("w", "a", Term("r", 1), 0, ("batch", "row"), "", 2, 1, False, False, 10, None)

    (result,) = carry_out(given, tasks, lambda: sink, DirectCall(), run.log, on_executor=True)

    assert sink.on_executor == [True]
    assert result.host == host_name()


def test_a_run_that_ends_is_heard_by_the_carrier_between_chunks() -> None:
    sink = Told()
    run, _ = staged(Place(rows=lambda _: [9]), sink, should_stop=lambda: sink.written == 2)

    with pytest.raises(StoppedError, match="the run is ending"):
        run.deliver_all()

    assert sink.written == 2
