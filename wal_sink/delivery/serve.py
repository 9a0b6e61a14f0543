"""Building a `ServedSink`: the promise of a sink, and how a two-phase sink prepares and aborts."""

from __future__ import annotations

from dataclasses import replace

from wal_sink.delivery.local import copier
from wal_sink.delivery.served_sink import SegmentDispatcher, ServedSink
from wal_sink.reporting.texts import name_of
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, MakeSink, Sink, TwoPhaseSink
from wal_sink.sinks.guarantees import Promise, promise
from wal_sink.two_phase.prepare import Preparation


def serve(
    name: str,
    sink: Sink | BatchSink,
    delivery: Delivery,
    dispatcher: SegmentDispatcher,
    *,
    travels: MakeSink | None,
    here: MakeSink | None = None,
    promised: Promise | None = None,
) -> ServedSink:
    """One sink of a run, with its promise. Raises `ConfigError` for a guarantee that the sink cannot give.

    `travels` makes the sink where rows are staged; None if it cannot go there. A two-phase sink prepares rows while
    they are staged if it travels, else when they are delivered. `here` makes it in this process if it does not travel;
    None: a copy of the sink, or the sink itself if it cannot be copied. `promised`: its promise, if that is known.
    """
    promised, identity = promised or promise(sink, delivery, name), name_of(sink)
    delivery = replace(delivery, to=sink)  # it may be a URL
    if not isinstance(sink, TwoPhaseSink):
        return ServedSink(name, delivery, promised, dispatcher, identity)
    make = travels or here or copier(sink) or (lambda: sink)
    preparation = None if travels is None else Preparation(name, travels, delivery.attempt_timeout_s)
    return ServedSink(name, delivery, promised, dispatcher, identity, make, preparation)
