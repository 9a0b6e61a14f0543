"""The types of database servers for Arrow types, and rows as these servers read them.

A table for each server tells the type of a column that the sink makes, and which declared types keep a value. MariaDB
and MySQL get rows as literals of an INSERT. PostgreSQL gets them as the text of its COPY, not in its binary form: the
server reads text with the column's own input function, so it fits every type of a column, and the server refuses values
out of a type's range. CSV does not serve: before version 18 the server takes a line `\\.` for the end of the data even
within quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink_backends.common.columns import Array, ArrowType, array_of, stored_type, texts_of
from wal_sink_backends.sql.base.values import Encode, Kind, Rows, decimals_of, in_microseconds, json_texts, kind_of

_IS: Any = pa.types
_compute: Any = pc
KEY_LENGTH = 255
"""Characters or bytes of a key column that the sink makes in MariaDB: an index takes no text without a limit."""
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest float. Read as a double, its shortest text is larger than it, and a FLOAT column refuses that."""
_ISO = re.compile(r"(?P<sign>[+-]?)(?P<year>\d+)(?P<rest>.*)", re.DOTALL)
_DAY_US, _HOUR_US, _MINUTE_US, _SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class ServerTypes:
    """The types of one server."""

    name_of: Callable[[ArrowType, bool], str]
    """The type of a column that the sink makes for an Arrow type; True for a column of the key."""
    declared: re.Pattern[str]
    """The parts of a type as the server describes a column: `name`, `inside` of its brackets, and the `rest` of the
    name behind these, if there is one.
    """
    integers: frozenset[str]
    decimal: str
    floats: Mapping[str, int]
    """Types that keep floating numbers of so many bits, if nothing is in their brackets."""
    moments: Callable[[ArrowType], Collection[str]]
    """The types that keep a moment, if they have enough digits."""
    digits: int
    """The digits of a moment's second, if its type names none."""
    kept: Mapping[Kind, frozenset[str]]
    """The types that keep values of the other kinds."""

    def fits(self, arrow_type: ArrowType, declared: str) -> bool:
        """Whether a column keeps such values as they are or refuses them."""
        if declared.endswith("[]") and not _IS.is_null(arrow_type):
            # Not of documents: nobody searches their texts for repeated keys there.
            arrow_type, declared = getattr(stored_type(arrow_type), "value_type", None), declared[:-2]
            if arrow_type is None or kind_of(arrow_type) == "nested" or declared in {"json", "jsonb"}:
                return False
        match = self.declared.fullmatch(declared.lower())
        if match is None:
            return False
        name = match["name"].rpartition(".")[2] + (match["rest"] or "")  # citext may lie in a schema
        numbers = [int(number) for number in re.findall(r"-?\d+", match["inside"] or "")]
        return self._keeps(stored_type(arrow_type), name, numbers)

    def _keeps(self, kind: ArrowType, name: str, numbers: list[int]) -> bool:
        """`numbers` are those in the brackets of the declared type."""
        match kind_of(kind):
            case "void":
                return True
            case "integer":
                return self._keeps_whole_and(0, name, numbers)
            case "decimal":
                return self._keeps_whole_and(kind.scale, name, numbers)
            case "number":
                return self.floats.get(name, 0) >= kind.bit_width and not numbers
            case "moment":
                return self._keeps_moment(kind, name, numbers)
            case other:
                return name in self.kept[other]

    def _keeps_whole_and(self, scale: int, name: str, numbers: list[int]) -> bool:
        """Whether a type keeps whole numbers, and so many digits behind their point."""
        if name in self.integers:
            return scale <= 0
        behind = numbers[1] if len(numbers) > 1 else 0
        return name == self.decimal and (not numbers or behind >= scale)

    def _keeps_moment(self, kind: ArrowType, name: str, numbers: list[int]) -> bool:
        if name not in self.moments(kind):
            return False
        has_digits = not _IS.is_date(kind) and name not in self.kept["text"]
        return not has_digits or (numbers[0] if numbers else self.digits) >= decimals_of(kind)


def _mariadb_name(arrow_type: ArrowType, is_key: bool) -> str:  # noqa: FBT001 - a field of `ServerTypes`
    kind = stored_type(arrow_type)
    if _IS.is_integer(kind):
        name = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}[kind.bit_width]
        return f"{name} unsigned" if _IS.is_unsigned_integer(kind) else name
    if _IS.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind_of(kind) == "moment" and not _IS.is_duration(kind):
        if _IS.is_date(kind):
            return "date"
        return f"{'datetime' if _IS.is_timestamp(kind) else 'time'}({decimals_of(kind)})"
    if is_key and kind_of(kind) in {"text", "binary"}:
        return f"{'varchar' if kind_of(kind) == 'text' else 'varbinary'}({KEY_LENGTH})"
    return {"number": "double", "boolean": "boolean", "binary": "longblob"}.get(kind_of(kind), "longtext")


def _mariadb_moments(kind: ArrowType) -> Collection[str]:
    if _IS.is_duration(kind):
        return MARIADB.kept["text"]
    if _IS.is_timestamp(kind):
        return {"timestamp", "datetime"} if kind.tz is not None else {"datetime"}
    return {"date"} if _IS.is_date(kind) else {"time"}


def _postgresql_name(arrow_type: ArrowType, is_key: bool) -> str:  # noqa: ARG001, FBT001 - a key may have any type
    kind = stored_type(arrow_type)
    if _IS.is_integer(kind):
        bits = kind.bit_width + (1 if _IS.is_unsigned_integer(kind) else 0)
        sizes = {"smallint": 16, "integer": 32, "bigint": 64}
        return next((name for name, most in sizes.items() if bits <= most), "numeric(20,0)")
    if _IS.is_floating(kind):
        return "real" if kind.bit_width < 64 else "double precision"
    if _IS.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision <= 1000 else "numeric"
    if kind_of(kind) == "moment":
        return _postgresql_moment(kind)
    return {"boolean": "boolean", "binary": "bytea", "nested": "jsonb"}.get(kind_of(kind), "text")


def _postgresql_moment(kind: ArrowType) -> str:
    if _IS.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if _IS.is_date(kind):
        return "date"
    return "time without time zone" if _IS.is_time(kind) else "interval"


MARIADB = ServerTypes(
    name_of=_mariadb_name,
    declared=re.compile(r"(?P<name>\w+)(?:\((?P<inside>.*)\))?.*?(?P<rest>)", re.DOTALL),
    integers=frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"}),
    decimal="decimal",
    floats={"double": 64},  # a FLOAT is read with six digits
    moments=_mariadb_moments,
    digits=0,
    kept={
        "boolean": frozenset({"tinyint", "smallint", "int", "bigint"}),
        "binary": frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}),
        "nested": frozenset({"json", "text", "mediumtext", "longtext"}),
        "text": frozenset({"char", "varchar", "text", "mediumtext", "longtext", "json", "uuid", "inet4", "inet6"}),
    },
)
"""Not `enum` and `set`, which take a number for a place in their list; not `tinytext`, which cuts blanks behind 255
bytes; not `binary`, which pads with zeros.
"""
POSTGRESQL = ServerTypes(
    name_of=_postgresql_name,
    declared=re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<inside>-?\d+(?:,-?\d+)?)\))?(?P<rest> with(?:out)? time zone)?"),
    integers=frozenset({"smallint", "integer", "bigint"}),
    decimal="numeric",
    floats={"real": 32, "double precision": 64, "numeric": 64},
    moments=lambda kind: {_postgresql_moment(kind)},
    digits=6,
    kept={
        "boolean": frozenset({"boolean"}),
        "binary": frozenset({"bytea"}),
        "nested": frozenset({"jsonb", "json", "text"}),
        "text": frozenset(
            {
                *("text", "character varying", "character", "bpchar", "citext", "uuid", "json", "jsonb", "inet"),
                *("macaddr", "enum"),
            }
        ),
    },
)
"""Not `name`, `"char"`, `xml` (they cut a text) and `cidr` (10 becomes 10.0.0.0/8)."""


# Rows for MariaDB and MySQL.

Quote: TypeAlias = Callable[[str], str]
"""Makes a literal of a text, by the rules of the connection."""


def value_lists(table: pa.Table, key: Collection[str], quote: Quote) -> Rows:
    """The rows of a table as literals, `('1', "'x'", 'NULL')`. Those with a NaN or infinite number, or no UTF-8 in a
    text, are refused.
    """

    def literals(column: Any, name: str, refused: dict[int, str]) -> list[str]:
        kind = kind_of(column.type)
        literal = quote if kind in _IN_QUOTES else str
        texts = _LITERALS[kind](array_of(column), name, refused)
        return ["NULL" if text is None else literal(text) for text in texts]

    return Rows.of(table, key, literals, lambda columns: list(zip(*columns, strict=True)))


def _whole_literal(array: Array, _name: str, _refused: dict[int, str]) -> list[str | None]:
    return [None if value is None else str(int(value)) for value in array.to_pylist()]


def _number_literal(array: Array, name: str, refused: dict[int, str]) -> list[str | None]:
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


def _moment_literal(array: Array, name: str, _refused: dict[int, str]) -> list[str | None]:
    """Moments as texts. Instants are in UTC, the session's time zone."""
    if _IS.is_timestamp(array.type) or _IS.is_time(array.type):
        array = in_microseconds(array, name)
    return [text.removesuffix("Z") if text else text for text in plain_values(array, name)]


_IN_QUOTES: frozenset[Kind] = frozenset({"text", "nested", "moment"})
_LITERALS: dict[Kind, Encode[list[str | None]]] = {
    "integer": _whole_literal,
    "boolean": _whole_literal,
    "decimal": lambda array, *_: decimal_texts(array),
    "number": _number_literal,
    "text": texts_of,
    "nested": lambda array, name, _: json_texts(array, name),
    "moment": _moment_literal,
    "binary": lambda array, *_: [None if byte is None else f"x'{byte.hex()}'" for byte in array.to_pylist()],
    "void": _whole_literal,
}


# Rows for PostgreSQL.


def copy_rows(table: pa.Table, key: Collection[str], declared: Mapping[str, str]) -> Rows:
    """The rows of a table as lines of COPY text without their ends; those with a NUL or no UTF-8 in a text refused.

    A list becomes JSON, unless its column is `declared` as an array.
    """

    def fields(column: Any, name: str, refused: dict[int, str]) -> Array:
        kind = kind_of(column.type)
        encode = _array_field if kind == "nested" and declared.get(name, "").endswith("[]") else _FIELDS[kind]
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


def _cast_field(array: Array, _name: str, _refused: dict[int, str]) -> Array:
    return (array.cast(pa.float32()) if _IS.is_float16(array.type) else array).cast(pa.string())


def _text_field(array: Array, name: str, refused: dict[int, str]) -> Array:
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


def _array_field(array: Array, name: str, refused: dict[int, str]) -> Array:
    """Lists of scalars as `{"a",NULL}`. A list with an element that is refused is refused."""
    values, within, rows = array.flatten(), dict[int, str](), list[str | None]()
    elements = iter(enumerate(_FIELDS[kind_of(values.type)](array_of(values), name, within).to_pylist()))
    for row, length in enumerate(_compute.list_value_length(array).to_pylist()):
        parts = list(islice(elements, length or 0))
        if reasons := [within[place] for place, _ in parts if place in within]:
            refused.setdefault(row, reasons[0])
        quoted = ("NULL" if text is None else '"' + re.sub(r'["\\]', r"\\\g<0>", text) + '"' for _, text in parts)
        rows.append(None if length is None else f"{{{','.join(quoted)}}}")
    return pa.array(rows, pa.string())


def _moment_field(array: Array, name: str, _refused: dict[int, str]) -> Array:
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


_FIELDS: dict[Kind, Encode[Array]] = {
    "integer": _cast_field,
    "number": _cast_field,
    "decimal": _cast_field,
    "boolean": _cast_field,
    "text": _text_field,
    "binary": lambda array, *_: pa.array(
        [None if byte is None else f"\\x{byte.hex()}" for byte in array.to_pylist()], pa.string()
    ),
    "nested": lambda array, name, _: pa.array(json_texts(array, name), pa.string()),
    "moment": _moment_field,
    "void": _cast_field,
}
