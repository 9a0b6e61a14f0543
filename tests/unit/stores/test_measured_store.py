"""A measured store passes everything on, counts each call once with the way it ended, and tells that it is slow."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tests.house.stores import MeasuredStore, MemoryStore, ObjectExists, ObjectMissing, Store, StoreSpec
from tests.house.support import SYSTEM
from tests.support.logged import said_here
from wal_sink.errors import StoreError
from wal_sink.stores import measured as module
from wal_sink.stores.measured import LAST_REQUESTS, SLOW_REQUESTS, SlowRequests, measured
from wal_sink.support.measures import RequestCounts
from wal_sink.testing import FaultyStore

_numbers = count()


class Clock:
    """A clock that each request moves on by `takes_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_request(self, what: str, _: str) -> None:
        if what.startswith("before"):
            self.now_s += self.takes_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inner() -> Store:
    return MemoryStore(StoreSpec(f"memory://measured-{next(_numbers)}"))


@pytest.fixture
def store(inner: Store, clock: Clock) -> Store:
    slow = SlowRequests(inner.root)
    return MeasuredStore(FaultyStore(inner, clock.pass_request), slow=slow, runtime=replace(SYSTEM, monotonic_s=clock))


@pytest.fixture
def counts() -> RequestCounts:
    return RequestCounts()


def told(counts: RequestCounts) -> dict[str, int]:
    return {f"{each.operation} {each.answer}": each.times.count for each in counts.counted()}


def test_a_slow_store_is_told_once_with_its_longest_request(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.create("a", b"x")
    clock.takes_s = 1.5
    store.read("a")
    clock.takes_s = 5.0
    store.read("a")
    assert said_here(caplog) == []
    clock.takes_s = 2.0
    with pytest.raises(ObjectMissing):
        store.read("b")
    (told,) = said_here(caplog)
    assert {record.levelname for record in caplog.records if record.getMessage() == told} == {"WARNING"}
    assert (
        f"{store.root} is slow: 3 of the last 4 requests took longer than 1 s. The longest took 5.0 s (reading a)"
        in told
    )
    for _ in range(9):
        store.read("a")
    assert len(said_here(caplog)) == 1


def test_slow_requests_far_apart_are_no_slow_store(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4 * LAST_REQUESTS):
        clock.takes_s = 5.0 if number % (LAST_REQUESTS // (SLOW_REQUESTS - 1)) == 0 else 0.04
        store.create(str(number), b"x")
    assert said_here(caplog) == []


@pytest.mark.parametrize("takes_s", [0.99, 1.01])
def test_a_request_is_slow_after_a_second(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture, takes_s: float
) -> None:
    clock.takes_s = takes_s
    for number in range(SLOW_REQUESTS):
        store.create(str(number), b"")
    assert len(said_here(caplog)) == int(takes_s > 1)


def test_a_large_object_may_take_longer(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_BYTES_PER_S", 100)
    clock.takes_s = 1.9
    for number in range(4):
        store.create(f"a/{number}", b"x" * 100)
        store.read(f"a/{number}")
    assert said_here(caplog) == []
    clock.takes_s = 2.1
    for number in range(SLOW_REQUESTS):
        store.create(f"b/{number}", b"x" * 100)
    assert len(said_here(caplog)) == 1


def test_listings_and_deletions_may_be_many_requests(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.takes_s = 99.0
    for _ in range(SLOW_REQUESTS):
        store.list("a")
        store.delete(["a/1"])
    assert said_here(caplog) == []


def test_a_request_that_fails_late_counts(store: Store, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    store.create("a", b"x")
    clock.takes_s = 9.0
    for _ in range(SLOW_REQUESTS):
        with pytest.raises(StoreError):
            store.create("a", b"y")
    assert "creating a" in caplog.text


def test_a_store_without_a_meter_is_the_store_itself(inner: Store) -> None:
    assert measured(inner, None) is inner


def test_a_measured_store_passes_everything_on_and_counts_it(inner: Store, counts: RequestCounts) -> None:
    store = measured(inner, counts)
    store.begin()
    store.create("a/b", b"rows")
    with store.segment("a/c") as stream:
        stream.write(b"more")
        stream.commit()
    assert (store.read("a/b"), store.list("a", after="b"), store.list("", recursive=True)) == (
        b"rows",
        ["c"],
        ["a/b", "a/c"],
    )
    assert (store.root, store.url_of("x"), store.create_doubt) == (inner.root, inner.url_of("x"), "")
    store.delete(path for path in ("a/b", "a/c"))
    store.delete(())
    assert inner.list("") == []
    assert told(counts) == {"create ok": 1, "delete ok": 1, "list ok": 2, "read ok": 1, "segment ok": 1}


def test_ordinary_answers_are_told_apart_from_errors(inner: Store, counts: RequestCounts) -> None:
    def fail(what: str, _: str) -> None:
        if what == "before list":
            raise StoreError("no answer")

    store = measured(FaultyStore(inner, fail), counts)
    store.create("a", b"")
    with pytest.raises(ObjectExists):
        store.create("a", b"")
    with pytest.raises(ObjectMissing):
        store.read("b")
    with pytest.raises(StoreError):
        store.list("")
    assert told(counts) == {"create exists": 1, "create ok": 1, "list error": 1, "read missing": 1}


def test_a_segment_that_is_given_up_is_no_request(inner: Store, counts: RequestCounts) -> None:
    with measured(inner, counts).segment("a") as stream:
        stream.write(b"rows")
    assert told(counts) == {}
    assert inner.list("") == []


def test_the_time_is_that_of_the_request(inner: Store, counts: RequestCounts, clock: Clock) -> None:
    clock.takes_s = 0.5
    store = measured(FaultyStore(inner, clock.pass_request), counts, replace(SYSTEM, monotonic_s=clock))
    store.create("a", b"")
    assert counts.counted()[0].times.total_s == 0.5
