"""The report of the mutation tests: it carries over what another machine found, and says so, as long as it holds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.processes import CHECKOUT

FOLDER = CHECKOUT / "benchmarks" / "mutation"
NAME = "mutation_report_under_test"


@pytest.fixture(scope="module")
def report() -> Iterator[ModuleType]:
    """The module, which is a part of no package."""
    spec = importlib.util.spec_from_file_location(NAME, FOLDER / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[NAME]


@dataclass(frozen=True)
class Mutant:
    key: str
    function: str = "wal.log.Log.find"
    change: str = "- return 1\n+ return 2"


MUTANTS = [Mutant("a"), Mutant("b", change="- x\n+ y"), Mutant("c"), Mutant("d"), Mutant("e")]
FATES = {"a": "killed", "b": "survived", "c": "timed out", "d": "not reached", "other": "killed"}


@pytest.fixture
def found(report: ModuleType) -> Any:
    """A result with each fate."""
    return report.result_of("wal_sink/wal/log.py", "text", MUTANTS, FATES, date="2026-03-01")


@pytest.fixture
def untried(report: ModuleType) -> Any:
    """The same file on a machine that has tried none of its mutants."""
    return report.result_of("wal_sink/wal/log.py", "text", MUTANTS, {"other": "killed"}, date="2026-05-05")


def test_a_result_counts_each_fate_and_keeps_what_survived(found: Any) -> None:
    assert (found.mutants, found.killed, found.timed_out, found.tried) == (5, 1, 1, 4)
    assert [each.change for each in found.survivors] == ["- x\n+ y", MUTANTS[3].change]


def test_what_another_machine_found_of_an_unchanged_file_is_carried_over_with_its_day(
    report: ModuleType, found: Any, untried: Any
) -> None:
    carried = report.with_earlier(untried, found)

    assert carried == replace(found, carried_over=True)
    assert report.with_earlier(untried, carried) == carried


def test_of_a_file_that_changed_nothing_is_carried_over(report: ModuleType, found: Any, untried: Any) -> None:
    assert report.with_earlier(replace(untried, text="changed"), found).tried == 0
    assert report.with_earlier(replace(untried, mutants=6), found).tried == 0, "mutmut makes others now"
    assert report.with_earlier(untried, None) == untried
    assert report.with_earlier(untried, replace(untried, date="2026-03-01")).carried_over is False


def test_what_this_machine_tried_counts_though_the_other_tried_more(
    report: ModuleType, found: Any, untried: Any
) -> None:
    own = report.result_of(untried.file, "text", MUTANTS, {"a": "killed"}, date="2026-05-05")

    assert report.with_earlier(own, found) == own


def test_the_same_result_keeps_its_day(report: ModuleType, found: Any) -> None:
    assert report.with_earlier(replace(found, date="2026-05-05"), found) == found


def test_results_are_read_as_they_were_written(report: ModuleType, found: Any, untried: Any, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert report.read_results(path) == {}

    report.write([found, replace(untried, file="other.py")], path=path, page=tmp_path / "page.md")

    assert report.read_results(path) == {found.file: found, "other.py": replace(untried, file="other.py")}
    assert "| **all** | 10 | 1 | 1 | 2 | 6 | 50.0 % |  |" in (tmp_path / "page.md").read_text()


def test_the_page_tells_what_was_carried_over_and_from_when(report: ModuleType, found: Any, untried: Any) -> None:
    reasons = [{"in": "wal.*.find", "change": "+ y", "why": "equivalent: it is"}]

    page = report.shown([replace(found, carried_over=True), replace(found, file="own.py"), untried], reasons)

    assert "| wal_sink/wal/log.py | 5 | 1 | 1 | 2 | 1 | 50.0 % | 2026-03-01, carried over |" in page
    assert "| own.py | 5 | 1 | 1 | 2 | 1 | 50.0 % | 2026-03-01 |" in page
    assert "| wal_sink/wal/log.py | 5 | 0 | 0 | 0 | 5 | none |  |" in page
    assert page.count("- `wal.log.Log.find`: equivalent: it is\n\n      - x\n      + y\n") == 2
    assert page.count("- `wal.log.Log.find`: no reason given yet\n") == 2


def test_a_page_without_survivors_says_so(report: ModuleType, untried: Any) -> None:
    assert report.shown([untried], []).endswith("## Survivors\n\nNone.\n")


def test_the_page_in_the_checkout_is_the_one_of_its_results(report: ModuleType, tmp_path: Path) -> None:
    results = list(report.read_results().values())
    assert results

    report.write(results, path=tmp_path / "results.json", page=tmp_path / "page.md")

    assert (tmp_path / "page.md").read_text() == report.PAGE.read_text(), "make mutation ARGS=--only-report"
    assert (tmp_path / "results.json").read_text() == report.RESULTS.read_text()
