"""Probes of a store: each promise, broken once, is an error with the next step, and no probe is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from wal_sink.doctor import store_probes
from wal_sink.doctor.store_probes import probe_store
from wal_sink.errors import StoreError
from wal_sink.reporting.findings import Finding, Level
from wal_sink.runtime.clock import SYSTEM, Runtime
from wal_sink.stores.base import ObjectMissing, SegmentStream, Store
from wal_sink.stores.local import LocalStore
from wal_sink.stores.measured import MeasuredStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec

_numbers = itertools.count()
AN_HOUR = timedelta(hours=1)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://doctor-{next(_numbers)}"))


class Clocked(MeasuredStore):
    """A store that is healthy, apart from its clock, if `ahead` is not zero."""

    ahead = timedelta()

    def created_at(self, path: str) -> datetime:
        self.read(path)
        return datetime.now(UTC) + self.ahead


UNHURRIED = replace(SYSTEM, monotonic_s=lambda: 0.0)
"""No request is slow, however slow this machine is."""


def found(store: Store, runtime: Runtime = UNHURRIED, *, single_writer: bool = False) -> dict[str, Finding]:
    return {one.check: one for one in probe_store(store, runtime, single_writer=single_writer)}


def left(store: Store) -> list[str]:
    return store.list("", recursive=True)


def failing(store: Store, check: str, memory: Store) -> Finding:
    """The finding about `check`, which must be the only error, with a next step; and nothing may be left."""
    results = found(store)
    assert {one.check for one in results.values() if one.level is Level.ERROR} == {check}
    assert results[check].next_step
    assert left(memory) == []
    return results[check]


def test_a_healthy_store_has_no_finding_but_good_ones(memory: MemoryStore) -> None:
    results = found(Clocked(memory))
    assert {one.level for one in results.values()} == {Level.OK}
    assert list(results) == [
        *("store.sharing", "store.create", "store.read", "store.list", "store.race", "store.segment", "store.clock"),
        *("store.delete", "store.speed"),
    ]
    assert left(memory) == []


def test_the_number_of_requests_is_bounded(memory: MemoryStore) -> None:
    calls: list[str] = []

    class Counted(Clocked):
        def create(self, path: str, data: bytes) -> None:
            calls.append(path)
            super().create(path, data)

        def read(self, path: str) -> bytes:
            calls.append(path)
            return super().read(path)

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            calls.append(prefix)
            return super().list(prefix, after=after, recursive=recursive)

    probe_store(Counted(memory), SYSTEM)
    assert len(calls) == 36


def test_a_local_folder_tells_the_time(tmp_path: Path) -> None:
    results = found(LocalStore(StoreSpec(str(tmp_path))))
    assert {one.level for one in results.values()} == {Level.OK}
    assert "agree" in results["store.clock"].found
    assert list(tmp_path.iterdir()) == []


class Overwrites(Clocked):
    def create(self, path: str, data: bytes) -> None:
        self._inner.delete([path])
        super().create(path, data)


class ChecksFirst(Clocked):
    """It looks whether the path is free, and writes a moment later: as fsspec does."""

    def create(self, path: str, data: bytes) -> None:
        if path in left(self._inner):
            super().create(path, data)  # raises
        time.sleep(0.05)
        self._inner.delete([path])
        super().create(path, data)


class OverwritesAWinner(Clocked):
    """One thread is told that it made the object, and another's bytes are there."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if b'"writer"' in data:
            self._inner.delete([path])
            self._inner.create(path, b"another's")


class Forgets(Clocked):
    def read(self, path: str) -> bytes:
        raise ObjectMissing(f"{path} does not exist")

    def created_at(self, path: str) -> datetime:
        del path
        return datetime.now(UTC)


class Alters(Clocked):
    def read(self, path: str) -> bytes:
        return super().read(path)[:-1]


class ListsLate(Clocked):
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = super().list(prefix, after=after, recursive=recursive)
        return names[1:]


class KeepsDeleted(Clocked):
    """A deleted object can still be read, until it is deleted for good."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._kept: dict[str, bytes] = {}

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        for path in doomed:
            self._kept[path] = self._inner.read(path) if path in left(self._inner) else b""
        super().delete(doomed)

    def read(self, path: str) -> bytes:
        return self._kept.get(path) or super().read(path)


class ListsDeleted(Clocked):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._seen: set[str] = set()

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        self._seen |= set(super().list(prefix, after=after, recursive=recursive))
        return sorted(self._seen)


class ShowsPieces(Clocked):
    def segment(self, path: str) -> SegmentStream:
        self._inner.create(path, b"half")
        return super().segment(f"{path}-whole")


class AltersPieces(Clocked):
    def segment(self, path: str) -> SegmentStream:
        stream = super().segment(path)
        stream.write(b"x")
        return stream


@pytest.mark.parametrize(
    ("kind", "check", "says"),
    [
        (Alters, "store.read", "other bytes"),
        (ChecksFirst, "store.race", "were told that they made it"),
        (OverwritesAWinner, "store.race", "it was overwritten"),
        (ListsDeleted, "store.delete", "still listed"),
        (KeepsDeleted, "store.delete", "can still be read"),
        (ShowsPieces, "store.segment", "before it is whole"),
        (AltersPieces, "store.segment", "came back as other bytes"),
    ],
)
def test_a_broken_promise_is_an_error_of_its_line(
    kind: type[Clocked], check: str, says: str, memory: MemoryStore, request: pytest.FixtureRequest
) -> None:
    del request
    results = found(kind(memory))
    assert results[check].level is Level.ERROR
    assert says in results[check].found
    assert results[check].next_step
    memory.delete([name for name in left(memory) if name.endswith("-whole")])
    assert left(memory) == []


def test_a_store_that_overwrites_fails(memory: MemoryStore) -> None:
    results = found(Overwrites(memory))
    assert "second create of the same object was accepted" in results["store.create"].found
    assert results["store.create"].level is results["store.race"].level is Level.ERROR
    assert left(memory) == []


def test_an_object_that_cannot_be_found_again_is_an_error(memory: MemoryStore) -> None:
    results = found(Forgets(memory))
    assert results["store.read"].level is Level.ERROR
    assert "cannot be found" in results["store.read"].found
    assert left(memory) == []


def test_a_listing_that_comes_late_is_an_error(memory: MemoryStore) -> None:
    assert "missing in the listing" in failing(ListsLate(memory), "store.list", memory).found


DOUBT = "it checks first and writes then"


def test_a_store_with_a_doubt_is_an_error_unless_one_process_writes(memory: MemoryStore) -> None:
    class Doubtful(Clocked):
        @property
        def create_doubt(self) -> str:
            return DOUBT

    sharing = found(Doubtful(memory))["store.sharing"]
    assert (sharing.level, sharing.found) == (Level.ERROR, DOUBT)
    assert "--single-writer" in sharing.next_step
    assert found(Doubtful(memory), single_writer=True)["store.sharing"].level is Level.WARNING


@pytest.mark.parametrize("denied", ["create", "read", "list", "delete", "segment"])
def test_a_missing_right_is_an_error_and_the_others_are_probed(denied: str, memory: MemoryStore) -> None:
    class Refusing(Clocked):
        pass

    def refuse(_self: object, path: object, *_: object, **__: object) -> None:
        raise StoreError(f"cannot {denied} {path}: AccessDenied; give the right s3:{denied}")

    setattr(Refusing, denied, refuse)
    results = found(Refusing(memory))
    errors = {name for name, one in results.items() if one.level is Level.ERROR}
    assert f"store.{denied}" in errors
    assert f"s3:{denied}" in results[f"store.{denied}"].found
    if denied == "create":
        assert results["store.others"].level is Level.WARNING
        assert "store.race" not in results
    if denied == "delete":
        assert "by hand" in results["store.delete"].next_step
        assert "probe/" in results["store.delete"].next_step
    else:
        assert left(memory) == []


def test_a_lost_answer_in_a_race_is_no_broken_promise_but_told(memory: MemoryStore) -> None:
    class Loses(Clocked):
        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if b'"writer"' in data:
                raise StoreError("no answer")

    race = failing(Loses(memory), "store.race", memory)
    assert "no answer" in race.found


@pytest.mark.parametrize(
    ("ahead", "level", "says"),
    [
        (timedelta(0), Level.OK, "agree to the second"),
        (timedelta(seconds=20), Level.OK, "behind the store's"),
        (timedelta(minutes=2), Level.WARNING, "behind the store's"),
        (-timedelta(minutes=2), Level.WARNING, "ahead of the store's"),
        (AN_HOUR, Level.ERROR, "3,600 s behind"),
        (-AN_HOUR, Level.ERROR, "ahead of"),
    ],
)
def test_a_skewed_clock_is_told(ahead: timedelta, level: Level, says: str, memory: MemoryStore) -> None:
    store = Clocked(memory)
    store.ahead = ahead
    clock = found(store)["store.clock"]
    assert clock.level is level
    assert says in clock.found.replace("3,599", "3,600")
    assert bool(clock.next_step) is (level is not Level.OK)


def test_an_unknown_clock_is_a_warning_with_the_reason(memory: MemoryStore) -> None:
    assert "MemoryStore tells no time" in found(memory)["store.clock"].found
    assert found(memory)["store.clock"].level is Level.WARNING

    class Mute(Clocked):
        def created_at(self, path: str) -> datetime:
            raise StoreError(f"no time of {path}")

    clock = found(Mute(memory))["store.clock"]
    assert clock.level is Level.WARNING
    assert "no time of probe/" in clock.found


def test_a_slow_store_is_a_warning(memory: MemoryStore) -> None:
    ticks = itertools.count()
    slow = replace(SYSTEM, monotonic_s=lambda: next(ticks) * store_probes.SLOW_S)
    speed = found(Clocked(memory), slow)["store.speed"]
    assert speed.level is Level.WARNING
    assert "create 1,000 ms" in speed.found


def test_an_error_that_no_store_should_raise_is_not_swallowed(memory: MemoryStore) -> None:
    class Wrong(Clocked):
        def read(self, path: str) -> bytes:
            raise ZeroDivisionError(path)

    with pytest.raises(ZeroDivisionError):
        probe_store(Wrong(memory), SYSTEM)
    assert left(memory) == []


def test_without_another_thread_nothing_is_made(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        probe_store(Clocked(memory), SYSTEM)
    assert left(memory) == []


@pytest.mark.parametrize("at", range(1, 37, 3))
def test_ctrl_c_at_any_request_leaves_no_probe(at: int, memory: MemoryStore) -> None:
    calls = itertools.count(1)
    interrupted = threading.Event()

    def call(inner: Callable[[], object]) -> None:
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGINT)
            interrupted.set()
            time.sleep(0.05)  # the main thread gets the signal while this request is under way
        inner()

    class Interrupted(Clocked):
        def create(self, path: str, data: bytes) -> None:
            call(lambda: None)
            super().create(path, data)

        def read(self, path: str) -> bytes:
            call(lambda: None)
            return super().read(path)

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            call(lambda: None)
            return super().list(prefix, after=after, recursive=recursive)

    with pytest.raises(KeyboardInterrupt):
        probe_store(Interrupted(memory), SYSTEM)
    assert interrupted.is_set()
    assert left(memory) == []
