"""The batches that a WAL holds, each with its records and where its time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wal_sink.delivery.progress import furthest_rows, recorded_chunks
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.inspection.status import find_registration, reading_log
from wal_sink.inspection.timeline import SinkTimeline, Timeline, timeline_of, whole_timeline
from wal_sink.recovery.inventory import find_wal, held_batches, newest_marked
from wal_sink.recovery.sink_names import KnownSink, read_names
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, Release


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch as its folder shows it, with the manifest that counts."""

    batch_id: int
    attempts: int
    """Those with a manifest."""
    manifest: Manifest | None = None
    """The released one, else the highest. None: the batch is being staged, it was collected meanwhile, its manifest was
    lost, or `error` tells why it cannot be read.
    """
    release: Release | None = None
    error: CorruptError | ConfigError | None = None
    """Its records are damaged, or a newer version wrote them."""

    def whole(self) -> StagedBatch:
        """The batch. Raises the error that it has."""
        if self.error is not None:
            raise self.error
        return self


def find_staged(log: Log, batch_id: int) -> StagedBatch:
    """A batch, while others write to the WAL and collect from it. One listing and one or two reads.

    Raises `StoreError`. Damaged records are an answer, so that the other batches can be shown.
    """
    names = log.store.list(paths.batch(batch_id))
    manifests = sorted(name for name in map(paths.parse_manifest, names) if name is not None)
    try:
        release = log.find(Release, paths.release(batch_id)) if "release.json" in names else None
        counts = (release.term, release.attempt) if release else max(manifests, default=None)
        manifest = log.find(Manifest, paths.manifest(batch_id, *counts)) if counts else None
    except (CorruptError, ConfigError) as error:
        return StagedBatch(batch_id, len(manifests), error=error)
    return StagedBatch(batch_id, len(manifests), manifest, release)


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch, as its records show it."""

    batch_id: int
    attempts: int
    released: bool
    rows: int
    bytes: int
    segments: int
    delivered_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivery of one batch to one sink."""

    sink: str
    complete: bool
    """Whether its marker exists, or a later one: then the sink has the whole batch."""
    chunks: int
    """Number of progress records. The batch's marker may stand for the last one."""
    rows: int
    """Rows that the sink has, by these records."""
    skipped: bool = False
    """Whether a person ordered that the sink passes over the batch: then it lacks rows, though `complete` is True."""


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """One batch with its records."""

    manifest: Manifest
    """The manifest that counts."""
    attempts: int
    release: Release | None
    delivered: tuple[Delivered, ...]
    timeline: Timeline


def read_batches(
    store: Store, *, after: int = NOTHING, on_batch: Callable[[int, int], None] = lambda _done, _total: None
) -> list[BatchView]:
    """Every batch above low water and `after`, oldest first. Two or three requests a batch. Raises `CorruptError`.

    `on_batch` is called before the first batch and after each one, with the number of batches read and their total.
    """
    log = reading_log(store)
    wal = find_wal(log)
    marked = {sink.name: _marked(log, sink.folder) for sink in read_names(log).sinks}
    held = held_batches(log, wal)[1] if wal else []
    wanted = [batch_id for batch_id in held if batch_id > after]
    found: list[BatchView] = []
    on_batch(0, len(wanted))
    for batch_id in wanted:
        found.append(_view(find_staged(log, batch_id).whole(), marked))
        on_batch(len(found), len(wanted))
    return found


def read_manifest(store: Store, batch_id: int) -> Manifest | None:
    """The manifest that counts for a batch: the released one, else the highest; None if there is none."""
    return find_staged(reading_log(store), batch_id).whole().manifest


def read_batch(store: Store, batch_id: int) -> BatchDetail | None:
    """One batch with its records; None if the WAL holds no manifest of it. For each sink two listings, the reads of its
    registration and of a marker, and those of its name.
    """
    log = reading_log(store)
    staged = find_staged(log, batch_id).whole()
    manifest = staged.manifest
    if manifest is None:
        return None
    sinks = [_of_sink(log, sink, manifest) for sink in read_names(log).sinks]
    return BatchDetail(
        manifest=manifest,
        attempts=staged.attempts,
        release=staged.release,
        delivered=tuple(delivered for delivered, _ in sinks),
        timeline=whole_timeline(manifest, staged.release, tuple(times for _, times in sinks)),
    )


def _marked(log: Log, name: str) -> range:
    """The batches that a sink's markers stand for: all from its first to the newest marker.

    A folder without a registration belongs to a forgotten sink, which has none.
    """
    newest = newest_marked(log, name)
    sink = find_registration(log, name, f"a marker of batch {newest}" if newest > NOTHING else None)
    return range(sink.first_batch, newest + 1) if sink else range(0)


def _of_sink(log: Log, known: KnownSink, manifest: Manifest) -> tuple[Delivered, SinkTimeline]:
    """The delivery of a batch to a sink and its times, by the first marker that stands for the batch."""
    folder, batch_id = known.folder, manifest.batch_id
    numbers = log.numbers(paths.markers(folder), after=batch_id - 1)
    marker = log.find(Marker, paths.marker(folder, numbers[0])) if numbers else None
    sink = find_registration(log, folder, f"a marker of batch {numbers[-1]}" if numbers else None)
    complete = bool(numbers) and (numbers[0] == batch_id or (sink is not None and sink.first_batch <= batch_id))
    skipped = marker is not None and marker.batch_id == batch_id and marker.skipped
    found = recorded_chunks(log.store, folder, manifest)
    rows = manifest.rows if complete and not skipped else sum(furthest_rows(found).values())
    delivered = Delivered(sink=known.name, complete=complete, chunks=len(found), rows=rows, skipped=skipped)
    return delivered, timeline_of(known.name, manifest.created, marker, batch_id)


def _view(staged: StagedBatch, marked: Mapping[str, range]) -> BatchView:
    manifest = staged.manifest
    return BatchView(
        batch_id=staged.batch_id,
        attempts=staged.attempts,
        released=staged.release is not None,
        rows=manifest.rows if manifest else 0,
        bytes=manifest.bytes if manifest else 0,
        segments=len(manifest.segments) if manifest else 0,
        delivered_to=tuple(name for name, batches in marked.items() if staged.batch_id in batches),
    )
