"""`wal-sink repairs`, and the questions of the verbs that repair."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

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
