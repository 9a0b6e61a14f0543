"""A WAL is copied to S3, and by a process with a narrow terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

import wal_sink.cli.copy
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

if TYPE_CHECKING:
    from tests.support.servers.s3_server import S3Server

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of two complete batches that nobody has, and whose query ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "copying_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 2))
    note_end(run.log, paths.STAGER_ROLE, 1)
    return tmp_path / "wal"


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.s3
def test_to_s3_with_options_for_it_alone(wal: Path, s3_server: S3Server, s3_url: str, tmp_path: Path) -> None:
    options = json.dumps(s3_server.storage_options)

    text = invoke("copy", wal, f"{s3_url}/wal", "--yes", "--to-options-json", options).stdout
    assert f"{s3_url}/wal is a complete copy" in text
    assert s3_server.storage_options["secret"] not in text
    # Both on S3: the options of the WAL serve for the copy.
    invoke("copy", f"{s3_url}/wal", f"{s3_url}/other", "--yes", "--storage-options-json", options)
    invoke("copy", f"{s3_url}/other", tmp_path / "back", "--yes", "--storage-options-json", options)

    kept = content(tmp_path / "back")
    del kept[paths.COPY], kept[paths.COPIED]
    assert kept == content(wal)


def test_forty_columns_are_enough(wal: Path) -> None:
    main_end, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {**python_environment(), "COLUMNS": "40"}
    command = [sys.executable, "-m", "wal_sink.cli", "copy", str(wal), "new", "--dry-run"]
    with subprocess.Popen(
        command, stdout=other_end, stderr=subprocess.PIPE, env=environment, cwd=wal.parent
    ) as process:
        os.close(other_end)
        shown = b""
        while data := _read(main_end):
            shown += data
        assert process.wait(60) == 0
    lines = shown.decode().splitlines()
    assert len(lines) > 5
    assert max(map(cell_len, lines)) <= 40


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""
