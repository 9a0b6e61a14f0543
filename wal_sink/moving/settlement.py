"""A checkpoint made from a WAL, with which a drain delivers what is left. For a WAL whose own checkpoint is lost.

A drain needs four facts of a checkpoint: the query id, the newest complete batch, that batch's source offsets, and no
later commit. The WAL has all of them. The checkpoint holds nothing else: neither the state of the query nor the logs of
its sources. So no query may go on from it. A last entry of the offset log, of a version that no Spark knows, makes
Spark refuse it.

`metadata` is created last. Until then, a drain finds no query id and refuses the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from wal_sink.checkpoint.formats import DRAINS_ONLY
from wal_sink.errors import ConfigError
from wal_sink.recovery.location import canonical
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.stores.create_once import create_once
from wal_sink.wal.records import Manifest, WalRecord

_METADATA = "metadata"
_FOLDERS = frozenset({_METADATA, "offsets/", "commits/"})


class FolderState(StrEnum):
    """Content of the folder of a settlement."""

    EMPTY = "empty"
    PART = "part"
    WHOLE = "whole"


def files_of(wal: WalRecord, through: int, manifest: Manifest | None) -> dict[str, bytes]:
    """The files of the checkpoint in the order in which they are created. `manifest`: that of batch `through`, if it
    can be read.
    """
    refusal = f"v{DRAINS_ONLY}\nmade by wal-sink adopt for wal-sink drain: no query can go on from this checkpoint"
    files = {f"offsets/{through + 1}": refusal.encode()}
    if manifest is not None:
        files[f"offsets/{through}"] = manifest.offsets.encode()
    files[f"commits/{through}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    files[_METADATA] = msgspec.json.encode({"id": wal.query_id})
    return files


def state_of(folder: Store, wal: Store, files: Mapping[str, bytes]) -> FolderState:
    """Look at the folder. Up to three listings and four reads.

    Raises `ConfigError` if it holds anything else than a part of these files, or does not lie apart from the WAL.
    """
    here, there = f"{canonical(wal.root)}/", f"{canonical(folder.root)}/"
    if here.startswith(there) or there.startswith(here):
        raise ConfigError(
            f"--settle {folder.root}: this folder and {wal.root} are one, or one lies inside the other. Give a folder "
            "apart from the WAL"
        )
    names = set(folder.list(""))
    found = {path: data for path in files if (data := _read(folder, path)) is not None} if names else {}
    entries = {f"{top}{name}" for top in names & _FOLDERS if top != _METADATA for name in folder.list(top.rstrip("/"))}
    others = sorted((names - _FOLDERS) | (entries - files.keys()))
    if others or any(files[path] != data for path, data in found.items()):
        raise ConfigError(
            f"--settle {folder.root}: this folder is not empty ({(others or sorted(found))[0]} lies there). Give a new "
            "folder, not the checkpoint of a query. Nothing was written"
        )
    return FolderState.WHOLE if len(found) == len(files) else FolderState.PART if found else FolderState.EMPTY


def write(folder: Store, files: Mapping[str, bytes], runtime: Runtime) -> None:
    """Create the files that are missing. Raises `ConfigError` if another process created other ones."""
    folder.begin()
    for path, data in files.items():
        if not create_once(folder, path, data, runtime=runtime):
            raise ConfigError(
                f"--settle {folder.root}: another process has just written {path} there. Give another folder"
            )


def _read(folder: Store, path: str) -> bytes | None:
    try:
        return folder.read(path)
    except ObjectMissing:
        return None
