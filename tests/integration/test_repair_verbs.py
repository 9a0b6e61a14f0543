"""Verbs that repair, as text and as JSON."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import paths
from tests.house.stores import Store, StoreSpec, open_store
from tests.support.staged_log import stage

MODULE = """
import json
from wal_sink import PermanentError, Rejected

def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id} {chunk.key}\\n")

def poison(chunk):
    if chunk.batch_id == 1:
        raise PermanentError("this row can never be stored")
    take(chunk)

def picky(chunk):
    return Rejected({0: f"bad row of {chunk.batch_id}"})
"""
BATCHES = 3


@dataclass
class Wal:
    """A WAL that commands use, and the store behind it."""

    url: str
    store: Store

    def run(self, *verb: str, args: tuple[str, ...] = (), code: int = 0) -> Result:
        result = CliRunner().invoke(main, [*verb, self.url, *args])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *verb: str, args: tuple[str, ...] = (), code: int = 0) -> Any:
        return json.loads(self.run(*verb, args=(*args, "--json"), code=code).stdout)

    def stage(self, batches: int) -> None:
        stage(Path(self.url).parent, batches, lambda *_: [pa.table({"id": [1, 2, 3]})], chunk_rows=2)

    def drain(self, to: str = "repair_targets:take", *more: str, name: str = "default", code: int = 0) -> Result:
        known = name in {folder.rstrip("/") for folder in self.store.list(paths.SINKS)}
        start = () if known else ("--start-from", "earliest")
        args = ("--to", to, "--name", name, *start, *more)
        return self.run("drain", args=args, code=code)

    @property
    def objects(self) -> list[str]:
        return self.store.list("", recursive=True)


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wal:
    """A WAL of three complete batches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "repair_targets.py").write_text(MODULE)
    place = Wal(str(tmp_path / "wal"), open_store(StoreSpec(str(tmp_path / "wal"))))
    place.stage(BATCHES)
    return place


def taken() -> list[int]:
    file = Path("taken.txt")
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_poison_batch_is_skipped(wal: Wal) -> None:
    wal.drain("repair_targets:poison", code=1)
    before = wal.objects

    text = wal.run("skip", args=("1", "--why", "poison", "--dry-run")).stdout
    assert "batch 1 has 3 rows" in text
    assert "sink 'default' (plain) has 0 rows of it by the records of the WAL" in text
    assert wal.json("skip", args=("1", "--why", "poison", "--dry-run"))["dry_run"] is True
    assert "Add --yes" in wal.run("skip", args=("1", "--why", "poison"), code=2).stderr
    assert wal.objects == before

    done = wal.json("skip", args=("1", "--why", "poison", "--yes"))
    assert (done["outcome"], done["rows"], done["sent_rows"]) == ("skipped", 3, 0)
    assert wal.json("skip", args=("1", "--why", "again", "--yes"))["outcome"] == "skipped"
    assert "would get batch 2 next" in wal.run("skip", args=("0", "--why", "x", "--yes"), code=2).stderr
    wal.drain()
    assert set(taken()) == {0, 2}
    [shown] = wal.json("show", args=("1",))["delivered"]
    assert (shown["skipped"], shown["rows"]) == (True, 0)
    assert "skipped" in wal.run("show", args=("1",)).stdout
    [sink] = wal.json("sinks", "list")
    [change] = sink["changes"]
    assert (change["outcome"], change["command"]) == ("done", "wal-sink skip WAL 1 --name default --why poison")
    assert "wal-sink skip WAL 1 --name default" in wal.run("sinks", "list").stdout


def test_dead_letters_are_deleted_and_chosen_ones_sent_again(wal: Wal) -> None:
    wal.drain("repair_targets:picky", "--on-rejected", "dead_letter")
    assert wal.json("letters", "list")[0]["rows"] == 1
    listed = wal.json("letters", "list")
    assert "name the dead letters" in wal.run("letters", "delete", code=2).stderr
    for bad in ("soon", "0d"):
        args = ("--older-than", bad)
        assert "expected a duration above 0" in wal.run("letters", "delete", args=args, code=2).stderr

    again = ("--to", "repair_targets:take", "--batch", "1")
    assert wal.json("letters", "replay", args=(*again, "--dry-run"))["letters"] == 2
    assert "2 dead letters sent to take: 2 rows" in wal.run("letters", "replay", args=again).stdout

    args = ("--reason", "row of 0")
    assert "2 dead letters to delete: 2 rows" in wal.run("letters", "delete", args=(*args, "--dry-run")).stdout
    assert wal.json("letters", "delete", args=(*args, "--dry-run"))["letters"] == 2
    assert len(wal.json("letters", "list")) == len(listed)
    assert "Add --yes" in wal.run("letters", "delete", args=args, code=2).stderr
    assert "2 dead letters deleted: 2 rows" in wal.run("letters", "delete", args=(*args, "--yes")).stdout
    old = ("--older-than", "30d", "--yes")
    assert wal.json("letters", "delete", args=old)["letters"] == 0
    done = wal.json("letters", "delete", args=("--all", "--yes"))
    assert (done["letters"], done["files"]) == (4, 6)
    assert wal.json("letters", "list") == []


def test_a_skip_of_a_transactional_sink_reads_its_ledger(wal: Wal) -> None:
    wal.drain("sqlite:///orders.db?table=orders")
    wal.stage(BATCHES + 1)
    with sqlite3.connect("orders.db") as database:
        database.execute("CREATE TRIGGER poison BEFORE INSERT ON orders BEGIN SELECT RAISE(ABORT, 'poisoned'); END")
    wal.drain("sqlite:///orders.db?table=orders", "--max-attempts", "1", code=1)

    args = ("3", "--why", "poison", "--yes", "--to", "sqlite:///orders.db?table=orders")
    done = wal.json("skip", args=args)

    assert (done["target_rows"], done["outcome"]) == ([0], "skipped")
