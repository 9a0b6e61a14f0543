"""Arrow rows as PySpark `Row`s for Spark 3.5, whose own converter asks for the packages of Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import types as t

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]


def rows_of(table: pa.Table, schema: t.StructType) -> Iterator[Row]:
    """The rows of `table`, with the Python types that PySpark's own `foreach` gives."""
    converts = [_convert(field.dataType) for field in schema.fields]
    columns: list[Any] = table.columns
    values = [map(convert, column.to_pylist()) for convert, column in zip(converts, columns, strict=True)]
    row = Row(*schema.names)
    return (row(*one) for one in zip(*values, strict=True))


def _convert(kind: t.DataType) -> Convert:
    """How a value becomes what Spark gives. Arrow's value of a type that is not named here is that already."""
    made: dict[type[t.DataType], Callable[[Any], Convert]] = {
        t.StructType: _struct,
        t.ArrayType: _list,
        t.MapType: _map,
        t.UserDefinedType: _user_defined,
        t.BinaryType: lambda _: bytearray,
        t.TimestampType: lambda _: _local,
    }
    for known, make in made.items():
        if isinstance(kind, known):
            convert = make(kind)
            return lambda value: None if value is None else convert(value)
    return lambda value: value


def _local(instant: datetime) -> datetime:
    return instant.astimezone().replace(tzinfo=None)


def _list(kind: t.ArrayType) -> Convert:
    element = _convert(kind.elementType)
    return lambda values: [element(value) for value in values]


def _map(kind: t.MapType) -> Convert:
    """Arrow gives pairs."""
    key, item = _convert(kind.keyType), _convert(kind.valueType)
    return lambda pairs: {key(one): item(other) for one, other in pairs}


def _user_defined(kind: t.UserDefinedType) -> Convert:
    inside, deserialize = _convert(kind.sqlType()), kind.deserialize
    return lambda value: deserialize(inside(value))


def _struct(kind: t.StructType) -> Convert:
    """Arrow gives a dict. Structs with two fields of one name are not staged."""
    row = Row(*kind.names)
    fields = [(field.name, _convert(field.dataType)) for field in kind.fields]
    return lambda value: row(*(convert(value[name]) for name, convert in fields))
