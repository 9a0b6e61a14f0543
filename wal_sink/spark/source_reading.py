"""The reader of `format("wal_sink")`: the released batches that a WAL still holds, one partition for each segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, Release, SegmentRef
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.protocol.inventory import Lost, find_wal, held_batches, lost
from wal_sink.spark.schema import arrow_schema, schema_of_manifest
from wal_sink.spark.source_options import ReadOptions
from wal_sink.stores.opening import open_store
from wal_sink.support.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_COLUMNS = (
    StructField("_wal_batch_id", LongType()),
    StructField("_wal_key", StringType()),
    StructField("_wal_row", LongType()),
)
"""The batch of a row, its key as sinks get it (`Chunk.row_keys`), and its number in its segment, from 0 on."""


@dataclass(frozen=True, slots=True)
class SegmentPartition(InputPartition):
    """One segment of a released batch. `ref` is None where nothing is to be read."""

    batch_id: int
    ref: SegmentRef | None
    chunk_rows: int
    columns: int


def schema_of(options: ReadOptions) -> StructType:
    """The columns of the newest released batch, all nullable, and `OWN_COLUMNS`. Reads the WAL.

    Raises `HistoryError` if the WAL holds no released batch, `ConfigError` if a column has the name of one of ours.
    """
    log = _log(options)
    for batch_id in reversed(_wanted(log, options)):
        if (manifest := _released(log, batch_id)) is not None and not manifest.passed_over:
            return _with_own(schema_of_manifest(manifest, f" of {log.store.root}"), log)
    raise HistoryError(
        f"{log.store.root} holds no released batch between fromBatch and toBatch, so it has no columns yet. A batch is "
        "released when its delivery begins: start a drain, or read later"
    )


class WalReader(DataSourceReader):
    """Reads released batches. `partitions` runs on the driver, `read` in tasks on executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        expected = schema_of(options)
        if schema != expected:
            raise ConfigError(
                f"format('wal_sink'): expected no schema, or {expected.simpleString()}; found {schema.simpleString()}. "
                "The manifests of the WAL say which columns its batches have. Leave out .schema(…)"
            )
        self._options = options
        self._schema = expected

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each segment of a released batch, in order. Two reads for each batch.

        Raises `ConfigError` if a batch has other columns than the newest one.
        """
        log = _log(self._options)
        found: list[InputPartition] = []
        for manifest in _all_released(log, _wanted(log, self._options)):
            if manifest.passed_over:
                continue
            self._check_columns(manifest, log)
            found += [
                SegmentPartition(manifest.batch_id, ref, manifest.chunk_rows, len(manifest.columns))
                for ref in manifest.segments
            ]
        return found or [SegmentPartition(0, None, 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one segment, checked against its checksum, as record batches."""
        assert isinstance(partition, SegmentPartition)  # noqa: S101 - Spark returns what `partitions` gave
        ref = partition.ref
        if ref is None:
            return
        target = arrow_schema(self._schema)
        store = open_store(self._options.store)
        data, where = self._loaded(ref, partition.batch_id), store.url_of(ref.path)
        names = [f"c{place}" for place in range(partition.columns)]
        for first, end, table in read_chunks(data, ref, chunk_rows=partition.chunk_rows, columns=names, where=where):
            own = [
                pa.array(np.full(end - first, partition.batch_id)),
                pa.array([f"{ref.id}-{row}" for row in range(first, end)]),
                pa.array(np.arange(first, end)),
            ]
            pairs = zip([*table.columns, *own], target.types, strict=True)
            columns = [column if column.type == kind else column.cast(kind) for column, kind in pairs]  # see `viewed`
            yield from pa.Table.from_arrays(columns, schema=target).to_batches()

    def _loaded(self, ref: SegmentRef, batch_id: int) -> bytes:
        """The bytes of a segment. Raises `HistoryError` if it was deleted because every sink has its batch."""
        log = _log(self._options)
        try:
            return load_segment(log.store, ref)
        except CorruptError as error:
            if batch_id <= (low_water := log.low_water()):
                raise HistoryError(
                    f"batch {batch_id} of {log.store.root}: every sink has this batch, and it was deleted while it was "
                    f"read (low water {low_water}). Read again, from a later batch on"
                ) from error
            raise

    def _check_columns(self, manifest: Manifest, log: Log) -> None:
        found = _with_own(schema_of_manifest(manifest, f" of {log.store.root}"), log)
        if found != self._schema:
            raise ConfigError(
                f"batch {manifest.batch_id} of {log.store.root} has other columns than the newest batch: expected "
                f"{self._schema.simpleString()}, found {found.simpleString()}. Read the batches separately: "
                f'.option("fromBatch", {manifest.batch_id + 1}) or .option("toBatch", {manifest.batch_id})'
            )


def _log(options: ReadOptions) -> Log:
    return Log(open_store(options.store), SYSTEM, "")


def _wanted(log: Log, options: ReadOptions) -> list[int]:
    """The batches that the WAL holds and the options name, ascending. Raises `HistoryError` without a WAL."""
    wal = find_wal(log)
    if wal is None:
        raise HistoryError(f"{log.store.root} holds no WAL: no batch was staged there. Check the address")
    last = options.last_batch
    _, held = held_batches(log, wal)
    return [each for each in held if each >= options.first_batch and (last is None or each <= last)]


def _all_released(log: Log, wanted: list[int]) -> list[Manifest]:
    """The manifests of the released batches among `wanted`, ascending. Two reads for each batch.

    Batches are released in order. So one below a released one was released meanwhile, was deleted, or lost its release:
    then `CorruptError`.
    """
    found = dict(zip(wanted, SYSTEM.side_by_side(partial(_released, log), wanted), strict=True))
    newest = max((batch_id for batch_id, manifest in found.items() if manifest is not None), default=-1)
    for batch_id in [each for each, manifest in found.items() if manifest is None and each < newest]:
        found[batch_id] = _released(log, batch_id)
        if found[batch_id] is None and batch_id > log.low_water():
            raise lost(log, Lost.RELEASE, paths.release(batch_id), f"batch {newest} is released")
    return [manifest for manifest in found.values() if manifest is not None]


def _released(log: Log, batch_id: int) -> Manifest | None:
    """The manifest of a released batch; None if the batch is not released yet, or was deleted since it was listed.

    Both are harmless where no later batch is released: see `_all_released`.
    """
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return None
    manifest = log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    if manifest is None and batch_id > log.low_water():
        return log.require(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    return manifest


def _with_own(schema: StructType, log: Log) -> StructType:
    names = [name.lower() for name in (*schema.names, *(field.name for field in OWN_COLUMNS))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{log.store.root} holds columns that one table cannot have together: {', '.join(twice)}. Read its "
            "segments with another tool, or rename the columns in the query"
        )
    return StructType([*_nullable_struct(schema).fields, *OWN_COLUMNS])


def _nullable_struct(schema: StructType) -> StructType:
    """The schema without 'not null' and without metadata, at any depth: both may differ where the columns are equal.

    The keys of maps are never null.
    """
    return StructType([StructField(each.name, _nullable(each.dataType), nullable=True) for each in schema])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _nullable_struct(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), valueContainsNull=True)
    return kind
