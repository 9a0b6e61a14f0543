"""Which columns of a segment get a dictionary."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal_sink.stores.parquet import parquet_writer

ROWS = 6_000


def with_dictionary(table: pa.Table) -> list[str]:
    """The Parquet columns of what is written that have a dictionary."""
    file = io.BytesIO()
    with parquet_writer(file, table) as writer:
        writer.write_table(table)
    assert pq.read_table(io.BytesIO(file.getvalue())).equals(table)
    group = pq.ParquetFile(io.BytesIO(file.getvalue())).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return [column.path_in_schema for column in columns if column.has_dictionary_page]


@pytest.mark.parametrize(
    ("values", "has_one"),
    [
        ([f"{row:08}" for row in range(ROWS)], False),
        ([row * 1.5 for row in range(ROWS)], False),
        ([row // 2 if row < 4096 else row for row in range(ROWS)], True),  # half as many values as rows, just so
        ([f"{row % 7}" for row in range(ROWS)], True),
        ([None] * ROWS, True),
        ([True, False] * (ROWS // 2), False),  # Parquet has none for booleans
        ([0] * 4096 + list(range(ROWS - 4096)), True),  # the first rows decide
    ],
)
def test_a_column_has_a_dictionary_if_its_first_values_repeat(values: list[Any], has_one: bool) -> None:
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
