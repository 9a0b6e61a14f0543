"""Delta tables on a local disk, and what the core does with a `DeltaSink`: open, prepare, position, commit."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.house.sinks import BatchCommit, CommitPosition, CommitSink, SinkContext, StagedSegment
from wal_sink.stores.parquet import parquet_writer
from wal_sink_backends.delta import DeltaSink

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "note": ["a", None, "c"]})
FIELDS = [
    {"name": "id", "type": "long", "nullable": True, "metadata": {}},
    {"name": "note", "type": "string", "nullable": True, "metadata": {}},
]


def context(name: str = "default", wal: str = "wal", columns: Sequence[str] = ("id", "note")) -> SinkContext:
    return SinkContext(wal_id=wal, sink=name, term=1, batch_id=0, columns=tuple(columns), on_executor=False)


def segment(rows: pa.Table, number: int, **options: Any) -> StagedSegment:
    """Return rows as the WAL holds them. Segments of one number are one segment."""
    file = io.BytesIO()
    pq.write_table(rows, file, **options)
    return StagedSegment(f"{number:032x}", rows.num_rows, file.getvalue(), ())


def encoded_segment(rows: pa.Table, number: int) -> StagedSegment:
    """Return rows with the encodings of a segment."""
    file = io.BytesIO()
    with parquet_writer(file, rows, encoded=True) as writer:
        writer.write_table(rows)
    return StagedSegment(f"{number:032x}", rows.num_rows, file.getvalue(), ())


def digest(batch_id: int) -> str:
    return hashlib.blake2b(str(batch_id).encode(), digest_size=8).hexdigest()[:15]


def batch(sink: CommitSink, batch_id: int, *segments: pa.Table) -> BatchCommit:
    """Prepare the rows of a batch, by default one segment, which follows the present position."""
    rows = segments or (ROWS,)
    handles = tuple(sink.prepare(segment(each, 100 * batch_id + place)) for place, each in enumerate(rows))
    return BatchCommit(batch_id, digest(batch_id), sum(each.num_rows for each in rows), handles, sink.position())


def deliver(sink: CommitSink, *batch_ids: int) -> None:
    for batch_id in batch_ids:
        sink.commit(batch(sink, batch_id))


@contextmanager
def opened(table: Path | str, given: SinkContext | None = None, **options: Any) -> Iterator[DeltaSink]:
    sink = DeltaSink(str(table), **options)
    sink.open(given or context())
    try:
        yield sink
    finally:
        sink.close()


def at(batch_id: int, *, held: int | None = None) -> CommitPosition:
    """Return the position of a batch. With `held` the table does not show it, and shows that batch instead."""
    shown = CommitPosition(batch_id, digest(batch_id))
    return shown if held is None else replace(shown, is_shown=False, held_through=held)


def made(folder: Path, schema: pa.Schema = ROWS.schema, **options: Any) -> DeltaTable:
    return DeltaTable.create(str(folder), schema, **options)


def rows_in(folder: Path | str) -> list[dict[str, Any]]:
    """Return the rows that another reader finds: Arrow reads the files that the log names, not deltalake."""
    found: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_dataset().to_table().to_pylist()
    return found


def ids_in(folder: Path | str) -> list[int]:
    return sorted(row["id"] for row in rows_in(folder))


@dataclass(frozen=True)
class Declared:
    """The first entry of a table's log, as any writer might have made it."""

    reader: int = 1
    writer: int = 2
    features: Sequence[str] | None = None
    fields: Sequence[Mapping[str, Any]] = tuple(FIELDS)
    properties: Mapping[str, str] | None = None
    partitions: Sequence[str] = ()

    def make(self, folder: Path) -> Path:
        protocol: dict[str, Any] = {"minReaderVersion": self.reader, "minWriterVersion": self.writer}
        if self.features is not None:
            protocol |= {"writerFeatures": self.features} | (
                {"readerFeatures": self.features} if self.reader == 3 else {}
            )
        metadata = {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(self.fields)}),
            "partitionColumns": list(self.partitions),
            "createdTime": 1,
            "configuration": dict(self.properties or {}),
        }
        write_entry(folder, 0, {"protocol": protocol}, {"metaData": metadata})
        return folder


def write_entry(folder: Path, version: int, *actions: Mapping[str, Any]) -> None:
    """Write an entry of the log by hand, as another program does."""
    path = folder / "_delta_log" / f"{version:020}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def entries(folder: Path, version: int) -> list[dict[str, Any]]:
    path = folder / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]
