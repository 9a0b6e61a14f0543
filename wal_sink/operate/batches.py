"""The batches that a WAL holds, each with its records, its first rows, and where its time went.

Durations within a stage were measured by one process. Times between two records are those of their writers' clocks,
and ages those of a record and of the process that looks. These clocks may differ. None means: not recorded, or not yet
there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Marker, Release, SegmentTiming, StagingTiming
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.operate.look import SinkOfWal, StagedBatch, WalFacts, find_staged
from wal_sink.protocol.progress import furthest_rows, recorded_chunks
from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink.stores.base import Store


def moment_of(created: str | None) -> datetime | None:
    """The time in a record's `created`; None if there is none, or if it is not ISO 8601."""
    try:
        moment = datetime.fromisoformat(created or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def age_s(created: str | None, now: datetime) -> float | None:
    """Seconds since a record was made; None if this is unknown. Negative if the writer's clock is ahead of this one."""
    moment = moment_of(created)
    return None if moment is None else round((now - moment).total_seconds(), 3)


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Seconds between two records; None if this is unknown. Negative if the clocks of their writers differ."""
    first, second = moment_of(earlier), moment_of(later)
    return None if first is None or second is None else round((second - first).total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class SinkTimeline:
    """The delivery of a batch to one sink."""

    sink: str
    queue_s: float | None
    """After it was staged, until the sink had all earlier batches; 0 if it had them before."""
    checkpoint_s: float | None
    """After that, until Spark had completed the batch and it was released."""
    delivery_s: float | None
    """After that, until the sink had every row, with all attempts."""
    fetch_s: float | None
    """Reading all segments from the store, side by side or not."""
    send_s: float | None
    """Sending them."""
    retries: int | None
    slowest: SegmentTiming | None
    """The segment that took longest."""
    marker_s: float | None
    """After the last row, until the marker. Batches that share a marker wait for each other."""
    marked_at: str | None
    """When the marker of the batch was made, or that of the batches that share it; None if there is none yet."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of a batch went."""

    staged_at: str
    staging_s: float | None
    """From the beginning of the attempt that counts until its manifest."""
    tasks: StagingTiming | None
    """Its tasks, with the slowest one."""
    released_at: str | None
    release_s: float | None
    """From the manifest until the release: Spark's checkpoint, and the queue of the first sink that was ready."""
    sinks: tuple[SinkTimeline, ...]


def timeline_of(sink: str, staged_at: str, marker: Marker | None, batch_id: int) -> SinkTimeline:
    """The timeline of a batch that was staged at this time, by the first marker that stands for it."""
    timings = marker.timings if marker else ()
    timing = next((each for each in timings if each.batch_id == batch_id), None)
    marked_at = marker.created if marker and (timing or marker.batch_id == batch_id) else None
    if timing is None:
        return SinkTimeline(sink, None, None, None, None, None, None, None, None, marked_at)
    total_s = seconds_between(timing.began, marked_at)
    return SinkTimeline(
        sink=sink,
        queue_s=_not_below_0(seconds_between(staged_at, timing.due)),
        checkpoint_s=_not_below_0(seconds_between(_later(staged_at, timing.due), timing.began)),
        delivery_s=timing.seconds,
        fetch_s=timing.fetch_seconds,
        send_s=timing.send_seconds,
        retries=timing.attempts - 1,
        slowest=timing.slowest,
        marker_s=None if total_s is None else _not_below_0(round(total_s - timing.seconds, 3)),
        marked_at=marked_at,
    )


def _later(one: str, other: str) -> str:
    """The later of two moments; the first if one of them cannot be read."""
    first, second = moment_of(one), moment_of(other)
    return other if first is not None and second is not None and second > first else one


def _not_below_0(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The first rows of a staged batch."""

    columns: tuple[str, ...]
    """Real names. Some may be equal."""
    keys: tuple[str, ...]
    """A key for each row, as `Chunk.row_keys` gives them."""
    rows: tuple[tuple[Any, ...], ...]
    """Values as `Chunk.to_json` writes them. Structs are dictionaries, decimals text, bytes unchanged."""


def read_rows(store: Store, manifest: Manifest, limit: int) -> StagedRows:
    """The first `limit` rows of a batch. Reads whole segments, checked; raises `CorruptError` if one is damaged."""
    keys: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for ref in manifest.segments:
        if len(rows) >= limit:
            break
        data, where = load_segment(store, ref), store.url_of(ref.path)
        for start, end, table in read_chunks(
            data, ref, chunk_rows=manifest.chunk_rows, columns=manifest.columns, where=where
        ):
            wanted = min(end - start, limit - len(rows))
            keys += [f"{ref.id}-{row}" for row in range(start, start + wanted)]
            rows += plain_rows(table.slice(0, wanted))
            if len(rows) >= limit:
                break
    return StagedRows(manifest.columns, tuple(keys), tuple(rows))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows for people. Values look as in JSON; those that JSON cannot hold, as Python prints them."""
    columns = [_plain_column(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


_PLAIN: Any = {"builtin_types": (bytes,), "enc_hook": lambda raw: bytes(raw).decode()}
"""Nested values get the names of their fields. A `Raw`, which msgspec leaves to the hook, is a decimal as text."""


def _plain_column(column: Any, name: str) -> list[Any]:
    """Values of one column. A type that JSON rows cannot hold is printed by Python, so that looking always works."""
    if pa.types.is_decimal(column.type):
        return [text for part in column.chunks for text in decimal_texts(part)]
    try:
        return [msgspec.to_builtins(value, **_PLAIN) for value in plain_values(column, name)]
    except ConfigError:
        return [str(value) if value.is_valid else None for value in column]


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch, as its records show it."""

    batch_id: int
    attempts: int
    released: bool
    rows: int
    bytes: int
    segments: int
    delivered_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivery of one batch to one sink."""

    sink: str
    complete: bool
    """Whether its marker exists, or a later one: then the sink has the whole batch."""
    chunks: int
    """Number of progress records. The batch's marker may stand for the last one."""
    rows: int
    """Rows that the sink has, by these records."""
    skipped: bool = False
    """Whether a person ordered that the sink passes over the batch: then it lacks rows, though `complete` is True."""


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """One batch with its records."""

    manifest: Manifest
    """The manifest that counts."""
    attempts: int
    release: Release | None
    delivered: tuple[Delivered, ...]
    timeline: Timeline


def read_batches(
    facts: WalFacts, *, after: int = NOTHING, on_batch: Callable[[int, int], None] = lambda _done, _total: None
) -> list[BatchView]:
    """Every batch above low water and `after`, oldest first. Two or three requests a batch. Raises `CorruptError`.

    `on_batch` is called before the first batch and after each one, with the number of batches read and their total.
    """
    marked = {sink.name: _marked(sink) for sink in facts.sinks}
    wanted = [batch_id for batch_id in facts.batches if batch_id > after]
    found: list[BatchView] = []
    on_batch(0, len(wanted))
    for batch_id in wanted:
        found.append(_view(find_staged(facts.log, batch_id).whole(), marked))
        on_batch(len(found), len(wanted))
    return found


def read_batch(facts: WalFacts, batch_id: int) -> BatchDetail | None:
    """One batch with its records; None if the WAL holds no manifest of it. For each sink two listings, the reads of its
    registration and of a marker, and those of its name.
    """
    staged = find_staged(facts.log, batch_id).whole()
    manifest = staged.manifest
    if manifest is None:
        return None
    timing, released_at = manifest.timing, staged.release.created if staged.release else None
    sinks = [_of_sink(facts.log, sink, manifest) for sink in facts.every_sink]
    timeline = Timeline(
        staged_at=manifest.created,
        staging_s=seconds_between(timing.began if timing else None, manifest.created),
        tasks=timing,
        released_at=released_at,
        release_s=seconds_between(manifest.created, released_at),
        sinks=tuple(times for _, times in sinks),
    )
    return BatchDetail(manifest, staged.attempts, staged.release, tuple(has for has, _ in sinks), timeline)


def _marked(sink: SinkOfWal) -> range:
    """The batches that a sink's markers stand for: all from its first to the newest marker."""
    newest = max(sink.markers, default=NOTHING)
    record = sink.registration(f"a marker of batch {newest}" if newest > NOTHING else None)
    return range(record.first_batch, newest + 1) if record else range(0)


def _of_sink(log: Log, sink: SinkOfWal, manifest: Manifest) -> tuple[Delivered, SinkTimeline]:
    """The delivery of a batch to a sink and its times, by the first marker that stands for the batch."""
    batch_id = manifest.batch_id
    numbers = sink.markers[bisect_left(sink.markers, batch_id) :]
    marker = log.find(Marker, paths.marker(sink.folder, numbers[0])) if numbers else None
    record = sink.registration(f"a marker of batch {numbers[-1]}" if numbers else None)
    complete = bool(numbers) and (numbers[0] == batch_id or (record is not None and record.first_batch <= batch_id))
    skipped = marker is not None and marker.batch_id == batch_id and marker.skipped
    found = recorded_chunks(log.store, sink.folder, manifest)
    rows = manifest.rows if complete and not skipped else sum(furthest_rows(found).values())
    delivered = Delivered(sink=sink.name, complete=complete, chunks=len(found), rows=rows, skipped=skipped)
    return delivered, timeline_of(sink.name, manifest.created, marker, batch_id)


def _view(staged: StagedBatch, marked: Mapping[str, range]) -> BatchView:
    manifest = staged.manifest
    return BatchView(
        batch_id=staged.batch_id,
        attempts=staged.attempts,
        released=staged.release is not None,
        rows=manifest.rows if manifest else 0,
        bytes=manifest.bytes if manifest else 0,
        segments=len(manifest.segments) if manifest else 0,
        delivered_to=tuple(name for name, batches in marked.items() if staged.batch_id in batches),
    )
