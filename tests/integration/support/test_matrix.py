"""`python -m tests.matrix`: its cells are what the package allows, a cell is judged by its tests, and a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.cells import FIRST_OF_4_0, MEASURED, PYTHONS, STAGING, TYPES, Cell, all_cells, floors
from tests.matrix.results import Result, judged, wrong_versions
from tests.support.processes import CHECKOUT
from tests.support.spark_versions import ALL_VERSIONS

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
