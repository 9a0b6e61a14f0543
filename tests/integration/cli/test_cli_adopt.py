"""A WAL that was moved is adopted in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.support.processes import python_environment
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of three batches of two rows, of which the sink `default` has the first. Its query ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "adopting_targets.py").write_text(MODULE)
    stage(tmp_path / "wal", tmp_path / "checkpoint", 1)
    drain(tmp_path / "wal")
    stage(tmp_path / "wal", tmp_path / "checkpoint", 3)
    return tmp_path / "wal"


def stage(wal: Path, checkpoint: Path, batches: int) -> None:
    files = open_store(StoreSpec(str(checkpoint)))
    run = Run(open_store(StoreSpec(str(wal))), files, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(files, lambda *_: [pa.table({"id": [1, 2]})]).batches(run, batches))
    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def in_a_new_process(*args: object) -> str:
    """As a user calls it. This process remembers the folder that it used, and takes it for a lost mount."""
    command = [sys.executable, "-m", "wal_sink.cli", *map(str, args)]
    done = subprocess.run(command, env=python_environment(), check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


def drain(wal: Path | str, *more: object, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", "adopting_targets:take", "--start-from", "earliest", *more, code=code)


def taken(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "taken.txt").read_text().split()]


def test_a_wal_that_was_moved_by_hand_records_its_place(wal: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    wal.rename(there)

    text = in_a_new_process("adopt", there, "--dry-run")
    assert f"the WAL lies at file://{there}, but records file://{wal}; no WAL lies there any more" in text
    assert "nothing was changed" in text
    assert "repairs" not in {file.name for file in there.iterdir()}
    refused = invoke("adopt", there, code=2)
    assert "there is no terminal" in refused.output

    done = invoke("adopt", there, "--yes", "--why", "a larger disk")

    assert f"the WAL lies at file://{there} from now on" in done.stdout
    assert "recorded location" not in drain(there).output
    assert taken(tmp_path) == [0, 1, 2]
    assert "a larger disk" in invoke("repairs", "list", there).stdout
    assert "no sink gets anything twice or never" in invoke("adopt", there).stdout
