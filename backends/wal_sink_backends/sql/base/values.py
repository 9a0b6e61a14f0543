"""Arrow columns for the databases of `SqlSink`, and the rows that a database cannot hold or would alter."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink.sinks.json_rows import plain_values
from wal_sink_backends.common.columns import Array, ArrowType, array_of, stored_type, texts_of

Kind: TypeAlias = Literal["integer", "number", "boolean", "text", "decimal", "moment", "binary", "nested", "void"]
"""The kinds of columns; a `moment` is a date, time, timestamp or duration."""

_IS: Any = pa.types
_KINDS: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (_IS.is_null, "void"),
    (_IS.is_boolean, "boolean"),
    (_IS.is_integer, "integer"),
    (_IS.is_floating, "number"),
    (_IS.is_decimal, "decimal"),
    (_IS.is_temporal, "moment"),
    (_IS.is_nested, "nested"),
    (lambda some: "binary" in str(some), "binary"),  # of any length, and views
)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}

T = TypeVar("T")
Encode: TypeAlias = Callable[[Any, str, dict[int, str]], T]
"""Encodes a column, given its name, and adds the rows that the database cannot take to those refused."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a chunk, encoded for one database."""

    columns: tuple[str, ...]
    values: Sequence[Any]
    """One for each row that can be sent."""
    numbers: Sequence[int]
    """The index of each of them in the chunk."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why the other rows cannot be sent, by their index in the chunk."""

    @classmethod
    def of(
        cls, table: pa.Table, key: Collection[str], encode: Encode[T], join: Callable[[list[T]], Sequence[Any]]
    ) -> Rows:
        """The rows of a table: columns are encoded, then joined to rows. Rows with a NULL in the key are refused."""
        refused: dict[int, str] = {}
        _refuse_missing_keys(table, key, refused)
        named = zip(table.column_names, table.columns, strict=True)
        values = join([encode(column, name, refused) for name, column in named])
        if not refused:
            return cls(tuple(table.column_names), values, range(len(values)))
        numbers = [number for number in range(len(values)) if number not in refused]
        return cls(tuple(table.column_names), [values[number] for number in numbers], numbers, refused)


def kind_of(arrow_type: ArrowType) -> Kind:
    stored = stored_type(arrow_type)
    for test, kind in _KINDS:
        if test(stored):
            return kind
    return "text"


def decimals_of(moment: ArrowType) -> int:
    """Digits after the second's point that a timestamp, time or duration has once it is `in_microseconds`."""
    return _DIGITS[moment.unit]


def json_texts(array: Array, name: str) -> list[str | None]:
    """Lists, maps and structs as JSON, in the form of `Chunk.to_json`."""
    values = plain_values(array, name)
    return [None if value is None else msgspec.json.encode(value).decode() for value in values]


def in_microseconds(array: Array, name: str) -> Array:
    """Moments in a unit no finer than a microsecond. `PermanentError` if that would alter one."""
    kind = array.type
    if getattr(kind, "unit", "us") != "ns":
        return array
    coarse = pa.timestamp("us", kind.tz) if _IS.is_timestamp(kind) else pa.duration("us")
    try:
        return array.cast(pa.time64("us") if _IS.is_time(kind) else coarse)
    except pa.ArrowInvalid as error:
        raise PermanentError(
            f"column {name!r} has nanoseconds, but the database keeps only microseconds. Cast the column in the query: "
            f"{error}"
        ) from error


def _refuse_missing_keys(table: pa.Table, key: Collection[str], refused: dict[int, str]) -> None:
    """Refuse rows with a NULL in the key: they cannot be replaced, and each repetition would add them again."""
    for name in key:
        if name in table.column_names:
            refuse_nulls(table[name], f"key column {name!r} is NULL", refused)


def refuse_nulls(column: Any, reason: str, refused: dict[int, str]) -> None:
    array = array_of(column)
    if array.null_count:
        for row, valid in enumerate(array.is_valid().to_pylist()):
            if not valid:
                refused.setdefault(row, reason)


class _Repeated(Exception):
    """A key occurs twice in an object."""


def refuse_repeated_keys(column: Any, name: str, refused: dict[int, str], kept_as: str) -> None:
    """Add the rows whose text repeats a key of an object, or cannot be searched for one."""
    for row, text in enumerate(texts_of(array_of(column), name, {})):
        if text is not None and (problem := _problem(text)) is not None:
            refused.setdefault(row, f"column {name!r} {problem.format(kept_as)}")


def _problem(text: str) -> str | None:
    try:
        json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Repeated as repeated:
        key = repr(repeated.args[0]).replace("{", "{{").replace("}", "}}")
        return f"repeats the key {key}, but {{}} would keep only the last value of this key"
    except RecursionError:
        return "is nested too deeply: it cannot be searched for repeated keys"
    except ValueError as error:
        return f"is not JSON: {error.args[0]}".replace("{", "{{").replace("}", "}}")
    return None


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise _Repeated(key)
        seen.add(key)
