"""The log: records found where they belong, numbers in order, low water that only rises."""

from __future__ import annotations

import itertools

import pytest

from tests.house.log import NOTHING, Log, LowWater, TermRecord, encode, paths
from tests.house.stores import MemoryStore, ObjectMissing, StoreSpec
from wal_sink.errors import CorruptError
from wal_sink.testing import FaultyStore, simulated_runtime

_numbers = itertools.count()


def a_log(*asked: list[str]) -> Log:
    store = MemoryStore(StoreSpec(f"memory://log-{next(_numbers)}"))
    return Log(
        FaultyStore(store, lambda *what: asked[0].append(" ".join(what)) if asked else None), simulated_runtime(), "r"
    )


def low_water_of(batch_id: int, identity: str = "x") -> LowWater:
    return LowWater(batch_id=batch_id, marked={}, id=identity, created="now")


def test_of_two_records_for_one_path_the_first_counts() -> None:
    log, first, second = a_log(), low_water_of(3, "first"), low_water_of(3, "second")

    assert log.create_or_find(paths.low_water(3), first) == (first, True)
    assert log.create_or_find(paths.low_water(3), second) == (first, False)


def test_a_record_under_anothers_path_is_corrupt() -> None:
    log = a_log()
    log.store.create(paths.low_water(4), encode(low_water_of(3, "moved")))

    with pytest.raises(
        CorruptError, match=r"04\.json: this low-water record \(id moved\) was written for another path"
    ):
        log.find(LowWater, paths.low_water(4))


def test_a_record_whose_numbers_no_path_can_hold_is_corrupt() -> None:
    log = a_log()
    log.store.create(paths.low_water(4), encode(low_water_of(-1)))

    with pytest.raises(CorruptError, match="was written for another path"):
        log.find(LowWater, paths.low_water(4))


def test_a_record_that_must_be_there_is_looked_for_twice() -> None:
    """The first answer of a store may be stale."""
    store, misses = MemoryStore(StoreSpec(f"memory://log-{next(_numbers)}")), [True]

    def is_stale(_what: str, where: str) -> None:
        if misses and misses.pop():
            raise ObjectMissing(where)

    store.create(paths.low_water(3), encode(low_water_of(3)))
    log = Log(FaultyStore(store, is_stale), simulated_runtime(), "r")

    assert log.require(LowWater, paths.low_water(3)) == low_water_of(3)


def test_a_damaged_record_is_named_by_its_address() -> None:
    log = a_log()
    log.store.create(paths.term("a", 1), b"damage")

    with pytest.raises(CorruptError, match=r"memory://log-\d+/terms/a/0000000001\.json: expected a term record"):
        log.find(TermRecord, paths.term("a", 1))


def test_every_stamp_has_a_new_id_and_the_time() -> None:
    log = a_log()

    first, second = log.stamp(), log.stamp()

    assert first["id"] != second["id"]
    assert first["created"] == log.runtime.timestamp()


def test_numbers_are_those_of_records_and_folders_ascending_and_each_once() -> None:
    log = a_log()
    for name in ("10.json", "9.json", "9/x", "8/y", "notes.txt", "x.json"):
        log.store.create(f"folder/{name}", b"")

    assert log.numbers("folder") == [8, 9, 10]


def test_numbers_after_one_begin_behind_it_and_are_listed_from_there() -> None:
    asked: list[str] = []
    log = a_log(asked)
    for number in (3, 4, 5):
        log.store.create(paths.release(number), b"")
        log.store.create(f"{paths.batch(number)}/other", b"")

    assert log.numbers(paths.BATCHES, after=3) == [4, 5]
    assert log.numbers(paths.BATCHES, after=0) == [3, 4, 5]
    assert log.numbers(paths.BATCHES, after=NOTHING) == [3, 4, 5]


def test_low_water_is_the_highest_and_nothing_before_the_first() -> None:
    log = a_log()
    assert log.low_water() == NOTHING

    for batch_id in (5, 16, 9):
        log.raise_low_water(batch_id, {"a": batch_id + 1})

    assert log.low_water() == 16
    record = log.find(LowWater, paths.low_water(9))
    assert record is not None
    assert (record.batch_id, record.marked) == (9, {"a": 10})
