"""Metrics of a run, read as Prometheus reads them: over HTTP, as text."""

from __future__ import annotations

import builtins
import math
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.ports import free_port
from wal_sink import ConfigError, Metrics
from wal_sink.metrics import prometheus
from wal_sink.metrics.names import METRICS
from wal_sink.metrics.numbers import MOST_TIMES, Numbers
from wal_sink.runtime.clock import SYSTEM
from wal_sink.telemetry import (
    AttemptFailed,
    Began,
    Collected,
    Ended,
    Event,
    FoundDelivered,
    GaveUp,
    Marked,
    Released,
    Replayed,
    SlowStore,
    Staged,
    StreamHeld,
    StreamResumed,
)

WAL = "memory://x"
OF = {"sink": "a"}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Metrics]:
    monkeypatch.setattr(prometheus, "SYSTEM", replace(SYSTEM, now=clock))
    with Metrics() as made:
        made.serve(f"127.0.0.1:{free_port()}")
        yield made


def read(metrics: Metrics) -> dict[str, float]:
    """Every sample, as `name{label="value"}` without the label `wal`."""
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()) if name != "wal")
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


class Sinks:
    """The labels of a sink, by hand."""

    def __init__(self, clock: Clock) -> None:
        self.numbers = Numbers(lambda: clock().timestamp())

    def tell(self, *events: Event) -> None:
        for event in events:
            self.numbers.on_event(event)

    def value(self, name: str, *labels: str) -> float:
        metric = next(each for each in METRICS if each.name == name)
        return self.numbers.values(metric).get((WAL, *labels), math.nan)


@pytest.fixture
def sinks(clock: Clock) -> Sinks:
    return Sinks(clock)


def staged(batch: int, at: float | None) -> Staged:
    return Staged(WAL, batch=batch, attempt=1, rows=1, bytes=1, segments=1, took_s=1, staged_at=at)


def released(batch: int, at: float | None, *, complete_through: int) -> Released:
    return Released(WAL, **OF, batch=batch, rows=1, bytes=1, staged_at=at, complete_through=complete_through)


def marked(batch: int) -> Marked:
    return Marked(WAL, **OF, batch=batch, batches=1, rows=1, rejected=0, unknown=0, delays_s=())


def test_a_backlog_that_a_start_finds_is_counted_from_the_start_until_its_time_is_known(
    sinks: Sinks, clock: Clock
) -> None:
    begin = clock.now.timestamp()
    sinks.tell(Began(WAL, **OF, next_batch=5, newest_batch=9))
    clock.now += timedelta(seconds=30)
    assert (sinks.value("wal_sink_pending_batches", "a"), sinks.value("wal_sink_lag_seconds", "a")) == (5, 30)
    sinks.tell(released(5, begin - 600, complete_through=12))
    assert (sinks.value("wal_sink_pending_batches", "a"), sinks.value("wal_sink_lag_seconds", "a")) == (8, 630)
    sinks.tell(marked(5))
    assert sinks.value("wal_sink_pending_batches", "a") == 7
    assert sinks.value("wal_sink_last_delivery_timestamp_seconds", "a") == clock.now.timestamp()
    sinks.tell(FoundDelivered(WAL, **OF, batch=12))
    assert (sinks.value("wal_sink_pending_batches", "a"), sinks.value("wal_sink_lag_seconds", "a")) == (0, 0)


def test_a_wal_may_begin_with_any_batch(sinks: Sinks) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=None, newest_batch=-1))
    assert sinks.value("wal_sink_pending_batches", "a") == sinks.value("wal_sink_lag_seconds", "a") == 0
    assert sinks.value("wal_sink_delivered_through", "a") == -1
    sinks.tell(staged(70, 0.0), staged(71, None))
    assert sinks.value("wal_sink_pending_batches", "a") == 2


def test_a_batch_of_another_wal_is_none_of_this_one(sinks: Sinks) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=0, newest_batch=-1), replace(staged(0, 0.0), wal="memory://y"))
    assert sinks.value("wal_sink_pending_batches", "a") == 0


def test_an_older_marker_takes_nothing_back(sinks: Sinks) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=5, newest_batch=9), marked(8), marked(6))
    assert sinks.value("wal_sink_delivered_through", "a") == 8


def test_a_clock_that_was_set_back_shows_no_negative_lag(sinks: Sinks, clock: Clock) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=0, newest_batch=-1), staged(0, clock.now.timestamp() + 100))
    assert sinks.value("wal_sink_lag_seconds", "a") == 0


def test_memory_is_bounded_however_long_the_backlog(sinks: Sinks) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=0, newest_batch=-1))
    for batch in range(MOST_TIMES + 100):
        sinks.tell(staged(batch, float(batch)))
    assert sinks.value("wal_sink_pending_batches", "a") == MOST_TIMES + 100
    assert len(sinks.numbers._backlogs[WAL, "a"].staged_at) == MOST_TIMES


def test_a_sink_that_ended_has_no_lag_any_more(sinks: Sinks) -> None:
    sinks.tell(
        Began(WAL, **OF, next_batch=0, newest_batch=3),
        GaveUp(WAL, **OF, parked=False, kind="DeliveryError", error="text"),
        Ended(WAL, **OF),
        Ended(WAL, **OF),
    )
    assert math.isnan(sinks.value("wal_sink_pending_batches", "a"))
    assert sinks.value("wal_sink_gave_up", "a") == 1
    sinks.tell(Began(WAL, **OF, next_batch=0, newest_batch=3))
    assert sinks.value("wal_sink_gave_up", "a") == 0


def test_replays_and_the_deleted_batches_are_shown(sinks: Sinks) -> None:
    sinks.tell(Replayed(WAL, batch=3), Replayed(WAL, batch=4), Collected(WAL, low_water=7))
    assert sinks.value("wal_sink_replayed_batches") == 2
    assert sinks.value("wal_sink_low_water") == 7


def test_a_waiting_stream_and_a_slow_store_are_shown(sinks: Sinks) -> None:
    sinks.tell(StreamHeld(WAL, batch=3, pending_batches=2, pending_bytes=10))
    assert sinks.value("wal_sink_stream_waiting") == 1
    sinks.tell(
        StreamResumed(WAL, batch=3, waited_s=4.0), SlowStore(WAL, slow_requests=3, last_requests=9, longest_s=2.0)
    )
    assert sinks.value("wal_sink_stream_waiting") == 0
    assert sinks.value("wal_sink_stream_waited_seconds") == 4
    assert sinks.value("wal_sink_slow_store") == 1


def failed(kind: str, next_in_s: float | None = 1.0) -> AttemptFailed:
    return AttemptFailed(
        WAL, **OF, batch=1, attempt=1, max_attempts=8, next_in_s=next_in_s, kind=kind, error="any text"
    )


def test_only_the_last_kind_of_error_is_shown_and_unknown_kinds_are_one(sinks: Sinks) -> None:
    sinks.tell(Began(WAL, **OF, next_batch=0, newest_batch=-1))
    sinks.tell(failed("retriable"), failed("StoreError"), *(failed(f"class-{number}") for number in range(50)))
    last = next(each for each in METRICS if each.name == "wal_sink_last_error_timestamp_seconds")
    assert list(sinks.numbers.values(last)) == [(WAL, "a", "other")]
    retries = next(each for each in METRICS if each.name == "wal_sink_retries")
    assert sinks.numbers.values(retries) == {
        (WAL, "a", "retriable"): 1,
        (WAL, "a", "StoreError"): 1,
        (WAL, "a", "other"): 50,
    }


def test_an_attempt_without_a_next_one_is_no_retry(sinks: Sinks) -> None:
    sinks.tell(failed("unknown", None))
    assert math.isnan(sinks.value("wal_sink_retries", "a", "unknown"))
    assert sinks.value("wal_sink_last_error_timestamp_seconds", "a", "unknown") > 0


def test_an_event_without_a_metric_is_none_of_them(sinks: Sinks) -> None:
    class New(Event):
        pass

    sinks.tell(failed("unknown", 1.0))
    before = {metric.name: dict(sinks.numbers.values(metric)) for metric in METRICS}
    assert any(before.values())
    sinks.tell(New(WAL))
    assert {metric.name: dict(sinks.numbers.values(metric)) for metric in METRICS} == before


def test_a_second_object_for_one_registry_is_refused() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ConfigError, match="Make one Metrics for it"):
        Metrics(registry)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:", ":9464", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:²", 9464, None]
)
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        Metrics().serve(address)


def test_an_address_of_ip_version_6_is_taken_apart() -> None:
    assert prometheus._host_and_port("[::1]:9464") == ("::1", 9464)


def test_something_else_than_a_registry_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a prometheus_client"):
        Metrics("127.0.0.1:9464")  # type: ignore[arg-type]


def test_without_the_package_the_error_holds_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "prometheus_client":
            raise ImportError("No module named 'prometheus_client'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match="pip install prometheus-client"):
        Metrics()


def test_every_metric_has_another_name_and_takes_no_unbounded_label() -> None:
    assert len({metric.shown for metric in METRICS}) == len(METRICS)
    allowed = {"wal", "sink", "operation", "answer", "kind", "reason"}
    assert {label for metric in METRICS for label in metric.labels} <= allowed
    assert not [metric.name for metric in METRICS if metric.name.endswith("_total")]
