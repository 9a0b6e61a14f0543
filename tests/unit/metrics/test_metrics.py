"""Metrics of a run, read as Prometheus reads them: over HTTP, as text."""

from __future__ import annotations

import builtins
import json
import math
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from tests.house.sinks import Chunk
from tests.house.support import METRICS, SYSTEM, Began, Collected, Ended, Event, GaveUp, Marked, Replayed, Staged
from tests.simulation.histories.lives import lower_retention
from tests.support.servers.ports import free_port, listening
from tests.support.small_run import Place, Recorder
from wal_sink import ConfigError, DeliveryError, Metrics, Rejected, Retry, RetryLaterError
from wal_sink.metrics import prometheus
from wal_sink.metrics.numbers import MOST_TIMES, Numbers
from wal_sink.telemetry import AttemptFailed, FoundDelivered, Released, SlowStore, StreamHeld, StreamResumed

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


def test_an_address_that_is_none_is_refused() -> None:
    cases: list[Any] = [
        "",
        "127.0.0.1",
        "127.0.0.1:",
        ":9464",
        "127.0.0.1:http",
        "127.0.0.1:65536",
        "127.0.0.1:²",
        9464,
        None,
    ]
    for address in cases:
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


@pytest.mark.processes
def test_a_run_is_counted(metrics: Metrics) -> None:
    place = Place(rows=lambda _: [3, 2])
    run = place.open({"a": Recorder()}, metrics=metrics)
    place.stream(run, 2)
    found = read(metrics)
    assert found["wal_sink_staged_batches_total"] == 3
    assert found["wal_sink_staged_rows_total"] == 15
    assert found["wal_sink_staged_segments_total"] == 6
    assert found["wal_sink_staging_seconds_count"] == 3
    assert found['wal_sink_delivered_batches_total{sink="a"}'] == 3
    assert found['wal_sink_delivered_rows_total{sink="a"}'] == found['wal_sink_sent_rows_total{sink="a"}'] == 15
    assert found['wal_sink_sent_chunks_total{sink="a"}'] == found['wal_sink_chunk_seconds_count{sink="a"}'] == 9
    assert found['wal_sink_delivery_seconds_count{sink="a"}'] == found['wal_sink_delay_seconds_count{sink="a"}'] == 3
    assert found['wal_sink_pending_batches{sink="a"}'] == found['wal_sink_lag_seconds{sink="a"}'] == 0
    assert found['wal_sink_delivered_through{sink="a"}'] == 2
    assert found['wal_sink_gave_up{sink="a"}'] == 0
    assert found["wal_sink_slow_store"] == 0


@pytest.mark.processes
def test_requests_are_counted_as_the_store_sees_them(metrics: Metrics) -> None:
    place = Place(rows=lambda _: [3, 2])
    place.stream(place.open({"a": Recorder()}, metrics=metrics), 2)
    seen: dict[str, int] = {}
    for request in place.requests:
        operation = request.partition(" ")[0]
        seen[operation] = seen.get(operation, 0) + 1
    found = read(metrics)
    counted: dict[str, float] = {}
    for name, value in found.items():
        if name.startswith("wal_sink_store_request_seconds_count"):
            operation = name.partition('operation="')[2].partition('"')[0]
            counted[operation] = counted.get(operation, 0) + value
    assert counted == seen


@pytest.mark.processes
def test_the_requests_of_a_run_are_exactly_the_same_with_and_without_metrics(metrics: Metrics) -> None:
    def requests(given: Metrics | None) -> list[str]:
        place = Place(rows=lambda _: [3, 2])
        place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(4), metrics=given), 40)
        assert any(request.startswith("delete") for request in place.requests), "it collects"
        return [" ".join(request.split("/")[:1]) for request in place.requests]

    assert requests(metrics) == requests(None)


@pytest.mark.processes
def test_a_backlog_and_its_age_are_shown(metrics: Metrics, clock: Clock) -> None:
    place = Place()
    run = place.open({"a": Recorder()}, metrics=metrics)
    for batch, _ in enumerate(place.query().batches(run, 3)):
        if batch == 0:
            run.gate.search()
            run.deliver_all()
    staged = datetime.fromisoformat(next(iter(run.history._staged.values())).created)
    clock.now = staged + timedelta(seconds=90)
    found = read(metrics)
    assert found['wal_sink_pending_batches{sink="a"}'] == 2
    assert found['wal_sink_lag_seconds{sink="a"}'] == pytest.approx(90, abs=1)
    run.gate.search()
    run.deliver_all()
    assert read(metrics)['wal_sink_lag_seconds{sink="a"}'] == 0


@pytest.mark.processes
def test_rejected_rows_and_retries_are_counted(metrics: Metrics) -> None:
    answers: list[object] = [RetryLaterError("busy"), Rejected({0: "bad"})]

    def answer(_: Chunk) -> object:
        given = answers.pop(0) if answers else None
        if isinstance(given, Exception):
            raise given
        return given

    place = Place()
    place.stream(place.open({"a": Recorder(answer)}, metrics=metrics, on_rejected="dead_letter"), 0)
    found = read(metrics)
    assert found['wal_sink_rejected_rows_total{sink="a"}'] == 1
    assert found['wal_sink_dead_letter_rows_total{reason="rejected",sink="a"}'] == 1
    assert found['wal_sink_dead_letter_rows_total{reason="unknown",sink="a"}'] == 0
    assert found['wal_sink_retries_total{kind="retriable",sink="a"}'] == 1
    assert found['wal_sink_last_error_timestamp_seconds{kind="retriable",sink="a"}'] > 0


@pytest.mark.processes
def test_no_text_of_an_error_is_shown(metrics: Metrics) -> None:
    def fail(_: Chunk) -> None:
        raise RetryLaterError("token=abcdefgh of https://user:pass@host")

    place = Place()
    run = place.open({"a": Recorder(fail)}, metrics=metrics, retry=Retry(attempts=2))
    with pytest.raises(DeliveryError):
        place.stream(run, 0)
    shown = json.dumps(read(metrics))
    assert "abcdefgh" not in shown
    assert "pass" not in shown
    assert "host" not in shown


@pytest.mark.processes
def test_buckets_hold_the_counts_of_smaller_ones(metrics: Metrics) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
    found = read(metrics)
    counts = [value for name, value in found.items() if name.startswith("wal_sink_chunk_seconds_bucket")]
    assert counts == sorted(counts)
    assert found['wal_sink_chunk_seconds_bucket{le="+Inf",sink="a"}'] == 1


@pytest.mark.processes
def test_a_registry_of_the_program_shows_both() -> None:
    registry = CollectorRegistry()
    Counter("own", "a metric of the program", registry=registry).inc()
    with Metrics(registry) as metrics:
        metrics.serve(f"127.0.0.1:{free_port()}")
        place = Place()
        place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
        found = read(metrics)
    assert (found["own_total"], found["wal_sink_staged_batches_total"]) == (1, 1)


@pytest.mark.processes
def test_two_wals_share_one_object(metrics: Metrics) -> None:
    for _ in range(2):
        place = Place()
        place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
    text = urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=60).read().decode()
    assert text.count("\nwal_sink_staged_batches_total{") == 2


@pytest.mark.processes
def test_a_port_in_use_is_refused_with_the_way_out() -> None:
    with listening() as other, pytest.raises(ConfigError, match="Choose another port"):
        Metrics().serve(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.processes
def test_metrics_that_are_served_cannot_be_served_again(metrics: Metrics) -> None:
    with pytest.raises(ConfigError, match=r"served at 127\.0\.0\.1:"):
        metrics.serve(f"127.0.0.1:{free_port()}")


@pytest.mark.processes
def test_nobody_answers_once_metrics_are_closed() -> None:
    metrics = Metrics()
    address = metrics.serve(f"127.0.0.1:{free_port()}")
    assert repr(metrics) == f"Metrics({address})"
    metrics.close()
    metrics.close()
    assert repr(metrics) == "Metrics(not served)"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=2)


@pytest.mark.processes
def test_without_a_run_there_is_no_sample(metrics: Metrics) -> None:
    assert not [name for name in read(metrics) if "wal_sink" in name]
