"""`served_sink`: a sink to which its process itself delivers, as `WalSink` does on the driver."""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.errors import ConfigError
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest
from wal_sink.protocol.dispatch import LocalDispatcher, ServedSink, WholeBatchDispatcher, serve
from wal_sink.protocol.messages import DeliveryContext
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, MakeSink, Sink, as_sink
from wal_sink.sinks.guarantees import Promise
from wal_sink.sinks.urls import sink_from_url
from wal_sink.support.texts import name_of

WriteBatch = Callable[[DeliveryContext, Manifest], object]
"""A function that writes one released batch as a whole."""


def resolve(to: object) -> tuple[Delivery, Sink | BatchSink]:
    """Return delivery and sink for an object that a user passes as a sink. Raises `ConfigError` if it is none."""
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
    make_sink: MakeSink | None = None,
    stages: bool = True,
) -> ServedSink:
    """Serve a sink in this process. `delivery` holds its policies; its `to` is not read.

    `write_batch` stands for a writer of whole batches and is required for one. `kept` is the promise for the sink, for
    callers that know it. `make_sink` makes the two-phase sink that stages and aborts; the default is `sink`. Without
    `stages`, a two-phase sink is prepared when it is delivered.
    """
    if isinstance(sink, BatchSink):
        if write_batch is None:
            raise ConfigError(f"sink {name!r}: {name_of(sink)} writes whole batches: pass write_batch=…")
        whole = WholeBatchDispatcher(write_batch, log, what=name_of(sink), limit_s=delivery.retry.budget_s)
        return serve(name, sink, delivery, whole, travels=None, promised=kept)
    here = LocalDispatcher(lambda: sink, log, should_stop=lambda: False)
    make = make_sink or (lambda: sink)
    return serve(name, sink, delivery, here, travels=make if stages else None, here=make, promised=kept)
