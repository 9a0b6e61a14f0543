"""Objects of a WAL that nothing can name any more, and the reason why for each kind.

- `lost attempts`: of a released batch, the manifests that lost, and the segments that the released manifest does not
  name. A release is final, so no process ever delivers another attempt.
- `dead attempts`: of a batch that is not released, the segments that no manifest names, of a stager's term whose
  process ended or is gone. Only the process that holds a term creates manifests of that term.
- `collected`: everything of the batches up to low water that every sink has. No start looks below low water, except for
  a sink that was registered while it moved. Such a sink has no marker yet, so its batches are left alone.
- `probes`: probes that are older than a day. A start deletes its probe within seconds.

A batch whose release or manifest is lost or cannot be read is left alone and counted. An attempt whose process may
still live is left alone too.
Nothing here depends on the moment at which it looks: a query, a drain or a collection may go on at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from wal_sink.errors import CorruptError
from wal_sink.recovery.inventory import Lost, find_again, newest_marked
from wal_sink.recovery.sink_names import read_names
from wal_sink.stores.base import ObjectMissing
from wal_sink.wal import paths
from wal_sink.wal.holders import Holding, holder_of
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Release, SinkRecord

LOST_ATTEMPTS, DEAD_ATTEMPTS, COLLECTED, PROBES = "lost attempts", "dead attempts", "collected", "probes"
OLD_PROBE = timedelta(days=1)
"""Age of a probe by the time in its name. Clocks of two machines differ by less."""
AT_ONCE = 64
"""Batches whose names are in memory at once."""
T = TypeVar("T")
R = TypeVar("R")
_PROBE_FOLDER = "probe"
_PROBE = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{32}\.json")
_DEAD = frozenset({Holding.ENDED, Holding.GONE})


@dataclass(frozen=True, slots=True)
class Debris:
    """Some objects that can be deleted."""

    kind: str
    steps: tuple[tuple[str, ...], ...]
    """Paths, in the order in which they must be deleted: one step after the other."""

    @property
    def paths(self) -> list[str]:
        return [path for step in self.steps for path in step]

    def bytes(self, log: Log) -> int:
        """The size of all objects that still exist. A request for each."""
        return sum(log.runtime.side_by_side(lambda path: _size(log, path), self.paths))


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A batch that is damaged, in place of its debris."""

    batch_id: int


def find_debris(log: Log, *, on_damaged: Callable[[int], None] = lambda _batch_id: None) -> Iterator[Debris]:
    """All debris of a WAL, batch by batch. Reads only. `on_damaged` gets each batch that is damaged.

    One to four requests for each batch that the WAL holds, and more where an attempt was lost.
    """
    yield from _probes(log)
    through = min(log.low_water(), _has_everywhere(log))
    yield from _collected(log, through)
    dead: dict[int, bool] = {}
    for found in _in_windows(log, lambda held: _attempts(log, *held, dead), list(_held(log, through))):
        if isinstance(found, _Damaged):
            on_damaged(found.batch_id)
        else:
            yield from found


def _in_windows(log: Log, find: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The result of each item, in order: some requests at once, in bounded memory."""
    for start in range(0, len(items), AT_ONCE):
        yield from log.runtime.side_by_side(find, items[start : start + AT_ONCE])


def _probes(log: Log) -> Iterator[Debris]:
    found = []
    for name in log.store.list(_PROBE_FOLDER):
        match = _PROBE.fullmatch(name)
        if match and log.runtime.now() - datetime.strptime(f"{match[1]}+0000", "%Y%m%dT%H%M%SZ%z") > OLD_PROBE:
            found.append(f"{_PROBE_FOLDER}/{name}")
    if found:
        yield Debris(PROBES, (tuple(found),))


def _has_everywhere(log: Log) -> int:
    """A batch below the newest one of each sink that is not retired: its markers up to there are not needed.

    Raises `ObjectLost` if a registration is gone.
    """
    through = []
    for sink in read_names(log).sinks:
        if sink.is_retired or paths.FORGOTTEN in log.store.list(f"{paths.SINKS}/{sink.folder}"):
            continue
        path = paths.sink(sink.folder)
        record = log.find(SinkRecord, path)
        if record is None:
            record = find_again(log, SinkRecord, path, Lost.SINK, f"{paths.SINKS}/{sink.folder}/")
        through.append(max(newest_marked(log, sink.folder), record.first_batch) - 1)
    return min(through, default=NOTHING)


def _collected(log: Log, through: int) -> Iterator[Debris]:
    folders = [name.removesuffix("/") for name in log.store.list(paths.SINKS) if name.endswith("/")]
    for root in (paths.BATCHES, *(paths.progress_batches(folder) for folder in folders)):
        held = [found for _, found in _folders(log, root, through=through)]
        for objects in _in_windows(log, lambda found: _all(log, found), held):
            if objects:
                yield Debris(COLLECTED, (tuple(objects),))
    for folder in folders:
        markers = paths.markers(folder)
        old = [f"{markers}/{name}" for name in log.store.list(markers) if _is_through(name, through)]
        if old:
            yield Debris(COLLECTED, (tuple(old),))


def _held(log: Log, through: int) -> Iterator[tuple[int, list[str]]]:
    """Each batch above `through` with its folders: its own, and those in shards."""
    return ((batch_id, found) for batch_id, found in _folders(log, paths.BATCHES) if batch_id > through)


def _folders(log: Log, root: str, *, through: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """The batches below `root`, each with its folders. One listing, and one for each shard."""
    names = log.store.list(root)
    places = [(root, names)]
    places += [(at, log.store.list(at)) for at in (f"{root}/{name[:-1]}" for name in names if paths.is_shard(name))]
    found: dict[int, list[str]] = {}
    for at, listed in places:
        for name in listed:
            number = paths.parse_number(name)
            if number is not None and name.endswith("/") and (through is None or number <= through):
                found.setdefault(number, []).append(f"{at}/{name}")
    yield from sorted(found.items())


def _attempts(log: Log, batch_id: int, folders: Sequence[str], dead: dict[int, bool]) -> list[Debris] | _Damaged:
    objects = _all(log, folders)
    try:
        if paths.release(batch_id) in objects:
            return _of_released(log, batch_id, objects)
        if any(_is_dead(log, term, dead) for term in _terms_of(objects)):
            # The process is gone, so a second look shows every manifest that it created.
            return _of_dead(log, batch_id, _all(log, folders), dead)
    except CorruptError:
        return _Damaged(batch_id)  # whatever is left of it may be needed to restore it
    return []


def _of_released(log: Log, batch_id: int, objects: Sequence[str]) -> list[Debris] | _Damaged:
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return []  # it was collected meanwhile
    counts = paths.manifest(batch_id, release.term, release.attempt)
    manifest = log.find(Manifest, counts)
    if manifest is None:
        is_lost = log.find(Release, paths.release(batch_id)) is not None
        return _Damaged(batch_id) if is_lost else []
    named = {segment.path for segment in manifest.segments}
    losers = tuple(path for path in objects if _manifest_name(path) is not None and path != counts)
    segments = tuple(path for path in objects if _attempt_of(path) is not None and path not in named)
    return [Debris(LOST_ATTEMPTS, (losers, segments))] if losers or segments else []


def _of_dead(log: Log, batch_id: int, objects: Sequence[str], dead: dict[int, bool]) -> list[Debris]:
    if paths.release(batch_id) in objects:
        return []  # it was released meanwhile; the next look treats it so
    manifests = [log.find(Manifest, path) for path in objects if _manifest_name(path) is not None]
    named = {segment.path for manifest in manifests if manifest is not None for segment in manifest.segments}
    found = []
    for path in objects:
        attempt = _attempt_of(path)
        if attempt is not None and path not in named and dead.get(attempt.term, False):
            found.append(path)
    return [Debris(DEAD_ATTEMPTS, (tuple(found),))] if found else []


def _is_dead(log: Log, term: int, known: dict[int, bool]) -> bool:
    """Whether the process that held a stager's term has certainly ended. Two reads, once for each term."""
    if term not in known:
        known[term] = holder_of(log, paths.STAGER_ROLE, term).state in _DEAD
    return known[term]


def _terms_of(objects: Sequence[str]) -> set[int]:
    return {attempt.term for path in objects if (attempt := _attempt_of(path)) is not None}


def _attempt_of(path: str) -> paths.ManifestName | None:
    """The attempt of a segment; None for any other object."""
    folder, _, name = path.rpartition("/")
    return paths.parse_attempt(f"{folder.rpartition('/')[2]}/") if paths.parse_segment(name) is not None else None


def _manifest_name(path: str) -> paths.ManifestName | None:
    return paths.parse_manifest(path.rpartition("/")[2])


def _all(log: Log, folders: Sequence[str]) -> list[str]:
    """Every object below some folders, each of which ends in `/`."""
    store = log.store
    return [folder + name for folder in folders for name in store.list(folder.removesuffix("/"), recursive=True)]


def _is_through(name: str, batch_id: int) -> bool:
    number = paths.parse_number(name)
    return number is not None and number <= batch_id


def _size(log: Log, path: str) -> int:
    try:
        return log.store.size(path)
    except ObjectMissing:
        return 0  # it was deleted meanwhile
