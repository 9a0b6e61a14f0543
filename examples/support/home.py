"""The folder of one example query, and how far the query has come by what lies in it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["Home", "Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a query has come. Batches are the newest ones, -1 for none."""

    terms: int
    """The number of processes that took over the WAL."""
    begun: int
    """Spark wrote down what the batch reads."""
    complete: int
    """Spark finished the batch: wal-sink staged it, and the state store and the checkpoint have it."""
    in_target: int
    """The target has rows of the batch, according to the ledger of `SqlSink`."""
    ledger: frozenset[tuple[Any, ...]]
    """The whole ledger of `SqlSink`. Each of its transactions changes it."""
    delivered: int
    """The target has the whole batch: it is marked in the WAL."""


@dataclass(frozen=True)
class Home:
    """The places of one query, below one folder."""

    root: Path
    target: str = ""
    """The URL of a database of PostgreSQL. Without it the target is a file of SQLite."""

    @property
    def wal(self) -> Path:
        return self.root / "wal"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def database(self) -> Path:
        return self.root / "target.db"

    @property
    def scratch(self) -> Path:
        """For the temporary files of processes. Killed ones delete none of them."""
        return self.root / "scratch"

    def write(self, name: str, files: Iterable[Iterable[Mapping[str, object]]]) -> None:
        """Write the input: a folder with JSON files, which Spark reads in this order."""
        folder = self.root / name
        folder.mkdir(parents=True)
        for number, rows in enumerate(files):
            path = folder / f"{number:04}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1e9 + number, 1e9 + number))  # Spark takes files by age

    def read(self, name: str) -> list[list[Any]]:
        """Read the input back: the rows of each file."""
        files = sorted((self.root / name).glob("*.json"))
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in files]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Read the target, in one transaction. Nothing, if it does not exist yet."""
        if self.target:
            with psycopg.connect(self.target) as connection:
                return connection.execute(sql.encode()).fetchall()
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(sql).fetchall()

    def progress(self) -> Progress:
        ledger = self._ledger()
        return Progress(
            terms=_newest(self.wal / "terms" / "stager", -1) + 1,
            begun=_newest(self.checkpoint / "offsets", -1),
            complete=_newest(self.checkpoint / "commits", -1),
            in_target=max((batch for _, batch, _ in ledger), default=-1),
            ledger=ledger,
            delivered=_newest(self.wal / "sinks" / "default" / "markers", -1),
        )

    def staged_by(self, term: int, batch: int) -> bool:
        """Tell whether the process of this term has written any row of the batch into the WAL."""
        return any((self.wal / "batches" / f"{batch:019}").glob(f"*{term:010}-*"))

    def changelogs(self) -> Sequence[Path]:
        """The files of changelog checkpointing. Each has the changes of one partition of the state in one batch."""
        return sorted((self.checkpoint / "state").rglob("*.changelog"))

    def _ledger(self) -> frozenset[tuple[Any, ...]]:
        names = "SELECT tablename AS name FROM pg_tables" if self.target else "SELECT name FROM sqlite_master"
        if ("wal_sink_ledger",) not in self.query(names):
            return frozenset()
        return frozenset(self.query("SELECT slot, batch_id, rows FROM wal_sink_ledger WHERE batch_id >= 0"))


def _newest(folder: Path, none: int) -> int:
    """The highest number among the names of a folder's files."""
    if not folder.is_dir():
        return none
    names = (path.name.partition(".")[0] for path in folder.iterdir())
    return max((int(name) for name in names if name.isdigit()), default=none)
