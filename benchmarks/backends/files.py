"""Parquet files on the checkout's disk: our sinks compared with pyarrow's writers, one file per chunk or segment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.backends.backend import Backend, Tables, Way, chunks_in, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from wal_sink.stores.parquet import ROW_GROUP_ROWS
from wal_sink.testing.contract.calls import commit, opened, prepare
from wal_sink_backends.files import FilesSink, TwoPhaseFilesSink

WRITE_TABLE = "pyarrow's write_table, synced"
PARQUET_WRITER = "pyarrow's ParquetWriter, synced"


class Files(Backend[Path]):
    """One folder per measurement."""

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


class TwoPhaseFiles(Backend[Path]):
    """One file for all chunks, prepared and then committed."""

    key = "files-two-phase"
    title = "Chunks to one Parquet file, in two phases"

    def ways(self) -> Mapping[str, Way[Path]]:
        return {NAME: _in_two_phases, PARQUET_WRITER: _by_parquet_writer}

    def empty(self, folder: Path) -> Path:
        return folder

    def count(self, target: Path) -> int:
        return sum(pq.read_metadata(file).num_rows for file in target.rglob("*.parquet"))


def _in_two_phases(folder: Path, tables: Tables) -> float:
    """Prepare as staging does, then commit as delivery does, in the same process."""
    sink, chunks = TwoPhaseFilesSink(str(folder), format="parquet"), chunks_in(tables)
    with opened(sink, chunks[0]):
        watch = Stopwatch()
        commit(sink, prepare(sink, chunks))
        return watch.seconds()


def _by_parquet_writer(folder: Path, tables: Tables) -> float:
    """One durable file with row groups as large as ours: written under another name, synced, renamed.

    Dictionaries are pyarrow's default; our sink omits them if the first rows hardly repeat a value.
    """
    watch = Stopwatch()
    unfinished = folder / ".0.tmp"
    with unfinished.open("wb") as file:
        with pq.ParquetWriter(file, tables[0].schema, compression="zstd", compression_level=1) as writer:
            writer.write_table(pa.concat_tables(tables), row_group_size=ROW_GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / "0.parquet")
    _sync(folder)
    return watch.seconds()


def _by_pyarrow(folder: Path, tables: Tables) -> float:
    """Durable files like ours: written under another name, synced, renamed, the folder synced."""
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
