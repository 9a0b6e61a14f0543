"""What absence means in a WAL: the objects that must exist, because something younger does.

A bucket's life-cycle rule takes the eldest objects first, and a copy may lack any part. An object that is not there is
taken for "not made yet" only where nothing exists that is made after it. `TABLE` says what proves that an object was
there once, and what follows; docs/FORMAT.md shows the same table. A suspicion is read once more before it is an error:
other processes work on the WAL while it is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from wal_sink.errors import ConfigError, ObjectLost
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import LowWater, Marker, Record, Release, SinkRecord, WalRecord

R = TypeVar("R", bound=Record)


class Lost(StrEnum):
    """An object whose absence must be explained, by its place in the WAL."""

    WAL = "wal.json"
    SINK = "sinks/<name>/sink.json"
    EVERY_SINK = "sinks/"
    OWNER = "sinks/<name>/owner.json"
    TERMS = "terms/<role>/"
    MARKER = "sinks/<name>/markers/, the newest"
    LOW_WATER = "low-water/, the newest"
    RELEASE = "batches/<batch>/release.json"
    MANIFEST = "batches/<batch>/manifest-…"


@dataclass(frozen=True, slots=True)
class Rule:
    """What proves that an object was there once, and what follows if it is not."""

    evidence: str
    verdict: str


TABLE: dict[Lost, Rule] = {
    Lost.WAL: Rule(
        "anything in `batches/`, `low-water/` or `moves/`; anything in `sinks/<name>/` but `sink.json`; a role whose "
        "terms do not begin with 1",
        "error when the WAL is opened or looked at",
    ),
    Lost.SINK: Rule(
        "anything else in `sinks/<name>/` (but `forgotten`); a term of `committer-<name>`; `wal.json` names the sink",
        "error when the WAL is opened, also for a sink that the run does not serve",
    ),
    Lost.EVERY_SINK: Rule(
        "where no sink is known: anything in `low-water/`; a release of the oldest batch",
        "error when a sink is registered",
    ),
    Lost.OWNER: Rule(
        "the newest record in `sinks/<first name>/names/` says that a sink has this name",
        "error when the WAL is opened or looked at",
    ),
    Lost.TERMS: Rule(
        "numbers that are missing below the highest; `sink.json` (of a committer) or `wal.json` (of the stager) is "
        "older than the run, and there is no term; the newest marker, the newest batch's manifests and attempts, or "
        "the progress of the batch under way name a term that was not claimed yet",
        "warning; the term that is claimed is higher than all of these, and the missing numbers are created",
    ),
    Lost.MARKER: Rule(
        "the newest low-water record says that the sink had a later batch; its own committer released the batch after "
        "the one that it lacks (no sink that ignores repeats)",
        "error when the WAL is opened, or before the batch is delivered",
    ),
    Lost.LOW_WATER: Rule(
        "the oldest batch above low water is not the first that may be there",
        "error when the WAL is opened or looked at",
    ),
    Lost.RELEASE: Rule(
        "a marker of the batch or of a later one; progress of the batch",
        "error when Spark runs the batch again; otherwise it is released anew, and what is recorded is not sent again",
    ),
    Lost.MANIFEST: Rule(
        "Spark completed the batch; its release; a marker newer than every batch",
        "error when the batch is due (`MissingBatch`, `ObjectLost`), or when the WAL is opened",
    ),
}
"""Object → evidence that it existed → verdict. Markers, progress and dead letters of a batch that a sink does not have
may be absent: then the batch was not begun.
"""

_MADE_AFTER_WAL = ("batches/", "low-water/", "moves/")
"""Folders in a WAL's root that only a batch, or what follows from one, makes."""
_LOOKS = 3
"""How often the newest marker is looked for, which a later one may replace between the listing and the read."""
_COMMITTER = paths.committer_role("")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a WAL holds, as it was when it was opened."""

    wal: WalRecord | None
    top: frozenset[str]
    """Names in the root; folders end in `/`."""
    roles: frozenset[str]
    """Names in `terms/`."""

    @property
    def has_moved(self) -> bool:
        """Whether somebody said that the WAL was moved."""
        return f"{paths.MOVES}/" in self.top

    @property
    def has_sinks(self) -> bool:
        """Whether anything lies in `sinks/`; if not, nobody need look."""
        return f"{paths.SINKS}/" in self.top

    @property
    def known_sinks(self) -> dict[str, str]:
        """Names of the sinks that must have been registered, with what tells so: it is made after a registration."""
        claimed = {role.removeprefix(_COMMITTER): role for role in self.roles if role.startswith(_COMMITTER)}
        named = dict.fromkeys(self.wal.sinks if self.wal else (), f"{paths.WAL}, which names the sink,")
        return named | {name: f"{paths.terms(role)}/" for name, role in sorted(claimed.items())}


def take(log: Log) -> Inventory:
    """Look at a WAL that is opened: one read and one listing, and one listing more where it has terms.

    Raises `ObjectLost` if the WAL's own record must have been there.
    """
    wal = log.find(WalRecord, paths.WAL)
    top = frozenset(log.store.list(""))
    roles = _folders(log, paths.TERMS) if f"{paths.TERMS}/" in top else frozenset()
    return Inventory(wal or _explained_wal(log, top, roles), top, roles)


def find_wal(log: Log) -> WalRecord | None:
    """The WAL's own record; None before its first batch. One read where it is there. Raises `ObjectLost`."""
    return log.find(WalRecord, paths.WAL) or take(log).wal


def require_wal(log: Log, younger: str) -> WalRecord:
    """The WAL's own record, where something is at hand that is made after it. Raises `ObjectLost`."""
    return log.find(WalRecord, paths.WAL) or find_again(log, WalRecord, paths.WAL, Lost.WAL, younger)


def check_unserved_sinks(log: Log, inventory: Inventory, served: Collection[str]) -> list[str]:
    """The sinks that others serve, which must be registered: else what they lack would be collected.

    One read for each of them. A sink that somebody forgot for good is none of them.
    """
    others = [name for name in inventory.known_sinks if name not in served]
    return [name for name in others if _known_sink(log, name, inventory.known_sinks[name]) is not None]


def find_new_sink(log: Log, inventory: Inventory, name: str, oldest_batch: int | None) -> SinkRecord | None:
    """What follows from a registration that was not found: None, the sink is new; or it is there after all.

    `oldest_batch`: of those the WAL holds, if any. No request in a WAL without sinks and terms.
    """
    younger = inventory.known_sinks.get(name)
    if younger is None and inventory.has_sinks:
        younger = next((f"{paths.SINKS}/{name}/{found}" for found in _beside_record(log, name)), None)
    if younger is not None and (record := _known_sink(log, name, younger)) is not None:
        return record
    if younger is not None:
        raise ConfigError(
            f"sink {name!r} of {log.store.root} was forgotten (see {log.store.url_of(paths.forgotten(name))}): "
            "use another name"
        )
    if not inventory.known_sinks and oldest_batch is not None:
        _refuse_without_every_sink(log, inventory, oldest_batch)
    return None


def _known_sink(log: Log, name: str, younger: str) -> SinkRecord | None:
    """The registration of a sink that had one; None if somebody forgot it for good. Raises `ObjectLost`."""
    record = log.find(SinkRecord, paths.sink(name))
    if record is None and paths.FORGOTTEN not in log.store.list(f"{paths.SINKS}/{name}"):
        return find_again(log, SinkRecord, paths.sink(name), Lost.SINK, younger)
    return record


def sink_folders(log: Log) -> list[str]:
    """Names of the sinks of which anything is there. One listing."""
    return sorted(_folders(log, paths.SINKS))


def held_batches(log: Log, wal: WalRecord) -> tuple[int, list[int]]:
    """Low water, and the batches above it, ascending. Two listings; raises `ObjectLost` if low water was lost."""
    low_water, batches = _look_at_batches(log)
    if _begins_late(wal, low_water, batches):
        low_water, batches = _look_at_batches(log)  # it may have moved between the two listings
        if _begins_late(wal, low_water, batches):
            raise lost(
                log, Lost.LOW_WATER, paths.low_water(batches[0] - 1),
                f"{paths.batch(batches[0])}/ is the oldest batch, and nothing tells what became of those before it",
            )  # fmt: skip
    return low_water, batches


def newest_marker(log: Log, name: str) -> Marker | None:
    """The newest marker of a sink, whoever made it; None if it has none. One listing and one read.

    Collection keeps the newest: one that was listed is gone only if a newer one is there. Raises `ObjectLost`.
    """
    newest = NOTHING
    for _ in range(_LOOKS):
        newest = max(log.numbers(paths.markers(name)), default=NOTHING)
        if newest == NOTHING:
            return None
        if (marker := log.find(Marker, paths.marker(name, newest))) is not None:
            return marker
    raise lost(log, Lost.MARKER, paths.marker(name, newest), "it was listed a moment ago")


def check_marker(log: Log, name: str, through: int, low_water: LowWater | None) -> None:
    """Make sure that a sink's newest marker, of batch `through`, is the newest there was. No request."""
    known = low_water.marked.get(name, NOTHING) if low_water else NOTHING
    if low_water is not None and known > through:
        path = paths.low_water(low_water.batch_id)
        raise lost(log, Lost.MARKER, paths.marker(name, known), f"{path} says that the sink has batch {known}")


def check_marked_batch(log: Log, name: str, through: int, newest_batch: int) -> None:
    """Make sure that the batch of a sink's newest marker is there, since retention keeps it. No request if it is."""
    if through > newest_batch and through not in log.numbers(paths.BATCHES, after=through - 1):
        raise lost(log, Lost.MANIFEST, f"{paths.batch(through)}/", _after(paths.marker(name, through)))


def check_not_marked(log: Log, name: str, batch_id: int) -> None:
    """Make sure that a batch without a marker was not delivered: then the sink's committer would have gone on to
    release the next. One read.
    """
    following = log.find(Release, paths.release(batch_id + 1))
    if following is not None and following.sink == name:
        raise lost(log, Lost.MARKER, paths.marker(name, batch_id), _after(paths.release(batch_id + 1)))


def find_again(log: Log, kind: type[R], path: str, what: Lost, younger: str) -> R:
    """Read an object once more that must be there, since `younger` is. Raises `ObjectLost`."""
    record = log.find(kind, path)
    if record is None:
        raise lost(log, what, path, _after(younger))
    return record


def lost(log: Log, what: Lost, path: str, because: str) -> ObjectLost:
    """The error of an object that must have been there: what is gone, why that is known, causes and ways out."""
    return ObjectLost(
        f"{log.store.url_of(path)} is gone, but must have been there: {because}. Likely causes: a "
        "life-cycle rule of the bucket (such as “expire after 30 days”), or a copy that has only a part of this WAL. "
        f"Nothing was skipped. Stop what deletes objects here, and restore this one; "
        f"{_WAY_OUT.get(what, _NEW_WAL)}"
    )


def _after(younger: str) -> str:
    return f"{younger} is made after it"


_NEW_WAL = "or start a new WAL in an empty folder: what this one holds and did not deliver then stays behind"
_FORGET = (
    "or, to forget the sink for good, put an empty object sinks/<name>/forgotten beside what is left of it, and do not "
    "use its name again"
)
_WAY_OUT = {Lost.SINK: _FORGET}


def _explained_wal(log: Log, top: frozenset[str], roles: frozenset[str]) -> WalRecord | None:
    """None if nothing is there that is made after the WAL's own record."""
    younger = next((folder for folder in _MADE_AFTER_WAL if folder in top), None)
    younger = younger or _made_by_a_batch(log, top) or _terms_that_begin_late(log, roles)
    return None if younger is None else find_again(log, WalRecord, paths.WAL, Lost.WAL, younger)


def _made_by_a_batch(log: Log, top: frozenset[str]) -> str | None:
    """What a sink holds that it has of a batch. One listing, and one a sink."""
    names = sink_folders(log) if f"{paths.SINKS}/" in top else []
    held = (f"{paths.SINKS}/{name}/{found}" for name in names for found in _beside_record(log, name))
    return next(held, None)


def _terms_that_begin_late(log: Log, roles: frozenset[str]) -> str | None:
    """A role's terms are never deleted: where the first are gone, so may be what is as old. One listing a role."""
    for role in sorted(roles):
        numbers = log.numbers(paths.terms(role))
        if numbers and numbers[0] > 1:
            return f"{paths.term(role, numbers[0])} is the first term of its role, so objects were deleted; a batch"
    return None


def _refuse_without_every_sink(log: Log, inventory: Inventory, oldest_batch: int) -> None:
    """Only committers collect and release, and only for a sink that is registered. One listing."""
    younger = f"{paths.LOW_WATER}/" if f"{paths.LOW_WATER}/" in inventory.top else None
    if younger is None and "release.json" in log.store.list(paths.batch(oldest_batch)):
        younger = paths.release(oldest_batch)
    # Another process may have registered its first sink and claimed its term since the inventory was taken.
    if younger is not None and not _folders(log, paths.TERMS) - {paths.STAGER_ROLE}:
        raise lost(log, Lost.EVERY_SINK, f"{paths.SINKS}/", f"{younger} is made only where a sink is registered")


def _beside_record(log: Log, name: str) -> Sequence[str]:
    return [found for found in log.store.list(f"{paths.SINKS}/{name}") if found != paths.SINK_RECORD]


def _look_at_batches(log: Log) -> tuple[int, list[int]]:
    low_water = log.low_water()
    return low_water, log.numbers(paths.BATCHES, after=low_water)


def _begins_late(wal: WalRecord, low_water: int, batches: Sequence[int]) -> bool:
    """Whether batches are gone that low water does not speak of."""
    return bool(batches) and batches[0] > max(low_water + 1, wal.first_batch)


def _folders(log: Log, folder: str) -> frozenset[str]:
    return frozenset(name.removesuffix("/") for name in log.store.list(folder) if name.endswith("/"))
