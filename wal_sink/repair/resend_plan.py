"""The plan of a `replay`: which batches are sent again, to which target, and what the target has of them already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from wal_sink.dead_letters.files import count_rows
from wal_sink.errors import ConfigError
from wal_sink.recovery.inventory import Lost, newest_marked, require, require_wal
from wal_sink.recovery.location import refuse_copy
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.journal import TARGET, Entry, Order
from wal_sink.repair.there import Counted, choose_sinks
from wal_sink.reporting.counts import in_ranges
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import BatchSink, Sink, TransactionalSink
from wal_sink.sinks.guarantees import ability_of
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Release

TOUCHES = "replays/"
"""Stands for the targets of replays in the journal: one replay at a time, since two could send the same rows."""


@dataclass(frozen=True, slots=True)
class ResendPlan:
    """The batches that will be sent, and to which target."""

    batches: tuple[int, ...]
    rows: int
    bytes: int
    target: str
    kind: str
    name: str
    """The name of the sink for the time of the replay. Empty: `replay-` and the number of the repair."""
    again: bool
    """Whether rows are sent although the target has them by its ledger."""
    counted: tuple[str, ...]
    """Folders of the sinks whose positions in a transactional target count."""
    dead_letter_rows: int
    """Rows of these batches that lie in dead letters of other sinks. They are sent too."""
    staying_rows: int
    """The same of sinks whose positions count: the target is behind these rows, so they are not sent."""
    staying_in: tuple[str, ...]
    """Names of these sinks."""
    lacking: tuple[str, ...]
    """Sinks that have not got all of these batches yet, and will get them by themselves."""


def resend_order(
    log: Log,
    batches: Sequence[int],
    to: Sink | BatchSink,
    *,
    name: str,
    again: bool,
    why: str,
    typed: str = "",
    ledger_of: Sequence[str] = (),
) -> Order:
    """The order to send batches again. `typed`: the target as the user typed it; it is kept without its secrets.

    Raises `ConfigError` if the WAL is a copy.
    """
    refuse_copy(log)
    target = name_of(to)
    arguments = {"batches": in_ranges(batches), "--to": typed or target, "--name": name, "--again": again}
    arguments |= {"--ledger-of": sorted(ledger_of), TARGET: target}
    return Order("replay", {key: value for key, value in arguments.items() if value}, (TOUCHES,), why)


def plan_resend(
    log: Log,
    batches: Sequence[int],
    to: Sink | BatchSink,
    *,
    name: str,
    again: bool,
    ledger_of: Sequence[str] = (),
) -> ResendPlan:
    """The batches that a replay would send. Creates nothing in the WAL. Two reads for each batch.

    `ledger_of`: names of the sinks whose positions in a transactional target count, instead of those that were
    registered for it. Raises `ConfigError` if the WAL does not hold one of the batches, if one was not released, if the
    target takes only whole batches, if the name is taken, or as `choose_sinks` does.
    """
    if isinstance(to, BatchSink):
        raise ConfigError(f"{name_of(to)} writes whole batches with Spark. Replay to another target, such as a URL")
    names = read_names(log)
    if name and (name in names.leads_to or any(sink.folder == name for sink in names.sinks)):
        raise ConfigError(
            f"{log.store.root}: the name {name!r} is taken, and a replay never delivers as another sink. Choose a new "
            "name, or leave out --name"
        )
    if name:
        paths.check_sink_name(name)
    sizes = _sizes(log, batches)
    counted = _counted(log, batches, to, sizes, again=again, ledger_of=ledger_of)
    letters = {sink: _dead_letter_rows(log, sink.folder, batches) for sink in names.sinks}
    staying = {sink.name: rows for sink, rows in letters.items() if rows and sink.folder in counted.there}
    unserved = {sink.name: newest_marked(log, sink.folder) for sink in names.sinks if not sink.is_retired}
    return ResendPlan(
        batches=tuple(batches),
        rows=sum(rows for rows, _, _ in sizes),
        bytes=sum(size for _, size, _ in sizes),
        target=name_of(to),
        kind=ability_of(to).value,
        name=name,
        again=again,
        counted=counted.folders,
        dead_letter_rows=sum(letters.values()) - sum(staying.values()),
        staying_rows=sum(staying.values()),
        staying_in=tuple(staying),
        lacking=tuple(each for each, through in unserved.items() if through < max(batches)),
    )


def planned_resend(entry: Entry) -> ResendPlan:
    """The plan of a replay that was begun."""
    return msgspec.convert(entry.plan, ResendPlan)


def _counted(
    log: Log,
    batches: Sequence[int],
    to: Sink | BatchSink,
    sizes: Sequence[tuple[int, int, int]],
    *,
    again: bool,
    ledger_of: Sequence[str],
) -> Counted:
    """The sinks whose positions count. Asks no target that keeps none, or whose rows are sent anyway."""
    if again and ledger_of:
        raise ConfigError("--again and --ledger-of exclude each other: with --again no position counts")
    if again or not isinstance(to, TransactionalSink):
        return Counted()
    widest = max(range(len(batches)), key=lambda index: sizes[index][2])
    wal_id = require_wal(log, paths.release(batches[widest])).wal_id
    manifest = released(log, batches[widest])
    return choose_sinks(log, to, manifest, wal_id=wal_id, since=min(batches), ledger_of=ledger_of)


def _sizes(log: Log, batches: Sequence[int]) -> list[tuple[int, int, int]]:
    """Rows, bytes and segments of each batch. Raises `ConfigError` if one cannot be sent."""
    low_water = log.low_water()
    if gone := [batch_id for batch_id in batches if batch_id <= low_water]:
        raise ConfigError(
            f"{log.store.root}: batch {gone[0]} was deleted, since every sink had it. The WAL holds batches from "
            f"{low_water + 1} on"
        )
    return list(log.runtime.side_by_side(lambda batch_id: _size(released(log, batch_id)), batches))


def _size(manifest: Manifest) -> tuple[int, int, int]:
    """The facts of a manifest that a plan needs: a replay may be of a million batches."""
    return manifest.rows, manifest.bytes, len(manifest.segments)


def released(log: Log, batch_id: int) -> Manifest:
    """The released manifest of a batch, whose rows the WAL keeps. Two reads."""
    path = paths.release(batch_id)
    release = log.find(Release, path)
    if release is None:
        raise ConfigError(
            f"batch {batch_id} of {log.store.root} was not released: Spark has not completed it, no sink was due to "
            "get it yet, or the WAL does not hold it. Only released batches can be sent again"
        )
    manifest = require(log, Manifest, paths.manifest(batch_id, release.term, release.attempt), Lost.MANIFEST, path)
    if any(not segment.kept for segment in manifest.segments):
        raise ConfigError(
            f"batch {batch_id} of {log.store.root}: the WAL did not keep its rows (keep_segments=False), so they "
            "cannot be sent again"
        )
    return manifest


def _dead_letter_rows(log: Log, folder: str, batches: Sequence[int]) -> int:
    wanted = set(batches) & set(log.numbers(paths.dead_letter_batches(folder)))
    return sum(sum(count_rows(log.store, folder, batch_id).values()) for batch_id in wanted)
