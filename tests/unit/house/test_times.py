"""The processor seconds of test functions: their measure, the report at the end of a run, the list of slow ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.support.fixtures import times
from tests.support.fixtures.times import Stopwatch, Time, become_slow, times_of
from tests.times import still_slow

WAL = "tests/unit/log/test_wal.py::test_wal"


def _report(
    nodeid: str,
    seconds: float = 0.0,
    *,
    shared: dict[str, float] | None = None,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    marks: tuple[str, ...] = (),
) -> pytest.TestReport:
    report = pytest.TestReport(nodeid, ("", 0, ""), dict.fromkeys(marks, 1), outcome, None, "teardown")
    vars(report).update(processor_s=seconds, processor_s_of_shared_fixtures=shared or {})
    return report


def test_the_slowest_id_of_a_function_counts_and_a_shared_fixture_once() -> None:
    reports = [_report(f"{WAL}[1]", 0.5, shared={"place": 2.0}), _report(f"{WAL}[a[2]]", 0.25, shared={"place": 0.0})]
    assert times_of(reports) == {WAL: Time(2.5, is_quick=True, was_skipped=False)}


def test_only_quick_functions_above_the_limit_are_reported_and_the_slowest_is_first() -> None:
    measured = {
        "a": Time(1.24, is_quick=True, was_skipped=False),
        "b": Time(1.0, is_quick=True, was_skipped=False),
        "c": Time(3.0, is_quick=True, was_skipped=False),
        "d": Time(9.0, is_quick=False, was_skipped=False),
    }
    assert become_slow(measured) == ["3.0 s  c", "1.2 s  a"]


class _Fixture:
    baseid = "tests/unit/log/test_wal.py"

    def __init__(self, argname: str, scope: str) -> None:
        self.argname = argname
        self.scope = scope


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let processor time pass."""
    clock = [0.0]

    def spend(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(times, "processor_s", lambda: clock[0])
    return spend


def test_the_cost_of_a_shared_fixture_is_told_for_every_test_that_uses_it(spend: Callable[[float], None]) -> None:
    watch: Any = Stopwatch()
    outer, inner = _Fixture("outer", "module"), _Fixture("inner", "session")

    def make(fixture: _Fixture, seconds: float, within: Callable[[], None] = lambda: None) -> None:
        setup = watch.pytest_fixture_setup(fixture)
        next(setup)
        within()
        spend(seconds)
        with pytest.raises(StopIteration):
            setup.send(None)

    def run(seconds: float, within: Callable[[], None] = lambda: None) -> dict[str, Any]:
        next(watch.pytest_runtest_protocol())
        within()
        make(_Fixture("its_own", "function"), 0.5)
        spend(seconds)
        item = SimpleNamespace(_fixtureinfo=SimpleNamespace(name2fixturedefs={"outer": (outer,)}))
        reporting = watch.pytest_runtest_makereport(item, SimpleNamespace(when="teardown"))
        next(reporting)
        with pytest.raises(StopIteration) as ended:
            reporting.send(SimpleNamespace())
        told: dict[str, Any] = vars(ended.value.value)
        return told

    file = _Fixture.baseid
    first = run(1.0, lambda: make(outer, 2.0, lambda: make(inner, 4.0)))
    assert first == {
        "processor_s": 1.5,
        "processor_s_of_shared_fixtures": {f"{file}::outer": 2.0, f"{file}::inner": 4.0},
    }
    assert run(0.25) == {"processor_s": 0.75, "processor_s_of_shared_fixtures": {f"{file}::outer": 2.0}}


def _measured(seconds: float, *, was_skipped: bool = False) -> Time:
    return Time(seconds, is_quick=True, was_skipped=was_skipped)


def test_a_listed_function_stays_until_it_is_clearly_quick() -> None:
    before = {"stays": 2.0, "quick": 1.1, "gone": 3.0, "skipped": 4.0}
    measured = {
        "stays": _measured(0.7),
        "quick": _measured(0.69),
        "skipped": _measured(0.0, was_skipped=True),
        "new": _measured(1.01),
        "nearly": _measured(1.0),
    }
    assert still_slow(before, measured) == {"stays": 0.7, "skipped": 4.0, "new": 1.01}
