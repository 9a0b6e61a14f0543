"""Time of staging a partition's rows without Spark, and the gain of other encodings.

`python -m benchmarks.encoding`: one core, the table's first 250,000 rows, the best of several turns each. The lines
below the first change one setting of `wal_sink.stores.parquet` at a time, with Parquet encoding only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import table_of
from wal_sink.log.segment_writer import SegmentLimits, SegmentWriter
from wal_sink.settings import Settings
from wal_sink.stores.local import LocalStore
from wal_sink.stores.spec import StoreSpec

ROWS = 250_000
SPARKS_BATCH = 10_000
"""The number of rows in one of Spark's batches for Python."""
OURS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["c2"],
    "write_page_checksum": True,
    "column_encoding": {
        "c0": "DELTA_BINARY_PACKED",
        "c3": "DELTA_LENGTH_BYTE_ARRAY",
        "c4": "DELTA_BINARY_PACKED",
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "a dictionary for every column": {"use_dictionary": True, "column_encoding": None},
    "plain columns": {"column_encoding": None},
    "no dictionary": {"use_dictionary": False},
    "no statistics": {"write_statistics": False},
    "no checksums of pages": {"write_page_checksum": False},
    "zstd level -1": {"compression_level": -1},
    "lz4": {"compression": "lz4", "compression_level": None},
    "no compression": {"compression": "none", "compression_level": None},
}


def main() -> None:
    """Print a line for the whole writer and for each setting: milliseconds, and size of the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoding", description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    table = table_of(0, ROWS).combine_chunks()
    table = table.rename_columns([f"c{place}" for place in range(table.num_columns)])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.parquet"
        _tell("staged: encoded, checksummed, synced", turns, lambda: _staged(table, folder))
        _tell("the same, encoded alone", turns, lambda: _encoded(table, file, {}))
        for name, changed in OTHERS.items():
            _tell(name, turns, lambda changed=changed: _encoded(table, file, changed))  # type: ignore[misc]


def _staged(table: pa.Table, folder: str) -> int:
    settings = Settings()
    limits = SegmentLimits(settings.chunk_rows, settings.chunk_bytes, settings.segment_bytes)
    number = str(time.perf_counter_ns())
    store = LocalStore(StoreSpec(folder))
    with SegmentWriter(store, folder=number, partition=0, limits=limits, new_id=lambda: number) as writer:
        for batch in table.to_batches(max_chunksize=SPARKS_BATCH):
            writer.write(batch)
        return sum(ref.bytes for ref in writer.finish())


def _encoded(table: pa.Table, file: Path, changed: dict[str, Any]) -> int:
    pq.write_table(table, file, row_group_size=128 << 10, **{**OURS, **changed})
    return file.stat().st_size


def _tell(what: str, turns: int, work: Callable[[], int]) -> None:
    times = []
    size = 0
    for _ in range(turns):
        began_s = time.perf_counter()
        size = work()
        times.append(time.perf_counter() - began_s)
    print(f"{what:40} {min(times) * 1e3:6.1f} ms {size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
