"""How many bytes records take: samples of them are encoded as the log encodes its own."""

from __future__ import annotations

import json

import msgspec

from wal_sink.checkpoint.fingerprints import RULE
from wal_sink.estimation.plan import Plan, Shape
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Marker, Progress, Release, SegmentRef, encode

_ID = "0123456789abcdef0123456789abcdef"
_CREATED = "2026-01-01T00:00:00.000+00:00"
_BATCH, _TERM, _ATTEMPT = 1_000_000, 10, 100_000
_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1767225600000,"conf":{}}\n{"topic":{'


def manifest_bytes(plan: Plan, shape: Shape) -> int:
    """Bytes of the manifest of one batch, about: lengths of numbers and names vary."""
    empty = len(encode(_manifest(plan)))
    spread = shape.spread_segments
    of_spread = spread * _reference_bytes(shape, paths.SPREAD_FROM) if spread else 0
    return empty + (shape.segments - spread) * _reference_bytes(shape, 0) + of_spread


def release_bytes() -> int:
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
    return len(
        encode(
            Progress(
                batch_id=_BATCH, ordinal=100, rows=10_000, segment_id=_ID, term=_TERM, run_id=_ID, id=_ID,
                created=_CREATED,
            )
        )
    )  # fmt: skip


def marker_bytes() -> int:
    return len(
        encode(
            Marker(
                batch_id=_BATCH,
                term=_TERM,
                run_id=_ID,
                rows=1_000_000,
                last_delivered_batch=-1,
                id=_ID,
                created=_CREATED,
            )
        )
    )


def _manifest(plan: Plan) -> Manifest:
    names = [f"column_{number}" for number in range(plan.columns)]
    columns = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
    return Manifest(
        batch_id=_BATCH,
        term=_TERM,
        attempt=_ATTEMPT,
        run_id=_ID,
        fingerprint=_ID * 2,
        rule=RULE,
        offsets=_OFFSETS.ljust(plan.offsets_bytes, "0")[: plan.offsets_bytes],
        columns=tuple(names),
        spark_schema=json.dumps({"type": "struct", "fields": columns}, separators=(",", ":")),
        chunk_rows=plan.settings.chunk_rows,
        segments=(),
        id=_ID,
        created=_CREATED,
    )


def _reference_bytes(shape: Shape, partition: int) -> int:
    return len(msgspec.json.encode(_reference(shape, partition))) + len(",")


def _reference(shape: Shape, partition: int) -> SegmentRef:
    ends = range(shape.rows_per_chunk, shape.rows_per_segment + shape.rows_per_chunk, shape.rows_per_chunk)
    return SegmentRef(
        path=paths.segment(paths.attempt_folder(_BATCH, _TERM, _ATTEMPT), partition, 0, _ID),
        id=_ID,
        rows=shape.rows_per_segment,
        bytes=shape.segment_bytes,
        crc32=0xFFFFFFFF,
        chunk_ends=tuple(ends) if shape.uneven else None,
    )
