"""The targets that a user gives a `WalSink`: one or several by name, each as itself or in a `Delivery`."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink import paths
from wal_sink.backend_urls import sink_from_url
from wal_sink.errors import ConfigError
from wal_sink.held import refuse_shared
from wal_sink.settings import Delivery, GuaranteeName
from wal_sink.sink import BatchSink, Sink, as_sink


def deliveries_of(to: object, guarantee: GuaranteeName | None, name: str) -> dict[str, Delivery]:
    """By name, how each sink is served. Raises `ConfigError`."""
    named = dict(to) if isinstance(to, Mapping) else {} if to is None else {name: to}
    deliveries = {}
    for sink_name, target in named.items():
        paths.check_sink_name(sink_name)
        if isinstance(target, Delivery) and guarantee is not None:
            raise ConfigError(f"sink {sink_name!r}: state the guarantee in its Delivery only")
        deliveries[sink_name] = target if isinstance(target, Delivery) else Delivery(target, guarantee=guarantee)
    return deliveries


def _sink(delivery: Delivery) -> Sink | BatchSink:
    return sink_from_url(delivery.to) if isinstance(delivery.to, str) else as_sink(delivery.to)


def sinks_of(deliveries: Mapping[str, Delivery]) -> dict[str, Sink | BatchSink]:
    """By name, the sinks behind what was given. Raises `ConfigError` if two are the same object."""
    sinks = {name: _sink(delivery) for name, delivery in deliveries.items()}
    refuse_shared(sinks)
    return sinks
