"""`wal-sink replay` as a user types it: other tables, dead letters, an unfinished replay in `status`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

ORDERS = "sqlite:///shop.db?table=orders"
MODULE = """
from wal_sink import PermanentError

def send(chunk):
    raise PermanentError("down")
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of three batches of two rows, which nobody got."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "replay_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda batch_id, _: [pa.table({"id": [batch_id, 10 + batch_id]})]).batches(run, 3))
    return str(tmp_path / "wal")


def invoke(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args, env={"COLUMNS": "1000"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


def drain(wal: str, name: str, to: str, *more: str, code: int = 0) -> Result:
    return invoke(
        "drain", wal, "--to", to, "--name", name, "--no-progress", "--start-from", "earliest", *more, code=code
    )


def replay(wal: str, to: str, *more: str, code: int = 0) -> Result:
    return invoke("replay", wal, "0-2", "--to", to, "--why", "lost", "--yes", *more, code=code)


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_another_table_of_the_database_is_refused_and_the_way_out_works(wal: str) -> None:
    drain(wal, "a", ORDERS)
    other = "sqlite:///shop.db?table=other"

    refused = replay(wal, other, code=2).stderr
    assert "positions of sinks that were registered for another target: 'a'" in refused
    assert as_json(invoke("repairs", "list", wal, "--json")) == []
    assert as_json(replay(wal, ORDERS, "--json"))["rows_there"] == 6
    assert as_json(replay(wal, other, "--again", "--json"))["rows_sent"] == 6
    done = as_json(replay(wal, ORDERS, "--ledger-of", "a", "--json"))
    assert (done["rows_sent"], done["rows_there"]) == (0, 6)
    assert "exclude each other" in replay(wal, ORDERS, "--ledger-of", "a", "--again", code=2).stderr
    commands = [entry["command"] for entry in as_json(invoke("repairs", "list", wal, "--json"))]
    assert commands[2] == f"wal-sink replay WAL 0-2 --to '{ORDERS}' --ledger-of a --why lost"


def test_refused_rows_stay_dead_letters_and_the_command_says_so(wal: str) -> None:
    with sqlite3.connect("shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER CHECK (id <> 11))")
    drain(wal, "a", ORDERS, "--on-rejected", "dead_letter")

    text = " ".join(replay(wal, ORDERS).stdout.split())

    assert "1 row of them stay in dead letters" in text
    assert "0 rows sent, 5 rows were there 1 row stay in dead letters: send them with" in text
    assert "wal-sink dead-letters replay WAL --name a --to TARGET" in text


def test_an_unfinished_replay_is_neither_late_nor_served(wal: str) -> None:
    drain(wal, "a", ORDERS)
    assert "down" in replay(wal, "replay_targets:send", code=1).stderr

    assert "wal-sink repairs list" in invoke("status", wal, "--max-lag", "1s").stdout
    listed = invoke("sinks", "list", wal).stdout
    assert "the replay of sink 'replay-1' is finished with its command, or given up" in listed
    assert "drain the sink" not in listed
    refused = invoke("drain", wal, "--to", ORDERS, "--name", "replay-1", "--no-progress", code=2).stderr
    assert "belongs to an unfinished replay" in refused
    told = invoke("repairs", "list", wal).stdout
    assert "wal-sink replay WAL 0-2 --to replay_targets:send --why lost" in told
