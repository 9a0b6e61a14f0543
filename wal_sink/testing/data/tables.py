"""Tables that the kit sends: three batches of plain rows, a column of every type, and difficult column names."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

Partitions: TypeAlias = Sequence[pa.Table]
"""One table per partition."""

LONG_TEXT_BYTES = 1 << 20


def three_batches() -> list[pa.Table]:
    """Three tables of rows with a number and a name; each row appears only once."""
    return [_people(0, 8), _people(8, 2), _people(10, 5)]


def replacing(tables: Sequence[pa.Table], key: Sequence[str]) -> list[pa.Table]:
    """The same tables, where each later row has the key of another row of the first table: it replaces that row.

    A later table is cut to the size of the first one, so that no key comes twice in a batch.
    """
    first, *later = tables
    given, at = [first], 0
    for whole in later:
        table = whole.slice(0, first.num_rows)
        rows = pa.array([(at + row) % first.num_rows for row in range(table.num_rows)], pa.int64())
        for name in key:
            place = table.column_names.index(name)
            table = table.set_column(place, table.field(place), first[name].take(rows))
        given.append(table)
        at += table.num_rows
    return given


def partitioned(batches: Sequence[pa.Table]) -> list[Partitions]:
    """Split batches into one, several and empty partitions, with segments of one and of several chunks."""
    cuts = (_in_two, _whole, _with_an_empty_one)
    return [cuts[number % len(cuts)](table) for number, table in enumerate(batches)]


def _people(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name {number}" for number in ids]})


def _whole(table: pa.Table) -> Partitions:
    return [table]


def _in_two(table: pa.Table) -> Partitions:
    cut = (table.num_rows * 2 + 2) // 3
    return [table.slice(0, cut), table.slice(cut)]


def _with_an_empty_one(table: pa.Table) -> Partitions:
    return [table.slice(0, 1), table.slice(0, 0), table.slice(1)]


_NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])

COLUMN_TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "boolean": pa.array([True, False, None]),
        "tinyint": pa.array([-128, 127, None], pa.int8()),
        "smallint": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "bigint": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "float": pa.array([0.1, -1.5, None], pa.float32()),
        "double": pa.array([0.1, 1e300, None], pa.float64()),
        "not a number": pa.array([math.nan, math.inf, -math.inf], pa.float64()),
        "decimal": pa.array([Decimal("1.50"), Decimal("-1E-18"), None], pa.decimal128(38, 18)),
        "string": pa.array(["ü\n\"'\\\0", "", None]),
        "binary": pa.array([b"\0\xff", b"", None]),
        "date": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        "timestamp": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "timestamp_ntz": pa.array([0, -1, None], pa.timestamp("us")),
        "interval": pa.array([0, 1_500_000, None], pa.duration("us")),
        "array": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1, "b": ["x", None]}, {"a": None, "b": None}, None], _NESTED),
        "only nulls": pa.nulls(3, pa.string()),
        "void": pa.nulls(3),
    }
)
"""Three values of every type that a column staged by Spark may have, including edge cases and NULL."""

COLUMN_NAMES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "spaces": ("the name", " "),
        "dots": ("a.b", "a"),
        "quotes": ('it\'s "quoted" `so`',),
        "reserved words": ("select", "table"),
        "letters beyond ASCII": ("größe", "名前"),
        "differing only in case": ("Name", "name"),
        "standing twice": ("same", "same"),
        "very long": ("n" * 300,),
        "braces and percents": ("{}", "%s"),
    }
)
"""Column names that a DataFrame may have, by the reason why they are difficult."""


def table_of_type(name: str) -> pa.Table:
    """A table with one column of a type of `COLUMN_TYPES` and one plain column."""
    return pa.table({"id": pa.array([1, 2, 3], pa.int64()), "odd_one": COLUMN_TYPES[name]})


def table_of_names(name: str) -> pa.Table:
    """A table whose columns have the names of an entry of `COLUMN_NAMES`."""
    names = list(COLUMN_NAMES[name])
    return pa.Table.from_arrays([pa.array([f"value {number}"]) for number, _ in enumerate(names)], names=names)


def table_with_long_text() -> pa.Table:
    """A table of one row with a text of one MiB."""
    return pa.table({"id": pa.array([1], pa.int64()), "name": ["x" * LONG_TEXT_BYTES]})


def spark_schema_of(schema: Any) -> str:
    """The JSON that Spark would write for a batch with this Arrow schema, for sinks that need it."""
    fields = [_spark_field(field.name, field.type, nullable=field.nullable) for field in schema]
    return json.dumps({"type": "struct", "fields": fields})


def _spark_field(name: str, kind: Any, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": _spark_type(kind), "nullable": nullable, "metadata": {}}


_SPARK_NAMES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_integer, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_floating, "double"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_date, "date"),
    (pa.types.is_duration, "interval day to second"),
    (pa.types.is_null, "void"),
)


def _spark_type(kind: Any) -> Any:
    types: Any = pa.types
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_struct(kind):
        fields = [_spark_field(field.name, field.type, nullable=field.nullable) for field in kind]
        return {"type": "struct", "fields": fields}
    if types.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    return next((name for test, name in _SPARK_NAMES if test(kind)), "string")
