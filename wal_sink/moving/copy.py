"""Copying a whole WAL to an empty folder, on the same store or on another one.

The copy has the state that the WAL had at one moment. All objects are immutable, so this is shown by two surveys: the
names that were copied are the names that are there afterwards. If they differ, a process uses the WAL. Then the copy
stays unfinished, and the same command continues it.

A move does the same, and ends the WAL at its earlier place: every process is fenced before, and the record of the move
is created there after everything else was copied. Then the names are compared once more.

`moves/copy.json` is created in the target before anything else, and `wal.json` after everything else. A folder with the
first and without the second is refused by every version as a WAL that lost its own record. `moves/copied.json` is
created right before `wal.json`. It tells a copy that was used and lost `wal.json` from one that is not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from wal_sink.errors import ConfigError, ObjectLost
from wal_sink.moving.folders import Part, Survey, listed_again, survey, tops, walk
from wal_sink.moving.leftovers import Leftovers, refuse_used
from wal_sink.moving.objects import ObjectCopier, changed
from wal_sink.recovery.inventory import find_wal
from wal_sink.recovery.location import canonical, current_location
from wal_sink.redaction import redacted
from wal_sink.repair.journal import who
from wal_sink.stores.probe import probe
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import TakeOver, note_end, refuse_held
from wal_sink.wal.log import Log
from wal_sink.wal.move_records import CopiedRecord, CopyRecord
from wal_sink.wal.records import Move, WalRecord

OnProgress = Callable[[int, int], None]
"""Called with the numbers of objects and bytes that were copied so far."""


class TargetState(StrEnum):
    """Content of the folder of a copy."""

    EMPTY = "empty"
    UNFINISHED = "unfinished"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy that may begin."""

    wal: WalRecord
    location: str
    """Place that the WAL records; empty: an older version made it, which recorded none."""
    state: TargetState
    found: Survey
    """The content of the WAL."""

    @property
    def objects(self) -> int:
        """Number of objects, with `wal.json`."""
        return self.found.objects + 1


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy. Every object was read back and is equal."""

    objects: int
    bytes: int
    damaged: tuple[str, ...] = ()
    """Damaged objects that were copied as they are: every sink has their batches, or passed over them."""


def plan_copy(source: Log, target: Log, *, take_over: TakeOver) -> CopyPlan:
    """Look at a WAL and at the folder of its copy. Writes nothing. One listing for each folder of the WAL.

    Raises `ConfigError` if there is no WAL, or if the target is neither empty nor an unfinished copy of this WAL, or
    not apart from it; and `HeldError` if a process serves the WAL, or may serve it and `take_over` does not allow that.
    """
    _refuse_shared(source, target)
    wal = find_wal(source)
    if wal is None:
        raise ConfigError(f"{source.store.root} holds no wal.json: no batch was staged so far, so there is no WAL yet")
    refuse_served(source, take_over)
    state = _state_of(source, target, wal)
    location = current_location(source, wal, moved=True)
    found = survey(source)
    if state is TargetState.COMPLETE:
        _refuse_changed(source, target, found)
    return CopyPlan(wal, location, state, found)


def copy_wal(
    source: Log,
    target: Log,
    plan: CopyPlan,
    *,
    move: TakeOver | None = None,
    why: str = "",
    on_progress: OnProgress = lambda *_: None,
) -> Copied:
    """Carry out a plan. If it is interrupted, plan and carry it out again: it copies what is left.

    With `move`, the copy becomes the WAL: the earlier place records that it was moved, and is refused from then on.
    Every process that this `TakeOver` permits is fenced first. Raises `HeldError` if the WAL changes meanwhile,
    `CorruptError` if an object that a sink may need is damaged, or is another one in the target, and `StoreError`.
    """
    source.store.begin(is_there=True)
    target.store.begin()
    if plan.state is TargetState.COMPLETE:
        return _complete_already(plan, canonical(target.store.root), moves=move is not None)
    # 1. The target must be able to hold a WAL. From the first object on, it is an unfinished copy.
    probe(target.store, runtime=target.runtime, single_writer=True)
    _claim_target(source, target, plan.wal, why)
    if _state_of(source, target, plan.wal) is TargetState.COMPLETE:  # another process completed it meanwhile
        _refuse_changed(source, target, plan.found)
    leftovers = Leftovers(source, target) if plan.state is TargetState.UNFINISHED else None
    if leftovers is not None:
        leftovers.refuse_others()
        target.store.delete([paths.COPIED])  # it is created again once this part of the copy is complete
    if move is not None:
        fence(source, move)
    # 2. Every object but wal.json.
    copying = _Copying(source, target, on_progress)
    copying.copy_all(is_resumed=leftovers is not None)
    if leftovers is not None:
        leftovers.delete()
    copying.check_source()
    # 3. The earlier place is refused from here on. A process that has begun there meanwhile is noticed.
    if move is not None:
        copying.copy_move(plan.location)
        copying.check_source()
    # 4. The copy becomes a WAL.
    copying.check_target()
    return copying.finish(plan.wal)


class _Copying:
    """One copy under way."""

    def __init__(self, source: Log, target: Log, on_progress: OnProgress) -> None:
        self._source = source
        self._target = target
        self._on_progress = on_progress
        self._copier = ObjectCopier(source, target)
        self._copied = Survey()
        self._objects = self._bytes = 0

    def copy_all(self, *, is_resumed: bool) -> None:
        """Copy every object but `wal.json`. Objects that are there are compared."""
        for part in walk(self._source):
            self._copy(part, listed_again(self._target, part) if is_resumed else ())

    def copy_move(self, said: str) -> None:
        """Record in the WAL that it lies in the target from now on, and copy this record. `said`: its place so far.

        A listing and a create, if it was not recorded yet; two listings for the copy.
        """
        here = canonical(self._target.store.root)
        if said != here:
            number = max(self._source.numbers(paths.MOVES), default=0) + 1
            move = Move(number=number, location=here, moved_from=said, **self._source.stamp())
            found, _ = self._source.create_or_find(paths.move(number), move)
            if found.location != here:
                raise changed(self._source, paths.move(number))
        moves = Part(paths.MOVES, (), is_of_batch=False)
        names, there = listed_again(self._source, moves), listed_again(self._target, moves)
        self._copy(replace(moves, names=tuple(name for name in names if name not in there)), ())
        self._copied.note(replace(moves, names=tuple(names)))

    def check_source(self) -> None:
        """Make sure that the WAL has the objects that were copied, and no others. A listing of each folder."""
        if folder := survey(self._source).differs_in(self._copied):
            raise changed(self._source, folder)

    def check_target(self) -> None:
        """The same for the copy."""
        if folder := survey(self._target).differs_in(self._copied):
            raise ObjectLost(
                f"{self._target.store.root}: another process changes this folder (in {folder}), or objects of it are "
                "deleted (by a life-cycle rule of the bucket). The copy is not complete. Stop this, then repeat the "
                "command"
            )

    def finish(self, wal: WalRecord) -> Copied:
        """Record that everything is copied, then copy `wal.json`. A read, two creates and a read."""
        digest, objects = self._copied.digest, self._copied.objects
        record = CopiedRecord(wal_id=wal.wal_id, objects=objects, digest=digest, **self._target.stamp())
        self._target.create_or_find(paths.COPIED, record)
        self._bytes += self._copier.copy_record(paths.WAL)
        return Copied(self._objects + 1, self._bytes, tuple(self._copier.damaged))

    def _copy(self, part: Part, present: Collection[str]) -> None:
        self._copied.note(part)
        for count, size in self._copier.copy_part(part, present):
            self._objects, self._bytes = self._objects + count, self._bytes + size
            self._on_progress(self._objects, self._bytes)


def _complete_already(plan: CopyPlan, here: str, *, moves: bool) -> Copied:
    if moves and plan.location != here:
        raise ConfigError(
            f"{here} is a complete copy already, and was not made by a move. To go on with it, pass "
            f"moved_from={plan.location!r} at its first start (--moved-from {plan.location}). Or move the WAL to "
            "another folder"
        )
    return Copied(0, 0)


def fence(source: Log, take_over: TakeOver) -> None:
    """Claim and end every role: a process that still serves the WAL ends. A listing, three requests more for each."""
    for name in source.store.list(paths.TERMS):
        role = name.removesuffix("/")
        note_end(source, role, claim(source, role, was_held=True, take_over=take_over).number)


def _refuse_shared(source: Log, target: Log) -> None:
    here, there = canonical(source.store.root), canonical(target.store.root)
    if f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/"):
        raise ConfigError(
            f"{target.store.root} and {source.store.root} are one folder, or one lies inside the other. Give the copy "
            "a folder that is apart from the WAL"
        )


def refuse_served(source: Log, take_over: TakeOver) -> None:
    """One listing, and for each role a listing and two reads."""
    for role in source.store.list(paths.TERMS):
        refuse_held(source, role.removesuffix("/"), take_over=take_over)


def _state_of(source: Log, target: Log, wal: WalRecord) -> TargetState:
    """The state of the target. A listing, and three requests if it is not empty; more if everything was copied.

    Raises `ConfigError` if it holds anything else, and `ObjectLost` if it was a WAL and lost `wal.json`.
    """
    names = [name for name in target.store.list("") if name != f"{paths.PROBE}/"]
    if not names:
        return TargetState.EMPTY
    record = target.find(CopyRecord, paths.COPY)
    if record is None:
        raise ConfigError(
            f"{target.store.root} is not empty ({names[0]} lies there), and it is no copy of a WAL. Give a folder that "
            "is empty. Nothing was copied"
        )
    if (record.wal_id, record.copied_from) != (wal.wal_id, canonical(source.store.root)):
        raise ConfigError(
            f"{target.store.root} is a copy of another WAL ({record.wal_id}, copied from {record.copied_from}). Give a "
            "folder that is empty. Nothing was copied"
        )
    tops(target)
    if paths.WAL in names:
        return TargetState.COMPLETE
    refuse_used(source, target)
    return TargetState.UNFINISHED


def _refuse_changed(source: Log, target: Log, found: Survey) -> None:
    if folder := survey(target).differs_in(found):
        raise ConfigError(
            f"{target.store.root} is a complete copy of {source.store.root} already, and one of the two was changed "
            f"since (in {folder}). Give another folder. Delete this one only if no query and no drain ever ran on it"
        )


def _claim_target(source: Log, target: Log, wal: WalRecord, why: str) -> None:
    record = CopyRecord(
        wal_id=wal.wal_id,
        location=canonical(target.store.root),
        copied_from=canonical(source.store.root),
        who=who(),
        why=redacted(why),
        **target.stamp(),
    )
    found, _ = target.create_or_find(paths.COPY, record)
    if (found.wal_id, found.copied_from) != (record.wal_id, record.copied_from):
        raise ConfigError(
            f"{target.store.root}: another process has just begun to copy another WAL into this folder "
            f"({found.copied_from}). Give a folder that is empty"
        )
