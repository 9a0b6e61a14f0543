"""Wrapped writers beside Spark alone: rows, sessions and errors are the same, but for what a page lists.

The table of `docs/guide/existing-writers.md` is held both ways: each difference of a run is in it, and each of its rows
still occurs. `beside_spark.py` runs the queries, once on each of three versions of Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT
from tests.support.programs import beside_spark
from tests.support.spark_versions import VERSIONS, run_on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]  # a first run fetches that Spark

PAGE = CHECKOUT / "docs" / "guide" / "existing-writers.md"
TABLE = re.compile(r"^## How it differs from Spark alone$.*?^(\|.*?)^$", re.DOTALL | re.MULTILINE)
CALLS = r"foreach_batch.*: batch \d: partitions|foreach_writer.*: batch \d: open|data_.*: batch \d: (commit|abort).*"

DIFFERENCES = {
    "partitions of `df`": ("", CALLS),
    "`spark.sql.adaptive": ("3.5 4.0", r"foreach_batch.*: setting spark.sql.adaptive.enabled"),
    "`spark.sql.cbo": ("", r"foreach_batch.*: setting spark.sql.(cbo.enabled|requireAllClusterKeysForDistribution)"),
    "settings that pin": ("4.3", r"foreach_batch.*: setting spark.sql.streaming.*"),
    "job group": ("", r"foreach_batch.*: job group is the query's"),
    "local properties": ("", r".*: local property mine"),
    "`streaming.sql.batchId`": ("", r"foreach_(batch|writer).*: local property streaming.sql.batchId"),
    "thread of": ("", r"foreach_writer.*: (open|process): main thread"),
    "process of": ("4", r"data_source_writer.*: (commit|abort): (active session|in the driver|main thread)"),
    "a data source in": ("4", r"data_source_writer, GMT\+8 .*"),
    "order of the keys": ("", r"foreach_writer.*: value: map.1"),
    "the error of the query": ("", r".*: query's error|data_.*, (write|commit) raises: query's error has the writer's"),
    "a row with a value": ("", r"(foreach|data_source)_writer, .*: query's error names row and column"),
    "an array of no type": ("", r".*, (array of no type|year-month interval): query ends well"),
}
"""The beginning of each row of the table; the versions, if not all; writer, case and fact as a regular expression."""


def differences(seen: dict[str, dict[str, dict[str, list[str]]]]) -> Iterator[tuple[str, object, object]]:
    for case, alone in seen["Spark"].items():
        here = seen["wal_sink"][case]
        for fact in sorted(alone.keys() | here.keys()):
            is_told = " and " in case or fact.startswith("query")  # the rest of a failed query differs with it
            if is_told and alone.get(fact) != here.get(fact):
                yield f"{case}: {fact}", alone.get(fact), here.get(fact)


@pytest.mark.parametrize("version", [one for one in VERSIONS if one.startswith(("3.5.", "4.0.", "4.3."))])
def test_a_wrapped_writer_sees_what_it_sees_with_spark_alone_but_for_what_the_page_lists(
    version: str, tmp_path: Path
) -> None:
    output = run_on(version, Path(beside_spark.__file__), tmp_path, log=tmp_path / "log", limit_s=900.0)
    seen = json.loads(next(line for line in output.splitlines() if line.startswith("SEEN ")).removeprefix("SEEN "))
    known = {row: fact for row, (on, fact) in DIFFERENCES.items() if version.startswith(tuple(on.split()) or "")}
    unlisted, occurred = [], set[str]()
    for fact, *values in differences(seen):
        rows = {row for row, pattern in known.items() if re.fullmatch(pattern, fact)}
        occurred |= rows
        if not rows:
            unlisted.append((fact, *values))
    assert not unlisted
    assert occurred == known.keys()
    table = TABLE.search(PAGE.read_text())
    assert table
    lines = table[1].splitlines()[2:]
    assert all(line.startswith(f"| {row}") for line, row in zip(lines, DIFFERENCES, strict=True)), lines
