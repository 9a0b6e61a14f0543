"""The types of MariaDB and MySQL for Arrow types, and rows as the literals of an INSERT."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink_backends.common.columns import Array, ArrowType, array_of, stored_type, texts_of
from wal_sink_backends.sql.base.values import (
    Encode,
    Fits,
    Kind,
    Rows,
    decimals_of,
    in_microseconds,
    json_texts,
    kind_of,
)

_IS: Any = pa.types
_compute: Any = pc
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest float. Read as a double, its shortest text is larger than it, and a FLOAT column refuses that."""
KEY_LENGTH = 255
"""Characters or bytes of a key column that the sink makes: an index takes no text without a limit."""
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXT_TYPES = frozenset({"char", "varchar", "text", "mediumtext", "longtext", "json", "uuid", "inet4", "inet6"})
"""Types that keep a text. Not `enum` and `set`, which take a number for a place in their list. Not `tinytext`, which
cuts blanks behind 255 bytes.
"""
_BINARIES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
"""Types that keep bytes. Not `binary`, which pads with zeros."""
_DECLARED = re.compile(r"(?P<name>\w+)(?:\((?P<inside>.*)\))?(?P<rest>.*)", re.DOTALL)


def type_name(arrow_type: ArrowType, *, key: bool = False) -> str:
    """The type of a column that the sink makes."""
    kind = stored_type(arrow_type)
    if _IS.is_integer(kind):
        name = _INTEGERS[(8, 16, 32, 64).index(kind.bit_width)]
        return f"{name} unsigned" if _IS.is_unsigned_integer(kind) else name
    if _IS.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind_of(kind) == "moment" and not _IS.is_duration(kind):
        return _moment_name(kind)
    if key and kind_of(kind) in {"text", "binary"}:
        return f"{'varchar' if kind_of(kind) == 'text' else 'varbinary'}({KEY_LENGTH})"
    return {"number": "double", "boolean": "boolean", "binary": "longblob"}.get(kind_of(kind), "longtext")


def _moment_name(kind: ArrowType) -> str:
    if _IS.is_date(kind):
        return "date"
    return f"{'datetime' if _IS.is_timestamp(kind) else 'time'}({decimals_of(kind)})"


def fits(arrow_type: ArrowType, declared: str) -> bool:
    """Whether a column keeps such values as they are or refuses them, as `column_type` shows the column."""
    match = _DECLARED.fullmatch(declared.lower())
    if match is None:
        return False
    numbers = [int(number) for number in re.findall(r"\d+", match["inside"] or "")]
    return _FITS[kind_of(arrow_type)](stored_type(arrow_type), match["name"], numbers)


def _fits_integer(_: ArrowType, name: str, numbers: list[int]) -> bool:
    return name in {*_INTEGERS, "mediumint", "decimal"} and (name != "decimal" or bool(numbers))


def _fits_number(_: ArrowType, name: str, numbers: list[int]) -> bool:
    return name == "double" and not numbers  # a FLOAT is read with six digits


def _fits_decimal(kind: ArrowType, name: str, numbers: list[int]) -> bool:
    if name == "decimal":
        return bool(numbers[1] >= kind.scale)
    return name in {*_INTEGERS, "mediumint"} and bool(kind.scale <= 0)


def _fits_moment(kind: ArrowType, name: str, numbers: list[int]) -> bool:
    if _IS.is_duration(kind):
        return name in _TEXT_TYPES
    if _IS.is_date(kind):
        return name == "date"
    instant = _IS.is_timestamp(kind) and kind.tz is not None
    names = {"timestamp", "datetime"} if instant else {"datetime" if _IS.is_timestamp(kind) else "time"}
    return name in names and (numbers[0] if numbers else 0) >= decimals_of(kind)


_FITS: dict[Kind, Fits] = {
    "integer": _fits_integer,
    "number": _fits_number,
    "decimal": _fits_decimal,
    "moment": _fits_moment,
    "boolean": lambda _kind, name, _: name in _INTEGERS,
    "binary": lambda _kind, name, _: name in _BINARIES,
    "nested": lambda _kind, name, _: name in {"json", "text", "mediumtext", "longtext"},
    "text": lambda _kind, name, _: name in _TEXT_TYPES,
    "void": lambda _kind, _name, _: True,
}


# Values.

Quote: TypeAlias = Callable[[str], str]
"""Makes a literal of a text, by the rules of the connection."""


def value_lists(table: pa.Table, key: Collection[str], quote: Quote) -> Rows:
    """The rows of a table as `(1,'x',NULL)`; those with a NaN or infinite number, or no UTF-8 in a text, refused."""

    def literals(column: Any, name: str, refused: dict[int, str]) -> list[str]:
        kind = kind_of(column.type)
        literal = quote if kind in _QUOTED else str
        texts = _TEXTS[kind](array_of(column), name, refused)
        return ["NULL" if text is None else literal(text) for text in texts]

    return Rows.of(table, key, literals, lambda columns: [f"({','.join(row)})" for row in zip(*columns, strict=True)])


def _whole(array: Array, _name: str, _refused: dict[int, str]) -> list[str | None]:
    return [None if value is None else str(int(value)) for value in array.to_pylist()]


def _number(array: Array, name: str, refused: dict[int, str]) -> list[str | None]:
    literals: list[str | None] = []
    if not _IS.is_float64(array.type):  # through text, so that 0.1 stays 0.1
        shortest = array.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
        array = _compute.if_else(
            _compute.greater(_compute.abs(shortest), _LARGEST_FLOAT), array.cast(pa.float64()), shortest
        )
    for row, value in enumerate(array.to_pylist()):
        if value is None:
            literals.append(None)
        elif math.isfinite(value):
            text = repr(value)
            literals.append(text if "e" in text else f"{text}e0")  # without an exponent it would be a DECIMAL
        else:
            refused.setdefault(row, f"column {name!r} is {value}, but a DOUBLE of MariaDB cannot hold this value")
            literals.append(None)
    return literals


def _moment(array: Array, name: str, _refused: dict[int, str]) -> list[str | None]:
    """Moments as texts. Instants are in UTC, the session's time zone."""
    if _IS.is_timestamp(array.type) or _IS.is_time(array.type):
        array = in_microseconds(array, name)
    return [text.removesuffix("Z") if text else text for text in plain_values(array, name)]


_QUOTED: frozenset[Kind] = frozenset({"text", "nested", "moment"})
_TEXTS: dict[Kind, Encode[list[str | None]]] = {
    "integer": _whole,
    "boolean": _whole,
    "decimal": lambda array, *_: decimal_texts(array),
    "number": _number,
    "text": texts_of,
    "nested": lambda array, name, _: json_texts(array, name),
    "moment": _moment,
    "binary": lambda array, *_: [None if byte is None else f"x'{byte.hex()}'" for byte in array.to_pylist()],
    "void": _whole,
}
