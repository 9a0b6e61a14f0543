"""Copies of a delivery task. Spark starts a copy when it lost a task, or in parallel to a slow one.

A copy sends nothing. Spark takes the first answer of the two and kills the other task. So a copy that answered at once
would end a healthy original in the middle of a send. Instead, it waits as long as the original shows progress: new
records in the WAL, or new positions in a transactional target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from wal_sink.delivery.recording import RECORD_S
from wal_sink.messages import DeliveryContext, SegmentTask
from wal_sink.runtime.timed_calls import TimedCall
from wal_sink.sinks.base import MakeSink, TransactionalSink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.positions import slot_name
from wal_sink.sinks.session import call_sink
from wal_sink.stores.base import Store
from wal_sink.wal import paths

if TYPE_CHECKING:
    from pyspark import SparkContext


def are_run_beside(context: SparkContext) -> bool:
    """Whether Spark may run a copy while the original still runs: with speculation only."""
    return str(context.getConf().get("spark.speculation", "false")).strip().lower() != "false"


def outwait(look: Callable[[], object], window_s: float, sleep_s: Callable[[float], None]) -> None:
    """Return after the original showed nothing new for `window_s` seconds. Spark ends the copy if the original ends.

    `look` returns the records of the original so far; None if they cannot be read, so that nothing shows that the
    original lives.
    """
    seen = look()
    while True:
        sleep_s(window_s)
        now = look()
        if now is None or now == seen:
            return
        seen = now


def window_s(given: DeliveryContext) -> float:
    """The longest time without news from a healthy original, in seconds: one call, the pause for its rate limit, and
    the time between two records.

    A two-phase sink that prepares a segment again may take longer: its transaction is invisible until it is prepared.
    """
    pause_s = 0.0 if given.rows_per_s is None else given.chunk_rows / given.rows_per_s
    return given.attempt_timeout_s + pause_s + (RECORD_S if given.records_by_time else 0.0)


def recorded(store: Store, given: DeliveryContext, tasks: Sequence[SegmentTask]) -> frozenset[str]:
    """The paths of the progress records, prepared records and dead letters of these segments.

    Costs one listing, and one more if rejected rows are kept.
    """
    ordinals = {task.ordinal for task in tasks}
    folders = {paths.progress_folder(given.sink, given.batch_id)} if ordinals else set()
    if ordinals and given.keeps_rejected:
        folders.add(paths.dead_letter_folder(given.sink, given.batch_id))
    listed = [(folder, name) for folder in sorted(folders) for name in store.list(folder)]
    return frozenset(f"{folder}/{name}" for folder, name in listed if _ordinal(name) in ordinals)


def _ordinal(name: str) -> int | None:
    """The ordinal of the segment that a record belongs to; None if it is no record of a segment."""
    found = paths.parse_progress(name) or paths.parse_prepared(name) or paths.parse_dead_letter(name)
    return None if found is None else found.ordinal


Acknowledged: TypeAlias = tuple[tuple[int, int, str] | None, ...]
"""For each slot: batch, rows and segment of its position."""


def acknowledged(
    given: DeliveryContext, make_sink: MakeSink, tasks: Sequence[SegmentTask], timed_call: TimedCall
) -> Acknowledged:
    """The positions of these segments in a transactional target, which keeps no records in the WAL.

    Empty for every other kind of sink: its records in the WAL show its progress. The sink is opened as for any share of
    the batch; it may be open in several tasks at the same time. Raises `SinkFailedError` if the target does not answer
    within the time of one call.
    """
    what = f"positions of {len(tasks)} slots"
    try:
        return call_sink(timed_call, what, _asked, given, make_sink, tasks, timeout_s=given.attempt_timeout_s)
    finally:
        timed_call.close()


def _asked(given: DeliveryContext, make_sink: MakeSink, tasks: Sequence[SegmentTask]) -> Acknowledged:
    sink = make_sink()
    if not isinstance(sink, TransactionalSink) or not tasks:
        return ()
    slots = [slot_name(given.wal_id, given.sink, task.ordinal) for task in tasks]
    sink.open(given.context(on_executor=True))
    try:
        found = sink.positions(slots)
        return tuple(_plain(found[slot]) for slot in slots)
    finally:
        sink.close()


def _plain(position: Position | None) -> tuple[int, int, str] | None:
    return None if position is None else (position.batch_id, position.rows, position.segment_id)
