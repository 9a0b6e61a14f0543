"""Two-phase sinks: rows are prepared in the target while they are staged, and committed after the release.

A transaction is recorded before it is begun. So a transaction that a crash leaves in a target is found, and aborted
once its batch is marked (`Abandoned`). The handle to commit is the one in the manifest, or in the newest
`PreparedRecord`.

Usually the rows of a segment were prepared while they were staged, and the manifest has the handle. If they were not,
or if the target has lost them since, they are prepared now from the rows in the WAL. A record of the new transaction is
created before it is committed, so that two processes which do this at the same time commit the same transaction.

No other transaction is aborted: until the sink has the batch, it could still be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from wal_sink.errors import CorruptError, DeliveryError, OutcomeUnknownError, StoreError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import BegunRecord, Manifest, PreparedRecord, Release, SegmentRef, TokenRecord
from wal_sink.protocol.messages import DeliveryContext, SegmentTask
from wal_sink.sinks.base import MakeSink, SinkContext, Transaction, TwoPhaseSink
from wal_sink.sinks.calls import SinkSession, call_sink, check_returned
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.support.calls import TimedCall
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import name_of

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
    renaming: Renaming = SAME


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
        self.transaction = transaction
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
        check_returned(self._what, self._call("write", self._sink.write, self._session.handed(chunk)))

    def prepare(self) -> str:
        return self._text("prepare", self._call("prepare", self._sink.prepare))

    def abort(self) -> None:
        """Abort the transaction. After a failure, which is a warning, `abort_abandoned` aborts it later."""
        try:
            self._call("abort", self._sink.abort, self.transaction, self._token)
        except SinkFailedError as error:
            _logger.warning("%s", error.failure.message)

    def _write_down(self, log: Log) -> None:
        given = self.transaction
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
        given = self.transaction
        record = TokenRecord(transaction_id=given.id, batch_id=given.batch_id, token=self._token, **log.stamp())
        log.create(paths.begun_token(given.sink, given.batch_id, given.id), record)

    def _call(self, name: str, function: Callable[..., object], *args: object) -> object:
        return self._session.call(f"{self._what}: {name}", function, *args, nothing_sent=True)

    def _text(self, name: str, returned: object) -> str:
        return checked_handle(f"{self._what}: {name}", returned)


def checked_handle(what: str, returned: object) -> str:
    """The handle or token that a sink returned. Raises `SinkFailedError` for anything but a short text."""
    if isinstance(returned, str) and len(returned) <= MAX_HANDLE:
        return returned
    found = f"{len(returned)} characters" if isinstance(returned, str) else f"a {type(returned).__name__}"
    message = f"{what} returned {found}: expected text of at most {MAX_HANDLE} characters"
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
        self._failed = False

    def begin(self, segment_id: str, file_index: int) -> None:
        self._try(lambda: self._begin(segment_id, file_index))

    def take(self, first: int, end: int, table: pa.Table) -> None:
        opened = self._open
        if opened is not None:
            self._try(lambda: opened.write(self._chunk(opened.transaction, first, end, table)))

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
        """Free the sink."""
        if self._session is not None:
            self._session.close()
        elif self._timed_call is not None:
            self._timed_call.close()

    def _begin(self, segment_id: str, file_index: int) -> None:
        session, sink = self._opened()
        transaction = Transaction(
            id=segment_id,
            wal_id=self._context.wal_id,
            sink=self.sink,
            batch_id=self._context.batch_id,
            partition=self._partition,
            file_index=file_index,
        )
        self._open = OpenTransaction(self._log, session, sink, transaction)

    def _opened(self) -> tuple[SinkSession, TwoPhaseSink]:
        if self._session is None:
            limit_s = self._given.attempt_timeout_s
            self._timed_call = self._log.runtime.new_timed_call()
            made = call_sink(self._timed_call, f"sink {self.sink!r}", self._given.make_sink, timeout_s=limit_s)
            self._session = SinkSession(
                made, self._timed_call, self._context, timeout_s=limit_s, renaming=self._given.renaming
            )
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

    def _chunk(self, transaction: Transaction, first: int, end: int, table: pa.Table) -> Chunk:
        context, segment_id = self._context, transaction.id
        slot = f"{context.wal_id}/{self.sink}/{self._partition}-{transaction.file_index}"
        return Chunk(
            table=table.rename_columns(list(context.columns)),
            batch_id=context.batch_id,
            key=chunk_key(segment_id, first, end),
            segment_id=segment_id,
            rows=range(first, end),
            position=Position(slot, context.batch_id, end, segment_id),
            term=context.term,
            start=first,
        )


ABORT_EVERY_BATCHES = 16
"""How many batches one call covers, so that its listing costs next to nothing per batch."""

_GONE = frozenset({FailureKind.GONE, FailureKind.NEVER_COMMITTED})


@dataclass(frozen=True, slots=True)
class _Prepared:
    number: int
    """0: prepared while it was staged; then counted from 1."""
    transaction_id: str
    handle: str


class SegmentCommit:
    """Commits segments of one `DeliveryContext`. Raises `SinkFailedError`, and what the store raises."""

    def __init__(
        self,
        given: DeliveryContext,
        session: SinkSession,
        sink: TwoPhaseSink,
        log: Log,
        *,
        read: Callable[[SegmentTask], Iterator[Chunk]],
        refuse_stopped: Callable[[], None],
    ) -> None:
        self._given = given
        self._session = session
        self._sink = sink
        self._log = log
        self._read = read
        self._refuse_stopped = refuse_stopped

    def commit(self, task: SegmentTask) -> None:
        """Commit the segment's transaction. Prepare it first where there is none, or none any more."""
        prepared = self._present(task) or self._prepare(task, number=1)
        try:
            self._commit(task, prepared)
        except SinkFailedError as error:
            if not self._may_prepare_again(task, error):
                raise
        else:
            return
        again = self._prepare(task, number=prepared.number + 1)
        try:
            self._commit(task, again)
        except SinkFailedError as error:
            if error.failure.kind not in _GONE:
                raise
            message = f"{error.failure.message}; the transaction was prepared a moment ago"
            raise SinkFailedError(FailureKind.RETRIABLE, message) from error

    def _present(self, task: SegmentTask) -> _Prepared | None:
        """The newest prepared transaction; None if there is none.

        Where no commit was begun, only the manifest can name one.
        """
        prepared = None if task.handle is None else _Prepared(0, task.segment.id, task.handle)
        if prepared is not None and not task.maybe_sent:
            return prepared
        while (later := self._find(task, 1 if prepared is None else prepared.number + 1)) is not None:
            prepared = later
        return prepared

    def _commit(self, task: SegmentTask, prepared: _Prepared) -> None:
        self._refuse_stopped()
        if prepared.number or not task.term_checked:
            self._given.term.check(self._log.store)
        transaction = self._transaction(task.segment, prepared.transaction_id)
        what = f"{self._what(transaction)}: commit"
        check_returned(what, self._session.call(what, self._sink.commit, transaction, prepared.handle))

    def _may_prepare_again(self, task: SegmentTask, error: SinkFailedError) -> bool:
        """Whether a failed commit proves that the rows are not in the target.

        If that is open, raises an error with the ways out. A transaction that was never tried to be committed cannot
        have been committed: the target dropped it. This process knows of every such try unless it was superseded, which
        the term shows.
        """
        if error.failure.kind not in _GONE:
            return False
        if not task.segment.kept:
            raise SinkFailedError(
                FailureKind.PERMANENT,
                f"{error.failure.message}. The WAL did not keep the rows of this transaction (keep_segments=False). "
                "Restore the transaction in the target, or run the query again from an older checkpoint into a new "
                "WAL",
            ) from error
        if error.failure.kind is FailureKind.NEVER_COMMITTED:
            return True
        if task.maybe_sent and not self._given.prepares_again:
            raise SinkFailedError(
                FailureKind.PERMANENT,
                f"{error.failure.message}. An earlier attempt may have committed this transaction, so its rows may "
                "have been in the target before. The WAL keeps these rows in "
                f"{self._log.store.url_of(task.segment.path)}. Find out whether the target received these rows of "
                f"batch {self._given.batch_id}. If it did not, start once with the sink's option "
                "on_gone='prepare_again', then remove this option. If it did, restore in the target the transaction "
                "that it lost, then start the query or command again. If the target cannot be restored, prepare_again "
                "delivers these rows a second time",
            ) from error
        self._given.term.check(self._log.store)
        return True

    def _prepare(self, task: SegmentTask, *, number: int) -> _Prepared:
        """Prepare the kept rows. If another process was first, abort, and use the transaction of that process."""
        transaction = self._transaction(task.segment, self._log.runtime.new_id())
        chunks = self._read(task)
        opened = OpenTransaction(self._log, self._session, self._sink, transaction)
        try:
            for chunk in chunks:
                self._refuse_stopped()
                opened.write(chunk)
            mine = _Prepared(number, transaction.id, opened.prepare())
        except Exception:
            opened.abort()
            raise
        found, is_own = self._log.create_or_find(self._path(task, number), self._record(task, mine))
        if is_own:
            return mine
        opened.abort()
        return self._of_record(task, number, found)

    def _record(self, task: SegmentTask, prepared: _Prepared) -> PreparedRecord:
        return PreparedRecord(
            batch_id=self._given.batch_id,
            ordinal=task.ordinal,
            number=prepared.number,
            segment_id=task.segment.id,
            transaction_id=prepared.transaction_id,
            handle=prepared.handle,
            term=self._given.term.number,
            run_id=self._log.run_id,
            **self._log.stamp(),
        )

    def _path(self, task: SegmentTask, number: int) -> str:
        given = self._given
        return paths.prepared(given.sink, given.batch_id, task.ordinal, number)

    def _find(self, task: SegmentTask, number: int) -> _Prepared | None:
        record = self._log.find(PreparedRecord, self._path(task, number))
        return None if record is None else self._of_record(task, number, record)

    def _of_record(self, task: SegmentTask, number: int, record: PreparedRecord) -> _Prepared:
        where = self._log.store.url_of(self._path(task, number))
        if record.segment_id != task.segment.id:
            raise CorruptError(
                f"{where}: expected the prepared transaction of segment {task.segment.id}, found that of "
                f"{record.segment_id}. Restore the object that belongs here"
            )
        return _Prepared(number, record.transaction_id, record.handle)

    def _transaction(self, segment: SegmentRef, transaction_id: str) -> Transaction:
        return transaction_of(self._given.wal_id, self._given.sink, self._given.batch_id, segment, transaction_id)

    def _what(self, transaction: Transaction) -> str:
        return f"batch {transaction.batch_id}, transaction {transaction.id}: {name_of(self._sink)}"


def transaction_of(wal_id: str, sink: str, batch_id: int, segment: SegmentRef, transaction_id: str) -> Transaction:
    """A transaction of a released segment's rows. Raises `CorruptError` if the segment has another kind of path."""
    name = paths.parse_segment(segment.path)
    if name is None:
        raise CorruptError(f"{segment.path}: expected the path of a segment; restore the manifest of batch {batch_id}")
    return Transaction(transaction_id, wal_id, sink, batch_id, name.partition, name.file_index)


class Abandoned:
    """The transactions that one sink began and that no process will commit, since their batch is marked.

    Lives in the committer's process. A failure is only logged as a warning, and the next call tries again: such a
    transaction only takes room in the target.
    """

    def __init__(self, log: Log, sink: str, make_sink: MakeSink | None, limit_s: float) -> None:
        """`make_sink` None: it is no two-phase sink. Each call of the sink takes at most `limit_s` seconds."""
        self._log = log
        self._sink = sink
        self._make_sink = make_sink
        self._limit_s = limit_s
        self._through: int | None = None

    def abort(self, term: int, *, through: int) -> None:
        """Abort those of batches up to this one: at the first call, then once `ABORT_EVERY_BATCHES` more are marked."""
        is_due = self._through is None or through >= self._through + ABORT_EVERY_BATCHES
        if self._make_sink is None or not is_due:
            return
        self._through = through
        try:
            self._abort(self._make_sink, term, through)
        except (StoreError, OutcomeUnknownError, CorruptError) as error:
            _logger.warning("sink %s: aborting abandoned transactions failed: %s", self._sink, error)

    def _abort(self, make_sink: MakeSink, term: int, through: int) -> None:
        log, sink = self._log, self._sink
        begun = [name for name in _begun(log, sink) if name.batch_id <= through]
        committed = {batch_id: _maybe_committed(log, sink, batch_id) for batch_id in {name.batch_id for name in begun}}
        done = [name for name in begun if name.transaction_id in committed[name.batch_id]]
        abandoned = [name for name in begun if name.transaction_id not in committed[name.batch_id]]
        if abandoned:
            done += _abort(log, sink, make_sink, term, abandoned, limit_s=self._limit_s)
        # The token first: it is only looked for through the record of its transaction.
        log.store.delete(path for name in done for path in (name.token_path, name.path))


def _begun(log: Log, sink: str) -> Iterator[paths.BegunName]:
    """The transactions whose records were not deleted yet. One listing."""
    folder = paths.begun_folder(sink)
    parsed = (paths.parse_begun(folder, name) for name in log.store.list(folder))
    return (name for name in parsed if name is not None)


def _maybe_committed(log: Log, sink: str, batch_id: int) -> set[str]:
    """Ids of the transactions of a batch that may have been committed; empty if the batch was collected.

    Then the target decides: `abort` leaves a committed transaction as it is.
    """
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return set()
    manifest = log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    if manifest is None:
        return set()
    handles = enumerate(manifest.prepared.get(sink, ()))
    ids = {manifest.segments[ordinal].id for ordinal, handle in handles if handle is not None}
    folder = paths.progress_folder(sink, batch_id)
    for name in log.store.list(folder):
        if paths.is_prepared(name) and (record := log.find(PreparedRecord, f"{folder}/{name}")) is not None:
            ids.add(record.transaction_id)
    return ids


def _abort(
    log: Log, sink: str, make_sink: MakeSink, term: int, abandoned: Sequence[paths.BegunName], *, limit_s: float
) -> list[paths.BegunName]:
    """Abort one by one, up to the first that fails; the transactions that are done."""
    timed_call = log.runtime.new_timed_call()
    session: SinkSession | None = None
    aborted: list[paths.BegunName] = []
    try:
        made = call_sink(timed_call, f"sink {sink!r}", make_sink, timeout_s=limit_s)
        for name in abandoned:
            record = log.find(BegunRecord, name.path)
            if record is not None:
                token = log.find(TokenRecord, name.token_path)
                session = session or SinkSession(made, timed_call, _context(sink, term, record), timeout_s=limit_s)
                _abort_one(session, sink, record, token.token if token else "")
            aborted.append(name)
    except SinkFailedError as error:
        left = len(abandoned) - len(aborted)
        _logger.warning("sink %s: %d transactions are left to abort: %s", sink, left, error.failure.message)
    finally:
        if session is not None:
            session.close()
        else:
            timed_call.close()
    return aborted


def _abort_one(session: SinkSession, sink: str, record: BegunRecord, token: str) -> None:
    transaction = Transaction(
        record.transaction_id, record.wal_id, sink, record.batch_id, record.partition, record.file_index
    )
    target = opened_sink(session)
    what = f"batch {record.batch_id}, transaction {record.transaction_id}: {name_of(target)}: abort"
    session.call(what, target.abort, transaction, token)


def _context(sink: str, term: int, record: BegunRecord) -> SinkContext:
    return SinkContext(record.wal_id, sink, term, record.batch_id, columns=(), on_executor=False)
