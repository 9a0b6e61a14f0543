"""Reading the ledger of a transactional target: the rows of a batch that one sink has delivered to it."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.errors import HistoryError
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import SinkContext, TransactionalSink
from wal_sink.sinks.failures import SinkFailedError, failure_error
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest

ASK_S = 120.0
"""Time limit of one call."""


def rows_in_ledger(log: Log, to: TransactionalSink, sink: str, manifest: Manifest, *, wal_id: str) -> tuple[int, ...]:
    """The rows of each segment that the target has, by the slots of a sink that is to deliver the batch next.

    Raises `DeliveryError` if the target gives no answer, `HistoryError` if its slots are behind the batch: then it is
    the target of another history.
    """
    context = SinkContext(
        wal_id=wal_id,
        sink=sink,
        term=0,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        on_executor=False,
        spark_schema=manifest.spark_schema,
    )
    session = SinkSession(to, log.runtime.new_timed_call(), context, timeout_s=ASK_S)
    slots = [slot_name(wal_id, sink, ordinal) for ordinal in range(len(manifest.segments))]
    try:
        session.open()
        found: Mapping[str, object] = session.call(f"positions of sink {sink!r}", to.positions, slots)
        positions = [stored_position(f"last({slot!r})", slot, found.get(slot)) for slot in slots]
    except SinkFailedError as error:
        raise failure_error(error.failure, f"batch {manifest.batch_id}: {name_of(to)}") from error
    finally:
        session.close()
    rows = []
    for segment, position in zip(manifest.segments, positions, strict=True):
        is_here = position is not None and position.batch_id >= manifest.batch_id
        if position is not None and is_here and position.segment_id != segment.id:
            raise HistoryError(
                f"batch {manifest.batch_id}, sink {sink!r}: {name_of(to)} holds batch {position.batch_id}, segment "
                f"{position.segment_id}, where segment {segment.id} is due. This is not the target of this sink, or "
                "a copy of the WAL delivers too"
            )
        rows.append(position.rows if position is not None and is_here else 0)
    return tuple(rows)
