"""Reading Spark's checkpoint: when a batch was planned, which batches are complete."""

from __future__ import annotations

import itertools

import pytest

from tests.house.log import NOTHING
from tests.house.protocol import Checkpoint, Gate, planned_ms
from tests.house.stores import MemoryStore, StoreSpec
from wal_sink.errors import CorruptError
from wal_sink.testing import FaultyStore

_numbers = itertools.count()


def with_files(files: dict[str, str]) -> Checkpoint:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    for path, text in files.items():
        store.create(path, text.encode())
    return Checkpoint(store)


def test_metadata_without_a_query_id_is_refused_with_its_path() -> None:
    checkpoint = with_files({"metadata": "{}"})
    with pytest.raises(CorruptError, match=f"^{checkpoint.root}/metadata: expected Spark's query id"):
        checkpoint.query_id()


# When it was planned.


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ('{"batchTimestampMs":1767225600000}', 1767225600000),
        ('{"batchTimestampMs":1}', 1),
        ('{"batchTimestampMs":0}', None),
        ('{"batchTimestampMs":-5}', None),
        ('{"batchTimestampMs":"5"}', None),
        ('{"batchTimestampMs":null}', None),
        ("{}", None),
        ("", None),
    ],
)
def test_when_a_batch_was_planned_stands_in_the_line_of_configuration(conf: str, found: int | None) -> None:
    assert planned_ms(f'v1\n{conf}\n{{"end":1}}') == found
    assert with_files({"offsets/3": f'v1\n{conf}\n{{"end":1}}'}).require_offsets(3).planned_ms == found


@pytest.mark.parametrize("conf", ["[]", "-", "{"])
def test_what_is_no_configuration_tells_nothing_of_when(conf: str) -> None:
    assert planned_ms(f'v1\n{conf}\n{{"end":1}}') is None


def test_an_entry_of_one_line_does_not_tell_when_it_was_planned() -> None:
    assert planned_ms("v1") is None


# Completion.


def test_the_newest_commit_is_the_highest_number() -> None:
    assert with_files({}).newest_commit() == NOTHING
    assert with_files({"commits/9": "v1", "commits/10": "v1", "commits/11.tmp": "v1"}).newest_commit() == 10


def test_the_gate_remembers_what_it_saw_open_and_asks_for_what_it_did_not() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("commits/5", b"v1\n{}")
    seen: list[str] = []
    gate = Gate(Checkpoint(FaultyStore(store, lambda what, where: seen.append(f"{what} {where}"))))

    assert [gate.is_open(5), gate.is_open(5), gate.is_open(4), gate.is_open(6)] == [True, True, True, False]
    assert seen == ["before read commits/5", "before read commits/6"]


def test_the_gate_asked_now_trusts_no_memory_and_closes_what_is_not_complete() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    for batch_id in (3, 4, 5):
        store.create(f"commits/{batch_id}", b"v1\n{}")
    gate = Gate(Checkpoint(store))
    assert gate.search() == 5
    store.delete(["commits/4", "commits/5"])

    assert not gate.ask_now(4)

    assert gate.search() == 3
    assert gate.is_open(3)
    assert not gate.is_open(4)


def test_the_gate_asked_now_takes_a_later_entry_for_a_complete_batch() -> None:
    gate = Gate(with_files({"commits/9": "v1\n{}"}))

    assert gate.ask_now(7)
    assert gate.is_open(9)


def test_closing_leaves_earlier_batches_open() -> None:
    gate = Gate(with_files({"commits/9": "v1\n{}"}))
    gate.search()

    gate.close_from(5)

    assert gate.is_open(4)
    assert not gate.is_open(5)
    for _ in range(2):
        gate.search()
        known = gate.known
        gate.close_from(5)
        assert not gate.knew(known, 4), "whatever it forgot before"


def test_the_gate_asked_now_costs_one_read_if_the_entry_is_there() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("commits/5", b"v1\n{}")
    seen: list[str] = []
    gate = Gate(Checkpoint(FaultyStore(store, lambda what, where: seen.append(f"{what} {where}"))))

    assert gate.ask_now(5)
    assert gate.ask_now(5)

    assert seen == ["before read commits/5"] * 2


def test_an_answer_under_way_is_not_remembered_however_often_the_gate_was_closed() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("commits/5", b"v1\n{}")
    gate = Gate(Checkpoint(FaultyStore(store, lambda *_: gate.close_from(5))))
    for _ in range(3):
        assert gate.is_open(5)
    store.delete(["commits/5"])

    assert not gate.is_open(5)
