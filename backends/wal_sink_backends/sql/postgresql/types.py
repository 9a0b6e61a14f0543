"""The types of PostgreSQL for Arrow types, and rows as the text of its COPY.

COPY gets text, not its binary form: the server reads text with the column's own input function, so it fits every type
of a column, and the server refuses values out of a type's range. CSV does not serve: before version 18 the server takes
a line `\\.` for the end of the data even within quotes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.sinks.json_rows import plain_values
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
_INTEGERS = ("smallint", "integer", "bigint")
_TEXT_TYPES = frozenset(
    {"text", "character varying", "character", "bpchar", "citext", "uuid", "json", "jsonb", "inet", "macaddr", "enum"}
)
"""Types that keep a text or refuse it. Not `name`, `"char"`, `xml` (cut it) and `cidr` (10 becomes 10.0.0.0/8)."""
_DECLARED = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<numbers>-?\d+(?:,-?\d+)?)\))?(?P<rest> with(?:out)? time zone)?")
_ISO = re.compile(r"(?P<sign>[+-]?)(?P<year>\d+)(?P<rest>.*)", re.DOTALL)
_DAY_US, _HOUR_US, _MINUTE_US, _SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


def type_name(arrow_type: ArrowType) -> str:
    """The type of a column that the sink makes."""
    kind = stored_type(arrow_type)
    if _IS.is_integer(kind):
        return _integer_name(kind)
    if _IS.is_floating(kind):
        return "real" if kind.bit_width < 64 else "double precision"
    if _IS.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision <= 1000 else "numeric"
    if kind_of(kind) == "moment":
        return _moment_name(kind)
    return {"boolean": "boolean", "binary": "bytea", "nested": "jsonb"}.get(kind_of(kind), "text")


def _integer_name(kind: ArrowType) -> str:
    bits = kind.bit_width + (1 if _IS.is_unsigned_integer(kind) else 0)
    return next((name for name, most in zip(_INTEGERS, (16, 32, 64), strict=True) if bits <= most), "numeric(20,0)")


def _moment_name(kind: ArrowType) -> str:
    if _IS.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if _IS.is_date(kind):
        return "date"
    return "time without time zone" if _IS.is_time(kind) else "interval"


def fits(arrow_type: ArrowType, declared: str) -> bool:
    """Whether a column keeps such values as they are or refuses them, as `format_type` shows the column."""
    if declared.endswith("[]") and not _IS.is_null(
        arrow_type
    ):  # not of documents: nobody searches their texts for repeated keys there
        arrow_type, declared = getattr(stored_type(arrow_type), "value_type", None), declared[:-2]
        if arrow_type is None or kind_of(arrow_type) == "nested" or declared in {"json", "jsonb"}:
            return False
    match = _DECLARED.fullmatch(declared)
    if match is None:
        return False
    name = match["name"].rpartition(".")[2] + (match["rest"] or "")  # citext may lie in a schema
    numbers = [int(number) for number in (match["numbers"] or "").split(",") if number]
    return _FITS[kind_of(arrow_type)](stored_type(arrow_type), name, numbers)


def _fits_integer(_: ArrowType, name: str, numbers: list[int]) -> bool:
    return name in _INTEGERS or (name == "numeric" and (not numbers or numbers[-1] >= 0))


def _fits_number(kind: ArrowType, name: str, numbers: list[int]) -> bool:
    return name == "double precision" or (name == "real" and kind.bit_width < 64) or (name == "numeric" and not numbers)


def _fits_decimal(kind: ArrowType, name: str, numbers: list[int]) -> bool:
    if name in _INTEGERS:
        return bool(kind.scale <= 0)
    return name == "numeric" and (not numbers or bool(numbers[1] >= kind.scale))


def _fits_moment(kind: ArrowType, name: str, numbers: list[int]) -> bool:
    if name != _moment_name(kind):
        return False
    return not numbers or _IS.is_date(kind) or numbers[0] >= decimals_of(kind)


_FITS: dict[Kind, Fits] = {
    "integer": _fits_integer,
    "number": _fits_number,
    "decimal": _fits_decimal,
    "moment": _fits_moment,
    "boolean": lambda _kind, name, _: name == "boolean",
    "binary": lambda _kind, name, _: name == "bytea",
    "nested": lambda _kind, name, _: name in {"jsonb", "json", "text"},
    "text": lambda _kind, name, _: name in _TEXT_TYPES,
    "void": lambda _kind, _name, _: True,
}


# Values.


def copy_rows(table: pa.Table, key: Collection[str], declared: Mapping[str, str]) -> Rows:
    """The rows of a table as lines of COPY text without their ends; those with a NUL or no UTF-8 in a text refused.

    A list becomes JSON, unless its column is `declared` as an array.
    """

    def fields(column: Any, name: str, refused: dict[int, str]) -> Array:
        kind = kind_of(column.type)
        encode = _array if kind == "nested" and declared.get(name, "").endswith("[]") else _TEXTS[kind]
        texts = encode(array_of(column), name, refused)
        for character, escape in _ESCAPES if kind in _WITH_ESCAPES else ():
            texts = _compute.replace_substring(texts, character, escape)
        return texts

    return Rows.of(table, key, fields, _lines)


def _lines(columns: list[Array]) -> list[str]:
    joined = _compute.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    lines: list[str] = joined.to_pylist()
    return lines


_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_WITH_ESCAPES = {"text", "binary", "nested"}
"""Kinds of columns whose texts may hold characters with a meaning for COPY."""


def _cast(array: Array, _name: str, _refused: dict[int, str]) -> Array:
    return (array.cast(pa.float32()) if _IS.is_float16(array.type) else array).cast(pa.string())


def _text(array: Array, name: str, refused: dict[int, str]) -> Array:
    whole = _whole_text(array)
    if whole is not None:
        return whole
    texts = texts_of(array, name, refused)
    for row, text in enumerate(texts):
        if text is not None and "\0" in text:
            refused.setdefault(
                row, f"column {name!r} holds a NUL character, but a text of PostgreSQL cannot hold this character"
            )
            texts[row] = None
    return pa.array(texts, pa.string())


def _whole_text(array: Array) -> Array | None:
    """The array, if all of it is UTF-8 without a NUL, so that no text needs a check in Python; else None."""
    try:
        texts = array.cast(pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return None if _compute.any(_compute.match_substring(texts, "\0")).as_py() else texts


def _array(array: Array, name: str, refused: dict[int, str]) -> Array:
    """Lists of scalars as `{"a",NULL}`. A list with an element that is refused is refused."""
    values, within, rows = array.flatten(), dict[int, str](), list[str | None]()
    elements = iter(enumerate(_TEXTS[kind_of(values.type)](array_of(values), name, within).to_pylist()))
    for row, length in enumerate(_compute.list_value_length(array).to_pylist()):
        parts = list(islice(elements, length or 0))
        if reasons := [within[place] for place, _ in parts if place in within]:
            refused.setdefault(row, reasons[0])
        quoted = ("NULL" if text is None else '"' + re.sub(r'["\\]', r"\\\g<0>", text) + '"' for _, text in parts)
        rows.append(None if length is None else f"{{{','.join(quoted)}}}")
    return pa.array(rows, pa.string())


def _moment(array: Array, name: str, _refused: dict[int, str]) -> Array:
    array = in_microseconds(array, name)
    if _IS.is_duration(array.type):
        numbers = array.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
        return pa.array([None if number is None else _interval(number) for number in numbers], pa.string())
    texts = plain_values(array, name)
    return pa.array(
        [_far(text) if text and (text[0] in "+-" or text < "0001") else text for text in texts], pa.string()
    )


def _interval(microseconds: int) -> str:
    """Days and the rest separately, as Spark keeps them, each with a sign."""
    sign, size = ("-" if microseconds < 0 else "+"), abs(microseconds)
    days, rest = divmod(size, _DAY_US)
    hours, rest = divmod(rest, _HOUR_US)
    minutes, rest = divmod(rest, _MINUTE_US)
    seconds, rest = divmod(rest, _SECOND_US)
    return f"{sign}{days} days {sign}{hours:02}:{minutes:02}:{seconds:02}.{rest:06}"


def _far(text: str) -> str:
    """A year beyond 1 to 9999 as PostgreSQL reads it: without a plus, and counted back from 1 BC."""
    match = _ISO.fullmatch(text)
    if match is None:
        return text
    year = int(match["sign"] + match["year"])
    return f"{year}{match['rest']}" if year > 0 else f"{1 - year:04}{match['rest']} BC"


_TEXTS: dict[Kind, Encode[Array]] = {
    "integer": _cast,
    "number": _cast,
    "decimal": _cast,
    "boolean": _cast,
    "text": _text,
    "binary": lambda array, *_: pa.array(
        [None if byte is None else f"\\x{byte.hex()}" for byte in array.to_pylist()], pa.string()
    ),
    "nested": lambda array, name, _: pa.array(json_texts(array, name), pa.string()),
    "moment": _moment,
    "void": _cast,
}
