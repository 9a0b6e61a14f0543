"""Examining a WAL and the checkpoint of its query: whether they can be reached and read, and belong together."""

from __future__ import annotations

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.inspection.status import Status, read_status
from wal_sink.lifecycle.given import refuse_shared_folder
from wal_sink.recovery.location import canonical, check_location
from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.reporting.texts import text_of, told
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import WalRecord

_SEE = "see the message and docs/troubleshooting.md"


def wal_findings(store: Store, runtime: Runtime) -> tuple[Status | None, list[Finding]]:
    """The status of a WAL, None if it cannot be read; and findings about it. A few requests for each sink."""
    try:
        status = read_status(store)
        if status.wal_id is None:
            step = "check the address if a query already ran; otherwise its first batch makes the WAL"
            return status, [risk("wal", f"{store.root} holds no WAL yet", step)]
        return status, [_contents(status), _location(store, status, runtime)]
    except WalSinkError as failure:
        return None, [fault("wal", told(failure), _SEE)]


def _contents(status: Status) -> Finding:
    names = ", ".join(repr(sink.name) for sink in status.sinks) or "no sink"
    newest = "no batch" if status.newest_batch == NOTHING else f"batches up to {status.newest_batch}"
    return fine("wal", f"{status.wal} can be read: {newest}, {names}")


def _location(store: Store, status: Status, runtime: Runtime) -> Finding:
    """Whether the WAL lies where it says."""
    here, check = canonical(store.root), "wal.location"
    if status.location == here:
        return fine(check, "the WAL lies where it records")
    log = Log(store, runtime, run_id="")
    try:
        check_location(log, log.require(WalRecord, paths.WAL), moved=True)
    except WalSinkError as failure:
        return fault(check, text_of(failure), "open the recorded location, or declare the move once")
    step = "use the recorded path; if this is a copy, do not open it"
    return risk(check, f"the WAL lies at {here}, and records {status.location}", step)


def recorded_checkpoint(store: Store, status: Status | None, runtime: Runtime) -> tuple[str | None, str]:
    """The address that the WAL records; if it is not known, None and the reason. One read if there is no status.

    The record itself may be readable where the WAL as a whole is not.
    """
    if status is not None:
        return status.checkpoint, "the WAL records none yet"
    try:
        record = Log(store, runtime, run_id="").find(WalRecord, paths.WAL)
    except WalSinkError:
        return None, "the WAL, which records its address, could not be read"
    if record is None:
        return None, f"{store.url_of(paths.WAL)}, which records its address, does not exist"
    return record.checkpoint, ""


def checkpoint_findings(files: CheckpointFiles, wal: str, status: Status | None) -> list[Finding]:
    """Findings about a checkpoint, and whether it belongs to the WAL at the address `wal`. At most ten requests."""
    check = "checkpoint"
    try:
        refuse_shared_folder(wal, files.root)
        checkpoint = Checkpoint(files)
        checkpoint.refuse_wal()
        query_id = checkpoint.query_id()
        if query_id is None:
            step = "check the address if a query already ran; otherwise its first start makes the checkpoint"
            return [risk(check, f"{files.root} holds no checkpoint yet", step)]
        return [_entries(checkpoint), _owner(checkpoint, query_id, status)]
    except WalSinkError as failure:
        return [fault(check, told(failure), _SEE)]


def _entries(checkpoint: Checkpoint) -> Finding:
    """Read the newest entries: Spark may have written them in a format that wal-sink does not know."""
    planned, completed = checkpoint.newest_planned(), checkpoint.newest_commit()
    if planned > NOTHING:
        checkpoint.offsets(planned)
    if completed > NOTHING:
        checkpoint.is_completed(completed)
    newest = "no batch is complete" if completed == NOTHING else f"batch {completed} is complete"
    return fine("checkpoint", f"{checkpoint.root} can be read: {newest}")


def _owner(checkpoint: Checkpoint, query_id: str, status: Status | None) -> Finding:
    check = "checkpoint.query"
    if status is None or status.query_id is None:
        why = "could not be read" if status is None else "records no query yet"
        return risk(check, f"unknown whether it belongs to the WAL, which {why}", "see the lines above")
    if status.query_id != query_id:
        return fault(
            check,
            f"{checkpoint.root} is that of query {query_id}, but the WAL is that of query {status.query_id}",
            f"pass the checkpoint that belongs to the WAL; it records {status.checkpoint}. If lost: wal-sink settle",
        )
    return fine(check, "the checkpoint and the WAL are of one query")
