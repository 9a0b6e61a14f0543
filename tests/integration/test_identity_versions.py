"""Every version of Spark that wal-sink allows tells which query calls `stage`, and what a writer already has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs import identity_scenarios
from tests.support.spark_versions import each_version, run_on

pytestmark = pytest.mark.spark


@each_version
def test_the_calling_query_and_what_a_writer_has_are_told(version: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    output = run_on(version, Path(identity_scenarios.__file__), place, log=tmp_path / "log")
    seen = json.loads(next(line for line in output.splitlines() if line.startswith("SEEN ")).removeprefix("SEEN "))

    assert seen["version"] == version
    expected = [*seen["expected"], seen["run"], True]
    assert expected[1] == str(place / "checkpoint")
    names = {"batch", "static join", "static", "derived", "batch on a thread"}
    assert seen["told"] == dict.fromkeys(names, expected)
    assert seen["on its thread"] == [True, False]
    assert "batch 1: the DataFrame given to stage() holds rows of batch 0" in seen["kept"]
    assert seen["first"] == [True, False, True, False], "two batches of each of two runs"
    assert "on the thread that calls foreachBatch" in seen["static on a thread"]
    assert "runs batch 0, but stage() was given batch 1" in seen["another batch"]
    assert "belongs to no running query" in seen["outside"]
    assert "another WalSink of this process" in seen["second call"]
    assert ("clusterBy" in seen["leftovers"]) == (version != "3.5.9")
    for what, said in seen["leftovers"].items():
        assert f"the writer has {what}(" in said
    assert "/nowhere/old" in seen["leftovers"]["option"]
    assert seen["output modes"] == ["Append", "Update", "Complete"]
    assert seen["delivered"] == list(range(25))
