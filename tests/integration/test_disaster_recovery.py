"""Disaster recovery: which of WAL, checkpoint and target may be older than the others, and what happens if one is lost.

`docs/operations/moving.md` tells it in words. The target is an SQLite table with its ledger. `EARLIER` and `LATER` are
the newest batches when the copies were made, and when the disaster came. The query then runs on through `THROUGH`.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import Log, TakeOver, note_end, paths
from tests.house.operate import retire
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.small_run import served_sink
from wal_sink.errors import HistoryError, WalSinkError
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery
from wal_sink_backends import SqlSink

EARLIER, LATER, THROUGH = 4, 7, 9
ROWS = 3
WAL, CHECKPOINT, TARGET = "wal", "checkpoint", "out.db"


@dataclass
class Site:
    """A query with its WAL, checkpoint and target in one folder."""

    root: Path

    def run(
        self, through: int, *, delivers: bool = True, table: str = "orders", name: str = "database", first_row: int = 0
    ) -> None:
        """Run the query through a batch, then end in order. `delivers` False: the batches stay in the WAL."""
        checkpoint = open_store(StoreSpec(str(self.root / CHECKPOINT)))
        run = Run(open_store(StoreSpec(str(self.root / WAL))), checkpoint, Settings(chunk_rows=2), runtime=SYSTEM)
        to = Delivery(SqlSink(f"sqlite:///{self.root / TARGET}", table), start_from="earliest")
        run.open([served_sink(run, name, to)] if delivers else [])
        run.deliver_all()
        run.become_stager()
        query = FakeQuery(
            checkpoint, lambda batch, _: [pa.table({"id": [first_row + batch * ROWS + row for row in range(ROWS)]})]
        )
        for _ in query.batches(run, through + 1):
            run.deliver_all()
        run.end()

    def command(self, verb: str, *args: str, code: int = 0) -> str:
        """The output of a command for the WAL."""
        done = CliRunner().invoke(main, [verb, str(self.root / WAL), *args])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def note_that_its_query_ended(self) -> None:
        """This process is that of its runs, and lives on."""
        log = Log(open_store(StoreSpec(str(self.root / WAL))), SYSTEM, "a test")
        note_end(log, paths.STAGER_ROLE, max(log.numbers(paths.terms(paths.STAGER_ROLE))))

    def rows(self, table: str = "orders") -> list[int]:
        with closing(sqlite3.connect(self.root / TARGET)) as target:
            return [number for (number,) in target.execute(f"SELECT id FROM {table} ORDER BY id")]

    def newest_in_ledger(self) -> int:
        """The newest batch that the target has, by its own ledger."""
        with closing(sqlite3.connect(self.root / TARGET)) as target:
            return int(target.execute("SELECT max(batch_id) FROM wal_sink_ledger").fetchone()[0])

    def copy(self, *names: str) -> None:
        for name in names:
            _copy(self.root / name, self.root / f"{name}.copy")

    def restore(self, *names: str) -> None:
        for name in names:
            self.lose(name)
            _copy(self.root / f"{name}.copy", self.root / name)

    def lose(self, name: str) -> None:
        path = self.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def rewind_checkpoint(self, through: int) -> None:
        """Delete the entries of later batches, as the page describes. Spark then plans them anew."""
        for folder in ("offsets", "commits"):
            for entry in (self.root / CHECKPOINT / folder).iterdir():
                if entry.name.isdigit() and int(entry.name) > through:
                    entry.unlink()


def _copy(source: Path, to: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, to)
    else:
        shutil.copy(source, to)


def wanted(through: int = THROUGH) -> list[int]:
    return list(range((through + 1) * ROWS))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Copies of all three lie beside them. They were made while nothing ran and nothing was pending."""
    site = Site(tmp_path)
    site.run(EARLIER)
    site.copy(WAL, CHECKPOINT, TARGET)
    site.run(LATER)
    assert site.rows() == wanted(LATER)
    return site


@pytest.mark.parametrize(
    "restored", [(CHECKPOINT,), (WAL, CHECKPOINT, TARGET)], ids=["an older checkpoint", "all three of one moment"]
)
def test_older_copies_that_may_be_restored_leave_every_row_once(site: Site, restored: Sequence[str]) -> None:
    site.restore(*restored)

    site.run(THROUGH)

    assert site.rows() == wanted()


@pytest.mark.parametrize(
    ("restored", "error", "said"),
    [
        ((TARGET,), HistoryError, "The target was restored to an older state"),
        ((CHECKPOINT, TARGET), HistoryError, "The target was restored to an older state"),
        ((WAL,), HistoryError, "Spark completed batch 5"),
        ((WAL, TARGET), HistoryError, "Spark completed batch 5"),
        ((WAL, CHECKPOINT), HistoryError, "the target already holds batch 7.*the WAL was restored to an older state"),
    ],
    ids=["target", "checkpoint and target", "WAL", "WAL and target", "WAL and checkpoint"],
)
def test_older_copies_that_may_not_be_restored_are_refused_before_a_row_is_doubled_or_skipped(
    site: Site, restored: Sequence[str], error: type[Exception], said: str
) -> None:
    site.restore(*restored)
    before = site.rows()

    with pytest.raises(error, match=said):
        site.run(THROUGH)

    assert site.rows() == before


def test_wal_checkpoint_and_target_of_one_moment_end_a_refusal(site: Site) -> None:
    site.restore(TARGET)
    with pytest.raises(HistoryError):
        site.run(THROUGH)
    site.restore(WAL, CHECKPOINT)

    site.run(THROUGH)

    assert site.rows() == wanted()


@pytest.mark.parametrize("restored", [(TARGET,), (CHECKPOINT, TARGET)], ids=["target", "checkpoint and target"])
def test_a_target_that_is_older_is_caught_up_by_one_command(site: Site, restored: Sequence[str]) -> None:
    """Its ledger is as old as its rows. The checkpoint may be older, too: its batches are recognised."""
    site.restore(*restored)
    to = f"sqlite:///{site.root / TARGET}?table=orders"
    command = ["catch-up", str(site.root / WAL), "--name", "database", "--to", to, "--why", "a disaster", "--yes"]

    done = CliRunner().invoke(main, command)

    assert done.exit_code == 0, done.output
    assert site.rows() == wanted(LATER)
    site.run(THROUGH)
    assert site.rows() == wanted()


def test_a_target_that_is_older_is_filled_again_from_the_wal_into_an_empty_table(site: Site) -> None:
    """As far as the WAL still holds the batches. The sink begins anew under another name; the old one is retired."""
    site.restore(TARGET)
    log = Log(open_store(StoreSpec(str(site.root / WAL))), SYSTEM, "a person")
    retire(log, "database", drop_pending=False, take_over=TakeOver.IF_GONE)

    site.run(THROUGH, name="again", table="orders_again")

    assert site.rows("orders_again") == wanted()


def test_without_its_checkpoint_the_wal_is_refused_since_spark_begins_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.lose(CHECKPOINT)
    monkeypatch.setattr("wal_sink.testing.simulation.fake_query.QUERY_ID", "another query")

    with pytest.raises(WalSinkError):
        site.run(THROUGH)
    assert site.rows() == wanted(LATER)


def test_what_was_pending_is_delivered_without_the_checkpoint_and_a_new_query_begins_behind_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new query has a new checkpoint and a new WAL, and the same table with the same ledger."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    site.run(THROUGH, delivers=False)
    site.lose(CHECKPOINT)
    site.note_that_its_query_ended()
    rest = str(site.root / "rest")

    shown = site.command("settle", rest, "--newest", "complete")
    assert f'source 0: {{"end": {THROUGH}}}' in shown
    site.command(
        "drain", "--checkpoint", rest, "--name", "database", "--to", f"sqlite:///{site.root / TARGET}?table=orders"
    )
    assert site.rows() == wanted()

    monkeypatch.setattr("wal_sink.testing.simulation.fake_query.QUERY_ID", "another query")
    site.lose(WAL)
    site.run(2, first_row=(THROUGH + 1) * ROWS)

    assert site.rows() == wanted(THROUGH + 3)


# --- the WAL is lost


def test_without_its_wal_a_query_whose_batches_were_all_delivered_goes_on(site: Site) -> None:
    site.lose(WAL)

    site.run(THROUGH)

    assert site.rows() == wanted()


@pytest.fixture
def pending(site: Site) -> Site:
    """Two more batches were completed by Spark and not delivered. Then the WAL was lost."""
    site.run(THROUGH, delivers=False)
    site.lose(WAL)
    return site


def test_batches_that_were_pending_are_lost_with_the_wal_unless_the_checkpoint_goes_back(
    pending: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """This is what the warning of a new WAL is about."""
    pending.run(THROUGH + 1)

    assert "Spark completed the batches before it, and wal-sink delivers none of them" in caplog.text
    assert pending.rows() == [*wanted(LATER), *range((THROUGH + 1) * ROWS, (THROUGH + 2) * ROWS)]


def test_with_the_checkpoint_at_the_newest_batch_of_the_ledger_nothing_is_lost_or_doubled(pending: Site) -> None:
    assert pending.newest_in_ledger() == LATER
    pending.rewind_checkpoint(LATER)

    pending.run(THROUGH)

    assert pending.rows() == wanted()


def test_with_an_older_checkpoint_the_target_goes_back_as_well(pending: Site) -> None:
    """A new WAL does not know the positions of the lost one, so rows of an older checkpoint come again."""
    pending.restore(CHECKPOINT, TARGET)

    pending.run(THROUGH)

    assert pending.rows() == wanted()


def test_an_older_checkpoint_alone_would_double_rows(pending: Site) -> None:
    """So the page says: never the checkpoint alone, once the WAL is lost."""
    pending.restore(CHECKPOINT)

    pending.run(THROUGH)

    assert sorted(set(pending.rows())) == wanted()
    assert len(pending.rows()) - len(wanted()) == (LATER - EARLIER) * ROWS
