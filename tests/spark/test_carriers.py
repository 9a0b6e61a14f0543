"""Dispatchers: which object they call, and the result of one that cannot be made."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.house.log import SegmentRef, Term, paths
from tests.house.protocol import SMALL_BATCH_BYTES, DeliveryContext, Run, SegmentResult, SegmentTask
from tests.house.sinks import Ability, Chunk, Failure, FailureKind, Sink, SinkContext, as_sink
from tests.house.spark import ExecutorDispatcher, PickledSink, _DeliveryTask
from tests.house.stores import StoreSpec, open_store
from tests.house.support import DirectCall, StoppedError
from tests.support.forgetting import Forgetful, Target
from tests.support.hanging_calls import Hangs
from tests.support.one_segment import Stage
from tests.support.small_run import Place, Recorder, served_sink
from wal_sink.errors import DeliveryError, PermanentError
from wal_sink.protocol.dispatch import SMALL_BATCH_SEGMENTS, LocalDispatcher, carry_out, copier, is_small
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.sinks.guarantees import ability_of
from wal_sink.spark.delivery import pickled, problem_of, shared_out
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


def with_batch(sink: Sink, *, copies: bool = True) -> tuple[Place, Run]:
    """A run with one complete batch for a sink that is served in this process, as `where="driver"` is."""
    place = Place(rows=lambda _: [1])
    run = place.open(
        {"a": Recorder()}, runtime=replace(simulated_runtime(seed=99), new_timed_call=Hanging.hangs.new_timed_call)
    )
    given = served_sink(run, "a", Delivery(sink, retry=Retry(attempt_timeout_s=LIMIT_S)))
    dispatcher = LocalDispatcher(
        lambda: sink, run.log, should_stop=lambda: False, copy_sink=copier(sink) if copies else None
    )
    run.committers[0]._served_sink = replace(given, dispatcher=dispatcher)
    next(place.query().batches(run, 1))
    return place, run


def test_a_copy_is_called_while_a_call_may_still_run_in_the_sink() -> None:
    sink = Hanging()
    _, run = with_batch(sink)

    run.deliver_all()

    assert [made.calls for made in Hanging.made] == [1, 1]
    assert Hanging.made[0] is sink


def test_the_sink_itself_is_called_again_once_the_call_that_timed_out_came_back() -> None:
    sink = Hanging(thing=threading.Lock())
    _, run = with_batch(sink)
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


def test_a_sink_that_is_bound_to_the_driver_is_not_copied() -> None:
    sink = Hanging()
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


@pytest.mark.parametrize(("becomes", "found"), [(Plain, "“plain”"), (dict, "“dict”")])
def test_a_sink_that_is_of_another_kind_on_executors_is_told(becomes: Callable[[], object], found: str) -> None:
    sink = Changing(becomes)

    problem = problem_of(pickled(sink, "a").payload, ability_of(sink))

    assert "it is “idempotent” in the driver" in problem
    assert found in problem
    assert problem_of(pickled(Plain(), "a").payload, Ability.ACCEPT) == ""


# Delivery tasks.


class InTask:
    """A task, as Spark tells of it."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt

    def attemptNumber(self) -> int:  # noqa: N802 - PySpark's name
        return self.attempt


class Broken:
    """Raises when it is unpickled."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Callable[[BaseException], None], tuple[BaseException]]:
        return _raise, (self.error,)


def _raise(error: BaseException) -> None:
    raise error


ORDERS = (
    SegmentTask(0, SimpleNamespace(), 5, maybe_sent=False),  # type: ignore[arg-type]
    SegmentTask(1, SimpleNamespace(), 0, maybe_sent=False),  # type: ignore[arg-type]
)
ASSIGNMENT: Any = SimpleNamespace(sink="a", attempt_timeout_s=10, measured=False)


def failure_of_task(payload: bytes, store: StoreSpec, *, attempt: int = 0) -> Failure:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.spark.delivery.TaskContext.get", lambda: InTask(attempt))
        results = list(_DeliveryTask(PickledSink(payload), store, "run", ASSIGNMENT, (ORDERS,))([0]))
    assert [(result.ordinal, result.rows, result.chunks) for result in results] == [(0, 5, 0), (1, 0, 0)]
    assert results[0].failure is not None
    return results[0].failure


def test_a_task_that_spark_runs_again_opens_nothing_and_reports_the_loss() -> None:
    failure = failure_of_task(b"garbage", StoreSpec("memory://unopened"), attempt=1)
    assert failure.kind is FailureKind.LOST


def test_a_task_of_which_spark_tells_nothing_sends_nothing() -> None:
    """It may be the second of two that send: that it is the first is never assumed."""
    task = _DeliveryTask(PickledSink(b"garbage"), StoreSpec("memory://unopened"), "run", ASSIGNMENT, (ORDERS,))
    with pytest.raises(RuntimeError, match="outside of a Spark task"):
        list(task([0]))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModuleNotFoundError("No module named 'x'"), FailureKind.PERMANENT),
        (AttributeError("no Post in x"), FailureKind.PERMANENT),
        (PermanentError("not here"), FailureKind.PERMANENT),
        (SystemExit(0), FailureKind.PERMANENT),
        (ConnectionError("license server is down"), FailureKind.RETRIABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sink_that_cannot_be_unpickled_is_an_outcome(tmp_path: Path, error: BaseException, kind: FailureKind) -> None:
    failure = failure_of_task(pickle.dumps(Broken(error)), StoreSpec(str(tmp_path)))
    assert failure.kind is kind
    assert "making the sink" in failure.message


def test_a_damaged_pickle_is_an_outcome(tmp_path: Path) -> None:
    assert failure_of_task(b"garbage", StoreSpec(str(tmp_path))).kind is FailureKind.PERMANENT


def test_a_store_that_cannot_be_opened_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = RuntimeError("cannot use the key hush-hush")
    monkeypatch.setattr("wal_sink.spark.delivery.open_store", lambda _: _raise(broken))
    failure = failure_of_task(b"", StoreSpec(str(tmp_path), {"key": "hush-hush"}))
    assert failure.kind is FailureKind.RETRIABLE
    assert "RuntimeError: cannot use the key ***" in failure.message


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


class FailsFor(Sink):
    """Takes every segment but one, and notes the thread of each call in a file of a folder."""

    def __init__(self, folder: str, segment_id: str) -> None:
        self.folder, self.segment_id = folder, segment_id

    def write(self, chunk: Chunk) -> None:
        (Path(self.folder) / f"{chunk.segment_id}-{chunk.rows[0]}").write_text(str(threading.get_ident()))
        if chunk.segment_id == self.segment_id:
            raise ConnectionError("unreachable")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_segment_that_fails_in_one_thread_takes_nothing_from_the_others(tmp_path: Path, threads: int) -> None:
    """A thread stops at its first failure, as a task does; with one thread nothing follows the failure."""
    place = Place(rows=lambda _: [3, 3, 3, 3])
    (tmp_path / "noted").mkdir()
    spec = StoreSpec(str(tmp_path / "wal"))
    run = Run(open_store(spec), place.checkpoint, Settings(chunk_rows=3))
    run.open([served_sink(run, "a", Recorder())])
    run.become_stager()
    next(place.query().batches(run, 1))
    staged = run.history.staged(0)
    assert staged is not None
    segments = staged.segments
    sink = FailsFor(str(tmp_path / "noted"), segments[0].id)
    given = replace(Stage().given, sink="a", segments=4, chunk_rows=3, term=run.committers[0].term)
    tasks = tuple(SegmentTask(number, segment, 0, maybe_sent=False) for number, segment in enumerate(segments))
    task = _DeliveryTask(PickledSink(pickle.dumps(sink)), spec, "run", given, (tasks,), threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.spark.delivery.TaskContext.get", lambda: InTask(0))
        results = {result.ordinal: result for result in task([0])}

    assert results[0].failure is not None
    assert "unreachable" in results[0].failure.message
    parts = [part for part in shared_out(tasks, threads) if part[0].ordinal != 0]
    others = {each.ordinal for part in parts for each in part}
    assert {number for number, result in results.items() if result.failure is None} == others
    assert all(results[number].rows == 3 for number in others)
    recorded = place_records(spec)
    assert recorded == sorted(others), "their progress is kept"


def place_records(spec: StoreSpec) -> list[int]:
    names = open_store(spec).list(paths.progress_folder("a", 0))
    return sorted(found.ordinal for name in names if (found := paths.parse_progress(name)))


class Noting:
    """A dispatcher that notes its calls and returns what it is told."""

    whole_batch = False

    def __init__(self, *results: SegmentResult) -> None:
        self.results = list(results)
        self.calls: list[tuple[int, bool]] = []

    def deliver(
        self, _: DeliveryContext, __: object, tasks: Sequence[SegmentTask], *, confirm: bool
    ) -> list[SegmentResult]:
        self.calls.append((len(tasks), confirm))
        return list(self.results)


class Through(ExecutorDispatcher):
    """Hands to another dispatcher what would run on executors."""

    def __init__(self, driver: Any, executors: Any) -> None:
        self._driver = driver
        self._executors = executors

    def _carry_out(
        self, delivery_context: DeliveryContext, manifest: Any, tasks: Sequence[SegmentTask]
    ) -> list[SegmentResult]:
        results: list[SegmentResult] = self._executors.deliver(delivery_context, manifest, tasks, confirm=False)
        return results


NO = Failure(FailureKind.RETRIABLE, "no answer")


def called(
    size: int, *, confirm: bool, sent: Failure | None = None, asked: Failure | None = None
) -> tuple[Noting, Noting, list[SegmentResult]]:
    """The driver's and the executors' dispatcher after a batch of one segment of `size` bytes, and its results. `sent`:
    the failure of the executors; `asked`: that of the driver.
    """
    segment = SegmentRef(path="p", id="s", rows=3, bytes=size, crc32=0)
    manifest: Any = SimpleNamespace(bytes=size, segments=(segment,))
    driver, executors = (Noting(SegmentResult(0, 0 if failure else 3, failure=failure)) for failure in (asked, sent))
    auto = Through(driver, executors)
    task = SegmentTask(0, segment, 0, maybe_sent=False)
    return driver, executors, auto.deliver(Stage().given, manifest, (task,), confirm=confirm)


def test_the_driver_asks_the_target_about_a_batch_that_executors_delivered() -> None:
    """A Spark job for this question would wait behind the tasks that stage the next batch."""
    driver, executors, results = called(SMALL_BATCH_BYTES + 1, confirm=True)

    assert executors.calls == [(1, False)]
    assert driver.calls == [(0, True)]
    assert results == [*executors.results, *driver.results]


@pytest.mark.parametrize(("confirm", "sent"), [(False, None), (True, NO)])
def test_the_driver_asks_the_target_nothing_if_nothing_is_to_be_confirmed_or_a_segment_failed(
    confirm: bool, sent: Failure | None
) -> None:
    driver, executors, results = called(SMALL_BATCH_BYTES + 1, confirm=confirm, sent=sent)

    assert executors.calls == [(1, False)]
    assert driver.calls == []
    assert results == executors.results


def test_where_the_driver_gets_no_answer_the_batch_is_not_confirmed() -> None:
    _, _, results = called(SMALL_BATCH_BYTES + 1, confirm=True, asked=NO)

    assert results[-1].failure == NO


def test_a_driver_that_asks_another_target_ends_delivery_and_nothing_comes_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wal_sink.spark.delivery.is_small", lambda *_: False)
    place, target, other = Place(rows=lambda _: [2, 2]), Target(), Target()
    run = place.open({"a": Delivery(Forgetful(target), retry=Retry(attempts=3))}, runtime=simulated_runtime(seed=7))
    committer = run.committers[0]

    def dispatcher(sink: Sink) -> LocalDispatcher:
        return LocalDispatcher(lambda: sink, run.log, should_stop=lambda: False)

    auto: Any = Through(dispatcher(Forgetful(other)), dispatcher(Forgetful(target)))
    committer._served_sink = replace(committer.served_sink, dispatcher=auto)
    next(place.query().batches(run, 1))

    with pytest.raises(DeliveryError, match="but it acknowledged all of them"):
        run.deliver_all()

    assert target.rows == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert other.rows == []
    assert committer.marked_through == -1


def test_without_a_copy_a_sink_in_which_a_call_still_runs_has_failed_for_good() -> None:
    sink = Hanging(thing=threading.Lock())
    _, run = with_batch(sink)

    with pytest.raises(
        DeliveryError, match=r"a call of this sink is still running after 0\.05 s\. The sink cannot be called"
    ):
        run.deliver_all()

    assert sink.calls == 1


def test_a_store_whose_package_is_missing_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules, "wal_sink.stores.s3", raising=False)
    failure = failure_of_task(b"", StoreSpec("s3://bucket/no-package"))
    assert failure.kind is FailureKind.PERMANENT
    assert "needs s3fs" in failure.message


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

    carry_out(given, tasks, lambda: sink, DirectCall(), run.log, on_executor=True)

    assert sink.on_executor == [True]


def test_a_run_that_ends_is_heard_by_the_carrier_between_chunks() -> None:
    sink = Told()
    run, _ = staged(Place(rows=lambda _: [9]), sink, should_stop=lambda: sink.written == 2)

    with pytest.raises(StoppedError, match="the run is ending"):
        run.deliver_all()

    assert sink.written == 2


def test_a_small_batch_is_delivered_and_confirmed_by_the_driver() -> None:
    driver, executors, _ = called(SMALL_BATCH_BYTES, confirm=True)

    assert driver.calls == [(1, True)]
    assert executors.calls == []
