"""A staged batch of one segment, for tests of its delivery, and two sinks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.house.log import Term, load_segment, paths
from tests.house.protocol import DeliveryContext, Run, SegmentDelivery, SegmentResult, SegmentTask, chunks_of
from tests.house.sinks import (
    Chunk,
    FailureKind,
    Position,
    SegmentSink,
    Sink,
    SinkContext,
    SinkSession,
    as_sink,
    slot_name,
)
from tests.house.support import DirectCall
from tests.support.small_run import Place, Recorder


@dataclass
class Stage:
    """A staged batch of one segment of five rows in chunks of two, and the context and task of its delivery."""

    place: Place = field(default_factory=lambda: Place(rows=lambda _: [5]))
    should_stop: Callable[[], bool] = lambda: False
    on_executor: bool = False

    def __post_init__(self) -> None:
        self.run: Run = self.place.open({"a": Recorder()})
        next(self.place.query().batches(self.run, 1))
        staged = self.run.history.staged(0)
        assert staged is not None
        self.segment = staged.segments[0]
        self.given = DeliveryContext(
            wal_id="w",
            sink="a",
            term=Term("committer-a", 1),
            batch_id=0,
            columns=("batch", "row"),
            spark_schema="{}",
            chunk_rows=2,
            segments=1,
            at_most_once=False,
            keeps_rejected=False,
            attempt_timeout_s=10,
            last_delivered=None,
        )
        self.task = SegmentTask(0, self.segment, 0, maybe_sent=False)

    def deliver(self, to: object, *, task: dict[str, Any] | None = None, **given: Any) -> SegmentResult:
        """Deliver once. `task` changes fields of the task, `given` fields of the context."""
        self.place.requests.clear()
        sink = as_sink(to)
        assert isinstance(sink, Sink)
        delivery_context = replace(self.given, **given)
        session = SinkSession(sink, DirectCall(), delivery_context.context(on_executor=True), timeout_s=10)
        return self.delivery(delivery_context, session).deliver(replace(self.task, **(task or {})))

    def delivery(self, given: DeliveryContext, session: SinkSession) -> SegmentDelivery:
        return SegmentDelivery(given, session, self.run.log, should_stop=self.should_stop, on_executor=self.on_executor)

    def first_chunk(self) -> Chunk:
        data = load_segment(self.run.log.store, self.segment)
        return next(chunks_of(self.given, 0, self.segment, data, 0, where="here"))

    def position(self, rows: int, *, batch_id: int = 0, segment_id: str | None = None) -> Position:
        return Position(slot_name("w", "a", 0), batch_id, rows, segment_id or self.segment.id)

    @property
    def recorded(self) -> list[int]:
        names = self.place.wal.list(paths.progress_folder("a", 0))
        return [found.rows for name in names if (found := paths.parse_progress(name))]

    @property
    def checks(self) -> int:
        return self.place.requests.count(f"read {paths.term('committer-a', 2)}")


def kind_of_failure(result: SegmentResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> object:
        raise error

    return fail


class Noting(Sink):
    def __init__(self, *, open_error: Exception | None = None) -> None:
        self.contexts: list[SinkContext] = []
        self.open_error = open_error

    def open(self, context: SinkContext) -> None:
        self.contexts.append(context)
        if self.open_error is not None:
            raise self.open_error

    def write(self, chunk: Chunk) -> None: ...


class Whole(SegmentSink):
    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int, list[int]]] = []

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Any:
        self.calls.append((ordinal, batch_id, [chunk.rows[0] for chunk in chunks]))
        return self.answer
