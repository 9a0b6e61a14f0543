"""Staging the rows of a batch: each task writes those of its partition, and the driver packs small partitions.

A segment for each of 200 partitions of ten rows would cost 200 writes, and as many reads for each sink. So the rows of
a small partition travel *inline*, in the result of their task. The driver packs them into common segments, in the order
of the partitions.

The task of partition p may return `inline_limit(budget, p)` bytes. For n partitions that is at most about
budget * (1 + ln(n * MOST_INLINE_BYTES / budget)) in all: the first budget / MOST_INLINE_BYTES tasks return the budget,
and the tasks after them budget / (p + 1) each, a harmonic series. For 40,000 partitions and a budget of 16 MiB that is
119 MiB. The number of partitions need not be known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from wal_sink.log.log import Log
from wal_sink.log.records import SegmentRef, StagingTiming, TaskTiming, combined, rounded
from wal_sink.log.segment_writer import Follower, SegmentLimits, SegmentPlace, SegmentWriter, segment_names
from wal_sink.protocol.messages import SMALL_BATCH_BYTES
from wal_sink.protocol.two_phase import Preparation, Preparer
from wal_sink.sinks.base import SinkContext
from wal_sink.stores.base import SegmentStream
from wal_sink.support.arrow_types import InUtc
from wal_sink.support.clock import SYSTEM, Runtime, host_name
from wal_sink.support.measures import OperationTimes

MOST_INLINE_BYTES = 256 << 10
"""Maximum number of bytes that a task returns inline. A larger partition shares its segments with no other."""
PACKED_BYTES = 1 << 20
"""Minimum size of each of several packed segments that are to be delivered side by side."""
_SAMPLE_BYTES = 1 << 20
"""Inline bytes that are encoded to tell what all of them take in a segment."""


@dataclass(frozen=True, slots=True)
class StagingContext:
    """Facts that the staging tasks of one attempt at a batch share. Sent to executors."""

    folder: str
    limits: SegmentLimits
    run_id: str = ""
    wal_id: str = ""
    batch_id: int = 0
    term: int = 0
    """The stager's term."""
    columns: tuple[str, ...] = ()
    spark_schema: str = field(default="", repr=False)
    keep_segments: bool = True
    preparations: tuple[Preparation, ...] = ()
    measured: bool = False
    """Whether tasks count their requests."""
    inline_bytes: int = 0
    """The budget of inline rows. 0: no rows travel inline."""

    def inline_limit(self, partition: int) -> int:
        """Bytes that the task of a partition may return inline. The driver would write them, so only rows that are kept
        may travel.
        """
        return inline_limit(self.inline_bytes, partition) if self.keep_segments else 0

    def context(self, sink: str, *, on_executor: bool) -> SinkContext:
        """The context that a two-phase sink is opened with to prepare rows."""
        return SinkContext(
            wal_id=self.wal_id,
            sink=sink,
            term=self.term,
            batch_id=self.batch_id,
            columns=self.columns,
            on_executor=on_executor,
            spark_schema=self.spark_schema,
        )


class StagedPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one staging task: its segments in order, and by sink the handle of each segment; or inline rows."""

    segments: tuple[SegmentRef, ...]
    prepared: dict[str, tuple[str | None, ...]] = {}
    partition: int = 0
    inline: bytes = b""
    """Rows that are in no segment yet, in Arrow's stream format."""
    timing: StagingTiming | None = None
    """How long the task took; of several partitions as one, all their tasks."""
    requests: tuple[OperationTimes, ...] = ()
    """Requests of the task, if they are measured."""
    time_zone: str = ""
    """As in the manifest."""
    row_bytes: int = 0
    """The largest mean of the bytes of a row in one of Spark's Arrow batches; 0 without rows."""


def stage_partition(
    context: StagingContext,
    batches: Iterable[pa.RecordBatch],
    open_log: Callable[[], Log],
    *,
    partition: int,
    on_executor: bool,
    runtime: Runtime = SYSTEM,
) -> StagedPartition:
    """Write the rows of one partition into segments and into every two-phase target.

    The few rows of a small partition are returned instead, and `packed` writes them. Then the log is not opened.

    If a target fails, its rows are prepared later, when they are delivered. But where the WAL does not keep the rows,
    the failure ends the task (`DeliveryError`), and Spark runs the batch again.
    """
    began_s = runtime.monotonic_s()
    in_utc, names = InUtc(), segment_names(context.columns)
    instants: Iterable[pa.RecordBatch] = (in_utc(batch.rename_columns(names)) for batch in batches)
    inline = None
    if limit := context.inline_limit(partition):
        inline, instants = take_inline(instants, limit)
    if inline is None:
        staged = _written(context, instants, open_log(), partition, on_executor=on_executor)
    else:
        staged = StagedPartition((), partition=partition, inline=inline)
    seconds = rounded(runtime.monotonic_s() - began_s)
    task = TaskTiming(partition=partition, seconds=seconds, host=host_name() if on_executor else "")
    timing = StagingTiming(tasks=1, task_seconds=seconds, slowest=task)
    return msgspec.structs.replace(staged, timing=timing, time_zone=max(in_utc.zones, default=""))


def _written(
    context: StagingContext, batches: Iterable[pa.RecordBatch], log: Log, partition: int, *, on_executor: bool
) -> StagedPartition:
    preparers = [
        Preparer(
            given,
            context.context(given.sink, on_executor=on_executor),
            log,
            partition,
            rows_are_kept=context.keep_segments,
        )
        for given in context.preparations
    ]
    try:
        with _segment_writer(context, log.store, log.runtime, partition, preparers) as writer:
            for batch in batches:
                writer.write(batch)
            segments = writer.finish()
    finally:
        for preparer in preparers:
            preparer.close()
    handles = {preparer.sink: tuple(preparer.handles) for preparer in preparers}
    return StagedPartition(tuple(segments), handles, partition)


def _handles(context: StagingContext, segments: int) -> dict[str, tuple[str | None, ...]]:
    """The handles of segments for which nothing was prepared: two-phase sinks prepare them when they are delivered."""
    return {given.sink: (None,) * segments for given in context.preparations}


def _segment_writer(
    context: StagingContext,
    place: SegmentPlace,
    runtime: Runtime,
    partition: int,
    followers: Sequence[Follower] = (),
) -> SegmentWriter:
    return SegmentWriter(
        place,
        folder=context.folder,
        partition=partition,
        limits=context.limits,
        new_id=runtime.new_id,
        followers=followers,
        keep=context.keep_segments,
    )


def inline_limit(budget: int, partition: int) -> int:
    """Return the number of bytes that the task of a partition may return inline. 0: none."""
    return min(MOST_INLINE_BYTES, budget // (partition + 1))


def take_inline(batches: Iterable[pa.RecordBatch], limit: int) -> tuple[bytes | None, Iterable[pa.RecordBatch]]:
    """Take all rows of a partition in Arrow's stream format, if that has at most `limit` bytes; empty without rows.

    Otherwise return None, and all batches from the first on. Holds at most `limit` bytes and one batch more.
    """
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rest:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size > limit:
            return None, itertools.chain(held, rest)
    data = _encoded(held)
    return (data, ()) if len(data) <= limit else (None, held)


def _encoded(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def packed(
    context: StagingContext, partitions: Sequence[StagedPartition], log: Log, *, side_by_side: int
) -> StagedPartition:
    """The partitions of a batch as one, in their order. Runs in the driver.

    Inline rows are written into segments, before any manifest can name them. They have no handle: two-phase sinks
    prepare them at delivery. `side_by_side` tells how many segments delivery takes at once; it matters only to rows
    that are too many for the driver to deliver. Fewer make one segment, and so one segment's requests.
    """
    part_bytes = _part_bytes(context, partitions, log)
    whole = [StagedPartition((), _handles(context, 0))]
    with_rows = (partition for partition in partitions if partition.inline or partition.segments)
    for is_inline, group in itertools.groupby(with_rows, lambda partition: bool(partition.inline)):
        if not is_inline:
            whole += group
            continue
        rows = list(group)
        parts = max(1, min(side_by_side, _size(rows) // part_bytes))
        refs = _pack(rows, lambda first: _segment_writer(context, log.store, log.runtime, first), _size(rows) / parts)
        whole.append(StagedPartition(tuple(refs), _handles(context, len(refs))))
    return joined(whole, partitions)


def joined(parts: Sequence[StagedPartition], tasks: Sequence[StagedPartition] = ()) -> StagedPartition:
    """All parts, none with inline rows, as one, in order. `tasks` returned their rows: the parts if none is given."""
    tasks = tasks or parts
    segments = tuple(segment for part in parts for segment in part.segments)
    sinks = {sink for part in parts for sink in part.prepared}
    handles = {sink: tuple(handle for part in parts for handle in part.prepared[sink]) for sink in sorted(sinks)}
    timing = combined(task.timing for task in tasks)
    zone = max((task.time_zone for task in tasks), default="")
    row_bytes = max((task.row_bytes for task in tasks), default=0)
    return StagedPartition(segments, handles, timing=timing, time_zone=zone, row_bytes=row_bytes)


def _part_bytes(context: StagingContext, partitions: Sequence[StagedPartition], log: Log) -> float:
    """The inline bytes that fill a segment of `PACKED_BYTES`; infinite if all rows are so few that the driver delivers
    them.
    """
    size = _size(partitions)
    if size <= SMALL_BATCH_BYTES:
        return math.inf
    inline = [partition for partition in partitions if partition.inline]
    estimated = _estimated_bytes(inline, lambda first: _segment_writer(context, _Nowhere(), log.runtime, first))
    return math.inf if estimated <= SMALL_BATCH_BYTES else math.ceil(size / estimated * PACKED_BYTES)


class _Nowhere(SegmentStream):
    """A place of segments that keeps nothing, and the stream to each of them."""

    def segment(self, _: str, /) -> SegmentStream:
        return self

    def write(self, data: bytes | memoryview) -> None:
        pass

    def commit(self) -> None:
        pass

    def abort(self) -> None:
        pass


def _estimated_bytes(rows: Sequence[StagedPartition], new_writer: Callable[[int], SegmentWriter]) -> float:
    """About the bytes of these inline rows in one segment. Tiny partitions take few, since each repeats its schema
    inline.

    Some partitions, at equal distances, are encoded, by writers that keep nothing. The others are taken to be like
    them. The bytes of the first one alone tell how many a segment takes that holds next to nothing. An error costs
    requests or time, and nothing else.

    The rows have more than `SMALL_BATCH_BYTES`, each partition at most `MOST_INLINE_BYTES`. So the sample holds
    several partitions.
    """
    size = _size(rows)
    sample = rows[:: size // _SAMPLE_BYTES]
    first = _size(rows[:1])
    of_first, of_sample = (sum(ref.bytes for ref in _pack(some, new_writer)) for some in (rows[:1], sample))
    for_each = (of_sample - of_first) / (_size(sample) - first)
    return of_first + for_each * (size - first)


def _size(rows: Sequence[StagedPartition]) -> int:
    return sum(len(each.inline) for each in rows)


def _pack(
    rows: Sequence[StagedPartition], new_writer: Callable[[int], SegmentWriter], end_bytes: float = math.inf
) -> list[SegmentRef]:
    """Write the inline rows of consecutive partitions into segments, in their order. Runs in the driver.

    `new_writer` gets the first partition of each part, by which the part's segments are named. Raises what the writer
    raises.
    """
    refs: list[SegmentRef] = []
    for part in _parts(rows, end_bytes):
        with new_writer(part[0].partition) as writer:
            for each in part:
                for batch in pa.ipc.open_stream(each.inline):
                    writer.write(batch)
            refs += writer.finish()
    return refs


def _parts(rows: Sequence[StagedPartition], end_bytes: float) -> Iterator[list[StagedPartition]]:
    """Divide at least one partition into consecutive parts. A part ends once it has `end_bytes` inline bytes.

    A segment has one schema, so a part has one, too.
    """
    part, size, schema = [rows[0]], len(rows[0].inline), _schema(rows[0])
    for each in rows[1:]:
        own = _schema(each)
        if size < end_bytes and own.equals(schema, check_metadata=True):
            part.append(each)
            size += len(each.inline)
        else:
            yield part
            part, size, schema = [each], len(each.inline), own
    yield part


def _schema(partition: StagedPartition) -> pa.Schema:
    return pa.ipc.open_stream(partition.inline).schema
