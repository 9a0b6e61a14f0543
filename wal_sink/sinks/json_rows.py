"""Rows of an Arrow table as JSON, for `Chunk.to_json`.

A table is converted column by column to plain values, with Arrow's own kernels where they exist, and then to one object
per row. `Chunk.to_json` and the converters below document the result for each type.
"""

from __future__ import annotations

import decimal
import re
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import ConfigError
from wal_sink.support.arguments import one_of
from wal_sink.support.arrow_types import viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_1_S = -62_135_596_800
_YEAR_10000_S = 253_402_300_800
_DAY_S = 86_400

Maps: TypeAlias = Literal["object", "entries"]
"""Form of maps: `object` writes objects if the keys are texts (as Spark's `to_json` does); `entries` writes all maps as
arrays of `{"key":…,"value":…}`.
"""
_WAYS = ("object", "entries")
Values: TypeAlias = list[Any]
Array: TypeAlias = Any  # a pyarrow array of any class; pyarrow has no type for "any array"
Column: TypeAlias = Any  # the same, or a chunked array


def to_json_array(table: pa.Table) -> bytes:
    """The rows as one JSON array of objects, UTF-8. Raises `ConfigError` for repeated names and unknown types."""
    return msgspec.json.encode(_rows_of(table))


def to_json_lines(table: pa.Table) -> bytes:
    """The rows as one JSON object per line, each line ended by a newline, UTF-8. Raises as `to_json_array` does."""
    return msgspec.json.Encoder().encode_lines(_rows_of(table))


def check_maps(maps: object) -> None:
    """Raise `ConfigError` if `maps` is not a known form of maps."""
    one_of("maps", maps, _WAYS)


def maps_as(maps: Maps, table: pa.Table) -> pa.Table:
    """The table with its maps in the given form: with `entries` each map is a list of structs, also within other
    types.
    """
    if maps == "object":
        return table
    schema = pa.schema([field.with_type(_without_maps(field.type)) for field in table.schema])
    return pa.Table.from_batches([viewed(batch, schema) for batch in table.to_batches()], schema)


def _without_maps(kind: Any) -> Any:
    if _IS.is_map(kind):
        entry = [pa.field("key", _without_maps(kind.key_type)), pa.field("value", _without_maps(kind.item_type))]
        return pa.list_(pa.struct(entry))
    if _IS.is_fixed_size_list(kind):
        return pa.list_(_without_maps(kind.value_type), kind.list_size)
    if _IS.is_large_list(kind):
        return pa.large_list(_without_maps(kind.value_type))
    if _IS.is_list(kind):
        return pa.list_(_without_maps(kind.value_type))
    if _IS.is_struct(kind):
        return pa.struct([field.with_type(_without_maps(field.type)) for field in kind])
    return kind


def plain_values(column: Column, name: str) -> Values:
    """A column as values that msgspec writes as JSON; `name` is for messages. Raises `ConfigError` for a type without a
    JSON form.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    convert = _converter(column.type, name)
    return [value for chunk in chunks for value in convert(chunk, name)]


def _rows_of(table: pa.Table) -> list[Any]:
    names = tuple(table.column_names)
    _check_unique(names, "the table")
    columns = [plain_values(column, name) for name, column in zip(names, table.columns, strict=True)]
    return _objects(names, columns, table.num_rows)


def _check_unique(names: Sequence[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"column {twice[0]!r} occurs {names.count(twice[0])} times in {where}. A JSON object can hold each name "
            "only once. Give each column a different name in the query, for example with DataFrame.toDF or an alias"
        )


def _objects(names: tuple[str, ...], columns: Sequence[Values], rows: int) -> list[Any]:
    """One object per row. msgspec creates and writes a struct four times as fast as a dict, but does not support every
    name.
    """
    row_type = _row_type(names)
    if row_type is not None:
        return list(map(row_type, *columns))
    if not names:
        return [{} for _ in range(rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@lru_cache(maxsize=128)
def _row_type(names: tuple[str, ...]) -> Callable[..., Any] | None:
    """A struct class with these field names, or None if msgspec cannot write one of them."""
    if not names or any(character in '\\"' or character < " " for name in names for character in name):
        return None
    fields = [f"f{index}" for index in range(len(names))]
    return msgspec.defstruct("Row", fields, rename=dict(zip(fields, names, strict=True)), gc=False)


# Converters: an Arrow array and the column's name, for messages, to plain values.


def _converter(kind: Any, name: str) -> _Converter:
    for accepts, convert in _CONVERTERS:
        if accepts(kind):
            return convert
    raise ConfigError(
        f"column {name!r}: JSON rows do not support the type {kind}. Cast the column in the query, for example to a "
        "string"
    )


def _same(array: Array, _name: str) -> Values:
    """Whole numbers, booleans and nulls as they are; also bytes, which msgspec writes as base64."""
    values: Values = array.to_pylist()
    return values


def _text(array: Array, name: str) -> Values:
    try:
        return _same(array, name)
    except UnicodeDecodeError:  # a Spark string may hold any bytes: invalid ones become U+FFFD, as in Spark
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]


def _float(array: Array, _name: str) -> Values:
    if not pa.types.is_float64(array.type):  # converted through text, so that 0.1 stays 0.1 without extra digits
        array = array.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    values: Values = array.to_pylist()
    if pc.all(pc.is_finite(array), min_count=0).as_py():
        return values
    return [value if value is None or abs(value) < float("inf") else _special(value) for value in values]


def _special(value: float) -> str:
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _decimal(array: Array, _name: str) -> Values:
    return [None if text is None else msgspec.Raw(text) for text in decimal_texts(array)]


def decimal_texts(array: Array) -> list[str | None]:
    """Decimals as texts, with all their digits and without an exponent."""
    texts = array.cast(pa.string()).to_pylist()
    return [format(decimal.Decimal(text), "f") if text and "E" in text else text for text in texts]


def _date(array: Array, _name: str) -> Values:
    return _moments(
        array.cast(pa.date32()), array.cast(pa.date32()).cast(pa.int32()), Fraction(1, _DAY_S), "datetime64[D]"
    )


def _timestamp(array: Array, _name: str) -> Values:
    unit = array.type.unit
    numbers = array.cast(pa.int64())
    texts = _moments(numbers.cast(pa.timestamp(unit)), numbers, _PER_SECOND[unit], f"datetime64[{unit}]")
    if array.type.tz is None:
        return texts
    # An instant is always written in UTC, so that its text does not depend on a setting.
    return [None if text is None else f"{text}Z" for text in texts]


def _moments(array: Array, numbers: Array, per_second: int | Fraction, numpy_type: str) -> Values:
    """ISO 8601 texts of dates or timestamps: by Arrow for the years 1 to 9999, by numpy for others."""
    bounds: Any = pc.min_max(numbers).as_py()
    first, last = bounds["min"], bounds["max"]
    if first is None or (first >= _YEAR_1_S * per_second and last < _YEAR_10000_S * per_second):
        texts: Array = array.cast(pa.string())
        if pa.types.is_timestamp(array.type):
            texts = pc.binary_replace_slice(texts, 10, 11, "T")
        return _same(texts, "")
    raw = numbers.fill_null(0).to_numpy().astype(np.int64)
    least = raw == np.iinfo(np.int64).min  # no time to numpy; ends in 2 in each unit, one below the next time
    far = np.datetime_as_string((raw + least).astype(numpy_type)).tolist()
    texts = [f"{text[:-1]}2" if is_least else text for text, is_least in zip(far, least.tolist(), strict=True)]
    return [_signed_year(text) if valid else None for text, valid in zip(texts, _valid(array), strict=True)]


def _signed_year(text: str) -> str:
    """The text with a year as ISO 8601 requires it: at least four digits, and a sign if there are more."""
    minus, year, rest = re.fullmatch(r"(-?)(\d+)(.*)", text).groups()  # type: ignore[union-attr]
    sign = minus or ("+" if len(year) > len("9999") else "")
    return f"{sign}{year:0>4}{rest}"


def _duration(array: Array, _name: str) -> Values:
    per_second = _PER_SECOND[array.type.unit]
    numbers = array.cast(pa.int64()).to_pylist()
    return [None if number is None else _iso_duration(number, per_second) for number in numbers]


def _iso_duration(number: int, per_second: int) -> str:
    """A duration of `number` units as `P1DT2H3M4.5S`; a second has `per_second` units. The sign of a negative duration
    stands in front of the whole.
    """
    seconds, fraction = divmod(abs(number), per_second)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    decimals = f".{fraction:0{len(str(per_second)) - 1}d}".rstrip("0") if fraction else ""
    parts = [f"{value}{letter}" for value, letter in ((hour, "H"), (minute, "M")) if value]
    if second or fraction or not (parts or day):
        parts.append(f"{second}{decimals}S")
    time = f"T{''.join(parts)}" if parts else ""
    return f"{'-' if number < 0 else ''}P{f'{day}D' if day else ''}{time}"


def _time(array: Array, name: str) -> Values:
    return _same(array.cast(pa.string()), name)


def _list(array: Array, name: str) -> Values:
    values = plain_values(array.flatten(), name)
    return _cut(values, pc.list_value_length(array).to_pylist())


def _cut(values: Values, lengths: Sequence[int | None]) -> Values:
    """Consecutive runs of `values`. A length of None means a null list, which has no values."""
    ends = accumulate((length or 0 for length in lengths), initial=0)
    return [
        None if length is None else values[start:end]
        for length, (start, end) in zip(lengths, pairwise(ends), strict=True)
    ]


def _map(array: Array, name: str) -> Values:
    """Objects if the keys are texts. Otherwise arrays of `{"key":…,"value":…}`, since an object would lose the type of
    the keys.
    """
    offsets = array.offsets
    first = offsets[0].as_py()
    count = offsets[len(array)].as_py() - first
    keys = plain_values(array.keys.slice(first, count), f"{name}.key")
    items = plain_values(array.items.slice(first, count), f"{name}.value")
    made = _object if _is_text(array.type.key_type) else _entries
    cuts = pairwise(offset - first for offset in offsets.to_pylist())
    return [
        made(keys[start:end], items[start:end]) if valid else None
        for valid, (start, end) in zip(_valid(array), cuts, strict=True)
    ]


def _object(keys: Values, items: Values) -> Any:
    """An object. If a key is repeated or null, the entries, since an object would keep only one value per key."""
    made = dict(zip(keys, items, strict=True))
    return made if len(made) == len(keys) and None not in made else _entries(keys, items)


def _entries(keys: Values, items: Values) -> list[Any]:
    return _objects(("key", "value"), [keys, items], len(keys))


def _struct(array: Array, name: str) -> Values:
    names = tuple(field.name for field in array.type)
    _check_unique(names, f"the struct {name!r}")
    fields = [plain_values(child, f"{name}.{field}") for child, field in zip(array.flatten(), names, strict=True)]
    rows = _objects(names, fields, len(array))
    return [row if valid else None for row, valid in zip(rows, _valid(array), strict=True)]


def _valid(array: Array) -> Values:
    return _same(array.is_valid(), "")


def _dictionary(array: Array, name: str) -> Values:
    return plain_values(array.dictionary_decode(), name)


def _extension(array: Array, name: str) -> Values:
    return plain_values(array.storage, name)


def _any(*accepts: _Accepts) -> _Accepts:
    return lambda kind: any(accept(kind) for accept in accepts)


_Converter: TypeAlias = "Callable[[Array, str], Values]"
_Accepts: TypeAlias = "Callable[[Any], bool]"
_IS: Any = pa.types
_is_text = _any(_IS.is_string, _IS.is_large_string, _IS.is_string_view)
_CONVERTERS: tuple[tuple[_Accepts, _Converter], ...] = (
    (_any(_IS.is_null, _IS.is_boolean, _IS.is_integer), _same),
    (_is_text, _text),
    (_IS.is_floating, _float),
    (_IS.is_decimal, _decimal),
    (_IS.is_timestamp, _timestamp),
    (_IS.is_date, _date),
    (_any(_IS.is_binary, _IS.is_large_binary, _IS.is_fixed_size_binary, _IS.is_binary_view), _same),
    (_IS.is_time, _time),
    (_IS.is_duration, _duration),
    (_IS.is_map, _map),  # before lists, because an Arrow map is also a list
    (_any(_IS.is_list, _IS.is_large_list, _IS.is_fixed_size_list), _list),
    (_IS.is_struct, _struct),
    (_IS.is_dictionary, _dictionary),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _extension),
)
