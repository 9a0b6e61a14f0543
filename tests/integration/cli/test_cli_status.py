"""A process that watches a WAL, with and without a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.support.processes import python_environment
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

BATCHES = 3
END_S = 60.0


@pytest.fixture(autouse=True)
def _no_spark_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A WAL of three complete batches, of which the sink `table` has the first two."""
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(store_of(str(tmp_path / "wal")), checkpoint, Settings())
    run.open()
    run.become_stager()
    query = FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1, 2]})])
    assert list(query.batches(run, BATCHES - 1)) == [0, 1]
    invoke("drain", str(tmp_path / "wal"), "--to", f"sqlite:///{tmp_path}/t.db?table=t", "--name", "table",
           "--start-from", "earliest")  # fmt: skip
    assert list(query.batches(run, BATCHES)) == [2]
    return str(tmp_path / "wal")


def store_of(wal: str) -> Store:
    return open_store(StoreSpec(wal))


def invoke(*args: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == exit_code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_without_a_terminal_prints_snapshots_until_ctrl_c(wal: str, *, as_json: bool) -> None:
    more = ["--json"] if as_json else []
    with watching(wal, *more, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while len(lines) < 2:
            line = process.stdout.readline().decode()
            assert line, process.wait(END_S)
            lines += [line] if as_json or line.startswith("--- ") else []
        process.send_signal(signal.SIGINT)
        rest, complaint = process.communicate(timeout=END_S)
    assert (process.returncode, complaint) == (0, b"")
    if as_json:
        assert [json.loads(line)["newest_batch"] for line in lines] == [2, 2]
    else:
        assert b"Traceback" not in rest


def test_watching_on_a_terminal_shows_the_state_in_place_until_ctrl_c(wal: str) -> None:
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 40, 0, 0))
    with watching(wal, stdin=side, stdout=side, terminal="xterm") as process:
        os.close(side)
        shown, deadline = b"", time.monotonic() + END_S
        while shown.count(b"Ctrl-C") < 2 and time.monotonic() < deadline:
            shown += os.read(screen, 65_536)
        process.send_signal(signal.SIGINT)
        shown += _rest(screen)
        assert process.wait(END_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(screen)
    assert b"newest batch" in shown
    assert shown.rstrip().endswith((b"\x1b[?1049l", b"\x1b[?25h")), shown[-80:]  # the screen from before is back


def _rest(screen: int) -> bytes:
    found = b""
    try:
        while select.select([screen], [], [], END_S)[0] and (data := os.read(screen, 65_536)):
            found += data
    except OSError:  # the other side is closed
        pass
    return found


def watching(wal: str, *more: str, terminal: str = "dumb", **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "wal_sink.cli", "status", wal, "--watch", "--every", "100ms", *more]
    environment = {**python_environment(), "TERM": terminal}
    process: subprocess.Popen[Any] = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **streams)
    return process


def read_until(process: subprocess.Popen[bytes], *texts: bytes) -> None:
    """Read lines up to the first with one of these texts. The end of the process is an error, not more to wait for."""
    assert process.stdout is not None
    line = process.stdout.readline()
    while not any(text in line for text in texts):
        assert line, process.communicate(timeout=END_S)
        line = process.stdout.readline()


def test_watching_goes_on_after_a_store_that_gave_no_answer(wal: str) -> None:
    with watching(wal, stdout=subprocess.PIPE) as process:
        read_until(process, b"newest batch")
        Path(wal).rename(f"{wal}-unmounted")  # an unmounted folder: there is no WAL
        read_until(process, b"holds no wal.json", b"the store gave no answer")  # the latter in the middle of a look
        Path(f"{wal}-unmounted").rename(wal)
        read_until(process, b"newest batch")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    assert process.returncode == 0
