"""Rows as Kafka messages: which columns become value, key, headers and partition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.json_rows import Maps, maps_as, plain_values, to_json_lines
from wal_sink_backends.common.changes import Changes
from wal_sink_backends.common.columns import array_of, is_text

_VALUE = re.compile(r"(json)|(json|bytes|string):(.+)", re.DOTALL)
_OVERHEAD_BYTES = 61 + 7
"""Least overhead of a batch and of a record; see https://kafka.apache.org/documentation/#recordbatch"""
_TYPES: Any = pa.types

Bytes: TypeAlias = "bytes | None"


class Message(NamedTuple):
    """One row as a message."""

    value: Bytes
    key: Bytes
    headers: Sequence[tuple[str, Bytes]]
    partition: int | None
    """None: the partitioner decides."""

    @property
    def least_bytes(self) -> int:
        """The least size of the message, alone in a batch and without compression."""
        headers = sum(len(name) + len(value or b"") + 2 for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers + _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Messages:
    """The rows of a chunk as messages, column by column: an object per message would cost as much as sending it."""

    values: list[Bytes]
    keys: list[Bytes]
    headers: list[list[tuple[str, Bytes]]] | None
    """None if no message has headers."""
    partitions: list[int | None] | None
    """None: the partitioner decides for all."""

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Message]:
        headers: Iterable[list[tuple[str, Bytes]]] = repeat([]) if self.headers is None else self.headers
        partitions: Iterable[int | None] = repeat(None) if self.partitions is None else self.partitions
        return map(Message._make, zip(self.values, self.keys, headers, partitions, strict=False))

    @property
    def are_plain(self) -> bool:
        """Whether every message has only a value and a key."""
        return self.headers is None and self.partitions is None


@dataclass(frozen=True)
class MessageFormat:
    """The columns that make a message. Plain data; raises `ConfigError` for values that cannot work."""

    value: str = "json"
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Columns by name of the header."""
    partition: str | None = None
    tombstones: bool = False
    maps: Maps = "object"
    changes: Changes | None = None
    """A row that deletes becomes a message without value."""

    def __post_init__(self) -> None:
        if not _VALUE.fullmatch(self.value):
            raise ConfigError(
                f"value={self.value!r}: expected 'json', 'json:<column>,…', 'string:<column>' or 'bytes:<column>'"
            )
        if self.tombstones and self.value.startswith("json"):
            raise ConfigError("tombstones=True: a JSON value is never null; pass value='bytes:…' or 'string:…'")

    def messages(
        self, table: pa.Table, *, partitions: int, most_bytes: int, needs_keys: bool = False
    ) -> tuple[Messages, dict[int, str]]:
        """A message for each row, and the reasons of rows that cannot be sent.

        Raises `PermanentError`, naming the column.
        """
        table = maps_as(self.maps, table)
        deletes, unfit = self._deletes(table)
        try:
            values = self._values(table if self.changes is None else table.drop_columns([self.changes.flag]))
            if True in deletes:
                values = [None if is_delete else value for is_delete, value in zip(deletes, values, strict=True)]
            keys: list[Bytes] = [None] * table.num_rows if self.key is None else _texts(table, self.key)
            messages = Messages(values, keys, self._headers(table), self._partitions(table))
        except ConfigError as error:  # a type that cannot be sent, or a repeated name: no retry will help
            raise PermanentError(str(error)) from error
        missing = None in values or unfit or (needs_keys and None in keys)
        if messages.are_plain and not missing and _longest(values) + _longest(keys) <= most_bytes - _OVERHEAD_BYTES:
            return messages, {}  # most chunks, without a call for each row
        refusal = partial(self._refusal, partitions=partitions, most_bytes=most_bytes, needs_keys=needs_keys)
        told = {
            row: refusal(one, deletes=delete) for row, (one, delete) in enumerate(zip(messages, deletes, strict=True))
        }
        return messages, {row: reason for row, reason in told.items() if reason} | unfit

    def _deletes(self, table: pa.Table) -> tuple[list[bool], dict[int, str]]:
        """Whether each row deletes, and the rows of a change stream that cannot be sent."""
        if self.changes is None:
            return [False] * table.num_rows, {}
        self.changes.check(table.schema, "the rows")
        return self.changes.deletes(table), self.changes.refused(table)

    def _refusal(self, message: Message, *, deletes: bool, partitions: int, most_bytes: int, needs_keys: bool) -> str:
        if needs_keys and message.key is None:
            return "the row has no key, but a compacted topic requires a key"
        if message.value is None and not self.tombstones and not deletes:
            return f"{self.value} is null. Remove such rows in the query, or pass tombstones=True to delete by key"
        if message.partition is not None and not 0 <= message.partition < partitions:
            return (
                f"column {self.partition!r} has the value {message.partition}, but the topic has {partitions} "
                "partitions, counted from 0"
            )
        if message.least_bytes > most_bytes:
            return (
                f"the message has {message.least_bytes} bytes, but the topic accepts at most {most_bytes} "
                "(max.message.bytes)"
            )
        return ""

    def _values(self, table: pa.Table) -> list[Bytes]:
        kind, _, name = self.value.partition(":")
        if kind == "json":
            chosen = table.select([_index(table, some) for some in name.split(",")]) if name else table
            lines: list[Bytes] = [*to_json_lines(chosen).split(b"\n")]
            lines.pop()  # the empty text behind the last newline
            return lines
        column = _column(table, name)
        expected = _is_binary if kind == "bytes" else is_text
        if not expected(column.type) and not _TYPES.is_null(column.type):
            raise PermanentError(
                f"value={self.value!r}: column {name!r} has the type {column.type}, expected "
                f"{'binary' if kind == 'bytes' else 'string'}. Cast the column in the query"
            )
        return _texts(table, name)

    def _headers(self, table: pa.Table) -> list[list[tuple[str, Bytes]]] | None:
        if not self.headers:
            return None
        columns = {header: _texts(table, column) for header, column in self.headers.items()}
        return [[(header, texts[row]) for header, texts in columns.items()] for row in range(table.num_rows)]

    def _partitions(self, table: pa.Table) -> list[int | None] | None:
        if self.partition is None:
            return None
        column = _column(table, self.partition)
        if not _TYPES.is_integer(column.type):
            raise PermanentError(
                f"partition column {self.partition!r} has the type {column.type}, expected a type of whole numbers. "
                "Cast the column in the query"
            )
        numbers: list[int | None] = column.to_pylist()
        return numbers


def _longest(texts: Sequence[Bytes]) -> int:
    return max((len(text) for text in texts if text), default=0)


def _column(table: pa.Table, name: str) -> Any:
    return array_of(table.column(_index(table, name)))


def _index(table: pa.Table, name: str) -> int:
    found = [index for index, other in enumerate(table.column_names) if other == name]
    if len(found) != 1:
        known = ", ".join(map(repr, table.column_names))
        raise PermanentError(f"expected one column named {name!r}, found {len(found)}; the columns are {known}")
    return found[0]


def _texts(table: pa.Table, name: str) -> list[Bytes]:
    """A column as bytes: text and binary as they are stored, other types as JSON writes them, without quotes."""
    column = _column(table, name)
    if is_text(column.type) or _is_binary(column.type):
        values: list[Bytes] = column.cast(pa.large_binary()).to_pylist()
        return values
    return [None if value is None else _text(value) for value in plain_values(column, name)]


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _is_binary(kind: Any) -> bool:
    return bool(
        _TYPES.is_binary(kind)
        or _TYPES.is_large_binary(kind)
        or _TYPES.is_binary_view(kind)
        or _TYPES.is_fixed_size_binary(kind)
    )
