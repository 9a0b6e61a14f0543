"""The recent past of a WAL as plain data: its newest batches, their deliveries, and the dead letters of each sink."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wal_sink.inspection.ages import moment_of, seconds_between
from wal_sink.inspection.health import Health
from wal_sink.inspection.registrations import reading_log
from wal_sink.inspection.staged import StagedBatch, find_staged
from wal_sink.inspection.status import SinkStatus, Status
from wal_sink.inspection.timeline import SinkTimeline, timeline_of
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker

NEWEST = 200
"""Default of the most batches that a report reads."""
MOST_LETTER_BATCHES = 200
"""The most batches with dead letters that a report names for each sink."""

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Past:
    """The newest batches of a WAL that have a manifest, oldest first."""

    held: int
    """Batches in the WAL."""
    staged: tuple[StagedBatch, ...]

    @property
    def manifests(self) -> list[Manifest]:
        return [each.manifest for each in self.staged if each.manifest is not None]


def read_past(
    store: Store,
    status: Status,
    *,
    newest: int = NEWEST,
    on_batch: Callable[[int, int], None] = lambda _done, _all: None,
) -> Past:
    """Read the newest batches: a listing, and up to three requests a batch, several batches at once."""
    log = reading_log(store)
    held = log.numbers(paths.BATCHES, after=status.low_water)
    wanted, done = held[-newest:], 0

    def look(batch_id: int) -> StagedBatch:
        nonlocal done
        found = find_staged(log, batch_id)
        done += 1
        on_batch(done, len(wanted))
        return found

    staged = log.runtime.side_by_side(look, wanted)
    return Past(len(held), tuple(each for each in staged if each.manifest is not None))


def read_deliveries(store: Store, sink: SinkStatus, past: Past) -> list[Data]:
    """The delivery of each batch to one sink. A listing, and a read for each marker of these batches."""
    log = reading_log(store)
    manifests = past.manifests
    if not manifests:
        return []
    first = manifests[0].batch_id
    numbers = log.numbers(paths.markers(sink.folder), after=first - 1)
    last = manifests[-1].batch_id
    wanted = [number for number in numbers if number <= last] + [number for number in numbers if number > last][:1]
    markers = _markers(log, sink.folder, wanted)
    found = []
    for manifest in manifests:
        marker = next((markers[number] for number in wanted if number >= manifest.batch_id), None)
        found.append(_delivery(manifest, timeline_of(sink.name, manifest.created, marker, manifest.batch_id)))
    return found


def _markers(log: Log, folder: str, numbers: Sequence[int]) -> dict[int, Marker | None]:
    """Markers by number. One that was collected meanwhile is None."""
    found = log.runtime.side_by_side(lambda number: log.find(Marker, paths.marker(folder, number)), numbers)
    return dict(zip(numbers, found, strict=True))


def read_letters(store: Store, sink: SinkStatus) -> list[tuple[int, int]]:
    """The newest batches with dead letters of a sink, and the number of their files. One listing."""
    names = store.list(paths.dead_letter_batches(sink.folder), recursive=True)
    letters = Counter(name.partition("/")[0] for name in names if name.endswith(".parquet"))
    counted = sorted((number, count) for name, count in letters.items() if (number := _number(name)) is not None)
    return counted[-MOST_LETTER_BATCHES:]


def _number(name: str) -> int | None:
    return paths.parse_number(name)


def batch_data(each: StagedBatch) -> Data:
    """A batch for the page."""
    manifest = each.manifest
    if manifest is None:
        return {"id": each.batch_id}
    timing = manifest.timing
    slowest = timing.slowest if timing else None
    host = f" on {slowest.host}" if slowest and slowest.host else ""
    return {
        "id": manifest.batch_id,
        "at": _ms(manifest.created),
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "segments": len(manifest.segments),
        "attempts": each.attempts,
        "staging": seconds_between(timing.began if timing else None, manifest.created),
        "tasks": timing.tasks if timing else None,
        "slowest": f"partition {slowest.partition}{host}, {slowest.seconds:.3f} s" if slowest else None,
    }


def _delivery(manifest: Manifest, found: SinkTimeline) -> Data:
    slowest, host = found.slowest, f" on {found.slowest.host}" if found.slowest and found.slowest.host else ""
    return {
        "id": manifest.batch_id,
        "lag": seconds_between(manifest.created, found.marked_at),
        "queue": found.queue_s,
        "checkpoint": found.checkpoint_s,
        "delivery": found.delivery_s,
        "fetch": found.fetch_s,
        "send": found.send_s,
        "marker": found.marker_s,
        "retries": found.retries,
        "slowest": f"segment {slowest.ordinal}{host}" if slowest else None,
    }


def size_classes(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """How many segments have at least so many bytes, and fewer than twice as many: powers of two, without gaps."""
    counts = Counter(int(math.log2(size)) for size in sizes if size > 0)
    if not counts:
        return []
    return [(2**power, counts[power]) for power in range(min(counts), max(counts) + 1)]


def sink_data(status: Status, health: Health) -> list[Data]:
    """The sinks as `wal-sink status` shows them, for the page."""
    found = []
    for sink, its in zip(status.sinks, health.sinks, strict=True):
        error = its.last_error
        found.append(
            {
                "name": sink.name,
                "kind": sink.kind,
                "state": sink.state,
                "through": sink.delivered_through,
                "lag": its.lag_s,
                "note": its.lag_note,
                "pending": its.pending.batches,
                "behind": its.behind_spark,
                "letters": its.dead_letters,
                "retired": its.is_retired,
                "error": f"{error.error_class}: {error.text}" if error and not error.is_over else "",
            }
        )
    return found


def _ms(created: str) -> int | None:
    moment = moment_of(created)
    return None if moment is None else int(moment.timestamp() * 1000)
