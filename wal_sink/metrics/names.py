"""The metrics: name, kind, labels and meaning. docs/operations/metrics.md lists the same, held by a test.

Labels take few values: the URLs of this process's WALs, the names of their sinks, operations of a store, kinds of
failures. No label holds a text of an error, a batch or a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WAL = ("wal",)
SINK = ("wal", "sink")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A counter's name ends in `_total` where it is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """The name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


STAGED_BATCHES = Metric("wal_sink_staged_batches", "counter", WAL, "Batches staged, repeated attempts included.")
STAGED_ROWS = Metric("wal_sink_staged_rows", "counter", WAL, "Rows staged.")
STAGED_BYTES = Metric("wal_sink_staged_bytes", "counter", WAL, "Bytes of the staged segments.")
STAGED_SEGMENTS = Metric("wal_sink_staged_segments", "counter", WAL, "Segments staged.")
STAGING_SECONDS = Metric("wal_sink_staging_seconds", "histogram", WAL, "Time to stage a batch, Spark's job included.")
REPLAYED_BATCHES = Metric(
    "wal_sink_replayed_batches", "counter", WAL, "Released batches that Spark ran again. Their rows are not staged."
)
STREAM_WAITING = Metric(
    "wal_sink_stream_waiting", "gauge", WAL, "1 while the stream waits because the backlog has reached its limit."
)
STREAM_WAITED = Metric("wal_sink_stream_waited_seconds", "counter", WAL, "Time that the stream waited for that reason.")
PENDING_BATCHES = Metric(
    "wal_sink_pending_batches", "gauge", SINK, "Batches that this process knows and the sink does not have."
)
LAG_SECONDS = Metric(
    "wal_sink_lag_seconds", "gauge", SINK, "Age of the oldest pending batch since it was staged; 0 without one."
)
DELIVERED_THROUGH = Metric("wal_sink_delivered_through", "gauge", SINK, "Newest batch that the sink has; -1 if none.")
LAST_DELIVERY = Metric(
    "wal_sink_last_delivery_timestamp_seconds", "gauge", SINK, "Time of the last delivery of this process; 0 if none."
)
DELIVERED_BATCHES = Metric("wal_sink_delivered_batches", "counter", SINK, "Batches delivered and marked.")
DELIVERED_ROWS = Metric("wal_sink_delivered_rows", "counter", SINK, "Rows of these batches.")
DELAY_SECONDS = Metric(
    "wal_sink_delay_seconds", "histogram", SINK, "Time of a batch from its manifest to its marker, by the clocks."
)
DELIVERY_SECONDS = Metric("wal_sink_delivery_seconds", "histogram", SINK, "Time to deliver a batch, retries included.")
SENT_ROWS = Metric("wal_sink_sent_rows", "counter", SINK, "Rows that arrived so far, also of unfinished batches.")
SENT_CHUNKS = Metric("wal_sink_sent_chunks", "counter", SINK, "Chunks that arrived so far.")
CHUNK_SECONDS = Metric("wal_sink_chunk_seconds", "histogram", SINK, "Time of one call of the sink that sends a chunk.")
RETRIES = Metric("wal_sink_retries", "counter", (*SINK, "kind"), "Failed attempts that another attempt follows.")
LAST_ERROR = Metric(
    "wal_sink_last_error_timestamp_seconds", "gauge", (*SINK, "kind"), "Time and kind of the sink's last failure."
)
GAVE_UP = Metric("wal_sink_gave_up", "gauge", SINK, "1 after the delivery to the sink ended with an error.")
REJECTED_ROWS = Metric("wal_sink_rejected_rows", "counter", SINK, "Rows refused by the sink and kept, as they occur.")
DEAD_LETTER_ROWS = Metric(
    "wal_sink_dead_letter_rows", "counter", (*SINK, "reason"), "Dead letters of the marked batches."
)
LOW_WATER = Metric("wal_sink_low_water", "gauge", WAL, "Newest batch that this process deleted from the WAL.")
SLOW_STORE = Metric("wal_sink_slow_store", "gauge", WAL, "1 after some requests took longer than a second.")
REQUEST_SECONDS = Metric(
    "wal_sink_store_request_seconds",
    "histogram",
    (*WAL, "operation", "answer"),
    "Time of one request to the WAL's store, from the driver and from tasks.",
)

METRICS = (
    STAGED_BATCHES,
    STAGED_ROWS,
    STAGED_BYTES,
    STAGED_SEGMENTS,
    STAGING_SECONDS,
    REPLAYED_BATCHES,
    STREAM_WAITING,
    STREAM_WAITED,
    PENDING_BATCHES,
    LAG_SECONDS,
    DELIVERED_THROUGH,
    LAST_DELIVERY,
    DELIVERED_BATCHES,
    DELIVERED_ROWS,
    DELAY_SECONDS,
    DELIVERY_SECONDS,
    SENT_ROWS,
    SENT_CHUNKS,
    CHUNK_SECONDS,
    RETRIES,
    LAST_ERROR,
    GAVE_UP,
    REJECTED_ROWS,
    DEAD_LETTER_ROWS,
    LOW_WATER,
    SLOW_STORE,
    REQUEST_SECONDS,
)
