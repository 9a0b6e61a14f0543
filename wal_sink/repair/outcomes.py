"""The outcome of each change of a sink, by the objects that the change made."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.operate.changes import command_of, read_changes
from wal_sink.recovery.inventory import newest_marked
from wal_sink.repair.catch_up_plan import VERB, holder_name, unfinished_holder
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Marker
from wal_sink.wal.sink_records import ChangeRecord, NameRecord, RetiredRecord


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a sink that a person ordered."""

    command: str
    """The command, without secrets. The same command completes a change that is unfinished."""
    outcome: str
    """`done` or `unfinished`. `ended`: a catch-up whose sink was retired before its end. `delivered`: a skip of a batch
    that another process delivered meanwhile. `unknown`: a skip whose marker was deleted since.
    """
    when: str
    who: str
    why: str


def changes_of(log: Log, folder: str, name: str) -> list[Change]:
    """The changes of a sink, oldest first. A listing, and up to four requests for each. Raises `CorruptError`."""
    return [
        Change(command_of(each, name), _outcome(log, folder, each), each.created, each.who, each.why)
        for each in read_changes(log, folder)
    ]


def _outcome(log: Log, folder: str, record: ChangeRecord) -> str:
    if record.verb == "skip":
        return _of_skip(log, folder, record.arguments["batch"])
    if record.verb == VERB:
        return _of_catch_up(log, record)
    if record.verb == "sinks retire":
        return _done(is_done=log.find(RetiredRecord, paths.retired(folder)) is not None)
    names = (log.find(NameRecord, paths.sink_name(folder, each)) for each in log.numbers(paths.sink_names(folder)))
    return _done(is_done=any(each is not None and each.name == record.arguments["new"] for each in names))


def _of_skip(log: Log, folder: str, batch_id: int) -> str:
    marker = log.find(Marker, paths.marker(folder, batch_id))
    if marker is not None:
        return "done" if marker.skipped else "delivered"
    return "unfinished" if newest_marked(log, folder) < batch_id else "unknown"


def _of_catch_up(log: Log, record: ChangeRecord) -> str:
    if unfinished_holder(log, record) is not None:
        return "unfinished"
    holder = holder_name(record)
    retired = log.find(RetiredRecord, paths.retired(holder))
    was_ended = retired is None or retired.dropped or log.numbers(paths.changes(holder))  # a person retired it
    return "ended" if was_ended else "done"


def _done(*, is_done: bool) -> str:
    return "done" if is_done else "unfinished"
