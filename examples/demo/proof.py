"""The proof: what the source files hold against what the targets hold, row by row. Nothing here asks wal-sink."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo import source
from examples.demo.job import DELIVERED_COLUMNS, TABLE
from examples.demo.plain_sink import ROW_KEY

Digests = Counter[bytes]
"""How often each row is there, all its values taken together."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One target against the source."""

    rows: int
    lost: int
    """Rows of the source that are not there."""
    duplicated: int
    """Rows that are there beyond the first time."""
    foreign: int
    """Rows whose values are those of no row of the source."""

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.duplicated or self.foreign)


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on both targets."""

    source_rows: int
    exact: Compared
    plain: Compared
    window_rows: int
    """So many rows the plain sink may repeat: one chunk per segment in flight and crash."""

    @property
    def holds(self) -> bool:
        within = not self.plain.lost and not self.plain.foreign and self.plain.duplicated <= self.window_rows
        return self.exact.is_exact and within


def compare(expected: Digests, found: Digests) -> Compared:
    """Compare two multisets of rows."""
    foreign = sum(count for row, count in found.items() if row not in expected)
    surplus = (found - expected).total()
    lost = (expected - found).total()
    return Compared(rows=found.total(), lost=lost, duplicated=surplus - foreign, foreign=foreign)


def source_rows(files: Iterable[Path], airlines: Path) -> Digests:
    """The rows that must arrive, computed here a second time: each line with its carrier's name and class of delay."""
    names = {row[0]: row[1] for row in _csv_rows(airlines)}
    return Counter(_digest(_enriched(row, names)) for path in files for row in _csv_rows(path))


def table_rows(database: Path) -> Digests:
    """The rows of the SQLite table."""
    columns = ", ".join(DELIVERED_COLUMNS)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute(f"SELECT {columns} FROM {TABLE}")  # noqa: S608 - our own constants
        return Counter(_digest(["" if value is None else str(value) for value in row]) for row in found)


def plain_rows(folder: Path) -> Digests:
    """The rows of the plain sink's files, without their keys. A file is there whole or not at all."""
    return Counter(_digest(row[1:]) for path in sorted(folder.glob("batch-*.csv")) for row in _csv_rows(path, ROW_KEY))


def _csv_rows(path: Path, first_column: str | None = None) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as opened:
        rows = csv.reader(opened)
        heading = next(rows)
        if first_column is not None and heading != [first_column, *DELIVERED_COLUMNS]:
            raise ValueError(f"{path}: expected {first_column} and the columns of the query, found {heading}")
        yield from rows


_DEP_TIME = 1 + source.COLUMNS.index(source.DEP_TIME)
_DEP_DELAY = 1 + source.COLUMNS.index(source.DEP_DELAY)
_CARRIER = 1 + source.COLUMNS.index(source.CARRIER)


def _enriched(row: Sequence[str], names: Mapping[str, str]) -> list[str]:
    values = ["" if value == source.NOTHING else value for value in row]
    return [*values, names.get(values[_CARRIER], ""), _delay_class(values[_DEP_TIME], values[_DEP_DELAY])]


def _delay_class(dep_time: str, dep_delay: str) -> str:
    if not dep_time:
        return "cancelled"
    minutes = int(dep_delay)
    if minutes <= source.LATE_MINUTES:
        return "on time"
    return "late" if minutes <= source.VERY_LATE_MINUTES else "very late"


def _digest(values: Sequence[str]) -> bytes:
    return hashlib.blake2b("\x1f".join(values).encode(), digest_size=16).digest()
