"""Which columns of a segment get a dictionary, and how the others are encoded."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.stores.parquet import parquet_writer

ROWS = 6_000


DELTA, LENGTHS = "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def written(table: pa.Table, *, encoded: bool) -> list[pq.ColumnChunkMetaData]:
    """The Parquet columns of what is written. Reads it back and compares the rows."""
    file = io.BytesIO()
    with parquet_writer(file, table, encoded=encoded) as writer:
        writer.write_table(table)
    assert pq.read_table(io.BytesIO(file.getvalue())).equals(table)
    group = pq.ParquetFile(io.BytesIO(file.getvalue())).metadata.row_group(0)
    return [group.column(number) for number in range(group.num_columns)]


def with_dictionary(table: pa.Table) -> list[str]:
    """The Parquet columns that have a dictionary. Other encodings change nothing about it."""
    found = [
        [column.path_in_schema for column in written(table, encoded=encoded) if column.has_dictionary_page]
        for encoded in (False, True)
    ]
    assert found[0] == found[1]
    return found[0]


def test_a_column_has_a_dictionary_if_its_first_values_repeat() -> None:
    cases: list[tuple[list[Any], bool]] = [
        ([f"{row:08}" for row in range(ROWS)], False),
        ([row * 1.5 for row in range(ROWS)], False),
        ([row // 2 if row < 4096 else row for row in range(ROWS)], True),  # half as many values as rows, just so
        ([f"{row % 7}" for row in range(ROWS)], True),
        ([None] * ROWS, True),
        ([True, False] * (ROWS // 2), False),  # Parquet has none for booleans
        ([0] * 4096 + list(range(ROWS - 4096)), True),  # the first rows decide
    ]
    for values, has_one in cases:
        column = pa.array(values, pa.int64() if values[0] is None else None)
        assert with_dictionary(pa.table({"c0": column})) == ["c0"] * has_one


def test_a_column_without_a_type_is_held() -> None:
    table = pa.table({"c0": pa.nulls(3), "c1": [1, 2, 3], "c2": [1, 1, 1]})
    assert with_dictionary(table) == ["c0", "c2"]


def test_nested_columns_keep_theirs() -> None:
    table = pa.table(
        {
            "c0": [str(row) for row in range(9)],
            "c1": [{"a": row, "b": [row]} for row in range(9)],
            "c2": ["x"] * 9,
            "c3": [[("k", row)] for row in range(9)],
        },
        pa.schema(
            [
                ("c0", pa.string()),
                ("c1", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])),
                ("c2", pa.string()),
                ("c3", pa.map_(pa.string(), pa.int64())),
            ]
        ),
    )
    kept = ["c1.a", "c1.b.list.element", "c2", "c3.key_value.key", "c3.key_value.value"]
    assert with_dictionary(table) == kept


def test_numbers_moments_and_texts_of_one_length_are_encoded() -> None:
    cases: list[tuple[pa.Array[Any], str | None]] = [
        (pa.array(range(ROWS)), DELTA),
        (pa.array([row * (-1) ** row << 48 for row in range(ROWS)]), DELTA),
        (pa.array([(-(2**63), 2**63 - 1)[row % 2] + (-row, row)[row % 2 == 0] for row in range(ROWS)]), DELTA),
        (pa.array([row if row % 3 else None for row in range(ROWS)], pa.int32()), DELTA),
        (pa.array([2**64 - 1 - row for row in range(ROWS)], pa.uint64()), DELTA),
        (pa.array(range(-100, 100), pa.int8()), DELTA),
        (pa.array([NOON + dt.timedelta(microseconds=row) for row in range(ROWS)]), DELTA),
        (pa.array([NOON.replace(tzinfo=None) - dt.timedelta(row) for row in range(ROWS)]), DELTA),
        (pa.array([NOON.date() + dt.timedelta(row) for row in range(ROWS)]), DELTA),
        (pa.array([f"{row:064}" for row in range(ROWS)]), LENGTHS),
        (pa.array([f"{row:016}".encode() if row % 5 else None for row in range(ROWS)]), LENGTHS),
        (pa.array([None], pa.string()), LENGTHS),
        (pa.array([""]), LENGTHS),
        (pa.array([f"{row}" for row in range(ROWS)]), None),
        (pa.array(["", *(f"{row:064}" for row in range(ROWS))]), None),
        (pa.array([row * 1.5 for row in range(ROWS)]), None),
        (pa.array([Decimal(row) for row in range(ROWS)]), None),
        (pa.array([row % 7 for row in range(ROWS)]), None),
        (pa.array([f"{row % 7}" for row in range(ROWS)]), None),
        (pa.array([True]), None),
        (pa.nulls(1), None),
    ]
    for column, encoding in cases:
        table = pa.table({"c0": column})
        (found,) = written(table, encoded=True)
        assert {DELTA, LENGTHS}.intersection(found.encodings) == ({encoding} if encoding else set())


def test_texts_of_other_lengths_may_follow() -> None:
    texts = [f"{row:012}" for row in range(ROWS)] + ["", "x" * 100_000, None, "ä"]
    (found,) = written(pa.table({"c0": texts}), encoded=True)
    assert LENGTHS in found.encodings


def test_numbers_inside_nested_columns_stay_as_they_are() -> None:
    table = pa.table({"c0": [{"a": row} for row in range(ROWS)], "c1": range(ROWS)})
    nested, flat = written(table, encoded=True)
    assert DELTA not in nested.encodings
    assert DELTA in flat.encodings


def test_files_for_other_readers_have_plain_columns() -> None:
    table = pa.table({"c0": range(ROWS), "c1": [f"{row:064}" for row in range(ROWS)]})
    for column in written(table, encoded=False):
        assert not {DELTA, LENGTHS}.intersection(column.encodings)
