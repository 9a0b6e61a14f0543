"""Parquet files on the checkout's disk: `FilesSink` against pyarrow's writer, a synced file a chunk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.backends.backend import Backend, Tables, Way, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from wal_sink_backends.files import FilesSink

WRITE_TABLE = "pyarrow's write_table, synced"


class Files(Backend[Path]):
    """A folder for each measurement."""

    key = "files"
    title = "Chunks to Parquet files"

    def ways(self) -> Mapping[str, Way[Path]]:
        return {
            NAME: lambda folder, tables: written(FilesSink(str(folder), format="parquet"), tables),
            WRITE_TABLE: _by_pyarrow,
        }

    def empty(self, folder: Path) -> Path:
        return folder

    def count(self, target: Path) -> int:
        return sum(pq.read_metadata(file).num_rows for file in target.rglob("*.parquet"))


def _by_pyarrow(folder: Path, tables: Tables) -> float:
    """Whole and lasting files, as ours: written under another name, synced, renamed, the folder synced."""
    watch = Stopwatch()
    for number, table in enumerate(tables):
        unfinished = folder / f".{number}.tmp"
        with unfinished.open("wb") as file:
            pq.write_table(table, file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(folder / f"{number}.parquet")
        _sync(folder)
    return watch.seconds()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
