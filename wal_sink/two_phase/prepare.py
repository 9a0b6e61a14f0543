"""Preparing rows in the targets of two-phase sinks: while a batch is staged, or later from the rows that were kept.

A transaction is recorded before it is begun. So a transaction that a crash leaves in a target is found and aborted
(`two_phase/commit.py`). The handle to commit is the one in the manifest, or in the newest `PreparedRecord`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from wal_sink.errors import DeliveryError, StoreError
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import name_of
from wal_sink.runtime.timed_calls import TimedCall
from wal_sink.sinks.base import MakeSink, SinkContext, Transaction, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.session import SinkSession, call_sink, check_returned, handed
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import BegunRecord, TokenRecord

MAX_HANDLE = 4096
"""Most characters of a handle. A manifest holds one a segment."""

_logger = logger_of(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Preparation:
    """The part of one two-phase sink in staging. Sent to executors."""

    sink: str
    make_sink: MakeSink = field(repr=False)
    attempt_timeout_s: float


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
        self, given: Preparation, context: SinkContext, log: Log, partition: int, *, rows_are_kept: bool
    ) -> None:
        """`rows_are_kept`: whether the WAL keeps the rows too."""
        self.sink = given.sink
        self.handles: list[str | None] = []
        self._given = given
        self._context = context
        self._log = log
        self._partition = partition
        self._rows_are_kept = rows_are_kept
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
            made = call_sink(self._timed_call, f"sink {self.sink!r}", self._given.make_sink, timeout_s=limit_s)
            self._session = SinkSession(made, self._timed_call, self._context, timeout_s=limit_s)
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
            if not self._rows_are_kept:
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
