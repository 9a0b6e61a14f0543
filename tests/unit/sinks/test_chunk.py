"""The promises about keys: the same rows keep theirs, other rows never get an old one."""

from __future__ import annotations

import dataclasses
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.sinks import Chunk, Position
from wal_sink.sinks.calls import handed
from wal_sink.sinks.chunk import chunk_key

SAFE = re.compile(r"[\x21-\x7e]{1,64}")


def chunk(rows: int = 5, *, first: int = 0) -> Chunk:
    made = Chunk.of(pa.table({"id": list(range(first, first + rows))}), key="a-0-5")
    return dataclasses.replace(made, rows=range(first, first + rows))


def test_a_sink_is_handed_the_rows_and_their_schema_in_a_table_of_its_own() -> None:
    made = Chunk.of(pa.table({"id": [1, 2]}).replace_schema_metadata({"made": "by hand"}), key="a-0-2")

    given = handed(made)

    assert given.table is not made.table
    assert given.table.equals(made.table, check_metadata=True)
    assert dataclasses.replace(given, table=made.table) == made


def test_the_key_of_a_row_range_is_fixed() -> None:
    assert chunk_key("0f" * 16, 0, 10_000) == "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f-0-10000"


def test_the_longest_key_fits_a_header() -> None:
    assert SAFE.fullmatch(chunk_key("f" * 32, 10**12 - 2, 10**12 - 1))


def test_a_derived_key_is_fixed() -> None:
    """Stored by targets for ever: this value may never change."""
    assert chunk().without([1, 3]).key == "8a768ea006a9afdacad528c2346f9c5b"


def test_without_keeps_the_other_rows_and_their_keys() -> None:
    whole = chunk(first=10)
    rest = whole.without([0, 3])
    assert rest.table.to_pydict() == {"id": [11, 12, 14]}
    assert rest.row_keys() == [whole.row_keys()[index] for index in (1, 2, 4)]
    assert rest.num_rows == 3


def test_without_moves_the_sink_to_the_same_place() -> None:
    whole = dataclasses.replace(chunk(), start=3, follows=Position("test/default/0", 0, 4, "before"))
    rest = whole.without([2])
    assert (rest.position, rest.term, rest.batch_id) == (whole.position, whole.term, whole.batch_id)
    assert (rest.start, rest.follows) == (whole.start, whole.follows)


def test_without_nothing_is_the_chunk_itself() -> None:
    whole = chunk()
    assert whole.without([]) is whole


def test_without_everything_is_empty() -> None:
    assert chunk().without(range(5)).num_rows == 0


def test_a_row_outside_the_chunk_is_refused() -> None:
    for rows in [[5], [-1], [0, 99]]:
        with pytest.raises(IndexError, match="expected indices from 0 to 4"):
            chunk().without(rows)


def test_without_twice_is_without_both() -> None:
    rest, at_once = chunk().without([0]).without([0]), chunk().without([0, 1])
    assert rest.row_keys() == ["a-0-5-2", "a-0-5-3", "a-0-5-4"]
    assert (rest.key, rest.rows, rest.position) == (at_once.key, at_once.rows, at_once.position)


def test_two_chunks_left_empty_differ() -> None:
    """Of one segment: nothing is left of either, and yet they are not the same."""
    second = dataclasses.replace(chunk(first=5), position=dataclasses.replace(chunk().position, rows=10))
    assert chunk().without(range(5)).key != second.without(range(5)).key


@given(st.lists(st.integers(0, 19), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_asked_for_does_not_matter(rows: list[int], random: object) -> None:
    shuffled = rows + rows[:1]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chunk(20).without(rows).key == chunk(20).without(shuffled).key


@given(st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_other_rows_have_another_key(some: set[int], others: set[int]) -> None:
    assert (chunk(20).without(some).key == chunk(20).without(others).key) == (some == others)


@given(st.sets(st.integers(0, 19)))
def test_a_derived_key_is_safe_in_a_header(gone: set[int]) -> None:
    assert SAFE.fullmatch(chunk(20).without(gone).key)


def test_a_chunk_for_tests_stands_on_its_own() -> None:
    made = Chunk.of(pa.table({"id": [7, 8]}), key="k:1")
    assert (made.key, made.num_rows, made.batch_id, made.term) == ("k:1", 2, 0, 1)
    assert (made.start, made.follows) == (0, None)
    assert made.position == Position(slot="test/default/0", batch_id=0, rows=2, segment_id="k:1")
    assert made.row_keys() == ["k:1-0", "k:1-1"]


def test_a_key_no_chunk_can_have_is_refused() -> None:
    for key in ["", "a" * 65, "a b", "ü", "a\n", "a/b"]:
        with pytest.raises(ValueError, match="expected 1 to 64"):
            Chunk.of(pa.table({"id": [1]}), key=key)


def test_json_of_a_chunk() -> None:
    made = Chunk.of(pa.table({"id": [1, None]}), key="k")
    assert json.loads(made.to_json()) == [{"id": 1}, {"id": None}]
    assert made.to_json(lines=True) == b'{"id":1}\n{"id":null}\n'


def test_positions_of_a_slot_are_ordered_by_batch_then_rows() -> None:
    first, second, third = Position("s", 1, 9, "z"), Position("s", 2, 1, "y"), Position("s", 2, 3, "a")
    assert sorted([third, first, second]) == [first, second, third]
