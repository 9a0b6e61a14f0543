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
    return report.result_of("wal_sink/log/log.py", "text", MUTANTS, FATES, date="2026-03-01")


@pytest.fixture
def untried(report: ModuleType) -> Any:
    """The same file on a machine that has tried none of its mutants."""
    return report.result_of("wal_sink/log/log.py", "text", MUTANTS, {"other": "killed"}, date="2026-05-05")


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


def test_the_page_in_the_checkout_is_the_one_of_its_results(report: ModuleType, tmp_path: Path) -> None:
    results = list(report.read_results().values())
    assert results

    report.write(results, path=tmp_path / "results.json", page=tmp_path / "page.md")

    assert (tmp_path / "page.md").read_text() == report.PAGE.read_text(), "make mutation ARGS=--only-report"
    assert (tmp_path / "results.json").read_text() == report.RESULTS.read_text()
