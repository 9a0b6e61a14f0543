"""Reading progress records, to go on where another process stopped."""

from __future__ import annotations

import math
from collections.abc import Iterable

from wal_sink.dead_letters.files import keep_unknown
from wal_sink.dead_letters.rejections import Rejections
from wal_sink.delivery.segment import chunks_of
from wal_sink.errors import CorruptError, StoreError
from wal_sink.messages import DeliveryContext
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Progress, SegmentRef
from wal_sink.wal.segment_reader import chunk_ends, load_segment


def recorded_chunks(store: Store, sink: str, manifest: Manifest) -> list[paths.ProgressName]:
    """The names of a batch's progress records, parsed. One listing."""
    found = map(paths.parse_progress, store.list(paths.progress_folder(sink, manifest.batch_id)))
    return [name for name in found if name is not None]


def recorded_rows(store: Store, sink: str, manifest: Manifest) -> dict[int, int]:
    """Rows recorded by segment ordinal; a segment without a record is absent."""
    return furthest_rows(recorded_chunks(store, sink, manifest))


def furthest_rows(recorded: Iterable[paths.ProgressName]) -> dict[int, int]:
    """The most rows that any record names, by segment ordinal."""
    furthest: dict[int, int] = {}
    for name in recorded:
        furthest[name.ordinal] = max(name.rows, furthest.get(name.ordinal, 0))
    return furthest


def check_recorded(log: Log, sink: str, manifest: Manifest, ordinal: int, rows: int) -> Progress:
    """The progress record whose name was listed, provided that it is one of this segment. One read.

    Raises `CorruptError` if it is of another segment, `StoreError` if it is gone: the next listing may not have it.
    """
    path = paths.progress(sink, manifest.batch_id, ordinal, rows)
    where = log.store.url_of(path)
    record = log.find(Progress, path)
    if record is None:
        raise StoreError(
            f"{where} was listed, but it does not exist. Another process or a person may be deleting files of the WAL. "
            "Stop this deletion, then start the query or command again"
        )
    expected = manifest.segments[ordinal].id if ordinal < len(manifest.segments) else "none"
    if record.segment_id != expected:
        raise CorruptError(
            f"{where}: expected progress of segment {ordinal} of the released batch ({expected}), found that of "
            f"{record.segment_id}; restore the object that belongs here"
        )
    return record


def keep_last_recorded(given: DeliveryContext, ordinal: int, segment: SegmentRef, rows: int, log: Log) -> None:
    """Keep the chunk that ends at `rows` as a dead letter, unless the sink is known to have answered.

    A process that has ended recorded the chunk before it sent it.
    """
    start = max((end for end in chunk_ends(segment, given.chunk_rows) if end < rows), default=0)
    data = load_segment(log.store, segment)
    where = log.store.url_of(segment.path)
    chunk = next(chunks_of(given, ordinal, segment, data, start, where=where, reader=log.segment_reader))
    if Rejections(log, given.sink, ordinal, chunk).is_answered():
        return
    keep_unknown(
        log, given.sink, ordinal, chunk, reason="the process that sent the rows ended before it recorded the outcome"
    )


def keep_each_last_recorded(log: Log, wal_id: str, sink: str, manifest: Manifest, term: Term) -> None:
    """`keep_last_recorded` for each segment of a batch that an at-most-once sink gets no more.

    Raises as `check_recorded`, and `CorruptError` if a segment is lost.
    """
    given = DeliveryContext(
        wal_id=wal_id,
        sink=sink,
        term=term,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        spark_schema=manifest.spark_schema,
        chunk_rows=manifest.chunk_rows,
        segments=len(manifest.segments),
        at_most_once=True,
        keeps_rejected=False,
        attempt_timeout_s=math.inf,
        last_delivered=None,
    )
    for ordinal, rows in recorded_rows(log.store, sink, manifest).items():
        check_recorded(log, sink, manifest, ordinal, rows)
        keep_last_recorded(given, ordinal, manifest.segments[ordinal], rows, log)
