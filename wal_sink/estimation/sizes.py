"""Sizes of records in bytes: samples are encoded as the log encodes its own records."""

from __future__ import annotations

import json

import msgspec

from wal_sink.checkpoint.fingerprints import RULE
from wal_sink.estimation.plan import Plan, Segments, Shape
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Marker, Progress, Release, SegmentRef, encode
from wal_sink.wal.timings import DeliveryTiming, SegmentTiming, StagingTiming, TaskTiming

_ID = "0123456789abcdef0123456789abcdef"
_CREATED = "2026-01-01T00:00:00.000+00:00"
_BATCH, _TERM, _ATTEMPT = 1_000_000, 10, 100_000
_FIRST_FILE, _CRC32 = 0, 0xFFFFFFFF
_BESIDE, _SPREAD = 0, paths.SPREAD_FROM
"""Partitions whose segments lie in the folder of an attempt, and in a shard."""
_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1767225600000,"conf":{}}\n{"topic":{'
_COLUMN = {"type": "string", "nullable": True, "metadata": {}}
_SCHEMA = {"type": "struct"}
_STAGING = StagingTiming(tasks=10, task_seconds=12.345, slowest=TaskTiming(partition=10, seconds=1.234), began=_CREATED)
_SEGMENT = SegmentTiming(ordinal=10, fetch_seconds=0.012, send_seconds=0.123)
_DELIVERY = DeliveryTiming(
    batch_id=_BATCH, due=_CREATED, began=_CREATED, seconds=1.234, attempts=1, fetch_seconds=0.12, send_seconds=1.234,
    slowest=_SEGMENT,
)  # fmt: skip


def manifest_bytes(plan: Plan, shape: Shape) -> int:
    """Approximate bytes of the manifest of one batch: lengths of numbers and names vary."""
    empty = len(encode(_manifest(plan))) - len(_OFFSETS) + plan.offsets_bytes
    return empty + sum(_references_bytes(group) for group in shape.groups)


def release_bytes() -> int:
    """Approximate bytes of a release."""
    return len(
        encode(
            Release(
                batch_id=_BATCH,
                term=_TERM,
                attempt=_ATTEMPT,
                fingerprint=_ID * 2,
                rule=RULE,
                run_id=_ID,
                id=_ID,
                created=_CREATED,
            )
        )
    )


def progress_bytes() -> int:
    """Approximate bytes of a progress record."""
    return len(
        encode(
            Progress(
                batch_id=_BATCH, ordinal=100, rows=10_000, segment_id=_ID, term=_TERM, run_id=_ID, id=_ID,
                created=_CREATED,
            )
        )
    )  # fmt: skip


def marker_bytes() -> int:
    """Approximate bytes of a marker."""
    return len(
        encode(
            Marker(
                batch_id=_BATCH,
                term=_TERM,
                run_id=_ID,
                rows=1_000_000,
                last_delivered_batch=-1,
                timings=(_DELIVERY,),
                id=_ID,
                created=_CREATED,
            )
        )
    )


def _manifest(plan: Plan) -> Manifest:
    names = [f"column_{number}" for number in range(plan.columns)]
    columns = [dict(_COLUMN, name=name) for name in names]
    return Manifest(
        batch_id=_BATCH,
        term=_TERM,
        attempt=_ATTEMPT,
        run_id=_ID,
        fingerprint=_ID * 2,
        rule=RULE,
        offsets=_OFFSETS,
        columns=tuple(names),
        spark_schema=json.dumps(dict(_SCHEMA, fields=columns), separators=(",", ":")),
        chunk_rows=plan.settings.chunk_rows,
        segments=(),
        timing=_STAGING,
        id=_ID,
        created=_CREATED,
    )


def _references_bytes(group: Segments) -> int:
    spread = len(group.spread_partitions) * group.files_per_partition
    return (group.count - spread) * _reference_bytes(group, _BESIDE) + spread * _reference_bytes(group, _SPREAD)


def _reference_bytes(group: Segments, partition: int) -> int:
    ends = _ends_bytes(group.rows_per_chunk, group.chunks_each) if group.uneven else 0
    return len(msgspec.json.encode(_reference(group, partition))) + ends + len(",")


def _ends_bytes(chunk_rows: int, chunks: int) -> int:
    """Bytes of the ends of so many chunks in JSON, without the brackets. They may be too many to list."""
    digits, before = 0, 0
    for length in range(1, len(str(chunk_rows * chunks)) + 1):
        through = min(chunks, (10**length - 1) // chunk_rows)
        digits += length * (through - before)
        before = through
    return digits + (chunks - 1) * len(",")


def _reference(group: Segments, partition: int) -> SegmentRef:
    """A reference as the manifest has it, but for the ends of its chunks."""
    return SegmentRef(
        path=paths.segment(paths.attempt_folder(_BATCH, _TERM, _ATTEMPT), partition, _FIRST_FILE, _ID),
        id=_ID,
        rows=group.rows_each,
        bytes=group.bytes_each,
        crc32=_CRC32,
        chunk_ends=() if group.uneven else None,
    )
