"""A copy of a delivery task waits before it sends. A real speculative copy: tests/integration/test_speculation.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.house.log import paths
from tests.house.protocol import RECORD_S, ByTime, SegmentResult, SegmentTask
from tests.house.sinks import Chunk, FailureKind, Position, SinkContext, SinkFailedError, TransactionalSink, as_sink
from tests.house.spark import _DeliveryTask
from tests.house.stores import StoreSpec, open_store
from tests.house.support import DirectCall
from tests.support import two_phase
from tests.support.one_segment import Stage
from tests.support.small_run import Recorder
from tests.support.vault import Vault, VaultSink
from wal_sink.sinks import Transaction
from wal_sink.spark import delivery as executors


@pytest.mark.parametrize(
    ("looks", "windows"),
    [
        ([1, 1], 1),
        ([1, 2, 3, 3], 3),
        ([None, None], 1),
        ([None, 1, 1], 2),
        ([1, None], 1),
    ],
)
def test_a_copy_waits_until_a_window_passes_without_news(looks: list[int | None], windows: int) -> None:
    slept: list[float] = []
    told = iter(looks)
    executors.outwait(lambda: next(told), 7.0, slept.append)
    assert slept == [7.0] * windows
    assert next(told, "all") == "all"


def test_a_window_is_one_call_and_the_pause_that_the_rate_asks_for() -> None:
    given = Stage().given
    assert executors.window_s(given) == given.attempt_timeout_s == 10
    assert executors.window_s(replace(given, rows_per_s=0.5)) == 10 + given.chunk_rows / 0.5
    assert executors.window_s(replace(given, by_time=ByTime(records=True))) == 10 + RECORD_S


def test_only_records_of_the_copys_own_segments_are_news(tmp_path: Path) -> None:
    given = Stage().given
    segment: Any = SimpleNamespace()
    tasks = [SegmentTask(1, segment, 0, maybe_sent=False), SegmentTask(17, segment, 0, maybe_sent=False)]
    store = open_store(StoreSpec(str(tmp_path)))
    mine = {paths.progress("a", 0, ordinal, 10) for ordinal in (1, 17)}
    mine |= {paths.prepared("a", 0, ordinal, 1) for ordinal in (1, 17)}
    letters = {paths.dead_letter("a", 0, ordinal, 0, 2, number=number) for ordinal in (1, 17) for number in (None, 3)}
    others = {
        paths.progress("a", 0, 2, 10),
        paths.progress("a", 0, 33, 10),
        paths.progress("a", 1, 1, 10),
        paths.progress("b", 0, 1, 10),
        paths.prepared("a", 0, 2, 1),
        paths.dead_letter("a", 0, 2, 0, 2),
        paths.dead_letter("a", 1, 1, 0, 2),
        f"{paths.progress_folder('a', 0)}/odd",
    }
    for path in mine | letters | others:
        store.create(path, b"x")
    assert executors.recorded(store, given, tasks) == mine
    assert executors.recorded(store, replace(given, keeps_rejected=True), tasks) == mine | letters
    assert executors.recorded(store, replace(given, keeps_rejected=True), []) == frozenset()


class Ledger(TransactionalSink):
    """Has the first rows of some slots, and notes each question."""

    def __init__(self, known: dict[str, Position], *, fails: str = "") -> None:
        self.known = known
        self.fails = fails
        self.calls: list[str] = []

    def open(self, context: SinkContext) -> None:
        self._note("open")
        assert (context.term, context.batch_id, context.on_executor) == (1, 0, True)

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002 - it must not get one
        raise AssertionError("a copy sends nothing")

    def last(self, slot: str) -> Position | None:
        self._note(slot)
        return self.known.get(slot)

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise OSError(f"no {call}")


def test_a_transactional_target_tells_how_far_the_original_came() -> None:
    stage = Stage()
    tasks = [stage.task, replace(stage.task, ordinal=17)]
    sink = Ledger({"w/a/0": stage.position(2)})

    assert acknowledged(stage, sink, tasks) == (stage.position(2), None)
    assert sink.calls == ["open", "w/a/0", "w/a/17", "close"]
    assert acknowledged(stage, Ledger({}), []) == ()


def test_of_any_other_sink_the_records_alone_tell() -> None:
    assert acknowledged(Stage(), as_sink(Recorder()), [Stage().task]) == ()


def acknowledged(stage: Stage, sink: object, tasks: list[SegmentTask]) -> executors.Acknowledged:
    made: Any = lambda: sink  # noqa: E731
    return executors.acknowledged(stage.given, made, tasks, DirectCall())


@pytest.mark.parametrize(
    ("moves", "windows"),
    [([2, 2], 1), ([2, 4, 5, 5], 3), ([None, 2, 2], 2), (["fails", "fails"], 1), ([2, "fails"], 1)],
)
def test_a_copy_waits_while_the_positions_of_a_transactional_target_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: list[Any], windows: int
) -> None:
    """Such a target has no records in the WAL: its copy cut every share off that took longer than one call may."""
    stage, slept, told = Stage(), list[float](), iter(moves)

    def make_sink() -> Ledger:
        rows = next(told)
        known = {"w/a/0": stage.position(rows)} if isinstance(rows, int) else {}
        return Ledger(known, fails="w/a/0" if rows == "fails" else "")

    result = result_of_copy(stage, tmp_path, monkeypatch, slept, make_sink)

    assert result.failure is not None
    assert result.failure.kind is FailureKind.LOST
    assert slept == [stage.given.attempt_timeout_s] * windows
    assert next(told, "all") == "all"


@pytest.mark.parametrize(
    ("setting", "expected"), [("true", True), (" TRUE", True), ("false", False), ("False ", False), ("odd", True)]
)
def test_copies_are_run_beside_the_original_with_speculation_alone(setting: str, expected: bool) -> None:
    context: Any = SimpleNamespace(getConf=lambda: {"spark.speculation": setting})
    assert executors.are_run_beside(context) is expected
    assert not executors.are_run_beside(SimpleNamespace(getConf=dict))  # type: ignore[arg-type]


def test_what_a_two_phase_sink_prepares_shows_once_it_is_prepared(vault: Vault) -> None:
    """Until then nothing can tell a long transaction from a dead one."""
    where = two_phase.place(5)
    given, seen = Stage().given, list[tuple[str, int]]()

    class Losing(VaultSink):
        """Its first transaction is gone when it is to be committed, and is prepared again then."""

        def begin(self, transaction: Transaction) -> str:
            note("begin")
            return super().begin(transaction)

        def write(self, chunk: Chunk) -> None:
            note("write")
            super().write(chunk)

        def prepare(self) -> str:
            note("prepare")
            return super().prepare()

        def commit(self, transaction: Transaction, handle: str) -> None:
            if ("commit", 0) not in seen:
                self.vault.drop_held()
            note("commit")
            super().commit(transaction, handle)

    def note(call: str) -> None:
        segment: Any = SimpleNamespace()
        seen.append((call, len(executors.recorded(where.wal, given, [SegmentTask(0, segment, 0, maybe_sent=False)]))))

    where.stream(where.open({"a": Losing(vault)}), 0)

    silent = [("begin", 0), *[("write", 0)] * 3, ("prepare", 0)]
    assert seen == [*silent, ("commit", 0), *silent, ("commit", 1)]


@pytest.mark.parametrize(("runs_copies", "windows"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_answers_that_the_original_is_lost_only_once_it_has_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, runs_copies: bool, windows: int
) -> None:
    if not is_there:
        monkeypatch.setattr("wal_sink.spark.delivery.open_store", _unreachable)
    slept: list[float] = []
    stage = Stage()
    result = result_of_copy(stage, tmp_path, monkeypatch, slept, lambda: as_sink(Recorder()), copies=runs_copies)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.LOST
    assert slept == [stage.given.attempt_timeout_s] * windows


def result_of_copy(
    stage: Stage,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    slept: list[float],
    make_sink: Callable[[], object],
    *,
    copies: bool = True,
) -> SegmentResult:
    """Return the result of a task that Spark runs for the second time."""
    monkeypatch.setattr("wal_sink.spark.delivery.TaskContext.get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    system = SimpleNamespace(sleep_s=slept.append, new_timed_call=DirectCall)
    monkeypatch.setattr("wal_sink.spark.delivery.SYSTEM", system)
    sink: Any = make_sink
    task = _DeliveryTask(sink, StoreSpec(str(folder)), "run", stage.given, ((stage.task,),), copies=copies)
    (result,) = task([0])
    return result


def _unreachable(_: StoreSpec) -> None:
    raise RuntimeError("no route to the store")


@pytest.mark.parametrize("fails", ["open", "w/a/0", "close"])
def test_one_that_does_not_answer_tells_nothing(fails: str) -> None:
    sink = Ledger({}, fails=fails)
    with pytest.raises(SinkFailedError, match=f"no {fails}"):
        acknowledged(Stage(), sink, [Stage().task])
    assert ("close" in sink.calls) is (fails != "open")
