"""Input of an estimate: a query with its log and cluster, and known facts of its store. Plain, validated values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.settings import Settings, Where
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths

PRICES_AS_OF = "2026-11-21"
"""Date of the prices in `S3_PRICES`; docs/SCALE.md names their source."""


def _check(owner: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ConfigError(f"{name}={value!r}: expected a number, at least {least:g}")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a store, in US dollars."""

    per_1000_puts: float
    """Price of 1,000 PUT requests or listings."""
    per_1000_gets: float
    """Price of 1,000 GET requests, including those that find nothing."""
    per_1000_deletes: float
    gb_month: float
    """Price of a gigabyte (2^30 bytes) for a month."""
    as_of: str
    """Source and date of the prices, for people."""

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
    """Facts of a store that an estimate needs."""

    name: str
    write_s: float
    """Seconds of one PUT until it is durable, without the transfer of its bytes."""
    read_s: float
    """Seconds of any other request."""
    bandwidth: float
    """Bytes per second of one connection."""
    writes_per_s: float | None = None
    """Maximum number of PUT, COPY, POST and DELETE requests per second under one prefix. None: no such limit is
    known.
    """
    reads_per_s: float | None = None
    """The same limit for GET, HEAD and listings."""
    page: int | None = None
    """Number of names that one listing request returns, and of keys that one delete request takes. None: a listing
    returns all names, and a delete takes one path.
    """
    prices: Prices | None = None

    def __post_init__(self) -> None:
        _check(self, 0, "write_s", "read_s")
        _check(self, 1, "bandwidth", "writes_per_s", "reads_per_s", "page")

    def listings(self, names: int) -> int:
        """Number of requests for a listing of this many names. An empty folder takes one too."""
        return 1 if self.page is None else max(1, math.ceil(names / self.page))

    def deletes(self, keys: int) -> int:
        """Number of requests to delete this many objects."""
        return keys if self.page is None else math.ceil(keys / self.page)


S3_MODEL = StoreModel(
    "s3", write_s=0.1, read_s=0.1, bandwidth=85e6, writes_per_s=3500, reads_per_s=5500, page=1000, prices=S3_PRICES
)
LOCAL_MODEL = StoreModel("local", write_s=0.005, read_s=0.0005, bandwidth=200e6)
OTHER_MODEL = StoreModel("other", write_s=0.02, read_s=0.02, bandwidth=100e6)
STORES = {model.name: model for model in (S3_MODEL, LOCAL_MODEL, OTHER_MODEL)}


@dataclass(frozen=True, slots=True)
class Plan:
    """A streaming query that writes into one WAL, and its cluster.

    `settings` are the log's own, as `WalSink` takes them. All sinks are of one kind. Raises `ConfigError` for
    impossible values.
    """

    executors: int
    segments: int | None = None
    """Number of partitions that stage rows in a batch, each into one segment or more. None: one per task slot."""
    batch_interval_s: float = 10.0
    cores_per_executor: int = 4
    rows_per_s: float = 1000.0
    """Rows that arrive per second, for each executor."""
    row_bytes: float = 200.0
    """Bytes of a row in memory, as Arrow holds it."""
    compression: float = 3.0
    """Factor by which a row is smaller in a segment."""
    columns: int = 10
    offsets_bytes: int = 500
    """Bytes of the source offsets that Spark writes for a batch. The manifest contains them."""
    settings: Settings = field(default_factory=Settings)
    sinks: int = 1
    ability: Ability = Ability.ACCEPT
    at_most_once: bool = False
    where: Where = "auto"
    sink_call_s: float = 0.05
    """Seconds that the sink needs for one chunk."""
    pending_batches: int = 1
    """Number of completed batches without a marker when the query starts again."""

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
                f"at_most_once is not possible with a {self.ability.value} sink. at_most_once needs a sink that "
                "receives the rows in chunks and does not store its position in the target"
            )

    @property
    def slots(self) -> int:
        """Number of task slots of the cluster."""
        return self.executors * self.cores_per_executor

    @property
    def delivery_slots(self) -> int:
        """Number of task slots for delivery to one sink, if all sinks deliver at once."""
        most = self.settings.max_delivery_tasks or max(1, self.slots - 1)
        return max(1, most // self.sinks)


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of one batch of a plan. Every segment has the same number of rows."""

    segments: int
    chunks_per_segment: int
    rows_per_segment: int
    rows_per_chunk: int
    segment_bytes: int
    uneven: bool = False
    """True if chunks end by their bytes, so the manifest names each end."""
    files_per_partition: int = 1
    """Number of segments that each partition makes."""

    @property
    def partitions(self) -> int:
        return self.segments // self.files_per_partition

    @property
    def spread_segments(self) -> int:
        """Number of segments that lie in shards."""
        return max(0, self.partitions - paths.SPREAD_FROM) * self.files_per_partition

    @property
    def spreads_progress(self) -> bool:
        """Return whether the batch's progress lies in shards."""
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
    """The shape of a batch of the plan: the division of its rows into segments and chunks."""
    settings = plan.settings
    rows = plan.executors * plan.rows_per_s * plan.batch_interval_s
    partitions = min(plan.segments or plan.slots, math.ceil(rows))  # a partition without rows makes no segment
    by_bytes = max(1, int(settings.chunk_bytes / plan.row_bytes))
    chunk_rows = min(settings.chunk_rows, by_bytes)
    stored_row_bytes = plan.row_bytes / plan.compression
    in_partition = math.ceil(rows / partitions)
    # A segment ends at the first end of a chunk after the file has reached its size.
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
