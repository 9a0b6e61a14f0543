"""Aborting transactions of two-phase sinks that no process will commit: those of lost attempts and of crashes.

Only transactions of batches that the sink has are aborted, since any other could still be committed. But if a person
gives a delivery up for good, all that it left open are aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import MakeSink, SinkContext, Transaction
from wal_sink.sinks.failures import SinkFailedError
from wal_sink.sinks.session import SinkSession, call_sink
from wal_sink.two_phase.prepare import opened_sink
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import BegunRecord, Manifest, PreparedRecord, Release, TokenRecord

ABORT_EVERY_BATCHES = 16
"""How many batches one call covers, so that its listing costs next to nothing per batch."""

_logger = logger_of(__name__)


def abort_abandoned(log: Log, sink: str, make_sink: MakeSink, term: int, *, through: int, limit_s: float) -> None:
    """Abort the uncommitted transactions of a sink's batches up to `through`, all of which the sink has.

    Runs in the committer's process. Each call of the sink takes at most `limit_s` seconds. If one fails, a warning says
    so, and the next call tries again: such a transaction only takes room in the target. Raises what the store raises.
    """
    begun = [name for name in _begun(log, sink) if name.batch_id <= through]
    committed = {batch_id: _committed(log, sink, batch_id) for batch_id in {name.batch_id for name in begun}}
    done = [name for name in begun if name.transaction_id in committed[name.batch_id]]
    abandoned = [name for name in begun if name.transaction_id not in committed[name.batch_id]]
    if abandoned:
        done += _abort(log, sink, make_sink, term, abandoned, limit_s=limit_s)
    # The token first: it is only looked for through the record of its transaction.
    log.store.delete(path for name in done for path in (name.token_path, name.path))


def _begun(log: Log, sink: str) -> Iterator[paths.BegunName]:
    """The transactions whose records were not deleted yet. One listing."""
    folder = paths.begun_folder(sink)
    parsed = (paths.parse_begun(folder, name) for name in log.store.list(folder))
    return (name for name in parsed if name is not None)


def _committed(log: Log, sink: str, batch_id: int) -> set[str]:
    """Ids of the transactions of a batch that may have been committed; empty if the batch was collected.

    Then the target decides: `abort` leaves a committed transaction as it is.
    """
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return set()
    manifest = log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    if manifest is None:
        return set()
    handles = manifest.prepared.get(sink, ())
    ids = {segment.id for segment, handle in zip(manifest.segments, handles, strict=False) if handle is not None}
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
