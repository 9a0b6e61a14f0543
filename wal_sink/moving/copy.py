"""Copying a whole WAL to an empty folder, on the same store or on another one.

The copy has the state that the WAL had at one moment. All objects are immutable, so this is shown by two surveys: the
names that were copied are the names that are there afterwards. If they differ, a process uses the WAL. Then the copy
stays unfinished, and the same command continues it.

`moves/copy.json` is created in the target before anything else, and `wal.json` after everything else. A folder with the
first and without the second is refused by every version as a WAL that lost its own record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import ConfigError, ObjectLost
from wal_sink.moving.folders import Survey, listed_again, survey, tops, walk
from wal_sink.moving.objects import ObjectCopier, changed
from wal_sink.recovery.inventory import find_wal
from wal_sink.recovery.location import canonical, current_location
from wal_sink.redaction import redacted
from wal_sink.repair.journal import who
from wal_sink.stores.probe import probe
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver, refuse_held
from wal_sink.wal.log import Log
from wal_sink.wal.move_records import CopyRecord
from wal_sink.wal.records import WalRecord

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


def plan_copy(source: Log, target: Log, *, take_over: TakeOver) -> CopyPlan:
    """Look at a WAL and at the folder of its copy. Writes nothing. One listing for each folder of the WAL.

    Raises `ConfigError` if there is no WAL, or if the target is neither empty nor an unfinished copy of this WAL, or
    not apart from it; and `HeldError` if a process serves the WAL, or may serve it and `take_over` does not allow that.
    """
    _refuse_shared(source, target)
    wal = find_wal(source)
    if wal is None:
        raise ConfigError(f"{source.store.root} holds no wal.json: no batch was staged so far, so there is no WAL yet")
    _refuse_served(source, take_over)
    state = _state_of(target, wal, canonical(source.store.root))
    location = current_location(source, wal, moved=True)
    found = survey(source)
    if state is TargetState.COMPLETE and (folder := survey(target).differs_in(found)):
        raise ConfigError(
            f"{target.store.root} is a complete copy of {source.store.root} already, and one of the two was changed "
            f"since (in {folder}). Give another folder, or delete this one first"
        )
    return CopyPlan(wal, location, state, found)


def copy_wal(
    source: Log, target: Log, plan: CopyPlan, *, why: str = "", on_progress: OnProgress = lambda *_: None
) -> Copied:
    """Carry out a plan. If it is interrupted, plan and carry it out again: it copies what is left.

    Raises `HeldError` if the WAL changes meanwhile, `CorruptError` if an object is damaged, or is another one in the
    target, and `StoreError`.
    """
    # 1. The target must be able to hold a WAL. From the first object on, it is an unfinished copy.
    source.store.begin(is_there=True)
    target.store.begin()
    if plan.state is TargetState.COMPLETE:
        return Copied(0, 0)
    probe(target.store, runtime=target.runtime, single_writer=True)
    _claim_target(source, target, plan.wal, why)
    is_resumed = plan.state is TargetState.UNFINISHED
    if is_resumed:
        _delete_collected(source, target)
    # 2. Every object but wal.json.
    copier, copied = ObjectCopier(source, target), Survey()
    objects = size = 0
    for part in walk(source):
        copied.note(part)
        for count, some in copier.copy_part(part, listed_again(target, part) if is_resumed else ()):
            objects, size = objects + count, size + some
            on_progress(objects, size)
    # 3. Neither of the two changed meanwhile.
    if folder := survey(source).differs_in(copied):
        raise changed(source, folder)
    if folder := survey(target).differs_in(copied):
        raise ObjectLost(
            f"{target.store.root}: another process changes this folder (in {folder}), or objects of it are deleted (by "
            "a life-cycle rule of the bucket). The copy is not complete. Stop this, then repeat the command"
        )
    # 4. The copy becomes a WAL.
    return Copied(objects + 1, size + copier.copy_record(paths.WAL))


def _refuse_shared(source: Log, target: Log) -> None:
    here, there = canonical(source.store.root), canonical(target.store.root)
    if f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/"):
        raise ConfigError(
            f"{target.store.root} and {source.store.root} are one folder, or one lies inside the other. Give the copy "
            "a folder that is apart from the WAL"
        )


def _refuse_served(source: Log, take_over: TakeOver) -> None:
    """One listing, and for each role a listing and two reads."""
    for role in source.store.list(paths.TERMS):
        refuse_held(source, role.removesuffix("/"), take_over=take_over)


def _state_of(target: Log, wal: WalRecord, source: str) -> TargetState:
    """The state of the target. A listing, and a read if it is not empty. Raises `ConfigError` if it holds anything
    else.
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
    if (record.wal_id, record.copied_from) != (wal.wal_id, source):
        raise ConfigError(
            f"{target.store.root} is a copy of another WAL ({record.wal_id}, copied from {record.copied_from}). Give a "
            "folder that is empty. Nothing was copied"
        )
    tops(target)
    return TargetState.COMPLETE if paths.WAL in names else TargetState.UNFINISHED


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


def _delete_collected(source: Log, target: Log) -> None:
    """Delete what an earlier part of this copy made, and what the WAL has no more: it was collected since.

    A listing of each folder in both.
    """
    for part in walk(target):
        kept = set(listed_again(source, part))
        gone = [path for name, path in zip(part.names, part.paths, strict=True) if name not in kept]
        if gone:
            target.store.delete(gone)
