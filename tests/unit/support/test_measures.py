"""Times in buckets, and counts of requests that several threads share."""

from __future__ import annotations

import pickle
import threading

import msgspec

from wal_sink.support.measures import BOUNDS_S, Histogram, OperationTimes, RequestCounts, Times


def test_a_time_falls_into_the_first_bucket_that_holds_it() -> None:
    cases: list[tuple[float, int]] = [
        (0.0, 0),
        (0.001, 0),
        (0.0011, 1),
        (60.0, len(BOUNDS_S) - 1),
        (61.0, len(BOUNDS_S)),
    ]
    for took_s, bucket in cases:
        histogram = Histogram()
        histogram.add(took_s)
        assert histogram.times().counts.index(1) == bucket
        assert histogram.times().total_s == took_s


def test_counts_of_tasks_add_up() -> None:
    one, two = Histogram(), Histogram()
    one.add(0.5)
    two.add(2.0)
    two.merge(one.times())
    assert (two.times().count, two.times().total_s) == (2, 2.5)
    assert Times().count == 0


def test_requests_are_counted_by_operation_and_answer() -> None:
    counts, other = RequestCounts(), RequestCounts()
    counts.note("read", "ok", 0.1)
    other.note("read", "missing", 0.2)
    other.note("create", "ok", 0.3)
    counts.merge(other.counted())
    assert [(each.operation, each.answer, each.times.count) for each in counts.counted()] == [
        ("create", "ok", 1),
        ("read", "missing", 1),
        ("read", "ok", 1),
    ]


def test_threads_lose_no_count() -> None:
    counts = RequestCounts()

    def work() -> None:
        for _ in range(2_000):
            counts.note("read", "ok", 0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.counted()[0].times.count == 8_000


def test_counts_of_requests_can_be_pickled_and_encoded_as_json() -> None:
    counts = RequestCounts()
    counts.note("list", "error", 0.1)
    counted = counts.counted()
    assert pickle.loads(pickle.dumps(counted)) == counted  # noqa: S301 - our own bytes
    assert msgspec.json.decode(msgspec.json.encode(counted), type=tuple[OperationTimes, ...]) == counted
