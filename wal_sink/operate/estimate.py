"""The cost of a query's log: requests, storage and dollars of a month, by one formula. Sends no request.

The numbers of requests are constants. `tests/unit/protocol/test_requests_of_a_batch.py` and
`tests/unit/operate/test_estimate.py` count what the protocol sends, and compare it with them. docs/cost.md shows the
formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from wal_sink.errors import ConfigError
from wal_sink.protocol.collect import COLLECT_EVERY_BATCHES
from wal_sink.settings import Settings
from wal_sink.sinks.guarantees import Ability

MONTH_S = 730 * 3600
PRICES_OF = "S3 Standard, us-east-1, 2026-11-21"
MOST = 1e12
"""The largest number of a plan: beyond any query, and every result is finite."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind. Averages are fractions."""

    puts: float = 0
    gets: float = 0
    lists: float = 0
    deletes: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def times(self, factor: float) -> Requests:
        """These requests, multiplied by a factor."""
        return Requests(*(getattr(self, each.name) * factor for each in fields(self)))


@dataclass(frozen=True, slots=True)
class SinkKind:
    """Requests of delivery to a sink of this kind, beyond `OF_SINK` and `OF_SEGMENT_READ`."""

    of_batch: Requests = Requests()
    of_segment: Requests = Requests()
    of_chunk: Requests = Requests()
    spares_one: bool = False
    """True if a batch of one segment has one record and one look less: its marker and its release stand for them."""
    collected: Requests = Requests()
    """Requests to collect a batch that has records of this sink."""

    def of(self, segments: int, chunks: int) -> Requests:
        """The requests for a batch of so many segments and chunks."""
        spared = RECORD.times(-1 if self.spares_one and segments == 1 else 0)
        return self.of_batch + self.of_segment.times(segments) + self.of_chunk.times(chunks) + spared


STAGED = Requests(puts=2)
"""For each batch: its manifest and its release."""
SEGMENT = Requests(puts=1)
OF_SINK = Requests(puts=1, gets=1)
"""For each batch and sink: a look at the term before the release, and the marker."""
OF_SEGMENT_READ = Requests(gets=1)
"""For each segment and sink."""
RECORD = Requests(puts=1, gets=1)
"""A record of progress, and a look at the term."""
OF_CHECKPOINT = Requests(gets=2)
"""For each batch: its offsets, twice. Spark's own requests are not counted."""
OF_GATE = Requests(gets=2)
"""For each batch and sink: its gate, and the next one. A gate that opens late is read more often."""
OF_COLLECTION = Requests(puts=1, gets=1, lists=6)
"""For each collection, once in `COLLECT_EVERY_BATCHES` batches."""
OF_COLLECTION_AND_SINK = Requests(gets=2, lists=4)
COLLECTED = Requests(lists=1)
"""For each batch that is collected."""
PAGE = 1000
"""Objects that one request deletes, and names of a listing."""

_BY_CHUNK = SinkKind(of_chunk=RECORD, spares_one=True, collected=Requests(lists=1))
KINDS: Mapping[str, SinkKind] = {
    Ability.ACCEPT: _BY_CHUNK,
    "at most once": SinkKind(of_chunk=RECORD, collected=Requests(lists=1)),
    Ability.IGNORE_KNOWN_KEYS: SinkKind(),
    Ability.LOOK_UP: _BY_CHUNK,
    Ability.TRANSACTIONAL: SinkKind(),
    # In batches of small partitions, as the driver prepares them: the begun and the prepared record. Others cost less.
    Ability.TWO_PHASE: SinkKind(
        of_batch=Requests(gets=1), of_segment=Requests(puts=2, gets=1), collected=Requests(gets=2, lists=3)
    ),
    Ability.SEGMENT_WRITER: SinkKind(of_segment=RECORD, spares_one=True, collected=Requests(lists=1)),
    Ability.BATCH_WRITER: SinkKind(of_batch=Requests(gets=1)),
    Ability.COMMIT: SinkKind(of_batch=Requests(gets=1)),
}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars, by default those of `PRICES_OF`. S3 deletes for nothing."""

    per_1000_puts: float = 0.005
    """Of 1,000 PUT requests or listings."""
    per_1000_gets: float = 0.0004
    gb_month: float = 0.023
    """Of a gigabyte (2^30 bytes) for a month."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """A query that writes into one WAL. Raises `ConfigError` for impossible values."""

    batch_interval_s: float = 10.0
    rows_per_s: float = 1000.0
    """Rows that arrive per second, for the whole query."""
    row_bytes: float = 70.0
    """Bytes of a row in a segment, which is compressed."""
    segments: int = 1
    """Segments of a batch. Small partitions share one."""
    chunk_rows: int = Settings().chunk_rows
    sinks: tuple[str, ...] = (Ability.ACCEPT,)
    """The kind of each sink, of `KINDS`."""
    retention_batches: int = Settings().retention_batches

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check(name, getattr(self, name), least)
        if wrong := [kind for kind in self.sinks if kind not in KINDS]:
            raise ConfigError(f"sinks={wrong[0]!r}: expected one of {', '.join(KINDS)}")
        if not self.sinks:
            raise ConfigError("sinks=(): expected the kind of at least one sink")

    @property
    def rows(self) -> float:
        """Rows of a batch."""
        return self.rows_per_s * self.batch_interval_s

    @property
    def chunks(self) -> int:
        """Chunks of a batch, whose segments are equally long."""
        return self.segments * max(1, math.ceil(self.rows / self.segments / self.chunk_rows))

    @property
    def of_batch(self) -> Requests:
        """Requests to the WAL to stage a batch, release it, deliver it to every sink and mark it."""
        of_sinks = (self._of_sink(KINDS[kind]) for kind in self.sinks)
        return sum(of_sinks, STAGED + SEGMENT.times(self.segments))

    def _of_sink(self, kind: SinkKind) -> Requests:
        return OF_SINK + OF_SEGMENT_READ.times(self.segments) + kind.of(self.segments, self.chunks)

    @property
    def of_collection(self) -> Requests:
        """Requests to collect `COLLECT_EVERY_BATCHES` batches."""
        of_sinks = (self._collected(KINDS[kind]) for kind in self.sinks)
        of_one = sum(of_sinks, COLLECTED).times(COLLECT_EVERY_BATCHES)
        objects = 1 + COLLECT_EVERY_BATCHES * self.of_batch.puts  # what was made, and an old low water
        deletes = Requests(deletes=math.ceil(objects / PAGE))
        return OF_COLLECTION + OF_COLLECTION_AND_SINK.times(len(self.sinks)) + of_one + deletes

    def _collected(self, kind: SinkKind) -> Requests:
        return kind.collected if kind.of(self.segments, self.chunks).puts else Requests()

    @property
    def of_checkpoint(self) -> Requests:
        """Reads of the checkpoint for a batch."""
        return OF_CHECKPOINT + OF_GATE.times(len(self.sinks))


_LEAST = {"batch_interval_s": 1e-3, "rows_per_s": 0, "row_bytes": 0, "segments": 1, "chunk_rows": 1,
          "retention_batches": 0}  # fmt: skip


def _check(name: str, value: float, least: float) -> None:
    if not least <= value <= MOST:  # NaN is not between them either
        raise ConfigError(f"{name}={value!r}: expected a number from {least:g} to {MOST:g}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a plan. `plan` and `prices` are its input."""

    plan: Plan
    prices: Prices = field(default_factory=Prices)

    @property
    def requests(self) -> Requests:
        """Requests of a batch: of the WAL, of the checkpoint, and its share of a collection."""
        plan = self.plan
        return plan.of_batch + plan.of_checkpoint + plan.of_collection.times(1 / COLLECT_EVERY_BATCHES)

    @property
    def batches_a_month(self) -> float:
        return MONTH_S / self.plan.batch_interval_s

    @property
    def stored_bytes(self) -> float:
        """Average bytes of segments in the WAL: the retention, and half of the batches between two collections."""
        kept = self.plan.retention_batches + COLLECT_EVERY_BATCHES / 2
        return kept * self.plan.rows * self.plan.row_bytes

    @property
    def request_dollars(self) -> float:
        """Dollars of a month for requests."""
        requests, prices = self.requests, self.prices
        puts = (requests.puts + requests.lists) * prices.per_1000_puts
        return (puts + requests.gets * prices.per_1000_gets) / 1000 * self.batches_a_month

    @property
    def storage_dollars(self) -> float:
        """Dollars of a month for storage."""
        return self.stored_bytes / 2**30 * self.prices.gb_month
