"""The watched store passes everything on and counts each call once, with the way it ended."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from wal_sink.errors import StoreError
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.stores.watched import watched
from wal_sink.telemetry.measures import RequestCounts
from wal_sink.testing import FaultyStore

_numbers = count()


@pytest.fixture
def counts() -> RequestCounts:
    return RequestCounts()


@pytest.fixture
def inner() -> Store:
    return MemoryStore(StoreSpec(f"memory://watched-{next(_numbers)}"))


def told(counts: RequestCounts) -> dict[str, int]:
    return {f"{each.operation} {each.answer}": each.times.count for each in counts.counted()}


def test_without_a_meter_it_is_the_store_itself(inner: Store) -> None:
    assert watched(inner, None) is inner


def test_it_passes_everything_on_and_counts_it(inner: Store, counts: RequestCounts) -> None:
    store = watched(inner, counts)
    store.begin()
    store.create("a/b", b"rows")
    with store.segment("a/c") as stream:
        assert stream.write(b"more") == 4
        stream.commit()
    assert (store.read("a/b"), store.list("a", after="b"), store.list("", recursive=True)) == (
        b"rows",
        ["c"],
        ["a/b", "a/c"],
    )
    assert (store.root, store.url_of("x")) == (inner.root, inner.url_of("x"))
    store.delete(path for path in ("a/b", "a/c"))
    store.delete(())
    assert inner.list("") == []
    assert told(counts) == {"create ok": 1, "delete ok": 1, "list ok": 2, "read ok": 1, "segment ok": 1}


def test_ordinary_answers_are_told_apart_from_errors(inner: Store, counts: RequestCounts) -> None:
    def fail(what: str, _: str) -> None:
        if what == "before list":
            raise StoreError("no answer")

    store = watched(FaultyStore(inner, fail), counts)
    store.create("a", b"")
    with pytest.raises(ObjectExists):
        store.create("a", b"")
    with pytest.raises(ObjectMissing):
        store.read("b")
    with pytest.raises(StoreError):
        store.list("")
    assert told(counts) == {"create exists": 1, "create ok": 1, "list error": 1, "read missing": 1}


def test_a_segment_that_is_given_up_is_no_request(inner: Store, counts: RequestCounts) -> None:
    with watched(inner, counts).segment("a") as stream:
        stream.write(b"rows")
    assert told(counts) == {}
    assert inner.list("") == []


def test_the_time_is_that_of_the_request(inner: Store, counts: RequestCounts) -> None:
    now = [0.0]

    def pass_time(what: str, _: str) -> None:
        now[0] += 0.5 if what.startswith("before") else 0.0

    store = watched(FaultyStore(inner, pass_time), counts, replace(SYSTEM, monotonic_s=lambda: now[0]))
    store.create("a", b"")
    assert counts.counted()[0].times.total_s == 0.5
