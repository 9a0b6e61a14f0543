"""Delivery tasks on executors, and what the driver asks a target about a batch that they delivered."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.house.log import SegmentRef, paths
from tests.house.protocol import SMALL_BATCH_BYTES, DeliveryContext, LocalDispatcher, Run, SegmentResult, SegmentTask
from tests.house.sinks import Ability, Chunk, Failure, FailureKind, Sink
from tests.house.spark import ExecutorDispatcher, PickledSink, _DeliveryTask
from tests.house.stores import StoreSpec, open_store
from tests.support.forgetting import Forgetful, Target
from tests.support.one_segment import Stage
from tests.support.small_run import Place, Recorder, served_sink
from tests.unit.protocol.test_dispatch import Changing, Plain
from wal_sink.errors import DeliveryError, PermanentError
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.sinks.guarantees import ability_of
from wal_sink.spark.delivery import pickled, problem_of, shared_out
from wal_sink.testing import simulated_runtime


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


def test_a_store_whose_package_is_missing_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules, "wal_sink.stores.s3", raising=False)
    failure = failure_of_task(b"", StoreSpec("s3://bucket/no-package"))
    assert failure.kind is FailureKind.PERMANENT
    assert "needs s3fs" in failure.message


def test_a_small_batch_is_delivered_and_confirmed_by_the_driver() -> None:
    driver, executors, _ = called(SMALL_BATCH_BYTES, confirm=True)

    assert driver.calls == [(1, True)]
    assert executors.calls == []
