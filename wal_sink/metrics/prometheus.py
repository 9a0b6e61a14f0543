"""`Metrics`: the numbers of this process as metrics of Prometheus, and a server that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from wal_sink.errors import ConfigError
from wal_sink.metrics.numbers import METRICS, Metric, Numbers
from wal_sink.support.clock import SYSTEM
from wal_sink.support.events import Events, OnEvent
from wal_sink.support.measures import BOUNDS_S, Meter, Times
from wal_sink.support.texts import told

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_MOST_PORTS = 65_535
_BUCKETS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Metrics:
    """Metrics of the runs of this process, for Prometheus. Pass it to one or several `WalSink`s.

        metrics = Metrics()
        metrics.serve("127.0.0.1:9464")
        WalSink(to, wal=…, checkpoint=…, metrics=metrics)

    Needs prometheus-client. Metrics cause no request to a store or a target. They live in the memory of this process:
    a new process begins at 0, as Prometheus expects of counters.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry`: the registry of your program, such as `prometheus_client.REGISTRY`, if it shows other metrics
        too. None: a new one, with these metrics alone.
        """
        prometheus = _prometheus()
        if registry is not None and not isinstance(registry, prometheus.CollectorRegistry):
            raise ConfigError(
                f"registry: expected a prometheus_client.CollectorRegistry, found a {type(registry).__name__}"
            )
        self.numbers = Numbers(lambda: SYSTEM.now().timestamp())
        """The numbers themselves; `WalSink` counts with them."""
        self.registry: CollectorRegistry = registry or prometheus.CollectorRegistry()
        try:
            self.registry.register(_Collector(self.numbers))
        except ValueError as error:
            raise ConfigError(
                f"this registry holds metrics of wal-sink already ({error}). Make one Metrics for it, and pass that to "
                "every WalSink"
            ) from error
        self._server: Any = None

    def __repr__(self) -> str:
        return f"Metrics({self.address or 'not served'})"

    @property
    def address(self) -> str:
        """The address of the server, as `host:port`; empty if there is none."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def serve(self, address: str) -> str:
        """Serve the metrics over HTTP at `http://<address>/metrics`, on a thread, until `close` or the process ends.

        `address`: host and port, such as `127.0.0.1:9464`. Port 0 takes a free one. Returns the address. Everybody
        who reaches it can read names of WALs and sinks, but no secret. Raises `ConfigError`.
        """
        host, port = _host_and_port(address)
        if self._server is not None:
            raise ConfigError(f"these metrics are served at {self.address} already")
        try:
            self._server, _ = _prometheus().start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {address}: {told(error)}. Choose another port, or end the process that "
                "uses it"
            ) from error
        return self.address

    def close(self) -> None:
        """End the server, if there is one."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def events_of(wal: str, on_event: OnEvent | None, metrics: Metrics | None) -> Events:
    """The events of one run: told to the metrics first, then to the user's hook."""
    count = None if metrics is None else metrics.numbers.on_event
    hooks = [hook for hook in (count, on_event) if hook is not None]
    return Events(wal, hooks, measures=metrics is not None)


def meter_of(wal: str, metrics: Metrics | None) -> Meter | None:
    """The meter of the requests to the store of a WAL; None without metrics."""
    return None if metrics is None else metrics.numbers.meter(wal)


class _Collector:
    """Gives the numbers to a registry when they are read."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Family]:
        """Every metric, with a sample for each set of labels."""
        for metric in METRICS:
            yield self._family(metric)

    def describe(self) -> Sequence[Family]:
        """Every metric, so that a second collector of the same names is refused."""
        return list(self.collect())

    def _family(self, metric: Metric) -> Family:
        from prometheus_client import core  # noqa: PLC0415 - an optional dependency

        if metric.kind == "histogram":
            histogram = core.HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
            for labels, times in self._numbers.times(metric).items():
                histogram.add_metric(labels, _buckets(times), times.total_s)
            return histogram
        kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
        family = kind(metric.name, metric.text, labels=metric.labels)
        for labels, value in self._numbers.values(metric).items():
            family.add_metric(labels, value)
        return family


def _buckets(times: Times) -> list[tuple[str, float]]:
    """The counts as Prometheus wants them: each bucket holds those of the smaller ones, too."""
    return list(zip(_BUCKETS, accumulate(times.counts), strict=True))


def _host_and_port(address: object) -> tuple[str, int]:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= _MOST_PORTS):
        raise ConfigError(f"address={address!r} (--metrics): expected HOST:PORT, such as 127.0.0.1:9464")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _prometheus() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError(
            "metrics need prometheus-client. Install wal-sink with its extra metrics, or: pip install "
            f"prometheus-client. Python's answer here: {error}"
        ) from error
    return prometheus_client
