"""Events of a delivery, made from its records and results. Nothing is made where nobody listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal_sink.delivery.retry import OnFailure, kind_of_failure
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.messages import SegmentResult
from wal_sink.redaction import redacted
from wal_sink.runtime.clock import epoch_s
from wal_sink.telemetry.events import AttemptFailed, Marked, Rejected, Released, Sent
from wal_sink.telemetry.hooks import Events
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker


def failure_teller(events: Events, served_sink: ServedSink, batch: Callable[[], int | None]) -> OnFailure:
    """A function that tells the failed attempts of a budget."""

    def tell(attempt: int, next_in_s: float | None, error: BaseException | None) -> None:
        if not events.is_heard:
            return  # before the text is masked
        events.tell(
            AttemptFailed,
            sink=served_sink.name,
            batch=batch(),
            attempt=attempt,
            max_attempts=served_sink.delivery.max_attempts,
            next_in_s=next_in_s,
            kind=kind_of_failure(error),
            error=redacted(error),
        )

    return tell


def tell_released(events: Events, sink: str, manifest: Manifest, *, complete_through: int) -> None:
    """Tell that the delivery of a batch begins."""
    events.tell(
        Released,
        sink=sink,
        batch=manifest.batch_id,
        rows=manifest.rows,
        bytes=manifest.bytes,
        staged_at=epoch_s(manifest.created),
        complete_through=complete_through,
    )


def tell_sent(
    events: Events, sink: str, batch: int, results: Sequence[SegmentResult], *, rows: int, took_s: float
) -> None:
    """Tell what became of the tasks of one dispatch. `rows`: how many more rows are known to have arrived."""
    events.tell(
        Sent,
        sink=sink,
        batch=batch,
        segments=len({result.ordinal for result in results if result.ordinal >= 0}),
        rows=max(0, rows),
        chunks=sum(result.chunks for result in results),
        took_s=took_s,
        failure=next((result.failure.kind.value for result in results if result.failure), ""),
        chunk_times=tuple(result.chunk_times for result in results if result.chunk_times),
        requests=tuple(request for result in results for request in result.requests),
    )
    if rejected := sum(result.rejected for result in results):
        events.tell(Rejected, sink=sink, batch=batch, rows=rejected)


def tell_marked(log: Log, sink: str, group: Sequence[Manifest], marker: Marker) -> None:
    """Tell that a marker stands for a group of batches."""
    staged = [epoch_s(manifest.created) for manifest in group]
    marked_s = epoch_s(marker.created)
    log.events.tell(
        Marked,
        sink=sink,
        batch=marker.batch_id,
        batches=len(group),
        rows=marker.rows,
        rejected=marker.rejected,
        unknown=marker.unknown,
        delays_s=tuple(max(0.0, marked_s - each) for each in staged if each is not None and marked_s is not None),
    )
