"""`served_sink`: a sink that its process delivers to itself, as `WalSink` serves one on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wal_sink.delivery.local import LocalDispatcher, WholeBatchDispatcher
from wal_sink.delivery.served_sink import SegmentDispatcher, ServedSink
from wal_sink.errors import ConfigError
from wal_sink.messages import DeliveryContext
from wal_sink.reporting.texts import name_of
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, Sink, TwoPhaseSink, as_sink
from wal_sink.sinks.guarantees import Promise, promise
from wal_sink.sinks.urls import sink_from_url
from wal_sink.two_phase.prepare import Preparation
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest

WriteBatch = Callable[[DeliveryContext, Manifest], object]
"""Writes one released batch as a whole."""


def resolve(to: object) -> tuple[Delivery, Sink | BatchSink]:
    """What a user passes as a sink, as `WalSink` sees it. Raises `ConfigError` if it is none."""
    delivery = to if isinstance(to, Delivery) else Delivery(to)
    return delivery, sink_from_url(delivery.to) if isinstance(delivery.to, str) else as_sink(delivery.to)


def served_sink(
    name: str,
    sink: Sink | BatchSink,
    delivery: Delivery,
    log: Log,
    *,
    write_batch: WriteBatch | None = None,
    kept: Promise | None = None,
    stages: bool = True,
) -> ServedSink:
    """Serve a sink in this process. `delivery` holds its policies; its `to` is not read.

    `write_batch` stands for a writer of whole batches and is required for one. `kept` is the promise for the sink, for
    callers that know it. Without `stages`, a two-phase sink is prepared when it is delivered.
    """
    dispatcher: SegmentDispatcher
    if isinstance(sink, BatchSink):
        if write_batch is None:
            raise ConfigError(f"sink {name!r}: {name_of(sink)} gets whole batches, which needs write_batch=…")
        dispatcher = WholeBatchDispatcher(write_batch, log, what=name_of(sink), limit_s=delivery.budget_s)
    else:
        dispatcher = LocalDispatcher(lambda: sink, log, should_stop=lambda: False)
    served = ServedSink(name, delivery, kept or promise(sink, delivery, name), dispatcher, identity=name_of(sink))
    if not isinstance(sink, TwoPhaseSink):
        return served
    preparation = Preparation(name, lambda: sink, delivery.attempt_timeout_s) if stages else None
    return replace(served, make_sink=lambda: sink, preparation=preparation)
