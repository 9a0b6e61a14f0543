"""Objects of a WAL that nothing can name any more, and the reason why for each kind.

- `lost attempts`: of a released batch, the manifests that lost, and the segments that the released manifest does not
  name. A release is final, so no process ever delivers another attempt.
- `dead attempts`: of a batch that is not released, the segments that no manifest names, of a stager's term whose
  process ended or is gone. Only the process that holds a term creates manifests of that term. A manifest may be lost,
  so it is also proven that nothing needs the attempt: a later attempt has a manifest, or Spark has not completed the
  batch and runs it again (`repair.need`).
- `collected`: everything of the batches up to low water that every sink has. No start looks below low water, except for
  a sink that was registered while it moved. Such a sink has no marker yet, so its batches are left alone.
- `probes`: probes that are older than a day. A start deletes its probe within seconds.

A batch whose release, manifest or segment is lost or cannot be read is left alone and told: whatever is left of it may
be the only copy of its rows, or may be needed once the lost object was restored. An attempt whose process may still
live is left alone too.
Nothing here depends on the moment at which it looks: a query, a drain or a collection may go on at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from wal_sink.errors import CorruptError
from wal_sink.recovery.inventory import Lost, check_unserved_sinks, find_again, marked_through, take
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.need import DAMAGED, NO_CHECKPOINT, Answer, Evidence, LeftAlone, SparkSide, read_evidence
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


Found = Debris | LeftAlone


def find_debris(
    log: Log, spark: SparkSide = NO_CHECKPOINT, *, on_left_alone: Callable[[LeftAlone], None] = lambda _left: None
) -> Iterator[Debris]:
    """All debris of a WAL, batch by batch. Reads only. `on_left_alone` gets each batch of which something must stay.

    One to four requests for each batch that the WAL holds, and more where an attempt was lost.
    """
    yield from _probes(log)
    through = min(log.low_water(), _has_everywhere(log))
    yield from _collected(log, through)
    held = list(_held(log, through))
    # Read before any batch is looked at: whatever is evidence of an object was made after it.
    look = _Look(log, spark, read_evidence(log, [batch_id for batch_id, _ in held]))
    for batch in _in_windows(log, lambda each: _attempts(look, *each), held):
        for found in batch:
            if isinstance(found, LeftAlone):
                on_left_alone(found)
            else:
                yield found


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

    Raises `ObjectLost` if a registration is gone, or every object of a sink that has a term.
    """
    check_unserved_sinks(log, take(log), ())
    through = []
    for sink in read_names(log).sinks:
        if sink.is_retired or paths.FORGOTTEN in log.store.list(f"{paths.SINKS}/{sink.folder}"):
            continue
        path = paths.sink(sink.folder)
        record = log.find(SinkRecord, path)
        if record is None:
            record = find_again(log, SinkRecord, path, Lost.SINK, f"{paths.SINKS}/{sink.folder}/")
        through.append(max(marked_through(log, sink.folder), record.first_batch) - 1)
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


class _Look:
    """One look at the batches of a WAL."""

    def __init__(self, log: Log, spark: SparkSide, evidence: Evidence) -> None:
        self.log, self.spark, self.evidence = log, spark, evidence
        self._dead: dict[int, bool] = {}

    def is_dead(self, term: int) -> bool:
        """Whether the process that held a stager's term has certainly ended. Two reads, once for each term."""
        if term not in self._dead:
            self._dead[term] = holder_of(self.log, paths.STAGER_ROLE, term).state in _DEAD
        return self._dead[term]


def _attempts(look: _Look, batch_id: int, folders: Sequence[str]) -> list[Found]:
    objects = _all(look.log, folders)
    try:
        if paths.release(batch_id) in objects:
            found = _of_released(look.log, batch_id, objects)
        else:
            found = _of_unreleased(look, batch_id, folders, objects)
    except CorruptError:
        return [LeftAlone(batch_id, DAMAGED)]  # whatever is left of it may be needed to restore it
    is_suspicious = any(isinstance(each, LeftAlone) and each.is_damaged for each in found)
    return [] if is_suspicious and look.log.low_water() >= batch_id else found  # it is being collected


def _of_released(log: Log, batch_id: int, objects: Sequence[str]) -> list[Found]:
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return []  # it was collected meanwhile
    counts = paths.manifest(batch_id, release.term, release.attempt)
    manifest = log.find(Manifest, counts)
    if manifest is None:
        is_lost = log.find(Release, paths.release(batch_id)) is not None
        return [LeftAlone(batch_id, f"{counts}, which is released, is lost")] if is_lost else []
    if manifest.fingerprint != release.fingerprint:
        return [LeftAlone(batch_id, "its release and the manifest that it names do not belong together")]
    named = {segment.path: segment.kept for segment in manifest.segments}
    lost = next((path for path, is_kept in named.items() if is_kept and path not in objects), None)
    if lost is not None:
        return [LeftAlone(batch_id, f"{lost}, which is to be delivered, is lost")]
    losers = tuple(path for path in objects if _manifest_name(path) is not None and path != counts)
    segments = tuple(path for path in objects if _attempt_of(path) is not None and path not in named)
    return [Debris(LOST_ATTEMPTS, (losers, segments))] if losers or segments else []


def _of_unreleased(look: _Look, batch_id: int, folders: Sequence[str], objects: Sequence[str]) -> list[Found]:
    if look.evidence.was_released(batch_id):
        if paths.skipped(batch_id) in objects:
            return []  # nothing was left of it when a sink passed over it
        return [LeftAlone(batch_id, f"{paths.release(batch_id)} is lost: a sink has the batch, or began it")]
    dead = {term for term in _terms_by_path(objects).values() if look.is_dead(term)}
    completed = look.evidence.was_completed(batch_id)
    if completed.is_yes is None and _undecided(objects):
        completed = look.spark.has_completed(look.log, batch_id)
    if dead or (completed.is_yes and _newest_manifest(objects) is None):
        # Processes are gone, and the checkpoint was read. So a second look shows every manifest that was made before.
        objects = _all(look.log, folders)
        if paths.release(batch_id) not in objects:  # otherwise the next look treats it as released
            return _of_dead(look.log, batch_id, objects, dead, completed)
    return []


def _of_dead(log: Log, batch_id: int, objects: Sequence[str], dead: Collection[int], completed: Answer) -> list[Found]:
    """The segments of ended terms that no manifest names, as far as it is proven that nothing needs them."""
    if completed.is_yes and _newest_manifest(objects) is None:
        return [LeftAlone(batch_id, f"its manifest is lost: {completed.because}")]
    unnamed = _unnamed(log, objects, dead)
    undecided = _undecided(objects) & set(unnamed) if completed.is_yes is not False else set()
    if undecided and completed.is_yes:
        return [LeftAlone(batch_id, f"its newest attempt has no manifest, which may be lost: {completed.because}")]
    found: list[Found] = []
    if undecided:
        why = f"it is not known whether Spark completed it: {completed.because}"
        found.append(LeftAlone(batch_id, why, is_damaged=False))
    if proven := tuple(path for path in unnamed if path not in undecided):
        found.append(Debris(DEAD_ATTEMPTS, (proven,)))
    return found


def _unnamed(log: Log, objects: Sequence[str], terms: Collection[int]) -> list[str]:
    """The segments of some terms that no manifest names."""
    manifests = [log.find(Manifest, path) for path in objects if _manifest_name(path) is not None]
    named = {segment.path for manifest in manifests if manifest is not None for segment in manifest.segments}
    return [path for path, term in _terms_by_path(objects).items() if path not in named and term in terms]


def _undecided(objects: Sequence[str]) -> set[str]:
    """The segments of attempts that come after every manifest: one of them counts if its manifest was lost."""
    newest = _newest_manifest(objects)
    attempts = {path: attempt for path in objects if (attempt := _attempt_of(path)) is not None}
    return {path for path, attempt in attempts.items() if newest is None or attempt > newest}


def _newest_manifest(objects: Sequence[str]) -> paths.ManifestName | None:
    return max((name for path in objects if (name := _manifest_name(path)) is not None), default=None)


def _terms_by_path(objects: Sequence[str]) -> dict[str, int]:
    return {path: attempt.term for path in objects if (attempt := _attempt_of(path)) is not None}


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
