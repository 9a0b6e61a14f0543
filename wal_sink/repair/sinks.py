"""Retiring and renaming a sink, with an entry in the journal.

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
from wal_sink.repair.journal import Order, begun, find_unfinished, finish
from wal_sink.repair.skip import touches_of
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver, refuse_held
from wal_sink.wal.log import Log
from wal_sink.wal.sink_records import RetiredRecord


def retire_in_journal(log: Log, name: str, *, drop_pending: int, take_over: TakeOver, why: str) -> Retirement:
    """`recovery.sink_changes.retire`, or the completion of one that was interrupted."""
    folder = _folder(log, name)
    order = Order("sinks retire", {"name": name}, touches_of(folder), why)
    plan = {} if find_unfinished(log, order) else _retire_plan(log, name, drop_pending)
    refuse_held(log, paths.committer_role(folder), take_over=take_over)
    with begun(log, order, plan) as entry:
        record = log.find(RetiredRecord, paths.retired(folder)) if entry.is_resumed else None
        if record is not None:  # the earlier call came so far
            done = Retirement(name, record.through, record.dropped)
        else:
            done = retire(log, name, drop_pending=drop_pending, take_over=take_over)
    finish(log, entry, {"through": done.through, "dropped": list(done.dropped)})
    return done


def rename_in_journal(log: Log, old: str, new: str, *, take_over: TakeOver, why: str) -> None:
    """`recovery.sink_changes.rename`, or the completion of one that was interrupted."""
    folder = _folder(log, old)
    order = Order("sinks rename", {"old": old, "new": new}, touches_of(folder), why)
    if find_unfinished(log, order) is None:
        check_rename(log, old, new)
        refuse_held(log, paths.committer_role(folder), take_over=take_over)
    with begun(log, order, {"folder": folder}) as entry:
        present = next((sink.name for sink in read_names(log).sinks if sink.folder == folder), None)
        if not (entry.is_resumed and present == new):
            rename(log, old, new, take_over=take_over)
    finish(log, entry, {"name": new})


def _folder(log: Log, name: str) -> str:
    """The folder that a name leads to, also an old name."""
    return read_names(log).leads_to.get(name, name)


def _retire_plan(log: Log, name: str, drop_pending: int) -> dict[str, object]:
    plan = plan_retire(log, name)
    refuse_pending(log, name, plan.pending, drop_pending)
    return {"through": plan.through, "pending": list(plan.pending), "drop_pending": drop_pending}
