"""`wal-sink settle`: a WAL whose checkpoint is lost delivers what it holds, with a checkpoint made from the WAL.

First: which of its batches Spark has certainly completed, by the WAL alone. A batch is released only after Spark
completed it, and Spark runs a batch only once the one before it is complete. So everything before the batch that ran
last is complete. Of that one nobody knows.

A checkpoint that was restored makes Spark run earlier batches again, under a later term of the stager. Batches after
these that have an earlier term belong to a history that was given up.

Every run of a batch that is not released stages it again. So along one history, the terms never fall, and the attempts
at one batch have one input. If it is otherwise, a history was given up in between, and it may have come back: an older
checkpoint was restored, the query ran, and then a newer checkpoint took its place. Only a checkpoint tells then which
attempt at a batch counts.

Then: the checkpoint. The batch ids of another query mean other rows, and targets have keys and positions made of these
ids. So no WAL goes on with another query. Instead, its own batches are settled, and the new query begins behind them,
with a new WAL.

A drain needs four facts of a checkpoint: the query id, the newest complete batch, that batch's source offsets, and no
later commit. The WAL has all of them. The checkpoint holds nothing else: neither the state of the query nor the logs of
its sources. So no query may go on from it. A last entry of the offset log, of a version that no Spark knows, makes
Spark refuse it. `metadata` is created last. Until then, a drain finds no query id and refuses the folder. The WAL
itself is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, refuse_served
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Release, WalRecord
from wal_sink.operate.look import find_staged
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.checkpoint_formats import DRAINS_ONLY
from wal_sink.protocol.inventory import held_batches, marked_through, require_wal
from wal_sink.protocol.location import canonical
from wal_sink.protocol.sinks import read_names
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.stores.creation import create_once
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import counted, in_ranges

_METADATA = "metadata"
_FOLDERS = frozenset({_METADATA, "offsets/", "commits/"})


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a WAL whose query does not go on."""

    through: int
    """Spark completed every batch up to this one; -1: none."""
    undecided: int | None
    """The batch after it, if it is staged: nobody knows whether Spark completed it."""
    abandoned: tuple[int, ...] = ()
    """Later batches, of a history that was given up, or that were not staged whole."""
    unclear: tuple[int, ...] = ()
    """Batches of which the WAL does not show which attempt counts: two histories ran them, and either may be the one
    that goes on.
    """


@dataclass(frozen=True, slots=True)
class _Ran:
    """The newest run of a batch."""

    batch_id: int
    term: int
    """The stager's term of the newest attempt, or of the released one; 0: no attempt is there."""
    is_staged: bool
    is_released: bool
    has_two_inputs: bool
    """Whether its attempts were staged from different inputs, as far as this cannot be excluded."""


def ending_of(log: Log, held: Sequence[int], *, marked: int, first_batch: int) -> Ending:
    """The end of a WAL. `held`: its batches above low water. `marked`: the newest batch that any sink has.

    A few requests, and a listing for each batch after the newest one that was released. One read more for each manifest
    of a batch that has several.
    """
    through, term = before = _newest_released(log, max(marked, first_batch - 1))
    ran = log.runtime.side_by_side(lambda batch_id: _ran(log, batch_id), [each for each in held if each > through])
    for each in ran:  # the release of a batch before may be lost
        if each.is_released:
            through, term = each.batch_id, each.term or term
    live = [each for each in ran if each.batch_id > through and each.term >= max(term, 1)]
    last = max(live, key=lambda each: (each.term, each.batch_id), default=None)
    newest = through if last is None else last.batch_id
    unclear = tuple(_unclear([each for each in ran if each.batch_id <= newest], before[1]))
    if last is None:
        return Ending(through, None, _numbers(ran, after=through), unclear)
    undecided = last.batch_id if last.is_staged else None
    abandoned = _numbers(ran, after=last.batch_id if last.is_staged else last.batch_id - 1)
    return Ending(last.batch_id - 1, undecided, abandoned, unclear)


def _numbers(ran: Sequence[_Ran], *, after: int) -> tuple[int, ...]:
    return tuple(each.batch_id for each in ran if each.batch_id > after)


def _unclear(ran: Sequence[_Ran], term: int) -> Iterator[int]:
    """The batches that are not released and have two inputs, or before or behind which the terms fall.

    `term`: that of the released batch before them. A batch without an attempt was not run by Spark.
    """
    with_term = [each for each in ran if each.term]
    highest = accumulate((each.term for each in with_term), max, initial=term)
    lowest = [*accumulate((each.term for each in reversed(with_term)), min)]
    falls = {
        each.batch_id
        for each, before, after in zip(with_term, highest, reversed(lowest), strict=False)
        if before > each.term or after < each.term
    }
    yield from (
        each.batch_id for each in ran if not each.is_released and (each.has_two_inputs or each.batch_id in falls)
    )


def manifest_of(log: Log, batch_id: int) -> Manifest | None:
    """The manifest that is delivered, or would be; None if there is none. Raises `CorruptError` and `ConfigError`."""
    return find_staged(log, batch_id).whole().manifest


def _newest_released(log: Log, marked: int) -> tuple[int, int]:
    """The newest batch that was released or marked, and the term of its manifest; 0 if no record tells it.

    A batch that Spark wrote without running it has no term, so the one before it tells.
    """
    through, term = marked, 0
    while (release := log.find(Release, paths.release(through + 1))) is not None:
        through, term = through + 1, release.term or term
    earlier = marked
    while term == 0 and (release := log.find(Release, paths.release(earlier)) if earlier > NOTHING else None):
        earlier, term = earlier - 1, release.term
    return through, term


def _ran(log: Log, batch_id: int) -> _Ran:
    names = log.store.list(paths.batch(batch_id))
    if paths.release(batch_id).rpartition("/")[2] in names and (release := log.find(Release, paths.release(batch_id))):
        return _Ran(batch_id, release.term, is_staged=True, is_released=True, has_two_inputs=False)
    attempts = [found for found in map(paths.parse_attempt, names) if found is not None]
    staged = [found for found in map(paths.parse_manifest, names) if found is not None]
    term = max((found.term for found in attempts), default=0)
    is_staged = any(found.term == term for found in staged)
    return _Ran(batch_id, term, is_staged, is_released=False, has_two_inputs=_have_two_inputs(log, batch_id, staged))


def _have_two_inputs(log: Log, batch_id: int, staged: Sequence[paths.ManifestName]) -> bool:
    """Whether the manifests of a batch may be of different inputs. A manifest that cannot be read may be of any."""
    if len(staged) < 2:
        return False
    try:
        manifests = [log.find(Manifest, paths.manifest(batch_id, *name)) for name in staged]
    except (CorruptError, ConfigError):
        return True
    there = [manifest for manifest in manifests if manifest is not None]
    return len({manifest.fingerprint for manifest in there}) > 1


@dataclass(frozen=True, slots=True)
class Settled:
    """A checkpoint that was made."""

    through: int
    """The newest batch that a drain delivers with it."""
    offsets: tuple[str, ...]
    """Where the input of this batch ends: a line for each source, as Spark wrote it. A new query begins behind it."""


def settle(
    log: Log, checkpoint: Checkpoint, folder: Store, newest: str | None, *, take_over: TakeOver
) -> Settled | None:
    """Make a checkpoint in an empty folder; None if no batch counts. If it is interrupted, repeat it.

    `checkpoint`: the query's own, or what lies in its place. `newest`: `complete` or `incomplete`, the user's decision
    about the batch of which nobody knows whether Spark completed it.

    Raises `HeldError` if a process serves the WAL, or may serve it and `take_over` does not permit that. Raises
    `ConfigError` if the checkpoint is there and not older than the WAL, if the WAL does not show which attempts count,
    if the decision is missing, or if the folder holds anything else.
    """
    refuse_served(log, take_over)
    wal = require_wal(log, "the WAL")
    low_water, held = held_batches(log, wal)
    through = [marked_through(log, sink.folder) for sink in read_names(log).sinks]
    ending = ending_of(log, held, marked=max([low_water, *through]), first_batch=wal.first_batch)
    last = ending.through if ending.undecided is None else ending.undecided
    if last == NOTHING:
        return None
    _refuse_own(wal, checkpoint, ending)
    last = _decided(log, ending, newest)
    manifest = manifest_of(log, last)
    files = files_of(wal, last, manifest)
    refuse_filled(folder, log.store, files)
    folder.begin()
    for path, data in files.items():
        if not create_once(folder, path, data, runtime=log.runtime):
            raise ConfigError(f"{folder.root}: another process has just written {path} there. Give another folder")
    return Settled(last, _offsets(manifest))


def _refuse_own(wal: WalRecord, checkpoint: Checkpoint, ending: Ending) -> None:
    """Refuse where a drain can use the checkpoint that is there. It may belong to a query that goes on."""
    if checkpoint.query_id() == wal.query_id and checkpoint.newest_commit() >= ending.through:
        raise ConfigError(
            f"{checkpoint.root} is a checkpoint of this WAL, and is not older than the WAL. So run a drain with this "
            "checkpoint. If the drain stops at a batch of other input (HistoryError), restore the checkpoint to its "
            "state before this batch, so that the query runs it again. Nothing was written"
        )


def _decided(log: Log, ending: Ending, newest: str | None) -> int:
    """The newest batch to deliver."""
    if ending.unclear:
        which = ", ".join(in_ranges(ending.unclear))
        raise ConfigError(
            f"two histories of the query staged batches {which}, and the WAL does not show which of them is valid: an "
            "older checkpoint was restored, and perhaps a newer one later. Restore the query's own checkpoint if you "
            "can: then a drain compares every batch with it. Nothing was written"
        )
    undecided = ending.undecided
    if undecided is not None and newest is None:
        manifest = _readable(log, undecided)
        rows = "" if manifest is None else f" ({counted(manifest.rows, 'row')})"
        raise ConfigError(
            f"nobody knows whether Spark completed batch {undecided}{rows}. Add --newest complete if the new query "
            f"begins after this batch{_said(_offsets(manifest))}: then a drain delivers it. Add --newest incomplete "
            f"if the new query begins after batch {ending.through}{_said(_offsets(_readable(log, ending.through)))}, "
            "and so reads the input of the newest batch again: then a drain does not deliver it"
        )
    if undecided is None and newest == "incomplete":
        raise ConfigError(
            f"--newest incomplete: the WAL shows that Spark completed batch {ending.through}, its newest one. Leave "
            "out --newest"
        )
    through = undecided if undecided is not None and newest == "complete" else ending.through
    if through == NOTHING:
        raise ConfigError("no batch of this WAL is certainly complete, so there is nothing to deliver")
    return through


def files_of(wal: WalRecord, through: int, manifest: Manifest | None) -> dict[str, bytes]:
    """The files of the checkpoint in the order in which they are created. `manifest`: that of batch `through`, if it
    can be read.
    """
    refusal = f"v{DRAINS_ONLY}\nmade by wal-sink settle for wal-sink drain: no query can go on from this checkpoint"
    files = {f"offsets/{through + 1}": refusal.encode()}
    if manifest is not None:
        files[f"offsets/{through}"] = manifest.offsets.encode()
    files[f"commits/{through}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    files[_METADATA] = msgspec.json.encode({"id": wal.query_id})
    return files


def refuse_filled(folder: Store, wal: Store, files: Mapping[str, bytes]) -> None:
    """Raise `ConfigError` if a folder holds anything else than a part of these files, or does not lie apart from the
    WAL. Up to three listings and four reads.
    """
    here, there = f"{canonical(wal.root)}/", f"{canonical(folder.root)}/"
    if here.startswith(there) or there.startswith(here):
        raise ConfigError(
            f"{folder.root}: this folder and {wal.root} are the same, or one lies inside the other. Give a separate "
            "folder"
        )
    names = set(folder.list(""))
    found = {path: data for path in files if (data := _read(folder, path)) is not None} if names else {}
    entries = {f"{top}{name}" for top in names & _FOLDERS if top != _METADATA for name in folder.list(top.rstrip("/"))}
    others = sorted((names - _FOLDERS) | (entries - files.keys()))
    if others or any(files[path] != data for path, data in found.items()):
        raise ConfigError(
            f"{folder.root}: this folder is not empty ({(others or sorted(found))[0]} lies there). Give a new folder, "
            "not the checkpoint of a query. Nothing was written"
        )


def _read(folder: Store, path: str) -> bytes | None:
    try:
        return folder.read(path)
    except ObjectMissing:
        return None


def _readable(log: Log, batch_id: int) -> Manifest | None:
    try:
        return manifest_of(log, batch_id) if batch_id > NOTHING else None
    except (CorruptError, ConfigError):
        return None


def _offsets(manifest: Manifest | None) -> tuple[str, ...]:
    return () if manifest is None else tuple(redacted(line) for line in manifest.offsets.split("\n")[2:])


def _said(offsets: Sequence[str]) -> str:
    return f" ({'; '.join(f'source {number}: {line}' for number, line in enumerate(offsets))})" if offsets else ""
