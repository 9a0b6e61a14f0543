"""The report of a WAL: its recent past as plain data, and as one HTML page that needs no network.

The data of the page are JSON, and its script shows them as text only.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, Marker
from wal_sink.operate.batches import SinkTimeline, moment_of, seconds_between, timeline_of
from wal_sink.operate.health import Health
from wal_sink.operate.look import SinkOfWal, StagedBatch, WalFacts, find_staged
from wal_sink.operate.status import Status, status_of
from wal_sink.support.secrets import redacted

NEWEST = 200
"""Default of the most batches that a report reads."""
MOST_LETTER_BATCHES = 200
"""The most batches with dead letters that a report names for each sink."""
Data = dict[str, Any]
_MARK = re.compile("@(POLICY|TITLE|STYLE|SCRIPT|DATA)@")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class PastBatch:
    """A batch of a WAL: what the page shows of it, and no list of its segments."""

    shown: Data
    batch_id: int
    created: str
    """When its manifest was made."""
    sizes: Mapping[int, int]
    """Its segments by size, see `size_powers`."""


def read_past(
    facts: WalFacts, *, newest: int = NEWEST, on_batch: Callable[[int, int], None] = lambda _done, _all: None
) -> list[PastBatch]:
    """Read the newest batches that have a manifest, oldest first: up to three requests a batch, several at once."""
    wanted, done = facts.batches[-newest:], 0

    def look(batch_id: int) -> PastBatch | None:
        nonlocal done
        found = find_staged(facts.log, batch_id)
        done += 1
        on_batch(done, len(wanted))
        if (manifest := found.manifest) is None:
            return None
        sizes = size_powers(ref.bytes for ref in manifest.segments if ref.kept)
        return PastBatch(_batch_data(found, manifest), batch_id, manifest.created, sizes)

    return [each for each in facts.log.runtime.side_by_side(look, wanted) if each is not None]


def read_deliveries(log: Log, sink: SinkOfWal, past: Sequence[PastBatch]) -> list[Data]:
    """The delivery of each batch to one sink. A read for each marker of these batches."""
    covered = _by_marker(sink.markers, past)

    def look(number: int | None) -> list[Data]:
        # A marker that was collected meanwhile is None.
        marker = None if number is None else log.find(Marker, paths.marker(sink.folder, number))
        return [
            _delivery(each, timeline_of(sink.name, each.created, marker, each.batch_id)) for each in covered[number]
        ]

    return [each for found in log.runtime.side_by_side(look, list(covered)) for each in found]


def _by_marker(numbers: Sequence[int], batches: Iterable[PastBatch]) -> dict[int | None, list[PastBatch]]:
    """The batches by the first marker that stands for each, in their order; those without one under None."""
    covered: dict[int | None, list[PastBatch]] = {}
    for each in batches:
        place = bisect_left(numbers, each.batch_id)
        covered.setdefault(numbers[place] if place < len(numbers) else None, []).append(each)
    return covered


def letter_batches(sink: SinkOfWal) -> list[tuple[int, int]]:
    """The newest batches with dead letters of a sink, and the number of their files."""
    letters = Counter(name.partition("/")[0] for name in sink.letters if name.endswith(".parquet"))
    found = ((paths.parse_number(name), count) for name, count in letters.items())
    return sorted((number, count) for number, count in found if number is not None)[-MOST_LETTER_BATCHES:]


def _batch_data(each: StagedBatch, manifest: Manifest) -> Data:
    """A batch for the page."""
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


def _delivery(batch: PastBatch, found: SinkTimeline) -> Data:
    slowest, host = found.slowest, f" on {found.slowest.host}" if found.slowest and found.slowest.host else ""
    return {
        "id": batch.batch_id,
        "lag": seconds_between(batch.created, found.marked_at),
        "queue": found.queue_s,
        "checkpoint": found.checkpoint_s,
        "delivery": found.delivery_s,
        "fetch": found.fetch_s,
        "send": found.send_s,
        "marker": found.marker_s,
        "retries": found.retries,
        "slowest": f"segment {slowest.ordinal}{host}" if slowest else None,
    }


def size_powers(sizes: Iterable[int]) -> Counter[int]:
    """How many segments have a size of each power of two, rounded down."""
    return Counter(int(math.log2(size)) for size in sizes if size > 0)


def size_table(of_batches: Iterable[Mapping[int, int]]) -> list[tuple[int, int]]:
    """How many segments have at least so many bytes, and fewer than twice as many, without gaps."""
    counts: Counter[int] = Counter()
    for each in of_batches:
        counts.update(each)
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


def read_report(
    facts: WalFacts,
    health: Health,
    *,
    newest: int = NEWEST,
    on_batch: Callable[[int, int], None] = lambda _done, _all: None,
) -> Data:
    """The data of a report. Bounded: the newest batches, and for each sink their markers and two listings."""
    status, past = status_of(facts), read_past(facts, newest=newest, on_batch=on_batch)
    return {
        "wal": status.wal,
        "query": status.query_id,
        "checkpoint": status.checkpoint,
        "looked_at": health.looked_at,
        "spark": health.spark.newest,
        "spark_note": redacted(health.spark.unknown_because),
        "held": len(facts.batches),
        "shown": len(past),
        "sinks": sink_data(status, health),
        "batches": [each.shown for each in past],
        "deliveries": {sink.name: read_deliveries(facts.log, sink, past) for sink in facts.sinks},
        "letters": {sink.name: letter_batches(sink) for sink in facts.sinks},
        "sizes": size_table(each.sizes for each in past),
    }


def page_of(data: Data) -> str:
    """The page with these data. Every text in it is shown as text, whatever it holds."""
    template, style, script = (_part(name) for name in ("page.html", "page.css", "page.js"))
    title = escape(f"wal-sink: {data['wal']}")
    parts = {"POLICY": _POLICY, "TITLE": title, "STYLE": style, "SCRIPT": script, "DATA": _embedded(data)}
    return _MARK.sub(lambda mark: parts[mark[1]], template)  # in one pass: a part may hold anything


def _part(name: str) -> str:
    return files("wal_sink.operate").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: Data) -> str:
    """JSON that ends no script element and begins no comment."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
