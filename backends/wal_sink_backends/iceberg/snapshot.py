"""A new snapshot of a table: its manifest, its list of manifests, and the position in its summary."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyiceberg import conversions
from pyiceberg import manifest as manifests
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.table import snapshots as typed_snapshots
from pyiceberg.typedef import Record

from wal_sink_backends.iceberg.history import Stored, head_of

if TYPE_CHECKING:
    from wal_sink.sinks.base import CommitPosition
    from wal_sink_backends.common.segment_files import SegmentFile

snapshots: Any = typed_snapshots  # its types know the names of JSON only


def new_snapshot(
    table: Any,
    files: Sequence[SegmentFile],
    key: str,
    position: CommitPosition,
    write: Callable[[str, bytes], None],
) -> tuple[Any, str]:
    """A snapshot that adds these files to those of a table, and the position as it is stored under `key`.

    Its id and the names of its files derive from the state that it builds on: what a process wrote before it died, the
    next one writes again. The id of an older state never comes back, also after a rollback.
    """
    metadata, provider = table.metadata, table.location_provider()
    parent, sequence = head_of(metadata), metadata.next_sequence_number()
    head = None if parent is None else metadata.snapshot_by_id(parent)
    basis = (metadata.table_uuid, key, position, parent, sequence, metadata.last_updated_ms)
    number = int.from_bytes(hashlib.blake2b(repr(basis).encode(), digest_size=8).digest(), "big") >> 1
    mark = msgspec.json.encode(Stored(position.batch_id, position.digest, number)).decode()
    codec, version = metadata.properties.get("write.avro.compression-codec", "gzip"), metadata.format_version
    summary = snapshots.SnapshotSummaryCollector()
    file = _Buffer(provider.new_metadata_location(f"wal-sink-{number}-m0.avro"))
    with manifests.write_manifest(version, metadata.spec(), metadata.schema(), file, number, codec) as writer:
        for each in files:
            added = _data_file(each, metadata)
            summary.add_file(added, metadata.schema(), metadata.spec())
            writer.add(
                manifests.ManifestEntry.from_args(
                    status=manifests.ManifestEntryStatus.ADDED, snapshot_id=number, data_file=added
                )
            )
    write(file.location, file.data)
    listed = [writer.to_manifest_file(), *([] if head is None else head.manifests(table.io))]
    file = _Buffer(provider.new_metadata_location(f"snap-{number}-wal-sink.avro"))
    with manifests.write_manifest_list(version, file, number, parent, sequence, codec) as listing:
        listing.add_manifests(listed)
    write(file.location, file.data)
    told = snapshots.Summary(snapshots.Operation.APPEND, **summary.build(), **{key: mark})
    snapshot = snapshots.Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=sequence,
        manifest_list=file.location,
        summary=snapshots.update_snapshot_summaries(told, None if head is None else head.summary),
        schema_id=metadata.current_schema_id,
        timestamp_ms=max(time.time_ns() // 1_000_000, metadata.last_updated_ms),
    )
    return snapshot, mark


def _data_file(file: SegmentFile, metadata: Any) -> manifests.DataFile:
    """A file as a manifest has it. The statistics of columns, which are named in the handle, get the table's ids."""
    told: dict[str, dict[str, Any]] = json.loads(file.statistics)
    ids = {field.name: field.field_id for field in metadata.schema().fields}
    nulls = {ids[name]: number for name, number in told["nullCount"].items()}
    lowest, highest = (
        {ids[name]: _bound(metadata.schema().find_type(name), value) for name, value in told[kind].items()}
        for kind in ("minValues", "maxValues")
    )
    return manifests.DataFile.from_args(
        content=manifests.DataFileContent.DATA,
        file_path=file.path,
        file_format=manifests.FileFormat.PARQUET,
        partition=Record(),
        record_count=told["numRecords"],
        file_size_in_bytes=file.size,
        value_counts=dict.fromkeys(nulls, told["numRecords"]),
        null_value_counts=nulls,
        lower_bounds=lowest,
        upper_bounds=highest,
        spec_id=metadata.default_spec_id,
    )


def _bound(kind: Any, value: Any) -> bytes:
    """A bound as Iceberg has it, from one of Delta's."""
    if isinstance(value, str) and str(kind) != "string":
        value = date.fromisoformat(value) if str(kind) == "date" else datetime.fromisoformat(value)
    return conversions.to_bytes(kind, value)


class _Buffer(OutputFile):
    """A file in memory, for writers of the library. A file is written to a store as a whole."""

    data = b""

    def create(self, overwrite: bool = False) -> Any:  # noqa: FBT001, FBT002, ARG002 - as the library has it
        buffer = self

        class Stream(io.BytesIO):
            def close(self) -> None:
                buffer.data = self.getvalue()
                super().close()

        return Stream()

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise NotImplementedError("the library's writers of manifests read nothing back")
