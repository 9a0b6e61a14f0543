"""`wal-sink catch-up` as a user types it: the plan, the question, and what it says at the end."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage as stage_log

SHOP = "sqlite:///shop.db?table=orders"
WHY = ("--why", "the disk failed")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Stage batches of two rows up to a number of them."""
    monkeypatch.chdir(tmp_path)

    def stage(batches: int) -> str:
        stage_log(tmp_path, batches, lambda id_, _: [pa.table({"id": [id_, 100 + id_]})], is_over=True)
        return str(tmp_path / "wal")

    return stage


def restored(stage: Callable[[int], str], earlier: int, later: int) -> str:
    """A WAL whose database has only the first batches, since it was restored from its backup."""
    wal = stage(earlier)
    drain(wal)
    shutil.copy("shop.db", "backup.db")
    stage(later)
    drain(wal)
    shutil.copy("backup.db", "shop.db")
    return wal


def drain(wal: str, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", SHOP, "--name", "a", "--start-from", "earliest", code=code)


def catch_up(wal: str, *more: str, code: int = 0, to: str = SHOP, **how: Any) -> Result:
    return invoke("catch-up", wal, "--name", "a", "--to", to, *WHY, *more, code=code, **how)


def refuse_row_102() -> None:
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute(
            "CREATE TRIGGER picky BEFORE INSERT ON orders WHEN NEW.id = 102 BEGIN SELECT RAISE(ABORT, 'no'); END"
        )


def count() -> int:
    with closing(sqlite3.connect("shop.db")) as database:
        return int(database.execute("SELECT count(DISTINCT id) + count(*) FROM orders").fetchone()[0]) // 2


def test_the_command_shows_each_batch_asks_and_says_what_it_did(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 2, 4)

    shown = catch_up(wal, "--dry-run").stdout
    assert "sink 'a' has every batch up to 3; SqlSink('sqlite:///" in shown
    assert "is at batch 1, row 2" in shown
    assert "batch 2: 2 rows\nbatch 3: 2 rows\n2 batches to send (2-3): 4 rows" in shown
    assert "Add --yes" in catch_up(wal, code=2).stderr
    assert count() == 4
    done = catch_up(wal, "--yes").stdout
    assert "2 batches sent to SqlSink" in done
    assert "It has everything that sink 'a' delivered, up to batch 3. Start the query or drain again" in done
    assert count() == 8
    assert "the target lacks no batch" in catch_up(wal, "--yes").stdout
    found = {sink["name"]: sink["changes"] for sink in invoke_json("sinks", "list", wal)}
    [entry] = found["a"]
    assert entry["command"] == f"wal-sink catch-up WAL --name a --to '{SHOP}' --why 'the disk failed'"
    stage(5)
    drain(wal)
    assert count() == 10


def test_many_batches_are_shown_as_ranges_and_each_in_json(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 1, 23)

    shown = catch_up(wal, "--dry-run").stdout
    assert "batch 5:" not in shown
    assert "22 batches to send (1-22): 44 rows" in shown
    plan = json.loads(catch_up(wal, "--dry-run", "--json").stdout)
    assert plan["batches"] == [[number, 2] for number in range(1, 23)]
    assert (plan["dry_run"], plan["rows"], plan["through"]) == (True, 44, 22)
    done = json.loads(catch_up(wal, "--yes", "--json").stdout)
    assert (done["dry_run"], done["rows"], done["batches"]) == (False, 44, 22)
    assert json.loads(catch_up(wal, "--yes", "--json").stdout)["batches"] == []


def test_on_forty_columns_no_line_is_longer(stage: Callable[[int], str], tmp_path: Path) -> None:
    wal = restored(stage, 1, 3)

    text = catch_up(wal, "--yes", env={"COLUMNS": "40"}).stdout.replace(str(tmp_path), "")
    assert [line for line in text.splitlines() if len(line) > 40 and " " in line.strip()] == []


def test_a_database_at_another_address_is_named(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 1, 3)
    shutil.copy("shop.db", "new.db")

    shown = catch_up(wal, "--yes", to="sqlite:///new.db?table=orders").stdout

    assert "the sink was registered for SqlSink('sqlite:///" in shown
    assert "shop.db', 'orders', mode='append'): serve it with this target from now on" in shown


def test_a_wrong_range_and_a_reason_that_is_empty_are_refused(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 1, 3)

    assert "the lower one first" in catch_up(wal, "--leave-out", "5-2", code=2).stderr
    assert "expected a batch id such as 12" in catch_up(wal, "--leave-out", "x", code=2).stderr
    assert "--leave-out: batch 2 of" in catch_up(wal, "--leave-out", "2", code=2).stderr
    assert "is empty" in invoke("catch-up", wal, "--name", "a", "--to", SHOP, "--why", " ", code=2).stderr


def test_refused_rows_end_the_command_with_the_exit_code_of_a_finding(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 1, 3)
    refuse_row_102()

    done = catch_up(wal, "--yes", "--on-rejected", "dead_letter", code=1)

    assert "not sent, since in dead letters: 1 row of these batches" in done.stdout
    assert count() == 5
    assert invoke_json("letters", "list", wal, "--name", "a")[0]["rows"] == 1


def test_dead_letters_that_the_backup_lacks_are_due_again(stage: Callable[[int], str]) -> None:
    wal = stage(1)
    drain(wal)
    refuse_row_102()
    stage(3)
    invoke("drain", wal, "--to", SHOP, "--name", "a", "--on-rejected", "dead_letter")
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("DROP TRIGGER picky")
    shutil.copy("shop.db", "backup.db")
    invoke("letters", "replay", wal, "--name", "a", "--to", SHOP)
    assert count() == 6
    shutil.copy("backup.db", "shop.db")

    assert "and become due again: 1 (1 row)" in catch_up(wal, "--dry-run").stdout
    done = catch_up(wal, "--yes", code=1)

    assert "the target lacks no batch\n" in done.stdout
    assert "It has every batch that sink 'a' delivered, up to batch 2" in done.stdout
    assert "it lacks 1 row of 1 dead letter that were sent again after the backup. These are due again" in done.stdout
    invoke("letters", "replay", wal, "--name", "a", "--to", SHOP)
    assert count() == 6
    assert "according to its ledger, the target lacks no batch" in catch_up(wal).stdout


def test_letters_that_were_sent_elsewhere_are_told(stage: Callable[[int], str]) -> None:
    wal = restored(stage, 1, 3)
    refuse_row_102()
    catch_up(wal, "--yes", "--on-rejected", "dead_letter", code=1)
    invoke("letters", "replay", wal, "--name", "a", "--to", SHOP.replace("shop", "other"))
    shutil.copy("backup.db", "shop.db")

    done = catch_up(wal, "--yes", code=1)

    assert "perhaps to another target, and that this target lacks: 1" in done.stdout
    assert "it may lack rows of 1 dead letter that were sent again" in done.stdout
