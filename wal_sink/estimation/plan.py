"""What is planned: a query and its log on a cluster, and what is known of its store. Plain, validated values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.settings import Settings, Where
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths

PRICES_AS_OF = "2026-11-21"
"""When the prices of `S3_PRICES` were looked up; see docs/SCALE.md for where."""


def _check(owner: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ConfigError(f"{name}={value!r}: expected a number, at least {least:g}")


@dataclass(frozen=True, slots=True)
class Prices:
    """What a store charges, in US dollars."""

    per_1000_puts: float
    """Listings cost the same."""
    per_1000_gets: float
    """A GET that finds nothing costs the same."""
    per_1000_deletes: float
    gb_month: float
    """Of a gigabyte (2^30 bytes) kept for a month."""
    as_of: str
    """When they were looked up, for people."""

    def __post_init__(self) -> None:
        _check(self, 0, "per_1000_puts", "per_1000_gets", "per_1000_deletes", "gb_month")


S3_PRICES = Prices(
    per_1000_puts=0.005,
    per_1000_gets=0.0004,
    per_1000_deletes=0.0,
    gb_month=0.023,
    as_of=f"S3 Standard, us-east-1, {PRICES_AS_OF}",
)


@dataclass(frozen=True, slots=True)
class StoreModel:
    """What an estimate needs to know of a store."""

    name: str
    write_s: float
    """Of one PUT, until it is durable, besides the bytes it carries."""
    read_s: float
    """Of any other request."""
    bandwidth: float
    """Bytes per second of one connection."""
    writes_per_s: float | None = None
    """Most PUT, COPY, POST and DELETE a second under one prefix; None: no such limit is known."""
    reads_per_s: float | None = None
    """The same for GET, HEAD and listings."""
    page: int | None = None
    """Names that one listing request answers, and keys that one delete request takes; None: a call lists all, and a
    delete takes one path.
    """
    prices: Prices | None = None

    def __post_init__(self) -> None:
        _check(self, 0, "write_s", "read_s")
        _check(self, 1, "bandwidth", "writes_per_s", "reads_per_s", "page")

    def listings(self, names: int) -> int:
        """Requests that a listing of so many names takes. An empty folder takes one too."""
        return 1 if self.page is None else max(1, math.ceil(names / self.page))

    def deletes(self, keys: int) -> int:
        """Requests that deleting so many objects takes."""
        return keys if self.page is None else math.ceil(keys / self.page)


S3_MODEL = StoreModel(
    "s3", write_s=0.1, read_s=0.1, bandwidth=85e6, writes_per_s=3500, reads_per_s=5500, page=1000, prices=S3_PRICES
)
LOCAL_MODEL = StoreModel("local", write_s=0.005, read_s=0.0005, bandwidth=200e6)
OTHER_MODEL = StoreModel("other", write_s=0.02, read_s=0.02, bandwidth=100e6)
STORES = {model.name: model for model in (S3_MODEL, LOCAL_MODEL, OTHER_MODEL)}


@dataclass(frozen=True, slots=True)
class Plan:
    """A streaming query that writes into one WAL, and the cluster it runs on.

    `settings` are the log's own, as `WalSink` takes them. All sinks are of one kind. Raises `ConfigError` for what
    cannot be.
    """

    executors: int
    segments: int | None = None
    """Partitions that stage rows in a batch, each into one segment or more; None: one for each task slot."""
    batch_interval_s: float = 10.0
    cores_per_executor: int = 4
    rows_per_s: float = 1000.0
    """Rows that arrive a second, for each executor."""
    row_bytes: float = 200.0
    """Of a row in memory, as Arrow holds it."""
    compression: float = 3.0
    """How many times smaller a row is in a segment."""
    columns: int = 10
    offsets_bytes: int = 500
    """Of the source offsets that Spark writes for a batch; they lie in the manifest."""
    settings: Settings = field(default_factory=Settings)
    sinks: int = 1
    ability: Ability = Ability.ACCEPT
    at_most_once: bool = False
    where: Where = "auto"
    sink_call_s: float = 0.05
    """How long the sink takes for one chunk."""
    pending_batches: int = 1
    """Complete batches that are not marked when the query starts again."""

    def __post_init__(self) -> None:
        _check(self, 1, "executors", "segments", "cores_per_executor", "columns", "sinks")
        _check(self, 0, "offsets_bytes", "sink_call_s", "pending_batches")
        for name in ("rows_per_s", "batch_interval_s", "row_bytes", "compression"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected a number above 0")
        if self.at_most_once and self.ability in {
            Ability.TRANSACTIONAL,
            Ability.SEGMENT_WRITER,
            Ability.BATCH_WRITER,
        }:
            raise ConfigError(
                f"at_most_once with a {self.ability.value} sink: only a sink that is called chunk by chunk, and stores "
                "no position, is delivered to at most once"
            )

    @property
    def slots(self) -> int:
        """Task slots of the cluster."""
        return self.executors * self.cores_per_executor

    @property
    def delivery_slots(self) -> int:
        """Task slots that delivery to one sink gets, where all sinks deliver at once."""
        most = self.settings.max_delivery_tasks or max(1, self.slots - 1)
        return max(1, most // self.sinks)


@dataclass(frozen=True, slots=True)
class Shape:
    """One batch of a plan. Every segment has the same rows."""

    segments: int
    chunks_per_segment: int
    rows_per_segment: int
    rows_per_chunk: int
    segment_bytes: int
    uneven: bool = False
    """Whether chunks end by their bytes, so that the manifest names each end."""
    files_per_partition: int = 1
    """Segments that each partition makes."""

    @property
    def partitions(self) -> int:
        return self.segments // self.files_per_partition

    @property
    def spread_segments(self) -> int:
        """Of `segments`, those that lie in shards."""
        return max(0, self.partitions - paths.SPREAD_FROM) * self.files_per_partition

    @property
    def spreads_progress(self) -> bool:
        """Whether the batch's progress lies in shards."""
        return self.chunks > paths.SPREAD_FROM

    @property
    def chunks(self) -> int:
        return self.segments * self.chunks_per_segment

    @property
    def rows(self) -> int:
        return self.segments * self.rows_per_segment

    @property
    def bytes(self) -> int:
        return self.segments * self.segment_bytes


def shape_of(plan: Plan) -> Shape:
    """A batch of the plan: how its rows fall into segments and chunks."""
    settings = plan.settings
    rows = plan.executors * plan.rows_per_s * plan.batch_interval_s
    partitions = min(plan.segments or plan.slots, math.ceil(rows))  # one without rows makes no segment
    by_bytes = max(1, int(settings.chunk_bytes / plan.row_bytes))
    chunk_rows = min(settings.chunk_rows, by_bytes)
    stored_row_bytes = plan.row_bytes / plan.compression
    in_partition = math.ceil(rows / partitions)
    # A segment ends at the first end of a chunk at which the file has reached its size.
    most = math.ceil(settings.segment_bytes / stored_row_bytes / chunk_rows) * chunk_rows
    files_per_partition = math.ceil(in_partition / most)
    in_segment = math.ceil(in_partition / files_per_partition)
    return Shape(
        segments=partitions * files_per_partition,
        chunks_per_segment=math.ceil(in_segment / chunk_rows),
        rows_per_segment=in_segment,
        rows_per_chunk=min(chunk_rows, in_segment),
        segment_bytes=math.ceil(in_segment * stored_row_bytes),
        uneven=by_bytes < settings.chunk_rows and in_segment > chunk_rows,
        files_per_partition=files_per_partition,
    )
