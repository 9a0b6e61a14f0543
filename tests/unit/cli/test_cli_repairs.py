"""`wal-sink repairs`, and the questions of the verbs that repair."""

from __future__ import annotations

import importlib
import json
import sqlite3
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.cli.dead_letters
import wal_sink.cli.repairing
from wal_sink.cli.main import main
from wal_sink.cli.repairing import confirm
from wal_sink.errors import ConfigError
from wal_sink.lifecycle.run import Run
from wal_sink.repair.journal import Order, begin, finish
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end
from wal_sink.wal.log import Log

SKIP = Order("skip", {"batch": 7, "--name": "orders"}, ("sinks/orders/",), why="poison")


@pytest.fixture
def wal(tmp_path: Path) -> str:
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 1))
    return str(tmp_path / "wal")


def log_of(wal: str) -> Log:
    return Log(open_store(StoreSpec(wal)), SYSTEM, SYSTEM.new_id())


def invoke(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_repairs_are_listed_and_an_unfinished_one_with_its_command(wal: str) -> None:
    log = log_of(wal)
    finish(log, begin(log, Order("gc", {}, ("batches/",)), {"bytes": 5}), {"deleted": 2})
    begin(log, SKIP, {})

    text = invoke("repairs", "list", wal).stdout
    assert "2 repairs" in text
    assert "repair 2 is unfinished. The same command completes it: wal-sink skip WAL 7 --name orders" in text

    first, second = json.loads(invoke("repairs", "list", wal, "--json").stdout)
    assert (first["state"], first["plan"], first["result"]) == ("done", {"bytes": 5}, {"deleted": 2})
    assert (second["state"], second["why"], second["command"]) == (
        "unfinished",
        "poison",
        "wal-sink skip WAL 7 --name orders --why poison",
    )
    assert second["result"] is None


def test_an_unfinished_repair_is_given_up(wal: str) -> None:
    begin(log_of(wal), SKIP, {})

    assert "repair 1 is given up" in invoke("repairs", "give-up", wal, "1", "--why", "typing error").stdout

    [entry] = json.loads(invoke("repairs", "list", wal, "--json").stdout)
    assert (entry["state"], entry["given_up_because"]) == ("given up", "typing error")
    assert "is not unfinished" in invoke("repairs", "give-up", wal, "1", "--why", "x", code=2).stderr
    begin(log_of(wal), SKIP, {})
    assert json.loads(invoke("repairs", "give-up", wal, "2", "--why", "x", "--json").stdout)["number"] == 2


_SINKS = """
from tests.support.vault import Vault, VaultSink
from wal_sink import PermanentError, Rejected

vault = Vault()

class Closed(VaultSink):
    def commit(self, transaction, handle):
        raise PermanentError("refused")

closed = Closed(vault)

def refuse(chunk):
    return Rejected({0: "bad"})

def worse(chunk):
    return Rejected({0: "worse"})
"""


@pytest.fixture
def delivered(wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL whose sink has one dead letter."""
    name = f"repair_sinks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(_SINKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    note_end(log_of(wal), paths.STAGER_ROLE, 1)
    args = ("--to", f"{name}:refuse", "--start-from", "earliest", "--on-rejected", "dead_letter")
    invoke("drain", wal, *args)
    return name


def test_transactions_that_a_replay_left_open_are_aborted_in_their_target(wal: str, delivered: str) -> None:
    to = ("--to", f"{delivered}:closed")
    invoke("replay", wal, "0", *to, "--why", "x", "--yes", code=1)
    vault = importlib.import_module(delivered).vault
    [held] = vault.held

    refused = invoke("repairs", "give-up", wal, "1", "--why", "x", code=2).stderr
    assert held in refused.replace("\n", "")
    assert vault.held
    done = invoke("repairs", "give-up", wal, "1", "--why", "x", *to).stdout

    assert "1 transaction aborted in Closed" in done
    assert vault.held == {}
    [entry] = json.loads(invoke("repairs", "list", wal, "--json").stdout)
    assert entry["result"] == {"retired": "replay-1", "aborted": 1}


def test_a_record_that_cannot_be_read_is_told_with_the_way_out(wal: str) -> None:
    log = log_of(wal)
    begin(log, SKIP, {})
    log.store.delete([paths.repair(1)])
    log.store.create(paths.repair(1), b"damaged")

    text = " ".join(invoke("repairs", "list", wal).stdout.split())
    assert "the record of repair 1 cannot be read" in text
    assert "give it up: wal-sink repairs give-up WAL 1 --why TEXT" in text
    [entry] = json.loads(invoke("repairs", "list", wal, "--json").stdout)
    assert entry["command"] is None
    assert "expected a repair record" in entry["damage"]

    invoke("repairs", "give-up", wal, "1", "--why", "damaged")

    assert "repair 1 is unfinished" not in invoke("repairs", "list", wal).stdout


@pytest.mark.parametrize("as_json", [True, False])
def test_dead_letters_that_stay_are_told(
    as_json: bool, wal: str, delivered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay is refused for another reason while the command asks."""

    def meanwhile(_question: str, *, yes: bool) -> None:
        assert yes
        invoke("dead-letters", "replay", wal, "--to", f"{delivered}:worse", code=1)

    monkeypatch.setattr(wal_sink.cli.dead_letters, "confirm", meanwhile)
    args = ("dead-letters", "delete", wal, "--all", "--why", "x", "--yes")

    if as_json:
        found = json.loads(invoke(*args, "--json").stdout)
        assert (found["files"], found["stayed"]) == (0, 2)
        assert "named" not in found
    else:
        text = invoke(*args).stdout
        assert "0 files deleted" in text
        assert "2 dead letters stay" in text


def test_damaged_batches_are_told_by_gc(wal: str, delivered: str) -> None:
    assert delivered
    log = log_of(wal)
    assert json.loads(invoke("gc", wal, "--json").stdout)["damaged_batches"] == 0
    assert "damaged" not in invoke("gc", wal).stdout
    log.store.delete([paths.release(0)])
    log.store.create(paths.release(0), b"damaged")

    assert "1 batch is damaged and was left alone; see wal-sink verify" in invoke("gc", wal).stdout
    assert json.loads(invoke("gc", wal, "--json").stdout)["damaged_batches"] == 1


def test_the_only_copy_of_a_batch_survives_gc_and_is_told(wal: str) -> None:
    """Its manifest was lost, and the query ended. The checkpoint is read, since no later batch tells."""
    log = log_of(wal)
    note_end(log, paths.STAGER_ROLE, 1)
    newest = max(log.numbers(paths.BATCHES))
    folder = paths.batch(newest)
    log.store.delete(f"{folder}/{name}" for name in log.store.list(folder) if name.startswith("manifest"))
    before = log.store.list(paths.BATCHES, recursive=True)

    text = " ".join(invoke("gc", wal, "--delete", "--yes", "--why", "x").stdout.split())
    facts = json.loads(invoke("gc", wal, "--json").stdout)

    assert f"batch {newest} was left alone: its manifest is lost: Spark completed the batch in" in text
    assert facts["damaged_batches"] == 1
    assert [each["batch_id"] for each in facts["left_alone"]] == [newest]
    assert log.store.list(paths.BATCHES, recursive=True) == before
    elsewhere = json.loads(invoke("gc", wal, "--checkpoint", "memory://nowhere/checkpoint", "--json").stdout)
    assert (elsewhere["damaged_batches"], elsewhere["objects"]) == (0, 0)
    assert "is not the checkpoint of the WAL's query" in elsewhere["left_alone"][0]["why"]


def test_a_number_of_rows_that_is_not_certain_is_told(
    wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row of the sink was delivered, so an empty database proves nothing."""
    monkeypatch.chdir(tmp_path)
    to = "sqlite:///orders.db?table=orders"
    note_end(log_of(wal), paths.STAGER_ROLE, 1)
    with sqlite3.connect("orders.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER CHECK (id > 1))")
    invoke("drain", wal, "--to", to, "--start-from", "earliest", "--max-attempts", "1", code=1)

    text = " ".join(invoke("skip", wal, "0", "--why", "x", "--yes", "--to", to).stdout.split())

    assert "the target has 0 rows, but its ledger holds nothing of this sink yet" in text
    assert "unless you add --again" in text


def test_a_wal_without_repairs_has_none(wal: str) -> None:
    assert "0 repairs" in invoke("repairs", "list", wal).stdout
    assert json.loads(invoke("repairs", "list", wal, "--json").stdout) == []


def test_where_there_is_no_wal_it_is_told(tmp_path: Path) -> None:
    assert "holds no wal.json" in invoke("repairs", "list", str(tmp_path / "no"), code=1).output


def test_on_forty_columns_no_line_is_longer(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    begin(log_of(wal), SKIP, {})

    text = invoke("repairs", "list", wal).stdout

    assert max(map(len, text.splitlines())) <= 40
    assert "poison" in text


def test_nobody_is_asked_where_the_answer_was_given() -> None:
    confirm("Skip batch 7?", yes=True)


def test_without_a_terminal_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.cli.repairing, "sys", _Input(is_terminal=False))

    with pytest.raises(ConfigError, match=r"Skip batch 7\? .*Add --yes .* or --dry-run .*Nothing was changed"):
        confirm("Skip batch 7?", yes=False)


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_the_answer_decides(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.cli.repairing, "sys", _Input(is_terminal=True))
    monkeypatch.setattr(click, "confirm", lambda *_, **__: answer)

    if answer:
        confirm("Skip batch 7?", yes=False)
        return
    with pytest.raises(SystemExit) as ended:
        confirm("Skip batch 7?", yes=False)
    assert ended.value.code == 1


class _Input:
    """`sys` with or without a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.stdin = self
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def exit(self, code: int) -> None:
        raise SystemExit(code)
