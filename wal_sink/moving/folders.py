"""The folders of a WAL, walked in bounded memory, and a survey of them: all names, as one digest a folder.

All objects of a WAL are immutable. So two equal surveys, one after the other, show that no object was created or
deleted between the end of the first and the beginning of the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.wal import paths
from wal_sink.wal.log import Log

_AT_ONCE = 64
"""Folders of batches whose names are in memory at once."""
_KNOWN = {paths.WAL, *(f"{name}/" for name in paths.TOP)}
_OF_THE_COPY = {paths.COPY, paths.COPIED}


@dataclass(frozen=True, slots=True)
class Part:
    """The objects of one folder. Those of a batch's folder include the ones in folders below it."""

    folder: str
    names: tuple[str, ...]
    """Paths of the objects from the folder."""
    is_of_batch: bool

    @property
    def paths(self) -> list[str]:
        """Paths of the objects from the WAL's root."""
        return [f"{self.folder}/{name}" for name in self.names]


@dataclass(slots=True)
class Survey:
    """The names of all objects of a WAL but `wal.json`, as one digest a folder."""

    digests: dict[str, bytes] = field(default_factory=dict)
    objects: int = 0
    batches: int = 0

    def note(self, part: Part) -> None:
        """Add the objects of a folder."""
        if part.names:
            names = "\0".join(part.names).encode("utf-8", "surrogatepass")
            self.digests[part.folder] = hashlib.blake2b(names, digest_size=16).digest()
            self.objects += len(part.names)
            self.batches += part.is_of_batch and part.folder.rpartition("/")[0] == paths.BATCHES

    @property
    def digest(self) -> str:
        """One digest of all names."""
        folders = "\0".join(f"{folder}\0{names.hex()}" for folder, names in sorted(self.digests.items()))
        return hashlib.blake2b(folders.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def differs_in(self, other: Survey) -> str:
        """The first folder whose objects are others in `other`; empty if there is none."""
        folders = sorted(self.digests.keys() | other.digests.keys())
        return next((each for each in folders if self.digests.get(each) != other.digests.get(each)), "")


def survey(log: Log) -> Survey:
    """All names of a WAL. One listing for each folder. Raises `ConfigError` for objects that belong to no WAL."""
    found = Survey()
    for part in walk(log):
        found.note(part)
    return found


def walk(log: Log) -> Iterator[Part]:
    """All objects of a WAL but `wal.json` and the records of a copy, folder by folder.

    Raises `ConfigError` for objects in the root that belong to no WAL: what they are, and whether they may be left out,
    is not known here.
    """
    for top in tops(log):
        yield from _below(log, top)


def tops(log: Log) -> list[str]:
    """The folders in the root that hold objects of a WAL. One listing. Raises `ConfigError` as `walk` does."""
    names = log.store.list("")
    if others := [name for name in names if name not in _KNOWN]:
        raise ConfigError(
            f"{log.store.root} holds {others[0]}, which this version of wal-sink does not know as a part of a WAL. If "
            "a newer version made it, use that version. If it does not belong to the WAL, move it elsewhere first. "
            "Nothing was copied"
        )
    return [name.removesuffix("/") for name in names if name.endswith("/") and name != f"{paths.PROBE}/"]


def listed_again(log: Log, part: Part) -> list[str]:
    """The names of the same folder in another WAL, or in the same one later."""
    names = log.store.list(part.folder, recursive=part.is_of_batch)
    return _objects(part.folder, names)


def _below(log: Log, folder: str) -> Iterator[Part]:
    names = log.store.list(folder)
    yield Part(folder, tuple(_objects(folder, names)), is_of_batch=False)
    below = [name.removesuffix("/") for name in names if name.endswith("/")]
    batches = [f"{folder}/{name}" for name in below if paths.is_batch_name(name)]
    for start in range(0, len(batches), _AT_ONCE):
        some = batches[start : start + _AT_ONCE]
        found = log.runtime.side_by_side(lambda each: log.store.list(each, recursive=True), some)
        yield from _parts(some, found)
    for name in below:
        if not paths.is_batch_name(name):
            yield from _below(log, f"{folder}/{name}")


def _parts(folders: Iterable[str], found: Iterable[list[str]]) -> Iterator[Part]:
    for folder, names in zip(folders, found, strict=True):
        yield Part(folder, tuple(names), is_of_batch=True)


def _objects(folder: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith("/") and f"{folder}/{name}" not in _OF_THE_COPY]
