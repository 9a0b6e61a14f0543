"""Reading Spark's checkpoint: fingerprints of file sources, when a batch was planned, which batches are complete."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from wal_sink.checkpoint import Checkpoint, Gate, planned_ms
from wal_sink.log import NOTHING
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FaultyStore

_numbers = itertools.count()
CONF = '{"batchTimestampMs":1767225600000}'


def with_files(files: dict[str, str]) -> Checkpoint:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    for path, text in files.items():
        store.create(path, text.encode())
    return Checkpoint(store)


def fingerprint(*sources: str, files: dict[str, str] | None = None, conf: str = CONF) -> str:
    text = "\n".join(["v1", conf, *sources])
    return with_files({"offsets/3": text, **(files or {})}).require_offsets(3).fingerprint


def entries(*files: str, batch: int) -> str:
    return "v1\n" + "\n".join(json.dumps({"path": file, "batchId": batch}) for file in files)


# What a batch reads.


def test_the_fingerprint_is_fixed() -> None:
    """What was staged by an earlier version of this package must be known again."""
    expected = "85b2ee5eb9e3e4b98be9a133b8127ee615881b5310a112f90ff023580e93d0ad"
    assert fingerprint('{"topic":{"0":5}}') == expected


def test_a_batch_without_sources_has_a_fingerprint_too() -> None:
    assert fingerprint() == hashlib.sha256().hexdigest()


def test_the_fingerprint_of_files_is_fixed() -> None:
    offset, entry = '{"logOffset":1}', '{"path": "x", "batchId": 1}'
    expected = hashlib.sha256(f"{offset}\n{entry}\n".encode()).hexdigest()

    assert fingerprint(offset, files={"sources/0/1": f"v1\n{entry}"}) == expected


@pytest.mark.parametrize("name", ["4.compact", "5.compact"])
def test_a_compacted_log_holds_its_own_entry_and_earlier_ones(name: str) -> None:
    files = {f"sources/0/{name}": entries("x", batch=4)}

    assert fingerprint('{"logOffset":4}', files=files) != fingerprint('{"logOffset":4}')


def test_the_order_of_the_sources_counts() -> None:
    assert fingerprint('{"a":1}', '{"b":2}') != fingerprint('{"b":2}', '{"a":1}')


def test_the_files_behind_an_offset_count_and_not_their_order() -> None:
    offset = '{"logOffset":1}'
    one, other = entries("x", "y", batch=1), entries("y", "x", batch=1)

    assert fingerprint(offset, files={"sources/0/1": one}) == fingerprint(offset, files={"sources/0/1": other})
    assert fingerprint(offset, files={"sources/0/1": one}) != fingerprint(offset, files={"sources/0/1": other[:-9]})


def test_each_source_has_a_log_of_its_own() -> None:
    offsets = ['{"logOffset":1}', '{"logOffset":1}']
    files = {"sources/0/1": entries("x", batch=1), "sources/1/1": entries("y", batch=1)}
    swapped = {"sources/0/1": files["sources/1/1"], "sources/1/1": files["sources/0/1"]}

    assert fingerprint(*offsets, files=files) != fingerprint(*offsets, files=swapped)


def test_the_oldest_compacted_log_that_holds_the_entry_is_read() -> None:
    offset = '{"logOffset":4}'
    plain = fingerprint(offset, files={"sources/0/4": entries("x", batch=4)})
    compacted = {
        "sources/0/3.compact": entries("of three", batch=4),
        "sources/0/9.compact": entries("old", batch=1) + "\n" + entries("x", batch=4).partition("\n")[2],
        "sources/0/19.compact": entries("later", batch=4),
        "sources/0/notes.compact": "",
    }

    assert fingerprint(offset, files=compacted) == plain


def test_a_log_that_spark_deleted_adds_nothing() -> None:
    offset = '{"logOffset":4}'
    older = {"sources/0/3.compact": entries("x", batch=4)}

    assert fingerprint(offset, files=older) == fingerprint(offset)


@pytest.mark.parametrize(
    "offset", ["logOffset", '["logOffset"]', '{"logOffset":"1"}', '{"logOffset":1.0}', '{"x":{"logOffset":1}}']
)
def test_an_offset_that_only_looks_like_a_log_is_taken_as_it_stands(offset: str) -> None:
    files = {f"sources/0/{name}": entries("x", batch=1) for name in ("1", "1.0", "None")}

    assert fingerprint(offset, files=files) == fingerprint(offset)


def test_damaged_lines_of_a_log_are_passed_over() -> None:
    good = entries("x", batch=1)
    files = {"sources/0/1": f"{good}\nnot JSON\n[1]\n" + '{"batchId":"1"}\n{"batchId":1.0}'}

    assert fingerprint('{"logOffset":1}', files=files) == fingerprint('{"logOffset":1}', files={"sources/0/1": good})


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
        ("[]", None),
        ("-", None),
        ("{", None),
    ],
)
def test_when_a_batch_was_planned_stands_in_the_line_of_configuration(conf: str, found: int | None) -> None:
    assert planned_ms(f'v1\n{conf}\n{{"end":1}}') == found
    assert with_files({"offsets/3": f'v1\n{conf}\n{{"end":1}}'}).require_offsets(3).planned_ms == found


def test_an_entry_of_one_line_does_not_tell_when_it_was_planned() -> None:
    assert planned_ms("v1") is None


# What is complete.


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


def test_asked_now_the_gate_trusts_no_memory_and_closes_what_is_not_complete() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    for batch_id in (3, 4, 5):
        store.create(f"commits/{batch_id}", b"v1\n{}")
    gate = Gate(Checkpoint(store))
    assert gate.search() == 5
    store.delete(["commits/4", "commits/5"])

    assert not gate.is_open_now(4)

    assert gate.search() == 3
    assert gate.is_open(3)
    assert not gate.is_open(4)


def test_asked_now_a_later_entry_tells_that_a_batch_is_complete() -> None:
    gate = Gate(with_files({"commits/9": "v1\n{}"}))

    assert gate.is_open_now(7)
    assert gate.is_open(9)


def test_closing_leaves_earlier_batches_open() -> None:
    gate = Gate(with_files({"commits/9": "v1\n{}"}))
    gate.search()

    gate.close_from(5)

    assert gate.is_open(4)
    assert not gate.is_open(5)


def test_asked_now_an_entry_that_is_there_costs_one_read() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("commits/5", b"v1\n{}")
    seen: list[str] = []
    gate = Gate(Checkpoint(FaultyStore(store, lambda what, where: seen.append(f"{what} {where}"))))

    assert gate.is_open_now(5)
    assert gate.is_open_now(5)

    assert seen == ["before read commits/5"] * 2


def test_an_answer_under_way_is_not_remembered_however_often_the_gate_was_closed() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("commits/5", b"v1\n{}")
    gate = Gate(Checkpoint(FaultyStore(store, lambda *_: gate.close_from(5))))
    for _ in range(3):
        assert gate.is_open(5)
    store.delete(["commits/5"])

    assert not gate.is_open(5)


def test_bytes_of_a_log_that_are_no_text_count_as_they_can() -> None:
    store = MemoryStore(StoreSpec(f"memory://checkpoint-{next(_numbers)}"))
    store.create("offsets/3", f'v1\n{CONF}\n{{"logOffset":1}}'.encode())
    store.create("sources/0/1", b'v1\n{"path": "\xff", "batchId": 1}')

    assert Checkpoint(store).require_offsets(3).fingerprint != fingerprint('{"logOffset":1}')
