"""Retiring and renaming a sink, with a record of who did it and why.

A live query and a drain beside it: `recovery.sink_changes` says which records decide. Both commands only add records.
"""

from __future__ import annotations

from wal_sink.recovery.sink_changes import (
    Retirement,
    check_rename,
    plan_retire,
    refuse_pending,
    rename,
    retire,
)
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.changes import Order, read_changes, write_down
from wal_sink.repair.skip import keep_in_flight
from wal_sink.reporting.logs import logger_of
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term
from wal_sink.wal.holders import TakeOver, refuse_held
from wal_sink.wal.log import Log
from wal_sink.wal.sink_records import RetiredRecord

_logger = logger_of(__name__)


def retire_as_ordered(log: Log, name: str, *, drop_pending: int, take_over: TakeOver, why: str) -> Retirement:
    """`recovery.sink_changes.retire`, or the completion of one that was interrupted."""
    folder = _folder(log, name)
    order = Order("sinks retire", folder, {"--drop-pending": drop_pending} if drop_pending else {}, why)
    is_begun = _is_begun(log, order)
    record = log.find(RetiredRecord, paths.retired(folder)) if is_begun else None
    if record is None:
        refuse_pending(log, name, plan_retire(log, name).pending, drop_pending)
    role = paths.committer_role(folder)
    refuse_held(log, role, take_over=take_over)
    if not is_begun:
        write_down(log, order, {})
    if record is not None:  # the earlier call came so far
        done = Retirement(name, record.through, record.dropped)
    else:
        done = retire(log, name, drop_pending=drop_pending, take_over=take_over)
    for batch_id in done.dropped[:1]:  # a sink gets batches in order
        newest = max(log.numbers(paths.terms(role)), default=0)  # lost terms do no harm: nobody serves the sink again
        keep_in_flight(log, folder, batch_id, Term(role, newest))
    begun = paths.begun_folder(folder)
    if count := len([file for file in log.store.list(begun) if paths.parse_begun(begun, file)]):
        text = "sink %s: up to %d transactions may be open in its target, and no start aborts them any more: see %s"
        _logger.warning(text, name, count, log.store.url_of(begun))
    return done


def rename_as_ordered(log: Log, old: str, new: str, *, take_over: TakeOver, why: str) -> None:
    """`recovery.sink_changes.rename`, or the completion of one that was interrupted."""
    folder = _folder(log, old)
    order = Order("sinks rename", folder, {"(old)": old, "new": new}, why)
    is_begun = _is_begun(log, order)
    if is_begun and any(sink.folder == folder and sink.name == new for sink in read_names(log).sinks):
        return  # the earlier call came so far
    check_rename(log, old, new)
    refuse_held(log, paths.committer_role(folder), take_over=take_over)
    if not is_begun:
        write_down(log, order, {})
    rename(log, old, new, take_over=take_over)


def _folder(log: Log, name: str) -> str:
    """The folder that a name leads to, also an old name."""
    return read_names(log).leads_to.get(name, name)


def _is_begun(log: Log, order: Order) -> bool:
    """Whether the newest change of the sink is this one, completed or not."""
    changes = read_changes(log, order.folder)
    return bool(changes) and order.is_same(changes[-1])
