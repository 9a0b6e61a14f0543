"""`adopt`: a WAL that does not belong to its place, or to its checkpoint, any more.

**Another place.** The WAL was moved or copied by hand. The recorded place gets a record that the WAL was moved, if it
can be reached and still holds the WAL. Then the WAL gets the same record. So between the two, neither place opens.

**Another checkpoint.** It is gone, or belongs to a new query, or was restored to an older state. The batch ids of
another history mean other rows, and targets have keys and positions made of these ids. So no WAL goes on with another
query. Instead, its own batches are settled: a checkpoint is made from the WAL, with which a drain delivers what is
left. The new query begins behind these batches, with a new WAL.

A live query and a drain beside an unfinished adoption: a WAL at another place is refused until the record is there, and
a checkpoint without `metadata` is refused. Nothing here changes what a committer or the stager may do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from wal_sink.errors import ConfigError
from wal_sink.moving import settlement
from wal_sink.moving.copy import fence, refuse_served
from wal_sink.moving.ending import manifest_of
from wal_sink.moving.settlement import FolderState
from wal_sink.moving.situation import Match, PlaceFound, QueryFound, There, look_there, refuse_third
from wal_sink.recovery.inventory import require_wal
from wal_sink.recovery.location import check_location, current_location
from wal_sink.repair.journal import Entry, Order, begin, finish
from wal_sink.reporting.counts import in_ranges
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Move, WalRecord

VERB = "adopt"
_TOUCHES = (f"{paths.MOVES}/",)


@dataclass(frozen=True, slots=True)
class PlacePlan:
    """A WAL whose recorded place changes."""

    location: str
    """The place from now on."""
    moved_from: str
    there: str
    """The content of the earlier place, as `There`."""


@dataclass(frozen=True, slots=True)
class SettlePlan:
    """A checkpoint to be made from a WAL."""

    folder: str
    """Its address."""
    through: int
    """The newest batch that a drain delivers with it."""
    checkpoint: str
    """The checkpoint that does not belong to the WAL."""
    match: str
    """How it fits, as `Match`."""


def place_order(why: str) -> Order:
    """The order to adopt the place."""
    return Order(VERB, {}, _TOUCHES, why)


def settle_order(folder: Store, newest: str | None, *, why: str) -> Order:
    """The order to settle the batches by a checkpoint in `folder`."""
    arguments: dict[str, Any] = {"--settle": folder.root}
    return Order(VERB, arguments | ({"--newest": newest} if newest else {}), _TOUCHES, why)


def plan_place(found: PlaceFound) -> PlacePlan:
    """The plan for a WAL at another place. Raises `ConfigError` if the recorded place holds another WAL."""
    if found.there is There.OTHER_WAL:
        raise ConfigError(
            f"{found.here} records that it lies at {found.said}, but another WAL lies there. Find out which of the two "
            "the query uses. If it is this one, pass moved_from at its next start (wal-sink drain … --moved-from "
            f"{found.said})"
        )
    return PlacePlan(found.here, found.said, found.there.value)


def adopt_place(log: Log, order: Order, plan: PlacePlan, recorded: Log | str, *, take_over: TakeOver) -> Entry:
    """Record that the WAL lies here. `recorded`: the log at the earlier place, or the reason why it cannot be reached.
    If the command is interrupted, repeat it.

    The earlier place is looked at again: it counts what lies there now. Raises `HeldError` if a process serves the WAL
    at one of the places, or may serve it and `take_over` does not permit to fence it. Raises `ConfigError` if the WAL
    was moved to a third place, or if the earlier place held the WAL and cannot be looked at now.
    """
    wal = require_wal(log, f"{paths.REPAIRS}/")
    there, why = look_there(recorded, wal.wal_id, plan.moved_from)
    if there is There.UNKNOWN and plan.there == There.SAME_WAL:
        _refuse_unreachable(log, wal, plan, why)
    served = recorded if there is There.SAME_WAL and isinstance(recorded, Log) else None
    if served is not None:
        refuse_third(served, wal, plan.location, plan.moved_from)
        refuse_served(served, take_over)
    refuse_served(log, take_over)
    entry = begin(log, order, asdict(plan))
    plan = PlacePlan(**entry.plan)
    if served is not None:
        fence(served, take_over)
        _note_there(served, plan)
    if current_location(log, wal, moved=True) != plan.location:
        check_location(log, wal, moved=True, moved_from=plan.moved_from)
    return finish(log, entry, {"location": plan.location})


def _refuse_unreachable(log: Log, wal: WalRecord, plan: PlacePlan, why: str) -> None:
    """An adoption that was begun while the WAL still lay at the earlier place ends it there, too, or not at all."""
    if current_location(log, wal, moved=True) != plan.location:
        raise ConfigError(
            f"{log.store.root}: the WAL still lay at {plan.moved_from} when this command was first called, and nobody "
            f"can look there now: {why}. Both places could open. Repeat the command where that place can be reached. "
            "If it is lost for good, and no process opens it, pass moved_from at the next start of the query "
            f"(wal-sink drain … --moved-from {plan.moved_from}), then repeat the command. Nothing was changed"
        )


def _note_there(recorded: Log, plan: PlacePlan) -> None:
    """Let the earlier place be refused from now on."""
    wal = require_wal(recorded, f"{paths.MOVES}/")
    refuse_third(recorded, wal, plan.location, plan.moved_from)
    if current_location(recorded, wal, moved=True) not in {"", plan.moved_from}:
        return  # it is refused already
    number = max(recorded.numbers(paths.MOVES), default=0) + 1
    move = Move(number=number, location=plan.location, moved_from=plan.moved_from, **recorded.stamp())
    found, _ = recorded.create_or_find(paths.move(number), move)
    if found.location != plan.location:
        raise ConfigError(
            f"{recorded.store.root}: another process has just moved this WAL to {found.location}. Open the WAL there. "
            "Nothing was changed here"
        )


def is_settled(found: QueryFound) -> bool:
    """Whether no sink lacks a batch that a settlement would deliver. Without a sink, a new one may get all batches."""
    through = found.ending.through if found.ending.undecided is None else found.ending.undecided
    return through == NOTHING or (bool(found.sinks) and all(share.through >= through for share in found.sinks))


def plan_settle(found: QueryFound, folder: Store, newest: str | None) -> SettlePlan:
    """The plan to settle. `newest`: `complete` or `incomplete`, the user's decision about the undecided batch.

    Raises `ConfigError` if the checkpoint belongs to the WAL, if the WAL does not show which attempts count, or if the
    decision is missing.
    """
    if found.match in {Match.SAME, Match.AHEAD}:
        raise ConfigError(
            f"--settle: {found.checkpoint} is the checkpoint of this WAL and is not older than it. So a drain delivers "
            "what is left with this checkpoint. Leave out --settle"
        )
    if found.match is Match.DIVERGED:
        raise ConfigError(
            f"--settle: the WAL holds batch {found.diverged} with other input than {found.checkpoint}, which is the "
            "checkpoint of this WAL. A settlement would deliver that input. Restore the checkpoint to its state before "
            "this batch, so that the query runs it again. Nothing was written"
        )
    if found.match is Match.FOR_DRAINS and found.committed >= found.ending.through:
        raise ConfigError(
            f"--settle: wal-sink adopt made {found.checkpoint} for drains, and a drain delivers what is left with it. "
            "Leave out --settle"
        )
    if found.ending.unclear:
        which = ", ".join(in_ranges(found.ending.unclear))
        raise ConfigError(
            f"--settle: two histories of the query staged batches {which}, and the WAL does not show which of them "
            "goes on: an older checkpoint was restored, and a newer one may have come back later. Restore the query's "
            "own checkpoint if you can: then a drain compares every batch with it. Nothing was written"
        )
    undecided = found.ending.undecided
    if undecided is not None and newest is None:
        raise ConfigError(
            f"--settle: nobody knows whether Spark completed batch {undecided}. Add --newest complete if the new query "
            "begins behind it: then a drain delivers it. Add --newest incomplete if the new query reads its input "
            "again: then a drain leaves it alone"
        )
    if undecided is None and newest == "incomplete":
        raise ConfigError(
            f"--newest incomplete: the WAL shows that Spark completed batch {found.ending.through}, its newest one. "
            "Leave out --newest"
        )
    through = undecided if undecided is not None and newest == "complete" else found.ending.through
    if through == NOTHING:
        raise ConfigError("--settle: no batch of this WAL is certainly complete, so there is nothing to deliver")
    return SettlePlan(folder.root, through, found.checkpoint, found.match.value)


def settle(log: Log, order: Order, plan: SettlePlan, folder: Store, *, take_over: TakeOver) -> Entry:
    """Make the checkpoint. If the command is interrupted, repeat it.

    Raises `HeldError` as `adopt_place` does, and `ConfigError` if the folder is not empty.
    """
    refuse_served(log, take_over)
    wal = require_wal(log, f"{paths.REPAIRS}/")
    settlement.state_of(folder, log.store, _files(log, wal, plan))
    entry = begin(log, order, asdict(plan))
    plan = SettlePlan(**entry.plan)
    settlement.write(folder, _files(log, wal, plan), log.runtime)
    return finish(log, entry, {"through": plan.through})


def is_whole(log: Log, wal: WalRecord, plan: SettlePlan, folder: Store) -> bool:
    """Whether the checkpoint of this plan is there already."""
    return settlement.state_of(folder, log.store, _files(log, wal, plan)) is FolderState.WHOLE


def _files(log: Log, wal: WalRecord, plan: SettlePlan) -> dict[str, bytes]:
    return settlement.files_of(wal, plan.through, manifest_of(log, plan.through))
