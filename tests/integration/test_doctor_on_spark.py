"""`wal-sink doctor --master`: the workers' Python, looked at on a real Spark in a process that the test starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python_environment
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.spark
LIMIT_S = 240
TIMED = """
from wal_sink.spark.examination import worker_findings
for one in worker_findings({master!r}, None, timeout_s=0.01):
    print(one.level, one.found)
"""


def doctor(*args: str, folder: Path, **env: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "wal_sink.cli", "doctor", "--json", *args],
        env={**python_environment(), **env}, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    return done.returncode, {one["check"]: one for one in report["findings"]}


def test_workers_that_can_run_wal_sink_are_fine(tmp_path: Path) -> None:
    code, found = doctor("--master", "local[1]", folder=tmp_path)
    assert code == 0
    assert found["spark"]["found"].endswith("on local[1]")
    assert "with pyarrow, pandas, fsspec, msgspec, wal_sink" in found["workers"]["found"]


def test_a_log_on_s3_needs_s3fs_in_the_workers_too(tmp_path: Path) -> None:
    _, found = doctor("s3://lake/wal", "--master", "local[1]", "--option", "anon=true", "--option",
                      f"endpoint_url=http://127.0.0.1:{free_port()}", folder=tmp_path)  # fmt: skip
    assert found["workers"]["found"].endswith("wal_sink, s3fs")


def test_a_python_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    code, found = doctor("--master", "local[1]", folder=tmp_path, PYSPARK_PYTHON="no-such-python")
    assert (code, found["workers"]["level"]) == (1, "error")
    assert "no-such-python" in found["workers"]["found"]


def test_a_master_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    code, found = doctor("--master", "nothing://here", folder=tmp_path)
    assert (code, found["workers"]["level"]) == (1, "error")
    assert "nothing://here" in found["workers"]["found"]


def test_a_cluster_that_runs_no_task_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(master=f"spark://127.0.0.1:{free_port()}")],
        env=python_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert "ran no task within 0.01 s" in done.stdout
