"""`wal-sink doctor --master`: the workers' Python, looked at on a real Spark in processes that the tests start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lasting import Lasting
from tests.support.processes import python_environment
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.spark
LIMIT_S = 240
CALLS: dict[str, tuple[dict[str, str], list[str]]] = {
    "s3": ({}, ["s3://lake/wal", "--master", "local[1]", "--storage-options",
                f'{{"anon": true, "endpoint_url": "http://127.0.0.1:{free_port()}"}}']),
    "no python": ({"PYSPARK_PYTHON": "no-such-python"}, ["--master", "local[1]"]),
    "no master": ({}, ["--master", "nothing://here"]),
}  # fmt: skip
"""Additions to the environment, and the arguments."""
MANY = """
import json, sys
from click.testing import CliRunner
from wal_sink.cli.main import main
from wal_sink.spark.examination import worker_findings

for name, (env, arguments) in json.loads(sys.argv[1]).items():
    done = CliRunner(env=env).invoke(main, ["doctor", "--json", *arguments])
    print("FOUND", json.dumps([name, done.exit_code, json.loads(done.stdout)["findings"]]))
for one in worker_findings(sys.argv[2], None, timeout_s=0.01):
    print(one.level, one.found, flush=True)
"""
"""Each call starts its Spark and stops it, all in one JVM. The last one gives up while Spark starts."""


def by_check(findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["check"]: one for one in findings}


@pytest.fixture(scope="module")
def said(other_sparks: Lasting) -> str:
    return other_sparks.run(MANY, json.dumps(CALLS), f"spark://127.0.0.1:{free_port()}")


@pytest.fixture(scope="module")
def found(said: str) -> dict[str, tuple[int, dict[str, Any]]]:
    """The exit code and the findings of each call."""
    lines = [json.loads(line.removeprefix("FOUND ")) for line in said.splitlines() if line.startswith("FOUND ")]
    return {name: (code, by_check(findings)) for name, code, findings in lines}


def test_workers_that_can_run_wal_sink_are_fine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wal_sink.cli", "doctor", "--json", "--master", "local[1]"],
        env=python_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    found = by_check(json.loads(done.stdout)["findings"])
    assert done.returncode == 0
    assert found["spark"]["found"].endswith("on local[1]")
    assert "with pyarrow, pandas, fsspec, msgspec, wal_sink" in found["workers"]["found"]


def test_a_log_on_s3_needs_s3fs_in_the_workers_too(found: dict[str, tuple[int, dict[str, Any]]]) -> None:
    _, findings = found["s3"]
    assert findings["workers"]["found"].endswith("wal_sink, s3fs")


def test_a_master_that_nobody_knows_is_an_error(found: dict[str, tuple[int, dict[str, Any]]]) -> None:
    code, findings = found["no master"]
    assert (code, findings["workers"]["level"]) == (1, "error")
    assert "nothing://here" in findings["workers"]["found"]


def test_a_cluster_that_runs_no_task_is_an_error_in_bounded_time(said: str) -> None:
    assert "ran no task within 0.01 s" in said
