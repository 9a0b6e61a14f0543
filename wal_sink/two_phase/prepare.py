"""Preparing rows in the targets of two-phase sinks: while a batch is staged, or later from the rows that were kept.

A transaction is recorded before it is begun. So a transaction that a crash leaves in a target is found and aborted
(`two_phase/abort.py`). The handle to commit is the one in the manifest, or in the newest `PreparedRecord`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec
import pyarrow as pa

from wal_sink.errors import DeliveryError, StoreError
from wal_sink.messages import SMALL_BATCH_BYTES, Preparation, StagedPartition, StagingContext
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import name_of
from wal_sink.runtime.clock import SYSTEM, Runtime, host_name
from wal_sink.runtime.timed_calls import TimedCall
from wal_sink.sinks.arrow_types import in_utc
from wal_sink.sinks.base import Transaction, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.session import SinkSession, call_sink, check_returned, handed
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.inline_rows import PACKED_BYTES, InlineRows, Nowhere, estimated_bytes, pack, take_inline
from wal_sink.wal.log import Log
from wal_sink.wal.records import BegunRecord, TokenRecord
from wal_sink.wal.segment_writer import Follower, SegmentWriter, segment_names
from wal_sink.wal.timings import StagingTiming, TaskTiming, combined, rounded

MAX_HANDLE = 4096
"""Most characters of a handle. A manifest holds one a segment."""

_logger = logger_of(__name__)
_Result = TypeVar("_Result")


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
    zones: set[str] = set()
    names = segment_names(context.columns)
    instants = (in_utc(batch.rename_columns(names), zones) for batch in batches)
    staged = _staged(context, instants, open_log, partition, on_executor=on_executor)
    seconds = rounded(runtime.monotonic_s() - began_s)
    task = TaskTiming(partition=partition, seconds=seconds, host=host_name() if on_executor else "")
    timing = StagingTiming(tasks=1, task_seconds=seconds, slowest=task)
    return msgspec.structs.replace(staged, timing=timing, time_zone=max(zones, default=""))


def _staged(
    context: StagingContext,
    batches: Iterable[pa.RecordBatch],
    open_log: Callable[[], Log],
    partition: int,
    *,
    on_executor: bool,
) -> StagedPartition:
    if limit := context.inline_limit(partition):
        inline, batches = take_inline(batches, limit)
        if inline is not None:
            return StagedPartition((), {given.sink: () for given in context.preparations}, partition, inline)
    log = open_log()
    preparers = [Preparer(context, given, log, partition, on_executor=on_executor) for given in context.preparations]
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


def packed(
    context: StagingContext, partitions: Sequence[StagedPartition], log: Log, *, side_by_side: int = 1
) -> StagedPartition:
    """The partitions of a batch as one, in their order. Runs in the driver.

    Inline rows are written into segments, before any manifest can name them. They have no handle: two-phase sinks
    prepare them at delivery. `side_by_side` tells how many segments delivery takes at once; it matters only to rows
    that are too many for the driver to deliver. Fewer make one segment, and so one segment's requests.
    """
    part_bytes = _part_bytes(context, partitions, log)
    if part_bytes is None:
        side_by_side, part_bytes = 1, PACKED_BYTES
    zone = max((each.time_zone for each in partitions), default="")
    whole = [StagedPartition((), {given.sink: () for given in context.preparations}, time_zone=zone)]
    with_rows = (partition for partition in partitions if partition.inline or partition.segments)
    for is_inline, group in groupby(with_rows, lambda partition: bool(partition.inline)):
        if not is_inline:
            whole += group
            continue
        rows = [InlineRows(partition.partition, partition.inline) for partition in group]
        refs = pack(
            rows,
            lambda first: _segment_writer(context, log.store, log.runtime, first),
            side_by_side=side_by_side,
            part_bytes=part_bytes,
        )
        unprepared: tuple[str | None, ...] = (None,) * len(refs)
        whole.append(StagedPartition(tuple(refs), {given.sink: unprepared for given in context.preparations}))
    return msgspec.structs.replace(joined(whole), timing=combined(each.timing for each in partitions))


def _part_bytes(context: StagingContext, partitions: Sequence[StagedPartition], log: Log) -> int | None:
    """The inline bytes that fill a segment of `PACKED_BYTES`; None if all rows are so few that the driver delivers
    them.
    """
    rows = [InlineRows(partition.partition, partition.inline) for partition in partitions if partition.inline]
    size = sum(len(each.data) for each in rows)
    if size <= SMALL_BATCH_BYTES:
        return None
    estimated = estimated_bytes(rows, lambda first: _segment_writer(context, Nowhere(), log.runtime, first))
    return None if estimated <= SMALL_BATCH_BYTES else math.ceil(size / estimated * PACKED_BYTES)


def joined(partitions: Sequence[StagedPartition]) -> StagedPartition:
    """The partitions of a batch as one, in their order. None of them has inline rows."""
    segments = tuple(segment for partition in partitions for segment in partition.segments)
    sinks = {sink for partition in partitions for sink in partition.prepared}
    handles = {
        sink: tuple(handle for partition in partitions for handle in partition.prepared[sink]) for sink in sorted(sinks)
    }
    timing = combined(partition.timing for partition in partitions)
    zone = max((partition.time_zone for partition in partitions), default="")
    return StagedPartition(segments, handles, timing=timing, time_zone=zone)


def _segment_writer(
    context: StagingContext,
    store: Store | Nowhere,
    runtime: Runtime,
    partition: int,
    followers: Sequence[Follower] = (),
) -> SegmentWriter:
    return SegmentWriter(
        store,
        folder=context.folder,
        partition=partition,
        limits=context.limits,
        new_id=runtime.new_id,
        followers=followers,
        keep=context.keep_segments,
    )


def opened_sink(session: SinkSession) -> TwoPhaseSink:
    """The sink of a session, opened. Raises `SinkFailedError`."""
    session.open()
    if not isinstance(session.sink, TwoPhaseSink):
        raise SinkFailedError(FailureKind.PERMANENT, f"{name_of(session.sink)} is not a TwoPhaseSink")
    return session.sink


class OpenTransaction:
    """One transaction of one sink, from `begin` to `prepare`. Raises `SinkFailedError` and what the store raises."""

    def __init__(self, log: Log, session: SinkSession, sink: TwoPhaseSink, transaction: Transaction) -> None:
        self._session = session
        self._sink = sink
        self._transaction = transaction
        self._what = f"batch {transaction.batch_id}, transaction {transaction.id}: {name_of(sink)}"
        self._token = ""
        self._write_down(log)
        try:
            self._token = self._text("begin", self._call("begin", sink.begin, transaction))
            if self._token:
                self._write_down_token(log)
        except Exception:
            self.abort()
            raise

    def write(self, chunk: Chunk) -> None:
        check_returned(self._what, self._call("write", self._sink.write, handed(chunk)))

    def prepare(self) -> str:
        return self._text("prepare", self._call("prepare", self._sink.prepare))

    def abort(self) -> None:
        """Abort the transaction. After a failure, which is a warning, `abort_abandoned` aborts it later."""
        try:
            self._call("abort", self._sink.abort, self._transaction, self._token)
        except SinkFailedError as error:
            _logger.warning("%s", error.failure.message)

    def _write_down(self, log: Log) -> None:
        given = self._transaction
        record = BegunRecord(
            transaction_id=given.id,
            wal_id=given.wal_id,
            batch_id=given.batch_id,
            partition=given.partition,
            file_index=given.file_index,
            **log.stamp(),
        )
        if not log.create(paths.begun(given.sink, given.batch_id, given.id), record):
            raise StoreError(f"{self._what}: another transaction with this id was begun before; ids must be unique")

    def _write_down_token(self, log: Log) -> None:
        given = self._transaction
        record = TokenRecord(transaction_id=given.id, batch_id=given.batch_id, token=self._token, **log.stamp())
        log.create(paths.begun_token(given.sink, given.batch_id, given.id), record)

    def _call(self, name: str, function: Callable[..., object], *args: object) -> object:
        return self._session.call(f"{self._what}: {name}", function, *args, nothing_sent=True)

    def _text(self, name: str, returned: object) -> str:
        if isinstance(returned, str) and len(returned) <= MAX_HANDLE:
            return returned
        found = f"{len(returned)} characters" if isinstance(returned, str) else f"a {type(returned).__name__}"
        message = f"{self._what}: {name} returned {found}: expected text of at most {MAX_HANDLE} characters"
        raise SinkFailedError(FailureKind.PERMANENT, message)


class Preparer:
    """Writes the segments of one staging task into the target of one sink, in the task's process."""

    def __init__(
        self, context: StagingContext, given: Preparation, log: Log, partition: int, *, on_executor: bool
    ) -> None:
        self.sink = given.sink
        self.handles: list[str | None] = []
        self._context = context
        self._given = given
        self._log = log
        self._partition = partition
        self._on_executor = on_executor
        self._timed_call: TimedCall | None = None
        self._session: SinkSession | None = None
        self._open: OpenTransaction | None = None
        self._segment_id = ""
        self._file_index = 0
        self._failed = False

    def begin(self, segment_id: str, file_index: int) -> None:
        self._segment_id, self._file_index = segment_id, file_index
        self._try(self._begin)

    def take(self, first: int, end: int, table: pa.Table) -> None:
        opened = self._open
        if opened is not None:
            self._try(lambda: opened.write(self._chunk(first, end, table)))

    def end(self) -> None:
        opened = self._open
        handle = None if opened is None else self._try(opened.prepare)
        self._open = None
        self.handles.append(handle)

    def abort(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.abort()

    def close(self) -> None:
        """Free the sink; harmless when repeated."""
        if self._session is not None:
            self._session.close()
        elif self._timed_call is not None:
            self._timed_call.close()
        self._session = self._timed_call = None

    def _begin(self) -> None:
        session, sink = self._opened()
        transaction = Transaction(
            id=self._segment_id,
            wal_id=self._context.wal_id,
            sink=self.sink,
            batch_id=self._context.batch_id,
            partition=self._partition,
            file_index=self._file_index,
        )
        self._open = OpenTransaction(self._log, session, sink, transaction)

    def _opened(self) -> tuple[SinkSession, TwoPhaseSink]:
        if self._session is None:
            limit_s = self._given.attempt_timeout_s
            self._timed_call = self._log.runtime.new_timed_call()
            told = self._context.context(self.sink, on_executor=self._on_executor)
            made = call_sink(self._timed_call, f"sink {self.sink!r}", self._given.make_sink, timeout_s=limit_s)
            self._session = SinkSession(made, self._timed_call, told, timeout_s=limit_s)
        return self._session, opened_sink(self._session)

    def _try(self, step: Callable[[], _Result]) -> _Result | None:
        """Do a step, unless this sink failed before. A failure ends the task only if the WAL does not keep the rows."""
        if self._failed:
            return None
        try:
            return step()
        except SinkFailedError as error:
            self._failed = True
            self.abort()
            if not self._context.keep_segments:
                raise DeliveryError(
                    f"{error.failure.message}. The rows would be lost (keep_segments=False), so the batch is not "
                    "staged. Repair the target, or leave keep_segments=True"
                ) from error
            _logger.warning(
                "%s; the rows of this transaction are prepared when they are delivered", error.failure.message
            )
            return None

    def _chunk(self, first: int, end: int, table: pa.Table) -> Chunk:
        context = self._context
        slot = f"{context.wal_id}/{self.sink}/{self._partition}-{self._file_index}"
        return Chunk(
            table=table.rename_columns(list(context.columns)),
            batch_id=context.batch_id,
            key=chunk_key(self._segment_id, first, end),
            segment_id=self._segment_id,
            rows=range(first, end),
            position=Position(slot, context.batch_id, end, self._segment_id),
            term=context.term,
            start=first,
        )
