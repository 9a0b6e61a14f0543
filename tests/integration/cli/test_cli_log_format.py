"""A process that is ended by SIGTERM logs JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import wal_sink.walsink
from tests.support.processes import python_environment
from tests.support.waiting import wait_until
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

MODULE = """
from pathlib import Path
import sys

if "pytest" not in sys.modules:
    from tests.support.ending_runs import wait_for_the_end

def fail(chunk):
    raise ConnectionError("no route to https://me:hush-hush-0123@host/x?token=abcdefgh")

def slow(chunk):
    from wal_sink.cli import working
    working.wait_for_reports()

def held(chunk):
    Path("begun").touch()
    wait_for_the_end()
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    assert list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 2)) == [0, 1]
    (tmp_path / "logged_targets.py").write_text(MODULE)
    return str(tmp_path / "wal")


def test_an_end_by_sigterm_is_json(wal: str) -> None:
    args = ("--log-format", "json", "drain", wal, "--to", "logged_targets:held", "--start-from", "earliest")
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", *args],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: Path("begun").exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert json.loads(told.splitlines()[-1])["message"].startswith("ended by SIGTERM")
    assert all(json.loads(line) for line in told.splitlines())
