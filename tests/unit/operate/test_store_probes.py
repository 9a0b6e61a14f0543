"""Probes of a store: each promise, broken once, is an error with the next step, and no probe is left behind."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.house.stores import (
    LocalStore,
    MeasuredStore,
    MemoryStore,
    ObjectExists,
    ObjectMissing,
    SegmentStream,
    Store,
    StoreSpec,
)
from tests.house.support import SYSTEM, Finding, Level
from wal_sink.errors import StoreError
from wal_sink.operate.doctor import probe_store
from wal_sink.testing import FaultyStore

_numbers = itertools.count()


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://doctor-{next(_numbers)}"))


def found(store: Store, *, single_writer: bool = False) -> dict[str, Finding]:
    return {one.check: one for one in probe_store(store, SYSTEM, single_writer=single_writer)}


def left(store: Store) -> list[str]:
    return store.list("", recursive=True)


def test_a_healthy_store_has_no_finding_but_good_ones(memory: MemoryStore) -> None:
    results = found(memory)
    assert {one.level for one in results.values()} == {Level.OK}
    assert {one.check.removeprefix("store."): one.found for one in results.values()} == {
        "sharing": f"several processes can share {memory.root}",
        "create": "an object is created once, and a second create of it is refused",
        "read": "a read after a write returns what was written",
        "list": "a listing after a write shows the object",
        "race": "of 8 threads that create one object at once, one wins (3 races)",
        "segment": "an object that is written in pieces appears as a whole",
        "delete": "a deleted object is gone, and a second delete of it is no error",
    }
    assert left(memory) == []


def test_the_number_of_requests_is_bounded(memory: MemoryStore) -> None:
    calls: list[str] = []
    probe_store(FaultyStore(memory, lambda what, _: calls.append(what)), SYSTEM)
    assert len([what for what in calls if what in {"before create", "before read", "before list"}]) == 35


def test_a_local_folder_is_fine_and_left_as_it_was(tmp_path: Path) -> None:
    results = found(LocalStore(StoreSpec(str(tmp_path))))
    assert {one.level for one in results.values()} == {Level.OK}
    assert list(tmp_path.iterdir()) == []


class Overwrites(MeasuredStore):
    def create(self, path: str, data: bytes) -> None:
        self._inner.delete([path])
        super().create(path, data)


class ChecksFirst(MeasuredStore):
    """It looks whether the path is free, and writes a moment later: as fsspec does."""

    def create(self, path: str, data: bytes) -> None:
        if path in left(self._inner):
            super().create(path, data)  # raises
        time.sleep(0.05)
        self._inner.delete([path])
        super().create(path, data)


class TellsTwoThatTheyWon(MeasuredStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._answers: dict[str, itertools.count[int]] = {}

    def create(self, path: str, data: bytes) -> None:
        try:
            super().create(path, data)
        except ObjectExists:
            if b'"writer"' not in data or next(self._answers.setdefault(path, itertools.count())) > 0:
                raise


class OverwritesAWinner(MeasuredStore):
    """One thread is told that it made the object, and another's bytes are there."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if b'"writer"' in data:
            self._inner.delete([path])
            self._inner.create(path, b"another's")


class Forgets(MeasuredStore):
    def read(self, path: str) -> bytes:
        raise ObjectMissing(f"{path} does not exist")


class Alters(MeasuredStore):
    def read(self, path: str) -> bytes:
        return super().read(path)[:-1]


class ListsLate(MeasuredStore):
    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = super().list(prefix, after=after, recursive=recursive)
        return names[1:]


class KeepsDeleted(MeasuredStore):
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


class ListsDeleted(MeasuredStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._seen: set[str] = set()

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        self._seen |= set(super().list(prefix, after=after, recursive=recursive))
        return sorted(self._seen)


class ShowsPieces(MeasuredStore):
    def segment(self, path: str) -> SegmentStream:
        self._inner.create(path, b"half")
        return super().segment(f"{path}-whole")


class AltersPieces(MeasuredStore):
    def segment(self, path: str) -> SegmentStream:
        stream = super().segment(path)
        stream.write(b"x")
        return stream


@pytest.mark.parametrize(
    ("kind", "check", "says"),
    [
        (
            Overwrites,
            "store.create",
            "a second create of the same object was accepted, so writers overwrite each other",
        ),
        (Overwrites, "store.race", "of 8 threads that created one object at once, "),
        (Forgets, "store.read", "an object that was just created cannot be found"),
        (ListsLate, "store.list", "an object that was just created is missing in the listing"),
        (Alters, "store.read", "an object of "),
        (TellsTwoThatTheyWon, "store.race", "of 8 threads that created one object at once, 2 were told"),
        (ChecksFirst, "store.race", "of 8 threads that created one object at once, "),
        (
            OverwritesAWinner,
            "store.race",
            "a thread was told that it made an object, but the object is another's: it was overwritten",
        ),
        (ListsDeleted, "store.delete", "an object that was deleted is still listed"),
        (KeepsDeleted, "store.delete", "an object that was deleted can still be read"),
        (ShowsPieces, "store.segment", "a listing shows an object before it is whole"),
        (AltersPieces, "store.segment", "an object that was written in pieces came back as other bytes"),
    ],
)
def test_a_broken_promise_is_an_error_of_its_line(
    kind: type[MeasuredStore], check: str, says: str, memory: MemoryStore
) -> None:
    results = found(kind(memory))
    assert results[check].level is Level.ERROR
    assert results[check].found.startswith(says)
    assert results[check].next_step
    memory.delete([name for name in left(memory) if name.endswith("-whole")])
    assert left(memory) == []


DOUBT = "it checks first and writes then"


def test_a_store_with_a_doubt_is_an_error_unless_one_process_writes(memory: MemoryStore) -> None:
    class Doubtful(MeasuredStore):
        @property
        def create_doubt(self) -> str:
            return DOUBT

    sharing = found(Doubtful(memory))["store.sharing"]
    assert (sharing.level, sharing.found) == (Level.ERROR, DOUBT)
    assert "--single-writer" in sharing.next_step
    promised = found(Doubtful(memory), single_writer=True)["store.sharing"]
    assert promised.level is Level.WARNING
    assert (promised.found, promised.next_step) == (
        f"{DOUBT}; you promise that one process writes",
        "keep this promise after a crash, too",
    )


@pytest.mark.parametrize("denied", ["create", "read", "list", "delete", "segment"])
def test_a_missing_right_is_an_error_and_the_others_are_probed(denied: str, memory: MemoryStore) -> None:
    class Refusing(MeasuredStore):
        pass

    def refuse(_self: object, path: object, *_: object, **__: object) -> None:
        raise StoreError(f"cannot {denied} {path}: AccessDenied; give the right s3:{denied}")

    setattr(Refusing, denied, refuse)
    results = found(Refusing(memory))
    errors = {name for name, one in results.items() if one.level is Level.ERROR}
    assert f"store.{denied}" in errors
    assert f"s3:{denied}" in results[f"store.{denied}"].found
    if denied == "create":
        others = results["store.others"]
        assert (others.level, others.found, others.next_step) == (
            Level.WARNING,
            "no other promise was probed, since nothing could be created",
            "see store.create",
        )
        assert "store.race" not in results
    if denied == "delete":
        assert "by hand" in results["store.delete"].next_step
        assert results["store.delete"].next_step.startswith("delete probe/")
        assert ", probe/" in results["store.delete"].next_step
        assert "XX" not in results["store.delete"].next_step
    else:
        assert left(memory) == []


def test_a_lost_answer_in_a_race_is_no_broken_promise_but_told(memory: MemoryStore) -> None:
    class Loses(MeasuredStore):
        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if b'"writer"' in data:
                raise StoreError("no answer")

    [race] = [one for one in found(Loses(memory)).values() if one.level is Level.ERROR]
    assert (race.check, "no answer" in race.found) == ("store.race", True)
    assert left(memory) == []


def test_an_error_that_no_store_should_raise_is_not_swallowed(memory: MemoryStore) -> None:
    class Wrong(MeasuredStore):
        def read(self, path: str) -> bytes:
            raise ZeroDivisionError(path)

    with pytest.raises(ZeroDivisionError):
        probe_store(Wrong(memory), SYSTEM)
    assert left(memory) == []


@pytest.mark.parametrize("at", range(1, 10))
def test_ctrl_c_at_any_request_leaves_no_probe(at: int, memory: MemoryStore) -> None:
    calls = itertools.count(1)

    def interrupt(what: str, _path: str) -> None:
        is_one = what in {"after create", "before read", "before list"}
        if is_one and next(calls) >= at and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_store(FaultyStore(memory, interrupt), SYSTEM)
    assert left(memory) == []
