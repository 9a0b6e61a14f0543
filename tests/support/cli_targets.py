"""Targets for `--to tests.support.cli_targets:NAME`."""

from __future__ import annotations

from pathlib import Path

from wal_sink import Chunk, Rejected


def take(chunk: Chunk) -> None:
    """Add the number of the batch to `taken.txt` in the current directory."""
    with Path("taken.txt").open("a") as file:
        file.write(f"{chunk.batch_id}\n")


def taken() -> list[int]:
    """Return the batches that `take` got, one for each chunk."""
    return [int(line) for line in Path("taken.txt").read_text().split()]


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "never"})


def refuse_worse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "worse"})


def refuse_all(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "none"))


def refuse_b(chunk: Chunk) -> Rejected | None:
    """Refuse the rows with the name `b`."""
    names = chunk.table.column("name").to_pylist()
    refused = {row: f"[{name}] is no name" for row, name in enumerate(names) if name == "b"}
    return Rejected(refused) if refused else None
