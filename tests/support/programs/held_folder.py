"""A two-phase target for workers, drivers and tests: it holds files back in one folder and shows them in another."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wal_sink import Chunk, HandleGoneError, SinkContext, TwoPhaseSink
from wal_sink.sinks import Transaction


@dataclass
class HeldFolder(TwoPhaseSink):
    """A sink that writes a transaction as a file of JSON lines. Batch, partition and file index name a shown file."""

    folder: Path
    context: SinkContext | None = field(default=None, repr=False)
    held: Path | None = field(default=None, repr=False)
    keep_segments: bool = True

    def open(self, context: SinkContext) -> None:
        self.context = context
        for name in ("held", "shown", "calls"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def begin(self, transaction: Transaction) -> str:
        self._note("begin")
        self.held = self.folder / "held" / transaction.id
        self.held.touch()
        return ""

    def write(self, chunk: Chunk) -> None:
        assert self.held is not None
        with self.held.open("ab") as file:
            file.write(chunk.to_json(lines=True))

    def prepare(self) -> str:
        return "a handle"

    def commit(self, transaction: Transaction, handle: str) -> None:
        assert handle == "a handle"
        self._note("commit")
        shown = self.folder / "shown" / f"{transaction.batch_id}-{transaction.partition}-{transaction.file_index}"
        held = self.folder / "held" / transaction.id
        try:
            held.rename(shown)
        except FileNotFoundError as error:
            if not shown.exists():
                raise HandleGoneError(f"neither {held} nor {shown}") from error

    def abort(self, transaction: Transaction, token: str) -> None:
        assert token == ""
        self._note("abort")
        (self.folder / "held" / transaction.id).unlink(missing_ok=True)

    def _note(self, call: str) -> None:
        assert self.context is not None
        number = len(list((self.folder / "calls").iterdir()))
        name = f"{call}-{os.getpid()}-{self.context.on_executor}-{number}-{id(self)}"
        (self.folder / "calls" / name).touch()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that readers see."""
        files = sorted((self.folder / "shown").iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def left(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "held").iterdir())

    def called(self, call: str) -> list[tuple[int, bool]]:
        """Return process id and place of each call of this name."""
        names = [file.name.split("-") for file in (self.folder / "calls").iterdir()]
        return [(int(pid), on_executor == "True") for name, pid, on_executor, *_ in names if name == call]
