"""One sink of a run: its policies, and the dispatcher that carries out its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wal_sink.messages import DeliveryContext, Preparation, SegmentResult, SegmentTask
from wal_sink.settings import Delivery
from wal_sink.sinks.base import MakeSink
from wal_sink.sinks.guarantees import Promise
from wal_sink.wal.records import Manifest


class DispatcherLostError(Exception):
    """The carrier failed as a whole (a cancelled job, a lost executor): what became of its orders is unknown."""


class SegmentDispatcher(Protocol):
    """Carries out orders, in this process or on Spark's executors."""

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
        confirm: bool = False,
    ) -> list[SegmentResult]:
        """One outcome per order; of a whole batch without orders, one of ordinal -1. Raises `DispatcherLostError` only.

        With `confirm`, and once all orders are carried out without a failure, a transactional target tells what it has
        of every segment of the manifest: then one more outcome per segment follows. See `Positions.confirm`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedSink:
    """One sink of a run: its name, its policies, what holds for it and who carries its orders."""

    name: str
    delivery: Delivery
    promise: Promise
    dispatcher: SegmentDispatcher
    identity: str = ""
    """What the sink is, for people; never a secret."""
    make_sink: MakeSink | None = None
    """Of a two-phase sink: makes one in this process, to abort what was begun and is not to be committed."""
    preparation: Preparation | None = None
    """Of a two-phase sink: how it takes part in staging; None if it cannot, and is prepared when it is delivered."""
