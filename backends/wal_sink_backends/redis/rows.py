"""Rows for Redis: keys from a template, values as bytes, and the script that puts a chunk of them.

Scripts run alone, but their writes before an error stay. So everything that can fail is tried first: the term is
written before any row, which shows whether the ledger may be written and whether there is memory (Redis checks that
only before a script's first write), and the type of every key is checked. The later writes cannot fail. On disk and on
replicas a script's writes are one transaction. If keys have the wrong type, nothing is written, and the script returns
their rows: the chunk is sent again without them.

The script repeats the rule of `LedgerEntry.is_known` in Lua: it decides which chunk is known and which is refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.json_rows import plain_values
from wal_sink_backends.common.columns import is_text, rows_without_utf8, text_bytes

LEDGER = "wal_sink:ledger:"

HEAD = """
local ledger = KEYS[1]
local term, batch, rows, segment = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local start, kind, maxlen = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local function wrong_type(key, expected)
    local found = redis.call('TYPE', key).ok
    if found ~= expected and found ~= 'none' then return found end
    if found == 'stream' then  -- an XADD that finds no number any more would fail amid the rows
        local about = redis.pcall('XINFO', 'STREAM', key)
        for i = 1, #about - 1, 2 do
            if about[i] == 'last-generated-id' and about[i + 1]:find('^18446744073709551615%-') then
                return 'stream without numbers left'
            end
        end
    end
end

local wrong = wrong_type(ledger, 'hash')
if wrong then return {'BAD LEDGER', wrong} end
local at = redis.call('HMGET', ledger, 'term', 'batch_id', 'rows', 'segment_id')
for i, absent in ipairs({'0', '-1', '0', ''}) do at[i] = at[i] or absent end
local at_term, at_batch, at_rows, at_segment = tonumber(at[1]), tonumber(at[2]), tonumber(at[3]), at[4]
local same = at_batch == batch
local known = at_batch > batch or (same and at_rows >= rows)
local follows = start == 0 and at[2] == ARGV[8] and at[3] == ARGV[9] and at_segment == ARGV[10]
local new = not known and ((same and at_rows == start) or (not same and follows))
if at_term > term or (same and at_segment ~= segment) or not (known or new) then
    return {'REFUSED', at[1], at[2], at[3], at[4]}
end
"""
"""Which chunk is known, and which is refused."""

SCRIPT = (
    HEAD
    + """
local refused = {'WRONGTYPE'}
for i = 2, known and 1 or #KEYS do
    if KEYS[i] ~= KEYS[i - 1] then wrong = wrong_type(KEYS[i], kind) end
    if wrong then
        refused[#refused + 1] = tostring(i - 2)
        refused[#refused + 1] = wrong
    end
end
if #refused > 1 then return refused end
redis.call('HSET', ledger, 'term', ARGV[1])
if known then return {'KNOWN'} end

local p = 11
for i = 2, #KEYS do
    local n = tonumber(ARGV[p])
    local last = p + n
    if kind == 'set' then
        redis.call('SADD', KEYS[i], unpack(ARGV, p + 1, last))
    elseif kind == 'hash' then
        redis.call('HSET', KEYS[i], unpack(ARGV, p + 1, last))
    elseif maxlen ~= '0' then
        redis.call('XADD', KEYS[i], 'MAXLEN', '~', maxlen, '*', unpack(ARGV, p + 1, last))
    else
        redis.call('XADD', KEYS[i], '*', unpack(ARGV, p + 1, last))
    end
    p = last + 1
    local gone = tonumber(ARGV[p])
    if gone > 0 then redis.call('HDEL', KEYS[i], unpack(ARGV, p + 1, p + gone)) end
    p = p + gone + 1
end
redis.call('HSET', ledger, 'batch_id', ARGV[2], 'rows', ARGV[3], 'segment_id', segment)
return {'DONE'}
"""
)
"""KEYS: the ledger's, then a row's each. ARGV: term, batch, rows, segment, start, kind, maxlen; batch, rows and segment
that the slot held when the attempt began (-1, 0 and nothing where it held nothing); then for each row a count, so many
texts to write, a count, and so many fields to remove. Rows of the wrong type come back as pairs: the row's number,
counted from 0, and the type that its key has.
"""

MOST_COLUMNS = 3_000
"""A script passes twice as many texts in one call, and Lua takes 8,000."""
MOST_ARGUMENTS = 1_000_000
"""Keys and values of one call; before Redis 7 the protocol ends at 1,048,576."""
MOST_BYTES = 512 << 20
"""Redis' limit for one text (`proto-max-bulk-len`)."""

Value: TypeAlias = bytes | None
VersionOf: TypeAlias = Callable[[int, Mapping[str, Sequence[Value]]], Sequence[bytes]]
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
    chunk: Chunk, kind: str, template: KeyTemplate, what: str, version_of: VersionOf | None = None
) -> tuple[list[bytes], list[bytes | int], dict[int, str]]:
    """A key for each row, the values as the script takes them, and why some rows cannot be written.

    `version_of` gives the values that stand before a row's own.

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
        values += version_of(row, columns) if version_of else ()
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
