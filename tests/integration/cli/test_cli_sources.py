"""A process that delivers shows its secrets to nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wal_sink.walsink
from tests.support.processes import python_environment
from tests.support.waiting import wait_until
from wal_sink.cli.sources import PREFIX
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

PLANTED = "hunter2-is-the-password"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}TEST")]:
        monkeypatch.delenv(name)


def written(text: str, name: str = "drain.toml", mode: int = 0o600) -> str:
    path = Path(name)
    path.write_text(text)
    path.chmod(mode)
    return name


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


MODULE = """
import wal_sink.cli.drain

wal_sink.cli.drain.STATUS_S = 60.0

def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")
"""


def test_a_drain_with_a_secret_has_it_neither_among_its_arguments_nor_in_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: a real process whose target, WAL and password come from a file and the environment."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    Path("file_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    stager = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    stager.open()
    stager.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(stager, 2))
    told = {"wal": "wal", "to": "file_targets:take", "start-from": "earliest", "follow": True}
    written(toml(told) + f"[storage-options]\nauto_mkdir = true\n# {PLANTED}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", "drain"],
        env=python_environment({f"{PREFIX}CONFIG": "drain.toml", f"{PREFIX}NAME": "orders", "PASSWORD": PLANTED}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: Path("taken.txt").exists() and Path("taken.txt").read_text() == "0\n1\n")
        arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(30)
    assert process.returncode == 0, err
    assert arguments.rstrip("\0").split("\0")[-1] == "drain"
    assert "sink 'orders': 2 batches delivered" in out
    assert PLANTED not in out + err + arguments
