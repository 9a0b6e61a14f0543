"""What a copy of a delivery task waits for. A real speculative copy: tests/integration/test_speculation.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.one_segment import Stage
from wal_sink import paths
from wal_sink.orders import FailureKind, Order
from wal_sink.spark import copies
from wal_sink.spark.executors import _DeliveryTask
from wal_sink.spark.pickling import PickledSink
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec


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
    copies.outwait(lambda: next(told), 7.0, slept.append)
    assert slept == [7.0] * windows
    assert next(told, "all") == "all"


def test_a_window_is_one_call_and_the_pause_that_the_rate_asks_for() -> None:
    given = Stage().given
    assert copies.window_s(given) == given.attempt_timeout_s == 10
    assert copies.window_s(replace(given, rows_per_s=0.5)) == 10 + given.chunk_rows / 0.5


@pytest.mark.parametrize("spread", [False, True])
def test_only_records_of_the_copys_own_segments_are_news(tmp_path: Path, spread: bool) -> None:
    given = replace(Stage().given, spread=spread)
    segment: Any = SimpleNamespace()
    orders = [Order(1, segment, 0, maybe_sent=False), Order(17, segment, 0, maybe_sent=False)]
    store = open_store(StoreSpec(str(tmp_path)))
    mine = {paths.progress("a", 0, ordinal, 10, spread=spread) for ordinal in (1, 17)}
    others = {
        paths.progress("a", 0, 2, 10, spread=spread),
        paths.progress("a", 0, 33, 10, spread=spread),
        paths.progress("a", 1, 1, 10, spread=spread),
        paths.progress("b", 0, 1, 10, spread=spread),
        paths.prepared("a", 0, 1, 1, spread=spread),
    }
    for path in mine | others:
        store.create(path, b"x")
    assert copies.recorded(store, given, orders) == mine
    assert copies.recorded(store, given, []) == frozenset()


@pytest.mark.parametrize(
    ("setting", "expected"), [("true", True), (" TRUE", True), ("false", False), ("False ", False), ("odd", True)]
)
def test_copies_are_run_beside_the_original_with_speculation_alone(setting: str, expected: bool) -> None:
    context: Any = SimpleNamespace(getConf=lambda: {"spark.speculation": setting})
    assert copies.are_run_beside(context) is expected
    assert not copies.are_run_beside(SimpleNamespace(getConf=dict))  # type: ignore[arg-type]


@pytest.mark.parametrize(("runs_copies", "windows"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_answers_that_the_original_is_lost_only_once_it_has_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, runs_copies: bool, windows: int
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("wal_sink.spark.executors.TaskContext.get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    monkeypatch.setattr("wal_sink.spark.executors.SYSTEM", SimpleNamespace(sleep_s=slept.append))
    if not is_there:
        monkeypatch.setattr("wal_sink.spark.executors.open_store", _unreachable)
    stage = Stage()
    store = StoreSpec(str(tmp_path))
    task = _DeliveryTask(PickledSink(b""), store, "run", stage.given, ((stage.order,),), copies=runs_copies)
    (outcome,) = task([0])
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.LOST
    assert slept == [stage.given.attempt_timeout_s] * windows


def _unreachable(_: StoreSpec) -> None:
    raise RuntimeError("no route to the store")
