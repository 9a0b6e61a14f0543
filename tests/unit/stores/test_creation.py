"""Whatever a store answers to a create, `create_once` finds out whose object is there."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.house.stores import MemoryStore, ObjectExists, StoreSpec, create_once, probe
from tests.house.support import SYSTEM, Runtime
from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError

_numbers = itertools.count()


class Scripted(MemoryStore):
    """Each create takes the next step: "ok", "lost" (effect, then an error), "failed" (an error, no effect)."""

    def __init__(self, *steps: str, error: Callable[[str], Exception] = StoreError, unreadable: bool = False) -> None:
        super().__init__(StoreSpec(f"memory://creation-{next(_numbers)}"))
        self.steps = list(steps)
        self.error = error
        self.unreadable = unreadable
        self.deleted = False

    def create(self, path: str, data: bytes) -> None:
        step = self.steps.pop(0) if self.steps else "ok"
        if step in {"ok", "lost"}:
            super().create(path, data)
        if step != "ok":
            raise self.error("the connection broke")

    def read(self, path: str) -> bytes:
        if self.unreadable:
            raise StoreError("the connection broke again")
        return super().read(path)

    def delete(self, paths: object) -> None:
        raise AssertionError(f"nothing may be deleted: {paths}")


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def runtime(pauses: list[float]) -> Runtime:
    return replace(SYSTEM, sleep_s=pauses.append)


@pytest.mark.parametrize("error", [StoreError, ObjectExists])
def test_an_error_after_the_effect_is_mine(runtime: Runtime, error: type[StoreError]) -> None:
    assert create_once(Scripted("lost", error=error), "a", b"mine", runtime=runtime)


def test_anothers_object_is_lost_and_stays(runtime: Runtime, pauses: list[float]) -> None:
    store = Scripted()
    store.create("a", b"another's")
    assert not create_once(store, "a", b"mine", runtime=runtime)
    assert store.read("a") == b"another's"
    assert pauses == []


def test_an_error_that_hides_anothers_object_is_lost(runtime: Runtime) -> None:
    store = Scripted("ok", "failed")
    store.create("a", b"another's")
    assert not create_once(store, "a", b"mine", runtime=runtime)


def test_failures_without_effect_are_repeated_with_growing_pauses(runtime: Runtime, pauses: list[float]) -> None:
    store = Scripted("failed", "failed", "lost")
    assert create_once(store, "a", b"mine", runtime=runtime)
    assert pauses == sorted(pauses)
    assert len(pauses) == 2


def test_an_unreadable_object_is_an_unknown_outcome(runtime: Runtime) -> None:
    store = Scripted("lost", unreadable=True)
    with pytest.raises(
        OutcomeUnknownError, match=r"creation-.*/a may or may not.*start the query or command again"
    ) as caught:
        create_once(store, "a", b"mine", runtime=runtime)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes


def test_an_error_that_no_repetition_repairs_passes_through(runtime: Runtime, pauses: list[float]) -> None:
    with pytest.raises(ConfigError):
        create_once(Scripted("failed", error=ConfigError), "a", b"mine", runtime=runtime)
    assert pauses == []


def test_no_attempt_at_all_is_refused(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        create_once(Scripted(), "a", b"mine", runtime=runtime, attempts=0)


def test_pauses_double_from_a_twentieth_of_a_second_up_to_a_second(runtime: Runtime, pauses: list[float]) -> None:
    with pytest.raises(StoreError):
        create_once(Scripted(*["failed"] * 9), "a", b"mine", runtime=runtime, attempts=8)

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_an_unknown_outcome_says_what_both_answers_were(runtime: Runtime) -> None:
    with pytest.raises(
        OutcomeUnknownError, match=r"answered “the connection broke”, .* back: “the connection broke again”"
    ):
        create_once(Scripted("lost", unreadable=True), "a", b"mine", runtime=runtime)


class Replacing(MemoryStore):
    """Its second create replaces the object of the first."""

    def create(self, path: str, data: bytes) -> None:
        with contextlib.suppress(ObjectExists):
            super().create(path, data)


class Doubtful(MemoryStore):
    @property
    def create_doubt(self) -> str:
        return "nobody tried it"


def test_a_probe_refuses_a_store_that_accepts_a_second_create_or_promises_none() -> None:
    for kind, said in [(Replacing, "accepted a second create"), (Doubtful, "nobody tried it")]:
        store = kind(StoreSpec(f"memory://creation-{next(_numbers)}"))
        with pytest.raises(ConfigError, match=said):
            probe(store, runtime=SYSTEM, single_writer=False)
        assert store.list("probe") == []


def test_the_probe_of_a_dead_process_is_deleted_after_an_hour_and_not_before() -> None:
    store = MemoryStore(StoreSpec(f"memory://creation-{next(_numbers)}"))
    left = f"20260101T000000Z-{'a' * 32}.json"
    store.create(f"probe/{left}", b"left")
    passed = [0.0]
    leftovers = probe(store, runtime=replace(SYSTEM, monotonic_s=lambda: passed[0]), single_writer=False)
    for now, there in [(3599.0, [left]), (3600.0, [])]:
        passed[0] = now
        leftovers.delete_old()
        assert store.list("probe") == there
