"""The cells: which Spark, Python and packages are tried together, and which tests a cell leaves out, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement

from tests.support.processes import CHECKOUT
from tests.support.spark_versions import ALL_VERSIONS

MEASURED = ("pyarrow", "fsspec", "s3fs", "pandas")
"""The packages of which the oldest and the newest allowed version are tried."""
PYTHONS = ("3.11", "3.12", "3.13")
FIRST_OF_4_0 = "4.0.0"

STAGING = "tests/integration/test_staging.py"
TYPES = "tests/integration/test_types.py"
DATA_SOURCES = "tests/integration/test_wrap_data_source.py"
STORES = "tests/contract/test_stores.py"
TESTS: Mapping[str, str] = {
    "tests/integration/test_kills.py": "drivers that end in the middle of a stream",
    "tests/integration/test_backends_on_spark.py": "drivers killed, into two backends: SQLite, and files in two phases",
    STAGING: "staging",
    TYPES: "types",
    "tests/integration/test_wrap.py": "wrapped writers, with a log on disk and on S3",
    DATA_SOURCES: "wrapped writers of Python data sources",
}
"""The test files that every cell runs, and the subject of each."""

SOCKETS = "ignore:unclosed <socket:ResourceWarning"
"""PySpark before 4.2 leaves the closing of sockets to the garbage collector. The tests take warnings for errors."""
OF_3_5 = (
    SOCKETS,
    "ignore:The distutils package is deprecated:DeprecationWarning",
    "ignore:distutils Version classes are deprecated:DeprecationWarning",
    "ignore:is_categorical_dtype is deprecated",
)
LEFT_OUT_OF_3_5: Mapping[str, str] = {
    DATA_SOURCES: "Spark has Python data sources since 4.0",
    f"{STAGING}::TestMemory::test_incompressible_strings_of_a_mebibyte": (
        "Spark 3.5 cuts Arrow batches by rows alone: rows of 1 MiB do not fit into the JVM of the tests, and their "
        "task waits for ever (docs/ASSUMPTIONS.md, `arrow.maxBytesPerBatch`)"
    ),
}


@dataclass(frozen=True)
class Cell:
    """One environment in which the tests run."""

    name: str
    spark: str
    python: str = PYTHONS[0]
    pins: tuple[str, ...] = ()
    """Requirements beside those of wal-sink."""
    constrained: bool = True
    """The other packages have the versions of constraints.txt. Without, they are the newest that are allowed."""
    more_tests: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tests that do not run here, each with the reason."""
    warnings: tuple[str, ...] = ()
    """Warnings of PySpark itself that fail no test here."""

    @property
    def tests(self) -> list[str]:
        """The files to run."""
        return [file for file in [*TESTS, *self.more_tests] if file not in self.left_out]

    @property
    def deselected(self) -> list[str]:
        """The tests to leave out of those files."""
        return [name for name in self.left_out if "::" in name]


def floors() -> dict[str, str]:
    """The oldest version that pyproject.toml allows, of each package that is measured."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *project["optional-dependencies"]["spark"],
        *project["optional-dependencies"]["s3"],
    ]
    found = {wanted.name: wanted.specifier for wanted in map(Requirement, lines)}
    return {name: next(one.version for one in found[name] if one.operator == ">=") for name in MEASURED}


def all_cells() -> list[Cell]:
    """Every cell, in the order of the report."""
    newest = ALL_VERSIONS[-1]
    cells = [_of_spark(version) for version in sorted([*ALL_VERSIONS, FIRST_OF_4_0])]
    cells += [Cell(f"python-{version}", newest, python=version) for version in PYTHONS[1:]]
    stores = {STORES: "every store, S3 by s3fs included"}
    pins = tuple(f"{name}=={version}" for name, version in floors().items())
    cells.append(Cell("oldest-packages", newest, pins=pins, constrained=False, more_tests=stores))
    cells.append(Cell("newest-packages", newest, constrained=False, more_tests=stores))
    return cells


def _of_spark(version: str) -> Cell:
    if version.startswith("3.5."):
        return Cell(f"spark-{version}", version, left_out=LEFT_OUT_OF_3_5, warnings=OF_3_5)
    return Cell(f"spark-{version}", version, warnings=(SOCKETS,) if version < "4.2" else ())
