"""benchmarks/MATRIX.md shows what the bounds of pyproject.toml say: each was tried, and passed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.matrix.cells import FIRST_OF_4_0, MEASURED, all_cells
from tests.matrix.report import COLUMNS, OUT
from tests.support.processes import CHECKOUT
from tests.support.spark_versions import ALL_VERSIONS

Row = Mapping[str, str]
LIMIT_MIN = 12


def table(text: str) -> list[Row]:
    """The rows of the report's table, each by the names of its columns."""
    lines = re.findall(r"^\| (.+) \|$", text, flags=re.MULTILINE)
    head, *rows = [line.split(" | ") for line in lines]
    assert head == list(COLUMNS)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return table(OUT.read_text())


@pytest.fixture(scope="module")
def project() -> Mapping[str, Any]:
    found: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return found


def bounds(project: Mapping[str, Any], name: str) -> SpecifierSet:
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["spark"], *extras["s3"]]
    (found,) = [wanted for wanted in map(Requirement, lines) if wanted.name == name]
    return found.specifier


def wrong_bounds(allowed: SpecifierSet, tried: Sequence[str], newest: str) -> list[str]:
    """Return everything that the tried versions do not show of a package's bounds. Developers install `newest`."""
    (floor,) = [Version(one.version) for one in allowed if one.operator == ">="]
    versions = sorted(map(Version, tried))
    found = [f"{version} is not allowed" for version in versions if version not in allowed]
    if versions[0] != floor:
        found.append(f"the oldest tried is {versions[0]}, the oldest allowed {floor}")
    if versions[-1] < Version(newest):
        found.append(f"the newest tried is {versions[-1]}, older than {newest}")
    return found


def test_every_cell_passed_within_its_time(rows: list[Row]) -> None:
    assert [row["cell"] for row in rows] == [cell.name for cell in all_cells()], "make matrix"
    failed = {row["cell"] for row in rows if row["outcome"] != "passed" or row["failed"] != "0"}
    assert failed == set()
    assert all(int(row["passed"]) > 50 for row in rows)
    assert all(float(row["minutes"]) <= LIMIT_MIN for row in rows)


def test_a_cell_ran_what_it_is_called(rows: list[Row]) -> None:
    for row, cell in zip(rows, all_cells(), strict=True):
        assert row["Spark"] == cell.spark
        assert row["Python"].startswith(f"{cell.python}.")
        for name, version in (pin.split("==") for pin in cell.pins):
            assert Version(row[name]) == Version(version)


def test_the_tried_sparks_are_the_newest_patch_of_each_that_is_allowed(
    rows: list[Row], project: Mapping[str, Any]
) -> None:
    tried = {row["Spark"] for row in rows}
    assert tried == {*ALL_VERSIONS, FIRST_OF_4_0}
    assert all(version in bounds(project, "pyspark") for version in tried)


def test_the_tried_pythons_are_those_of_the_classifiers(rows: list[Row], project: Mapping[str, Any]) -> None:
    named = "\n".join(project["classifiers"])
    classified = set(re.findall(r"^Programming Language :: Python :: (3\.\d+)$", named, flags=re.MULTILINE))
    newest = ALL_VERSIONS[-1]
    assert {row["Python"].rpartition(".")[0] for row in rows if row["Spark"] == newest} == classified
    oldest = min(classified, key=Version)
    assert project["requires-python"] == f">={oldest}"
    assert {row["Python"].rpartition(".")[0] for row in rows if row["Spark"].startswith("3.5.")} == {oldest}


def test_the_oldest_and_newest_allowed_packages_were_tried(rows: list[Row], project: Mapping[str, Any]) -> None:
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (CHECKOUT / "constraints.txt").read_text(), flags=re.MULTILINE))
    wrong = {name: wrong_bounds(bounds(project, name), [row[name] for row in rows], pins[name]) for name in MEASURED}
    assert {name: told for name, told in wrong.items() if told} == {}
