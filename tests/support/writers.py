"""Existing writers, for the tests of `wal_sink.wrap`. Workers and programs in other processes import them too."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.streams import append_line, read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True)
class Notes:
    """A record of events from any process, one JSON line each, and the planned failures."""

    folder: Path

    def note(self, what: str, **about: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        append_line(self.folder / "notes", json.dumps({"what": what, "pid": os.getpid(), **about}))

    def all(self, what: str | None = None) -> list[dict[str, Any]]:
        return [note for note in read_json(self.folder / "notes") if what in {None, note["what"]}]

    def plan_trouble(self, at: str, times: int = 1) -> None:
        self.folder.mkdir(exist_ok=True)
        for number in range(times):
            (self.folder / f"trouble-{at}-{number}").touch()

    def trouble(self, at: str) -> None:
        """Raise an error if a failure is planned here, once per plan."""
        for file in sorted(self.folder.glob(f"trouble-{at}-*")):
            try:
                file.unlink()
            except FileNotFoundError:
                continue  # another process has taken it
            raise OSError(f"trouble at {at}")


@dataclass
class NotingForeachWriter:
    """A ForeachWriter that keeps state of one partition, as real ones do."""

    notes: Notes
    fresh: bool = True

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.at = {"segment": partition_id, "batch": epoch_id}
        self.notes.note("open", fresh=self.fresh, **self.at)
        self.fresh = False
        return True

    def process(self, row: Row) -> None:
        self.notes.note("process", row=row.asDict(), **self.at)
        self.notes.trouble(f"process-{row['id']}")

    def close(self, error: Exception | None) -> None:
        self.notes.note("close", error=str(error) if error else None, **self.at)


def noting(notes: Notes) -> Callable[[DataFrame, int], None]:
    """Return a `foreachBatch` function that notes the rows of each batch."""

    def write(df: DataFrame, batch_id: int) -> None:
        notes.note("batch", batch=batch_id, rows=sorted(list(row) for row in df.collect()))

    return write
