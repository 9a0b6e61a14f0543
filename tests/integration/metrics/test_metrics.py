"""Metrics are served on a port."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from tests.simulation.histories.lives import lower_retention
from tests.support.servers.ports import free_port, listening
from tests.support.small_run import Place, Recorder
from wal_sink import ConfigError, DeliveryError, Metrics, Rejected, RetryLaterError, SegmentSink
from wal_sink.metrics import prometheus
from wal_sink.runtime.clock import SYSTEM
from wal_sink.sinks.chunk import Chunk
from wal_sink.telemetry import (
    Staged,
)

WAL = "memory://x"


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


def test_the_requests_of_a_run_are_exactly_the_same_with_and_without_metrics(metrics: Metrics) -> None:
    def requests(given: Metrics | None) -> list[str]:
        place = Place(rows=lambda _: [3, 2])
        place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(4), metrics=given), 40)
        assert any(request.startswith("delete") for request in place.requests), "it collects"
        return [" ".join(request.split("/")[:1]) for request in place.requests]

    assert requests(metrics) == requests(None)


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


def test_no_text_of_an_error_is_shown(metrics: Metrics) -> None:
    def fail(_: Chunk) -> None:
        raise RetryLaterError("token=abcdefgh of https://user:pass@host")

    place = Place()
    run = place.open({"a": Recorder(fail)}, metrics=metrics, max_attempts=2)
    with pytest.raises(DeliveryError):
        place.stream(run, 0)
    shown = json.dumps(read(metrics))
    assert "abcdefgh" not in shown
    assert "pass" not in shown
    assert "host" not in shown


def test_a_timed_segment_sink_is_counted_as_one_call(metrics: Metrics) -> None:
    class Segments(SegmentSink):
        def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
            del ordinal, batch_id
            for _ in chunks:
                continue

    place = Place(rows=lambda _: [10])
    place.stream(place.open({"a": Segments()}, metrics=metrics), 0)
    assert read(metrics)['wal_sink_chunk_seconds_count{sink="a"}'] == 1


def test_a_chunk_that_fails_is_timed_too(metrics: Metrics) -> None:
    failures = [ValueError("broken")]

    def fail(_: Chunk) -> None:
        if failures:
            raise failures.pop()

    place = Place()
    place.stream(place.open({"a": Recorder(fail)}, metrics=metrics), 0)
    assert read(metrics)['wal_sink_chunk_seconds_count{sink="a"}'] == 2


def test_buckets_hold_the_counts_of_smaller_ones(metrics: Metrics) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
    found = read(metrics)
    counts = [value for name, value in found.items() if name.startswith("wal_sink_chunk_seconds_bucket")]
    assert counts == sorted(counts)
    assert found['wal_sink_chunk_seconds_bucket{le="+Inf",sink="a"}'] == 1


def staged(batch: int, at: float | None) -> Staged:
    return Staged(WAL, batch=batch, attempt=1, rows=1, bytes=1, segments=1, took_s=1, staged_at=at)


def test_a_registry_of_the_program_shows_both() -> None:
    registry = CollectorRegistry()
    Counter("own", "a metric of the program", registry=registry).inc()
    with Metrics(registry) as metrics:
        metrics.serve(f"127.0.0.1:{free_port()}")
        place = Place()
        place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
        found = read(metrics)
    assert (found["own_total"], found["wal_sink_staged_batches_total"]) == (1, 1)


def test_two_wals_share_one_object(metrics: Metrics) -> None:
    for _ in range(2):
        place = Place()
        place.stream(place.open({"a": Recorder()}, metrics=metrics), 0)
    text = urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=60).read().decode()
    assert text.count("\nwal_sink_staged_batches_total{") == 2


def test_a_port_in_use_is_refused_with_the_way_out() -> None:
    with listening() as other, pytest.raises(ConfigError, match="Choose another port"):
        Metrics().serve(f"127.0.0.1:{other.getsockname()[1]}")


def test_it_is_served_once(metrics: Metrics) -> None:
    with pytest.raises(ConfigError, match=r"served at 127\.0\.0\.1:"):
        metrics.serve(f"127.0.0.1:{free_port()}")


def test_after_its_end_nobody_answers() -> None:
    metrics = Metrics()
    address = metrics.serve(f"127.0.0.1:{free_port()}")
    assert repr(metrics) == f"Metrics({address})"
    metrics.close()
    metrics.close()
    assert repr(metrics) == "Metrics(not served)"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=2)


def test_without_a_run_there_is_no_sample(metrics: Metrics) -> None:
    assert not [name for name in read(metrics) if "wal_sink" in name]
