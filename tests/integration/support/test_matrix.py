"""`python -m tests.matrix`: its cells are what the package allows, a cell is judged by its tests, and a run goes on."""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import Protocol

import pytest
from packaging.requirements import Requirement

from tests.matrix import __main__ as program
from tests.matrix import environment as environments
from tests.matrix import report, results
from tests.matrix.cells import FIRST_OF_4_0, MEASURED, PYTHONS, STAGING, TYPES, Cell, all_cells, floors
from tests.matrix.environment import Environment, NotAvailableError, find_python
from tests.matrix.results import Result, judged, read_results, wrong_versions
from tests.support.processes import CHECKOUT, is_running
from tests.support.spark_versions import ALL_VERSIONS
from tests.support.waiting import wait_until

HERE = ".".join(map(str, sys.version_info[:2]))
CELL = Cell("one", "4.3.0")


def test_the_cells_are_every_spark_every_python_and_the_oldest_and_newest_packages() -> None:
    cells = {cell.name: cell for cell in all_cells()}
    newest = ALL_VERSIONS[-1]
    assert {cell.spark for cell in cells.values() if cell.python == "3.11"} == {*ALL_VERSIONS, FIRST_OF_4_0}
    assert {cell.python for cell in cells.values() if cell.spark == newest} == set(PYTHONS)
    assert cells["oldest-packages"].pins == tuple(f"{name}=={floors()[name]}" for name in MEASURED)
    assert [name for name, cell in cells.items() if not cell.constrained] == ["oldest-packages", "newest-packages"]


def test_only_the_oldest_spark_leaves_out_tests_each_of_which_exists() -> None:
    assert [cell.spark[:3] for cell in all_cells() if cell.left_out] == ["3.5"]
    for cell in all_cells():
        for name in cell.left_out:
            file, *inside = name.split("::")
            assert all(f" {part}" in (CHECKOUT / file).read_text() for part in inside)
        assert all((CHECKOUT / file).is_file() for file in cell.tests)
        assert {STAGING, TYPES} <= set(cell.tests)


def test_a_cell_installs_what_tests_need_without_another_pyspark() -> None:
    names = [Requirement(line).name for line in Environment(CELL).requirements(["py4j==0.10.9.9"])]
    assert {"pytest", "pandas", "s3fs", "moto", "py4j"} <= set(names)
    assert not {"pyspark", "mypy", "pandas-stubs", "types-psutil"} & set(names)
    groups = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["dependency-groups"]
    assert {Requirement(line).name for line in groups["dev"]} >= environments.TOOLS


def test_this_python_is_found_and_one_that_is_nowhere_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_python(HERE) == Path(sys.executable)
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(NotAvailableError, match=r"no Python 9\.9"):
        find_python("9.9")


XML = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_skipped"><skipped message="no TIME"/></testcase>
{}
</testsuite></testsuites>"""
BAD = '<testcase classname="tests.a" name="test_bad"><failure message="1 is&#10;not 2"/></testcase>'


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    return tmp_path / "told.xml"


@pytest.mark.parametrize("kind", ["failure", "error"])
def test_a_failed_test_fails_the_cell_and_is_told(xml: Path, kind: str) -> None:
    xml.write_text(XML.format(BAD.replace("failure", kind)))
    found = judged(Result("one", "passed"), xml)
    assert (found.outcome, found.why, found.passed, found.failed) == ("failed", "tests failed", 1, 1)
    assert found.failures == ["tests.a.test_bad: 1 is not 2"]


def test_an_environment_of_other_versions_is_told() -> None:
    told = {"pyspark": "4.3.0", "python": "3.11.7"}
    assert list(wrong_versions(CELL, told)) == []
    assert list(wrong_versions(CELL, {**told, "pyspark": "4.0.5"})) != []
    assert list(wrong_versions(CELL, {**told, "python": "3.1.7"})) != []


class FakeEnvironment(Environment):
    """In the place of a virtual environment: a program that starts another one in a separate session, and hangs."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.python = Path(cell.spark)

    def make(self) -> None:
        if self.cell.python == "9.9":
            raise NotAvailableError("this machine has no Python 9.9")


def test_a_cell_that_takes_too_long_is_ended_with_all_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsetsid sleep 300 &\necho $! > {tmp_path / 'pid'}\nwait\n")
    python.chmod(0o755)
    monkeypatch.setattr(results, "Environment", FakeEnvironment)
    monkeypatch.setattr(results, "_versions", lambda _: {})
    for limit_s in (1.0, 10.0, 60.0):  # a slow machine starts no program within a second
        began = time.monotonic()
        found = results.run(Cell("slow", str(python)), tmp_path, limit_s=limit_s)
        assert found.outcome == "out of time"
        assert time.monotonic() - began < limit_s + 60
        if (tmp_path / "pid").exists():
            break
    assert (tmp_path / "pid").exists(), "otherwise nothing is shown here"
    started = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(started), "the other program ended")


class Runner(Protocol):
    def __call__(self, *args: str) -> int: ...


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that ran. `fails` does not pass."""
    seen: list[str] = []

    def fake(cell: Cell, place: Path) -> Result:  # noqa: ARG001
        seen.append(cell.name)
        return Result(cell.name, "failed" if cell.name == "fails" else "passed", sources=results.sources(), passed=1)

    monkeypatch.setattr(results, "run", fake)
    monkeypatch.setattr(program, "all_cells", lambda: [Cell("good", "4.3.0"), Cell("fails", "4.3.0")])
    return seen


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    monkeypatch.setattr(report, "OUT", tmp_path / "committed.md")
    return lambda *args: program.main(args, place=tmp_path)


def test_a_run_goes_on_with_what_has_not_passed(matrix: Runner, ran: list[str]) -> None:
    assert (matrix(), ran) == (1, ["good", "fails"])
    assert (matrix(), ran[2:]) == (1, ["fails"])
    assert (matrix("good"), ran[3:]) == (0, ["good"])


def test_the_committed_report_is_replaced_by_a_whole_one_only(matrix: Runner, ran: list[str], tmp_path: Path) -> None:
    matrix("good")
    assert "**not run**" in (tmp_path / report.NAME).read_text()
    assert not (tmp_path / "committed.md").exists()
    matrix()
    text = (tmp_path / "committed.md").read_text()
    assert ran == ["good", "fails"]
    assert "| **failed** |" in text
    assert set(read_results(tmp_path)) == {"good", "fails"}
