"""One sink of a run: its policies, and the dispatcher that carries out its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wal_sink.messages import DeliveryContext, SegmentResult, SegmentTask
from wal_sink.settings import Delivery
from wal_sink.sinks.base import MakeSink
from wal_sink.sinks.guarantees import Promise
from wal_sink.two_phase.prepare import Preparation
from wal_sink.wal.records import Manifest


class DispatcherLostError(Exception):
    """The dispatcher failed as a whole (a cancelled job, a lost executor). The fate of its tasks is unknown."""


class SegmentDispatcher(Protocol):
    """Carries out tasks, in this process or on Spark's executors."""

    @property
    def whole_batch(self) -> bool:
        """Whether it delivers a batch in one piece, an empty one too."""
        ...

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,
    ) -> list[SegmentResult]:
        """Carry out tasks: one result per task, or one of ordinal `NO_SEGMENT` for a whole batch without tasks. Raises
        `DispatcherLostError` only.

        With `confirm`, the dispatcher also reads the positions of a transactional target for every segment of the
        manifest, once all tasks are done without a failure. It then adds one result per segment. See
        `Positions.confirm`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedSink:
    """One sink of a run: its name, its policies, its guarantee and the dispatcher of its tasks."""

    name: str
    delivery: Delivery
    promise: Promise
    dispatcher: SegmentDispatcher
    identity: str = ""
    """A description of the sink, for people. It holds no secret."""
    make_sink: MakeSink | None = None
    """For a two-phase sink: makes one in this process, to abort transactions that will not be committed."""
    preparation: Preparation | None = None
    """For a two-phase sink: how it takes part in staging; None if it cannot, and its rows are prepared at delivery."""
    shown: str = ""
    """The name for people. A sink that was renamed has its first one in `name`, for the WAL and events."""
