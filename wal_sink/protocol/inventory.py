"""Finding lost objects: an object that is absent must have existed if a younger one exists.

A bucket's life-cycle rule deletes the oldest objects first, and a copy may lack any part. An absent object counts as
"not made yet" only if nothing exists that is made after it. `TABLE` says which evidence proves that an object existed,
and the verdict if it is gone; docs/FORMAT.md shows the same table. Before an object counts as lost, it is read once
more: other processes may write to the WAL at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING, Log, numbers_of
from wal_sink.log.records import LowWater, Marker, Move, Record, Release, SinkRecord, WalRecord
from wal_sink.log.terms import Term

R = TypeVar("R", bound=Record)
V = TypeVar("V")


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
    """The evidence that an object existed, and the verdict if it is gone."""

    evidence: str
    verdict: str


TABLE: dict[Lost, Rule] = {
    Lost.WAL: Rule(
        "anything in `batches/`, `low-water/` or `moves/`; anything in `sinks/<name>/` but "
        "`sink.json`; a role whose terms do not begin with 1",
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
        "the one that it lacks (no sink that ignores repeats or gets rolls)",
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
        "error when the batch is due (`HistoryError`, `CorruptError`), or when the WAL is opened",
    ),
}
"""Object → evidence that it existed → verdict. Markers, progress and dead letters of a batch that a sink does not have
may be absent: then its delivery was not begun.
"""

MADE_AFTER_WAL = ("batches/", "low-water/", "moves/")
"""Folders in a WAL's root that are made only once the WAL has its record."""
_OF_A_CHECKPOINT = frozenset({"metadata", "offsets/", "commits/"})
"""Names that Spark makes in a checkpoint, and that no version of wal-sink makes in a WAL."""
_LOOKS = 3
"""How often the newest marker is looked for: between listing and read, a later one may replace it."""
_COMMITTER = paths.committer_role("")


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of a WAL when it was opened."""

    wal: WalRecord | None
    top: frozenset[str]
    """Names in the root; folders end in `/`."""
    terms: Mapping[str, Sequence[int]]
    """The numbers of each role's terms, ascending, as they were listed before the record of the WAL was read."""

    @property
    def has_moved(self) -> bool:
        """Whether a move of the WAL was recorded."""
        return f"{paths.MOVES}/" in self.top

    @property
    def has_sinks(self) -> bool:
        """Whether anything lies in `sinks/`."""
        return f"{paths.SINKS}/" in self.top

    @property
    def known_sinks(self) -> dict[str, str]:
        """Names of the sinks that must have been registered, each with the evidence."""
        claimed = {role.removeprefix(_COMMITTER): role for role in self.terms if role.startswith(_COMMITTER)}
        named = dict.fromkeys(self.wal.sinks if self.wal else (), f"{paths.WAL}, where the sink is recorded,")
        return named | {name: f"{paths.terms(role)}/" for name, role in sorted(claimed.items())}


def take(log: Log) -> Inventory:
    """The inventory of a WAL that is opened. One read and one listing, and one listing of all terms if it has any.

    Without its record, also a listing of the sinks, and one for each sink. Raises `CorruptError` if the WAL's own
    record was lost, and `ConfigError` for the folder of a checkpoint.
    """
    top = frozenset(log.store.list(""))
    _refuse_checkpoint(log, top)
    terms = _numbers_by_role(log.store.list(paths.TERMS, recursive=True) if f"{paths.TERMS}/" in top else ())
    wal = log.find(WalRecord, paths.WAL)  # after the terms: see `refuse_left`
    if wal is None:
        sinks = _folders(log, paths.SINKS) if f"{paths.SINKS}/" in top else ()
        wal = _explained_wal(log, top, terms, _by_name(log, sinks, partial(_beside_record, log)))
    return Inventory(wal, top, terms)


def take_again(log: Log) -> tuple[WalRecord | None, list[str]]:
    """Look again at a WAL that had no record when it was opened: its record, and the names of its sinks.

    One read and three listings, side by side. Two of these list all objects of the terms and the sinks, which are few
    in a new WAL. Raises as `take` does.
    """
    looks: list[Callable[[], Any]] = [partial(log.find, WalRecord, paths.WAL), partial(log.store.list, "")]
    looks += [partial(log.store.list, folder, recursive=True) for folder in (paths.TERMS, paths.SINKS)]
    wal, root, terms, sinks = log.runtime.side_by_side(lambda look: look(), looks)
    top = frozenset(root)
    _refuse_checkpoint(log, top)
    beside = _by_folder(sinks)
    if wal is None:
        others = {name: [found for found in names if found != paths.SINK_RECORD] for name, names in beside.items()}
        wal = _explained_wal(log, top, _numbers_by_role(terms), others)
    return wal, sorted(beside)


def _by_name(log: Log, names: Iterable[str], ask: Callable[[str], V]) -> dict[str, V]:
    """The answers for the names, asked for side by side."""
    asked = sorted(names)
    return dict(zip(asked, log.runtime.side_by_side(ask, asked), strict=True))


def _by_folder(paths_below: Iterable[str]) -> dict[str, list[str]]:
    """The paths of a recursive listing, by the folder that each lies in, and relative to it."""
    found: dict[str, list[str]] = {}
    for folder, below, name in (path.partition("/") for path in paths_below):
        if below:
            found.setdefault(folder, []).append(name)
    return found


def _numbers_by_role(terms: Iterable[str]) -> dict[str, list[int]]:
    return {role: numbers_of(names) for role, names in _by_folder(terms).items()}


def _refuse_checkpoint(log: Log, top: frozenset[str]) -> None:
    if spark := sorted(_OF_A_CHECKPOINT & top):
        raise ConfigError(
            f"{log.store.root} holds {' and '.join(spark)}, so it is the checkpoint of a query and cannot be a WAL. "
            "Were wal and checkpoint exchanged? Pass a separate folder for each. Nothing was written"
        )


def find_wal(log: Log) -> WalRecord | None:
    """The WAL's own record; None before its first batch. One read if it exists. Raises `CorruptError`."""
    return log.find(WalRecord, paths.WAL) or take(log).wal


def refuse_left(log: Log, wal: WalRecord | None, claims: Iterable[tuple[Term, Sequence[int] | None]]) -> None:
    """Make sure that the WAL was not moved since `wal` was read. `claims`: each claimed term, and the terms of its role
    that were listed before that read. At most one read; none for a WAL without a record yet. Raises `CorruptError`.

    For a move, a person removes `wal.json` at the earlier place. Then the first start at the new place claims every
    role there that has terms. So a claim of the
    term right after those that were listed precedes the move's, which fences it. Any other claim may follow the move:
    then the record is gone.
    """
    if wal is not None and not all(listed and term.number == listed[-1] + 1 for term, listed in claims):
        require_wal(log, "the record that this process read when it began")


def require_wal(log: Log, younger: str) -> WalRecord:
    """The WAL's own record, where `younger` exists, which is made after it. Raises `CorruptError`."""
    if (wal := log.find(WalRecord, paths.WAL)) is not None:
        return wal
    if moves := log.numbers(paths.MOVES):
        move = paths.move(moves[-1])
        younger = (
            f"{younger} (according to {log.store.url_of(move)}, this WAL lies at {log.require(Move, move).location})"
        )
    return find_again(log, WalRecord, paths.WAL, Lost.WAL, younger)


def check_unserved_sinks(log: Log, inventory: Inventory, served: Collection[str]) -> list[str]:
    """The registered sinks that this run does not serve. Forgotten sinks do not count.

    Raises `CorruptError` if a registration was lost: without it, batches that the sink lacks would be collected. One
    read a sink.
    """
    others = [name for name in inventory.known_sinks if name not in served]
    return [name for name in others if _known_sink(log, name, inventory.known_sinks[name]) is not None]


def find_new_sink(log: Log, inventory: Inventory, name: str, oldest_batch: int | None) -> SinkRecord | None:
    """The registration of a sink for which none was found; None if the sink is new.

    `oldest_batch` is the oldest in the WAL, if it holds any. No request in a WAL without sinks and terms. Raises
    `CorruptError` if the registration was lost, `ConfigError` if the sink was forgotten.
    """
    younger = inventory.known_sinks.get(name)
    if younger is None and inventory.has_sinks:
        younger = next((f"{paths.SINKS}/{name}/{found}" for found in _beside_record(log, name)), None)
    if younger is not None and (record := _known_sink(log, name, younger)) is not None:
        return record
    if younger is not None:
        raise ConfigError(
            f"sink {name!r} of {log.store.root} was forgotten (see {log.store.url_of(paths.forgotten(name))}). Use "
            "another name"
        )
    if not inventory.known_sinks and oldest_batch is not None:
        _refuse_without_every_sink(log, inventory, oldest_batch)
    return None


def _known_sink(log: Log, name: str, younger: str) -> SinkRecord | None:
    """The registration of a sink that had one; None if the sink was forgotten. Raises `CorruptError`."""
    record = log.find(SinkRecord, paths.sink(name))
    if record is None and paths.FORGOTTEN not in log.store.list(f"{paths.SINKS}/{name}"):
        return find_again(log, SinkRecord, paths.sink(name), Lost.SINK, younger)
    return record


def sink_folders(log: Log) -> list[str]:
    """Names of the sinks that have any object. One listing."""
    return sorted(_folders(log, paths.SINKS))


def held_batches(log: Log, wal: WalRecord) -> tuple[int, list[int]]:
    """Low water, and the batches above it, ascending. Two listings; raises `CorruptError` if low water was lost."""
    low_water, batches = _look_at_batches(log)
    if _begins_late(wal, low_water, batches):
        low_water, batches = _look_at_batches(log)  # low water may have moved between the two listings
        if _begins_late(wal, low_water, batches):
            raise lost(
                log, Lost.LOW_WATER, paths.low_water(batches[0] - 1),
                f"{paths.batch(batches[0])}/ is the oldest batch, and no record explains where the earlier batches are",
            )  # fmt: skip
    return low_water, batches


def newest_marked(log: Log, name: str) -> int:
    """The batch of the newest marker that is listed for a sink; -1 if there is none. One listing."""
    return max(log.numbers(paths.markers(name)), default=NOTHING)


def marked_through(log: Log, name: str) -> int:
    """The batch of the newest marker of a sink, as the marker says; -1 if there is none. See `newest_marker`."""
    marker = newest_marker(log, name)
    return marker.batch_id if marker else NOTHING


def newest_marker(log: Log, name: str) -> Marker | None:
    """The newest marker of a sink, from any process; None if there is none. One listing and one read.

    Collection keeps the newest marker of a sink that is not retired, as it stays `retention_batches` behind the lowest
    of them: a listed one is gone only if a newer one exists. Raises `CorruptError`.
    """
    newest = NOTHING
    for _ in range(_LOOKS):
        newest = newest_marked(log, name)
        if newest == NOTHING:
            return None
        if (marker := log.find(Marker, paths.marker(name, newest))) is not None:
            return marker
    raise lost(log, Lost.MARKER, paths.marker(name, newest), "it was listed a moment ago")


def check_marker(log: Log, name: str, through: int, low_water: LowWater | None) -> None:
    """Make sure that no marker newer than `through` was lost. No request."""
    known = low_water.marked.get(name, NOTHING) if low_water else NOTHING
    if low_water is not None and known > through:
        path = paths.low_water(low_water.batch_id)
        raise lost(log, Lost.MARKER, paths.marker(name, known), f"according to {path}, the sink has batch {known}")


def check_marked_batch(log: Log, name: str, through: int, newest_batch: int) -> None:
    """Make sure that the batch of a sink's newest marker exists: retention keeps it. No request if it is known.

    A process that was paused may look after a newer one marked and collected more; its next look at the term fences it.
    """
    if through > newest_batch and not log.store.list(paths.batch(through)) and log.low_water() < through:
        raise lost(log, Lost.MANIFEST, f"{paths.batch(through)}/", _after(paths.marker(name, through)))


def check_not_marked(log: Log, name: str, batch_id: int) -> None:
    """Make sure that a batch has no marker because it was not delivered, not because the marker was lost.

    A committer releases the next batch only once this one is marked. One read.
    """
    following = log.find(Release, paths.release(batch_id + 1))
    if following is not None and following.sink == name:
        raise lost(log, Lost.MARKER, paths.marker(name, batch_id), _after(paths.release(batch_id + 1)))


def require(log: Log, kind: type[R], path: str, what: Lost, younger: str) -> R:
    """An object that must exist, since `younger` exists. One read if it is there at once. Raises `CorruptError`."""
    return log.find(kind, path) or find_again(log, kind, path, what, younger)


def find_again(log: Log, kind: type[R], path: str, what: Lost, younger: str) -> R:
    """Read once more an object that must exist, since `younger` exists. Raises `CorruptError`."""
    return _find_again(log, kind, path, what, _after(younger))


def _find_again(log: Log, kind: type[R], path: str, what: Lost, because: str) -> R:
    record = log.find(kind, path)
    if record is None:
        raise lost(log, what, path, because)
    return record


def lost(log: Log, what: Lost, path: str, because: str) -> CorruptError:
    """The error for a lost object: its path, the evidence, likely causes and ways out."""
    return CorruptError(
        f"{log.store.url_of(path)} is gone, but it must have existed: {because}. Likely causes: a life-cycle "
        "rule of the bucket (such as “expire after 30 days”), or a copy that contains only a part of this WAL. "
        f"Nothing was skipped. Stop the deletions, and restore this object; {_WAY_OUT[what]}"
    )


def _after(younger: str) -> str:
    return f"{younger} is made after it"


_NEW_WAL = "or start a new WAL in an empty folder: the batches that this WAL did not deliver then stay undelivered"
_FORGET = (
    "or, to forget the sink permanently, create the empty object sinks/<name>/forgotten, and never use this sink "
    "name again"
)
_WAY_OUT = {**dict.fromkeys(Lost, _NEW_WAL), Lost.SINK: _FORGET}


def _explained_wal(
    log: Log, top: frozenset[str], terms: Mapping[str, Sequence[int]], beside: Mapping[str, Sequence[str]]
) -> WalRecord | None:
    """The WAL's record, read once more; None if nothing exists that is made after it. Raises `CorruptError`.

    `terms`: the numbers of each role's terms, ascending. `beside`: the objects of each sink beside its record.
    """
    younger = first_held(log, top, MADE_AFTER_WAL)
    because = _made_later(terms, beside) if younger is None else _after(younger)
    return None if because is None else _find_again(log, WalRecord, paths.WAL, Lost.WAL, because)


def _made_later(terms: Mapping[str, Sequence[int]], beside: Mapping[str, Sequence[str]]) -> str | None:
    """Evidence that a sink or a role once had a batch; None if there is none. No request.

    A sink has any object beside `sink.json` only with a batch. Terms are never deleted, so if the first ones of a role
    are gone, older objects may be lost too.
    """
    held = (f"{paths.SINKS}/{name}/{found}" for name, names in sorted(beside.items()) for found in names)
    late = (paths.term(role, numbers[0]) for role, numbers in sorted(terms.items()) if numbers and numbers[0] > 1)
    if (younger := next(held, None)) is not None:
        return _after(younger)
    if (term := next(late, None)) is not None:
        return f"{term} is the oldest term of its role, so older objects were deleted"
    return None


def _refuse_without_every_sink(log: Log, inventory: Inventory, oldest_batch: int) -> None:
    """Raise `CorruptError` if all registrations were lost: only a registered sink has batches released or collected.

    One listing.
    """
    younger = first_held(log, inventory.top, (f"{paths.LOW_WATER}/",))
    if younger is None and "release.json" in log.store.list(paths.batch(oldest_batch)):
        younger = paths.release(oldest_batch)
    # Another process may have registered its first sink and claimed its term since the inventory was taken.
    if younger is not None and not _folders(log, paths.TERMS) - {paths.STAGER_ROLE}:
        raise lost(log, Lost.EVERY_SINK, f"{paths.SINKS}/", f"{younger} is made only where a sink is registered")


def _beside_record(log: Log, name: str) -> Sequence[str]:
    return [found for found in log.store.list(f"{paths.SINKS}/{name}", recursive=True) if found != paths.SINK_RECORD]


def first_held(log: Log, listed: Collection[str], folders: Iterable[str]) -> str | None:
    """The first of these folders that is listed and holds an object: its name alone proves nothing. A listing each."""
    return next((each for each in folders if each in listed and log.store.list(each[:-1], recursive=True)), None)


def _look_at_batches(log: Log) -> tuple[int, list[int]]:
    low_water = log.low_water()
    return low_water, log.numbers(paths.BATCHES, after=low_water)


def _begins_late(wal: WalRecord, low_water: int, batches: Sequence[int]) -> bool:
    """Whether batches above low water are gone."""
    return bool(batches) and batches[0] > max(low_water + 1, wal.first_batch)


def _folders(log: Log, folder: str) -> frozenset[str]:
    return frozenset(name.removesuffix("/") for name in log.store.list(folder) if name.endswith("/"))
