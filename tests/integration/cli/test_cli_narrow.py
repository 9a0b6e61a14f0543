"""A process with a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import wal_sink.walsink
from tests.support.processes import python_environment
from wal_sink import Chunk, Delivery, Rejected, WalSink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

WIDTH = 80
LONG = "orders-warehouse-postgresql-eu-central-1"

FOLDER = "analytics-lake-production-eu-central-1/streaming/write-ahead-logs/orders-v2"
REASON = "value out of range: amount -1 is below the minimum of 0 that the API accepts for this account"


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: REASON})


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)


@pytest.fixture(scope="module")
def wal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A WAL at a long path with three sinks: a database, files, and an API that refuses a row of each chunk."""
    base = tmp_path_factory.mktemp("lake") / FOLDER
    wal, checkpoint = str(base / "wal"), str(base / "checkpoint")
    run = Run(open_store(StoreSpec(wal)), open_store(StoreSpec(checkpoint)), Settings(chunk_rows=2))
    run.open()
    run.become_stager()
    table = pa.table(
        {"id": [1, 2], "customer": [f"{n} long names {'of a customer ' * 6}" for n in "ab"], "amount": [-1, 2]}
    )
    assert list(FakeQuery(open_store(StoreSpec(checkpoint)), lambda *_: [table]).batches(run, 2)) == [0, 1]
    to = {
        LONG: Delivery(f"sqlite:///{base}/t.db?table=orders_of_all_countries", start_from="earliest"),
        "files": Delivery(f"files://{base}/out?format=csv", start_from="earliest"),
        "api": Delivery(refuse, on_rejected="dead_letter", start_from="earliest"),
    }
    with WalSink(to, wal=wal, checkpoint=checkpoint):
        pass
    return wal


def shown(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fits(output: str) -> str:
    """The output, whose lines all fit; as one line, without the breaks within addresses."""
    assert [line for line in output.splitlines() if cell_len(line) > WIDTH] == []
    return re.sub(r"(?<=/)\n\s*", "", output)


def flat(output: str) -> str:
    return " ".join(output.split())


def ageless(output: str) -> str:
    """The output without the ages, which grow from one look to the next."""
    return re.sub(r"[0-9.]+ (s|min) ago", "an age ago", output)


def test_a_real_terminal_of_80_columns(wal: str) -> None:
    """rich reads the width of the terminal itself."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    environment = {name: value for name, value in python_environment().items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "wal_sink.cli", "--quiet", "status", wal]  # a slow machine would show a spinner
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    output = b""
    try:
        while part := _read(leader):
            output += part
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(leader)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r\n", "\n").replace("\r", "")
    assert ageless(flat(fits(seen))) == ageless(flat(fits(shown("status", wal))))


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux answers so once the process has closed its end
        return b""
