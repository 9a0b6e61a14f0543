"""The batches that a WAL holds, each with its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.delivery.progress import furthest_rows, recorded_chunks
from wal_sink.inspection.registrations import find_registration, reading_log
from wal_sink.recovery.inventory import find_wal, held_batches, newest_marked
from wal_sink.recovery.sink_names import KnownSink, read_names
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, Release


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


def read_batches(
    store: Store, *, after: int = NOTHING, on_batch: Callable[[int, int], None] = lambda _done, _total: None
) -> list[BatchView]:
    """Every batch above low water and `after`, oldest first. Two or three requests a batch. Raises `ObjectLost`.

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
        found.append(_batch_view(log, batch_id, marked))
        on_batch(len(found), len(wanted))
    return found


def read_manifest(store: Store, batch_id: int) -> Manifest | None:
    """The manifest that counts for a batch: the released one, else the highest; None if there is none."""
    log = reading_log(store)
    release = log.find(Release, paths.release(batch_id))
    if release is not None:
        return log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    found = [paths.parse_manifest(name) for name in store.list(paths.batch(batch_id))]
    highest = max((name for name in found if name is not None), default=None)
    return log.find(Manifest, paths.manifest(batch_id, *highest)) if highest else None


def read_batch(store: Store, batch_id: int) -> BatchDetail | None:
    """One batch with its records; None if the WAL holds no manifest of it."""
    log = reading_log(store)
    manifest = read_manifest(store, batch_id)
    if manifest is None:
        return None
    return BatchDetail(
        manifest=manifest,
        attempts=sum(paths.parse_manifest(name) is not None for name in store.list(paths.batch(batch_id))),
        release=log.find(Release, paths.release(batch_id)),
        delivered=tuple(_delivered(log, sink, manifest) for sink in read_names(log).sinks),
    )


def _marked(log: Log, name: str) -> range:
    """The batches that a sink's markers stand for: all from its first to the newest marker.

    A folder without a registration belongs to a forgotten sink, which has none.
    """
    newest = newest_marked(log, name)
    sink = find_registration(log, name, f"a marker of batch {newest}" if newest > NOTHING else None)
    return range(sink.first_batch, newest + 1) if sink else range(0)


def _delivered(log: Log, known: KnownSink, manifest: Manifest) -> Delivered:
    name = known.folder
    marker = log.find(Marker, paths.marker(name, manifest.batch_id))
    complete = marker is not None or manifest.batch_id in _marked(log, name)
    found = recorded_chunks(log.store, name, manifest)
    skipped = marker is not None and marker.skipped
    rows = manifest.rows if complete and not skipped else sum(furthest_rows(found).values())
    return Delivered(sink=known.name, complete=complete, chunks=len(found), rows=rows, skipped=skipped)


def _batch_view(log: Log, batch_id: int, marked: dict[str, range]) -> BatchView:
    names = log.store.list(paths.batch(batch_id))
    manifest = read_manifest(log.store, batch_id)
    return BatchView(
        batch_id=batch_id,
        attempts=sum(paths.parse_manifest(name) is not None for name in names),
        released="release.json" in names,
        rows=manifest.rows if manifest else 0,
        bytes=manifest.bytes if manifest else 0,
        segments=len(manifest.segments) if manifest else 0,
        delivered_to=tuple(name for name, batches in marked.items() if batch_id in batches),
    )
