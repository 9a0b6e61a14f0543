"""A checkpoint made from a WAL, with which a drain delivers what is left. For a WAL whose own checkpoint is lost.

The batch ids of another query mean other rows, and targets have keys and positions made of these ids. So no WAL goes on
with another query. Instead, its own batches are settled, and the new query begins behind them, with a new WAL.

A drain needs four facts of a checkpoint: the query id, the newest complete batch, that batch's source offsets, and no
later commit. The WAL has all of them. The checkpoint holds nothing else: neither the state of the query nor the logs of
its sources. So no query may go on from it. A last entry of the offset log, of a version that no Spark knows, makes
Spark refuse it.

`metadata` is created last. Until then, a drain finds no query id and refuses the folder. The WAL itself is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from wal_sink.checkpoint.formats import DRAINS_ONLY
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.recovery.inventory import held_batches, marked_through, require_wal
from wal_sink.recovery.location import canonical
from wal_sink.recovery.sink_names import read_names
from wal_sink.redaction import redacted
from wal_sink.reporting.counts import counted, in_ranges
from wal_sink.settling.ending import Ending, ending_of, manifest_of
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.stores.create_once import create_once
from wal_sink.wal.holders import TakeOver, refuse_served
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, WalRecord

_METADATA = "metadata"
_FOLDERS = frozenset({_METADATA, "offsets/", "commits/"})


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
            f"{checkpoint.root} is a checkpoint of this WAL, and is not older than it. So a drain delivers what is "
            "left with this checkpoint. If it stops at a batch of other input (HistoryError), restore the "
            "checkpoint to its state before this batch, so that the query runs it again. Nothing was written"
        )


def _decided(log: Log, ending: Ending, newest: str | None) -> int:
    """The newest batch to deliver."""
    if ending.unclear:
        which = ", ".join(in_ranges(ending.unclear))
        raise ConfigError(
            f"two histories of the query staged batches {which}, and the WAL does not show which of them goes on: an "
            "older checkpoint was restored, and a newer one may have come back later. Restore the query's own "
            "checkpoint if you can: then a drain compares every batch with it. Nothing was written"
        )
    undecided = ending.undecided
    if undecided is not None and newest is None:
        manifest = _readable(log, undecided)
        rows = "" if manifest is None else f" ({counted(manifest.rows, 'row')})"
        raise ConfigError(
            f"nobody knows whether Spark completed batch {undecided}{rows}. Add --newest complete if the new query "
            f"begins behind it{_said(_offsets(manifest))}: then a drain delivers it. Add --newest incomplete if the "
            f"new query begins behind batch {ending.through}{_said(_offsets(_readable(log, ending.through)))}, and "
            "reads its input again: then a drain leaves it alone"
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
            f"{folder.root}: this folder and {wal.root} are one, or one lies inside the other. Give a folder apart "
            "from the WAL"
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
