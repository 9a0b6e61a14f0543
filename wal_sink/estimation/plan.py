"""Input of an estimate: a query with its log and cluster, and known facts of its store. Plain, validated values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.messages import SMALL_BATCH_BYTES
from wal_sink.settings import MOST_THREADS, Settings, Where
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths
from wal_sink.wal.inline_rows import MOST_INLINE_BYTES, PACKED_BYTES

INLINE_BYTES = 16 << 20
"""Budget of inline rows of a driver with a heap of 1 GiB or more."""
PRICES_AS_OF = "2026-11-21"
"""Date of the prices in `S3_PRICES`; docs/SCALE.md names their source."""


LEAST, MOST = 1e-9, 1e18
"""Limits of the numbers of a plan and of a store: beyond any cluster, and every result is finite."""
MOST_COLUMNS = 100_000
MOST_OF_BATCH = 1e15
"""Maximum of the rows of a batch, and of its bytes in memory and in segments."""


def _check(owner: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and not least <= value <= MOST:  # NaN is not between them either
            raise ConfigError(f"{name}={value!r}: expected a number from {least:g} to {MOST:g}")


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
    """Number of partitions with rows in a batch. None: one per task slot. Small partitions share a segment."""
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
    inline_bytes: int = INLINE_BYTES
    """Budget of inline rows. 0: small partitions share no segment."""
    settings: Settings = field(default_factory=Settings)
    sinks: int = 1
    ability: Ability = Ability.ACCEPT
    at_most_once: bool = False
    where: Where = "auto"
    threads_per_task: int = 1
    """As in `Delivery`: segments that one task on an executor sends at once."""
    sink_call_s: float = 0.05
    """Seconds that the sink needs for one chunk."""
    pending_batches: int = 1
    """Number of completed batches without a marker when the query starts again."""

    def __post_init__(self) -> None:
        _check(self, 1, "executors", "segments", "cores_per_executor", "columns", "sinks", "threads_per_task")
        _check(self, 0, "offsets_bytes", "inline_bytes", "sink_call_s", "pending_batches")
        if self.columns > MOST_COLUMNS:
            raise ConfigError(f"columns={self.columns!r}: expected at most {MOST_COLUMNS}")
        _check(self, LEAST, "rows_per_s", "batch_interval_s", "row_bytes", "compression")
        rows = self.executors * self.rows_per_s * self.batch_interval_s
        if rows * max(1.0, self.row_bytes, self.row_bytes / self.compression) > MOST_OF_BATCH:
            raise ConfigError(
                f"a batch would have {rows:g} rows of {self.row_bytes:g} bytes, compressed by {self.compression:g}: "
                f"expected at most {MOST_OF_BATCH:g} rows and bytes. Correct executors, rows_per_s, batch_interval_s, "
                "row_bytes or compression"
            )
        if self.ability is Ability.TWO_PHASE:
            raise ConfigError(
                "an estimate cannot count the requests of a two-phase sink, because the target decides how many "
                "records a transaction takes. docs/cost.md has the numbers that were counted: ten requests for a batch "
                "of small partitions. Leave out the kind of the sink to estimate all the rest"
            )
        if self.at_most_once and self.ability in {
            Ability.TRANSACTIONAL,
            Ability.SEGMENT_WRITER,
            Ability.BATCH_WRITER,
        }:
            raise ConfigError(
                f"at_most_once is not possible with a {self.ability.value} sink. at_most_once needs a sink that "
                "receives the rows in chunks and does not store its position in the target"
            )
        if self.where == "executors" and self.ability is Ability.BATCH_WRITER:
            raise ConfigError(
                "where='executors' is not possible with a sink that receives whole batches: it is called on the "
                "driver. Leave out where (--where)"
            )
        if self.threads_per_task > MOST_THREADS:
            raise ConfigError(f"threads_per_task={self.threads_per_task}: expected 1 to {MOST_THREADS}")
        if self.threads_per_task > 1 and (self.where == "driver" or self.ability is Ability.BATCH_WRITER):
            raise ConfigError(
                f"threads_per_task={self.threads_per_task} sends several segments at once on executors, and this sink "
                "runs on the driver. Leave out threads_per_task (--threads-per-task)"
            )

    @property
    def slots(self) -> int:
        """Number of task slots of the cluster."""
        return self.executors * self.cores_per_executor

    @property
    def delivery_slots(self) -> int:
        """Number of task slots for delivery to one sink, if all sinks deliver at once and for long."""
        most = self.settings.max_delivery_tasks or max(1, self.slots - 1)
        return max(1, most // self.sinks)

    @property
    def most_delivery_slots(self) -> int:
        """Maximum number of task slots that one sink ever gets: all, if it alone delivers, and not for long."""
        return self.settings.max_delivery_tasks or self.slots


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of a batch that have the same number of rows."""

    count: int
    chunks_each: int
    rows_each: int
    rows_per_chunk: int
    bytes_each: int
    uneven: bool = False
    """True if chunks end by their bytes, so the manifest names each end."""
    files_per_partition: int = 1
    """Number of segments that each partition makes."""
    first_partition: int = 0
    partitions_packed: int = 0
    """Number of partitions whose rows the driver packs into `files_per_partition` segments, which are named by the
    first of them. 0: each partition has its own segments.
    """

    @property
    def partitions(self) -> range:
        """The partitions by which the segments are named."""
        step = max(1, self.partitions_packed)
        return range(self.first_partition, self.first_partition + self.count // self.files_per_partition * step, step)

    @property
    def spread_partitions(self) -> range:
        """Those of them whose segments lie in shards."""
        numbers = self.partitions
        return numbers[max(0, -(-(paths.SPREAD_FROM - numbers.start) // numbers.step)) :]

    @property
    def chunks(self) -> int:
        return self.count * self.chunks_each


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of one batch of a plan."""

    groups: tuple[Segments, ...]
    """Its segments, in their order: the packed ones, then those of partitions with their own."""

    @property
    def segments(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def spread_segments(self) -> int:
        """Number of segments that lie in shards."""
        return sum(len(group.spread_partitions) * group.files_per_partition for group in self.groups)

    @property
    def spreads_progress(self) -> bool:
        """Return whether the batch's progress lies in shards."""
        return self.chunks > paths.SPREAD_FROM

    @property
    def chunks(self) -> int:
        return sum(group.chunks for group in self.groups)

    @property
    def rows(self) -> int:
        return sum(group.count * group.rows_each for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.count * group.bytes_each for group in self.groups)

    @property
    def of_tasks(self) -> Shape:
        """The segments that tasks write, without those that the driver packs."""
        return Shape(tuple(group for group in self.groups if not group.partitions_packed))


def shape_of(plan: Plan) -> Shape:
    """The shape of a batch of the plan: the division of its rows into segments and chunks."""
    rows = plan.executors * plan.rows_per_s * plan.batch_interval_s
    partitions = min(plan.segments or plan.slots, math.ceil(rows))  # a partition without rows makes no segment
    in_partition = math.ceil(rows / partitions)
    inline_bytes = _stream_bytes(plan.columns) + math.ceil(in_partition * plan.row_bytes)
    inline = 0 if inline_bytes > MOST_INLINE_BYTES else min(partitions, plan.inline_bytes // inline_bytes)
    groups: list[Segments] = []
    if inline:
        size = inline * inline_bytes
        inline_rows = Fraction(rows) * inline / partitions
        stored = math.ceil(inline_rows * Fraction(plan.row_bytes) / Fraction(plan.compression))
        side_by_side = 1 if min(size, stored) <= SMALL_BATCH_BYTES else plan.slots
        in_part = -(-size // max(1, min(side_by_side, stored // PACKED_BYTES)))
        packed = min(inline, -(-in_part // inline_bytes))
        parts = -(-inline // packed)
        rows_of_part = math.ceil(inline_rows / parts)
        groups.append(_segments(plan, parts, rows_of_part, first_partition=0, partitions_packed=packed))
    if partitions > inline:
        groups.append(_segments(plan, partitions - inline, in_partition, first_partition=inline, partitions_packed=0))
    return Shape(tuple(groups))


def _segments(plan: Plan, parts: int, rows: int, *, first_partition: int, partitions_packed: int) -> Segments:
    """The segments of parts of so many rows each: partitions, or the rows of several that are packed."""
    settings = plan.settings
    by_bytes = max(1, int(settings.chunk_bytes / plan.row_bytes))
    chunk_rows = min(settings.chunk_rows, by_bytes)
    stored_row_bytes = plan.row_bytes / plan.compression
    # A segment ends at the first end of a chunk after the file has reached its size.
    most = math.ceil(settings.segment_bytes / stored_row_bytes / chunk_rows) * chunk_rows
    files = math.ceil(rows / most)
    in_segment = math.ceil(rows / files)
    return Segments(
        count=parts * files,
        chunks_each=math.ceil(in_segment / chunk_rows),
        rows_each=in_segment,
        rows_per_chunk=min(chunk_rows, in_segment),
        bytes_each=math.ceil(in_segment * stored_row_bytes),
        uneven=by_bytes < settings.chunk_rows and in_segment > chunk_rows,
        files_per_partition=files,
        first_partition=first_partition,
        partitions_packed=partitions_packed,
    )


@cache
def _stream_bytes(columns: int) -> int:
    """Bytes of Arrow's stream format around the rows of one batch."""
    names = [f"c{number}" for number in range(columns)]
    batch = pa.record_batch([pa.array([""])] * columns, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return int(sink.getvalue().size)
