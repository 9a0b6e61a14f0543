"""Rows for Redis: keys from a template, values as bytes."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.json_rows import plain_values
from wal_sink_backends.common.texts import is_text, rows_without_utf8, text_bytes
from wal_sink_backends.redis.script import LEDGER

MOST_COLUMNS = 3_000
"""A script passes twice as many texts in one call, and Lua takes 8,000."""
MOST_ARGUMENTS = 1_000_000
"""Keys and values of one call; before Redis 7 the protocol ends at 1,048,576."""
MOST_BYTES = 512 << 20
"""Redis' limit for one text (`proto-max-bulk-len`)."""

Value: TypeAlias = bytes | None
_MOST_SHOWN = 80
_IS: Any = pa.types
_MOMENT = re.compile(rb"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z?)?|\d\d:\d\d:\d\d(\.\d+)?")
"""A date, a timestamp or a time of day, of the years 1 to 9999: all values of one column have the same length."""


class KeyTemplate:
    """`orders:{id}`: a text with names of columns in braces; two braces are one. Plain data."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(f"key={text!r}: {error}; expected something like 'orders:{{id}}'") from error
        if not text or any(spec or conversion for _, _, spec, conversion in parsed):
            raise ConfigError(f"key={text!r}: expected a text with names of columns in braces, such as 'orders:{{id}}'")
        self.parts: list[tuple[str, str | None]] = [(literal, column) for literal, column, _, _ in parsed]
        self.columns = [column for _, column in self.parts if column is not None]
        self.between = self._between()
        """Each field except the last, with the text between it and the next one."""

    def _between(self) -> list[tuple[str, str, str]]:
        """(column, text, next column). Raises `ConfigError` where nothing stands between two fields."""
        between: list[tuple[str, str, str]] = []
        before, text = None, ""
        for literal, column in self.parts:  # a doubled brace ends a literal, too
            text += literal
            if column is None:
                continue
            if before is not None and not text:
                raise ConfigError(
                    f"key={self.text!r}: {{{before}}} and {{{column}}} need a text between them, because 'a' and 'bc' "
                    f"would have the key of 'ab' and 'c'; if the lengths are fixed, make one column in the query, "
                    f"concat({before}, {column})"
                )
            if before is not None:
                between.append((before, text, column))
            before, text = column, ""
        return between

    def shared(self, row: int, columns: Mapping[str, Sequence[Value]], kinds: Mapping[str, Any]) -> str:
        """Why another row could have this row's key; empty if none can.

        A key is read from the left: a field ends where the text after it first occurs. So no field except the last may
        hold that text, nor end with its beginning ("a:" before "::"). The end of whole numbers and moments shows
        without that text.
        """
        for column, text, following in self.between:
            value, after = columns[column][row] or b"", text.encode()
            if (value + after).find(after) < len(value) and not _ends_itself(value, after, kinds[column]):
                return (
                    f"column {column!r} of the key {self.text!r} is {_shown(value)}, but {text!r} separates "
                    f"{{{column}}} and {{{following}}}: another row could have the same key"
                )
        return ""

    def key_of(self, row: int, columns: dict[str, list[Value]]) -> bytes | None:
        """The key of a row; None if one of its columns is NULL."""
        key = b""
        for literal, column in self.parts:
            value = b"" if column is None else columns[column][row]
            if value is None:
                return None
            key += literal.encode() + value
        return key


def _ends_itself(value: bytes, after: bytes, kind: Any) -> bool:
    """Whether the end of a value shows without the text after it: after a whole number's digits, a moment's length."""
    if _IS.is_integer(kind):
        return not after[:1].isdigit()
    return bool(_IS.is_temporal(kind) and _MOMENT.fullmatch(value))


def _shown(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def encoded(
    chunk: Chunk, kind: str, template: KeyTemplate, what: str
) -> tuple[list[bytes], list[bytes | int], dict[int, str]]:
    """A key for each row, the values as the script takes them, and why some rows cannot be written.

    Raises `PermanentError` for columns that cannot be carried.
    """
    names = chunk.table.column_names
    _check_names(names, template, what)
    try:
        columns = {name: _values(column, name) for name, column in zip(names, chunk.table.columns, strict=True)}
        members = chunk.to_json(lines=True).split(b"\n") if kind == "set" else []
    except ConfigError as error:
        raise PermanentError(f"{what}: {error}") from error
    fields = [name.encode() for name in names]
    kinds = {field.name: field.type for field in chunk.table.schema}
    keys: list[bytes] = []
    values: list[bytes | int] = []
    refused: dict[int, str] = {}
    no_text = rows_without_utf8(chunk.table) if kind == "set" else {}
    for row in range(chunk.num_rows):
        key = template.key_of(row, columns)
        pairs = [(field, column[row]) for field, column in zip(fields, columns.values(), strict=True)]
        reason = no_text.get(row) or _reason(key, pairs, kind, template) or template.shared(row, columns, kinds)
        if key is None or reason:
            refused[row] = reason
            continue
        keys.append(key)
        values += _set_row(members[row]) if kind == "set" else _pairs(pairs, remove=kind == "hash")
    return keys, values, refused


def _reason(key: bytes | None, pairs: list[tuple[bytes, Value]], kind: str, template: KeyTemplate) -> str:
    """Why a row cannot be written; empty if it can."""
    if key is None:
        return f"a column of the key {template.text!r} is NULL"
    if key.startswith(LEDGER.encode()):
        return f"the key of the row begins with {LEDGER}, but such keys belong to the ledger"
    if kind == "stream" and all(value is None for _, value in pairs):
        return "every column is NULL, but an entry of a stream needs a field"
    if sum(len(value or b"") for _, value in pairs) > MOST_BYTES:
        return f"the row has more bytes than Redis accepts (at most {MOST_BYTES})"
    return ""


def _set_row(member: bytes) -> list[bytes | int]:
    return [1, member, 0]


def _pairs(pairs: list[tuple[bytes, Value]], *, remove: bool) -> list[bytes | int]:
    given = [text for field, value in pairs if value is not None for text in (field, value)]
    gone = [field for field, value in pairs if value is None] if remove else []
    return [len(given), *given, len(gone), *gone]


def _check_names(names: list[str], template: KeyTemplate, what: str) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise PermanentError(
            f"{what}: expected columns with names that differ, found {', '.join(twice) or 'none'}; rename them"
        )
    if len(names) > MOST_COLUMNS:
        raise PermanentError(
            f"{what}: {len(names)} columns ({names[0]!r}, …); expected at most {MOST_COLUMNS}; select fewer"
        )
    missing = [name for name in template.columns if name not in names]
    if missing:
        raise PermanentError(
            f"{what}: column {missing[0]!r} of key={template.text!r} is not among the columns {', '.join(names)}"
        )


def _values(column: Any, name: str) -> list[Value]:
    """A column as bytes. Text is taken as it is stored, UTF-8 or not, so that two texts never become one."""
    if is_text(column.type):
        return text_bytes(column)
    return [_value(value) for value in plain_values(column, name)]


def _value(value: Any) -> Value:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)
