"""The targets of the queries, and the count of their rows by each target's own client, against the source.

Nothing here uses wal-sink's own counts.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.streams import append_line, read_json
from wal_sink import Chunk, Sink

SCHEMA = "id long, word string"
EXACT, IDEMPOTENT, PLAIN = "exact", "idempotent", "plain"
"""The names of the sinks in the WAL: rows and position in one transaction; one file per chunk; appended lines."""
TABLE = "words"

Row = tuple[int, str]


@dataclass(frozen=True)
class Targets:
    """The targets of one query, below its root."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "exact.db"

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def plain(self) -> Path:
        return self.root / "plain.jsonl"

    def rows(self, name: str) -> list[Row]:
        """Return every row of a target, including repeats."""
        if name == EXACT:
            return self._table_rows()
        if name == IDEMPOTENT:
            return [row for path in sorted(self.files.rglob("*.jsonl")) for row in rows_of_text(path.read_text())]
        return [row for sent in self.sent() for row in sent.rows]

    def sent(self, *, after: int = 0) -> list[Sent]:
        """Return the calls of the plain target, or those that stand after so many bytes of its file.

        A line that a crash cut off does not count.
        """
        found = read_json(self.plain, after=after)
        return [Sent(**{**line, "rows": tuple((row[0], row[1]) for row in line["rows"])}) for line in found]

    def sent_again(self) -> Counter[int]:
        """Count the rows that the plain target got after their first time, by batch."""
        known: set[str] = set()
        again: Counter[int] = Counter()
        for sent in self.sent():
            if sent.key in known:
                again[sent.batch] += len(sent.rows)
            known.add(sent.key)
        return again

    def is_locked(self) -> bool:
        """Tell whether a transaction is open that keeps others from the table."""
        if not self.database.exists():
            return False
        with closing(sqlite3.connect(self.database, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return True
            connection.execute("ROLLBACK")
        return False

    def _table_rows(self) -> list[Row]:
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(self.database)) as connection:
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
            return list(connection.execute(f"SELECT id, word FROM {TABLE}")) if known else []


@dataclass(frozen=True)
class Sent:
    """One call of the plain target."""

    batch: int
    ordinal: int
    key: str
    term: int
    pid: int
    end: int
    """The rows of its segment that the target has after this call."""
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Plain(Sink):
    """A sink that appends a line per chunk, including repeats, and takes `answer_s` to acknowledge it."""

    path: Path
    answer_s: float = 0.0

    def write(self, chunk: Chunk) -> None:
        line = {
            "batch": chunk.batch_id,
            "ordinal": int(chunk.position.slot.rpartition("/")[2]),
            "key": chunk.key,
            "term": chunk.term,
            "pid": os.getpid(),
            "end": chunk.position.rows,
            "rows": list(zip(*(column.to_pylist() for column in chunk.table.columns), strict=True)),
        }
        append_line(self.path, json.dumps(line))
        time.sleep(self.answer_s)


@dataclass(frozen=True)
class Counted:
    """The counts of one target against the source."""

    rows: int
    lost: int
    repeated: int
    """Rows after their first time."""
    foreign: int
    """Rows that no source ever had."""


def count(source: Iterable[Row], found: Iterable[Row]) -> Counted:
    """Compare two multisets of rows."""
    expected, there = Counter(source), Counter(found)
    foreign = sum(times for row, times in there.items() if row not in expected)
    surplus = (there - expected).total()
    return Counted(there.total(), (expected - there).total(), surplus - foreign, foreign)


def source_rows(feed: Path) -> list[Row]:
    """Return every row of the files that a query reads."""
    return [row for path in sorted(feed.glob("*.json")) for row in rows_of_text(path.read_text())]


def row_of(number: int) -> Row:
    """Return the row of an id. Its word shows if a value was changed or belongs to another row."""
    return number, f"word {number} {number * 2654435761 % 2**32:08x}"


def text_of(rows: Iterable[Row]) -> str:
    """Write rows as in the source's files: one JSON object per line."""
    return "".join(json.dumps({"id": number, "word": word}) + "\n" for number, word in rows)


def rows_of_text(text: str) -> Iterator[Row]:
    found: Iterator[dict[str, Any]] = (json.loads(line) for line in text.splitlines())
    return ((line["id"], line["word"]) for line in found)
