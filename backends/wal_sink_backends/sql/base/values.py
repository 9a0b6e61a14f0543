"""Arrow columns for the databases of `SqlSink`, and the rows that a database cannot hold, would alter, or refuses or
drops without naming them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink.sinks.json_rows import plain_values
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of
from wal_sink_backends.common.changes import warn_of_repeated_keys
from wal_sink_backends.common.columns import Array, ArrowType, array_of, stored_type, texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def tell_repeated_keys(table: pa.Table, key: Sequence[str], what: str) -> None:
    """Warn once of rows that have one key, unless Arrow cannot compare such keys."""
    with suppress(pa.ArrowNotImplementedError):
        warn_of_repeated_keys(table.num_rows, table.group_by([*key]).aggregate([]).num_rows, what)


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


_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a statement after which fewer rows are in the table than were sent, without an error."""

    sent: int
    kept: int

    def __str__(self) -> str:
        """The reason for rejecting them. Messages show about 200 characters of it."""
        return (
            f"the table kept {self.kept} of {self.sent} rows and gave no error: a trigger or the definition of the "
            "table drops rows. If this is intended, pass may_drop_rows=True"
        )


def reason_of(outcome: str | Dropped | None, *, may_drop: bool, what: str) -> str | None:
    """Why rows are not taken; None if they are, or if the user allowed the table to drop them."""
    if not isinstance(outcome, Dropped):
        return outcome
    if not may_drop:
        return str(outcome)
    _logger.info("%s: the table kept %d of %d rows, as may_drop_rows allows", what, outcome.kept, outcome.sent)
    return None


_SEARCH_S = 30.0
"""Well below the time limit of a delivery attempt."""
_STRANGE_ROWS = 100
"""Rows that are tried one by one although the database has taken none yet: it may take none at all."""


class Apart(str):
    """Why a database refuses rows together that it may take one after the other."""

    __slots__ = ()


class Unlisted(str):
    """An error in no list. It is a row's if the connection takes another row, and then refuses this one again."""

    __slots__ = ("error",)
    error: Exception


def refused_rows(
    numbers: Sequence[int],
    attempt: Callable[[int, int], str | None],
    start_over: Callable[[], object] = lambda: None,
    *,
    within_s: float = _SEARCH_S,
) -> dict[int, str]:
    """Insert all rows; return those that the database refuses, with reasons, by their index in the chunk.

    `attempt(first, end)` inserts a run of rows whole and returns None, or inserts none and returns the reason. Inserted
    rows stay while the rest is tried, so that of two rows with one key the second is refused. The search ends
    `within_s` seconds after the first refusal, with the rows found so far. `PermanentError` if none was found by then,
    or if rows are refused together although each of them is taken, unless every reason for that is `Apart`.

    If the reason of a row is `Unlisted`, `start_over()` takes back all rows, and they are tried once more. Raises this
    error unless another row was taken between the two refusals.
    """
    refused: dict[int, str] = {}
    reasons: list[str] = []
    doubted: dict[int, int] = {}  # by row: how many rows were taken before its first refusal
    taken, is_second = 0, False
    deadline_s = math.inf
    runs = [(0, len(numbers))] if numbers else []
    while runs and SYSTEM.monotonic_s() < deadline_s:
        first, end = runs.pop()
        reason = attempt(first, end)
        if reason is None:
            taken += end - first
        else:
            if not reasons:
                deadline_s = SYSTEM.monotonic_s() + within_s
            reasons.append(reason)
            if end - first > 1:
                middle = (first + end) // 2
                runs += [(middle, end), (first, middle)]  # the first half comes first
            elif not isinstance(reason, Unlisted) or taken > doubted.setdefault(first, taken):
                refused[numbers[first]] = str(reason)
            elif is_second or (not taken and len(doubted) == _STRANGE_ROWS):
                raise reason.error
        if doubted and not runs and not is_second:
            is_second, runs = True, [(0, len(numbers))]
            start_over()
    if reasons and not refused:
        _refuse_whole(reasons, within_s, is_searched=not runs)
    return refused


def _refuse_whole(reasons: Sequence[str], within_s: float, *, is_searched: bool) -> None:
    """Raise an error for a chunk of which no row is known to be refused, unless every reason is `Apart`."""
    if not is_searched:
        raise PermanentError(
            f"refused: {reasons[0]}. The refused row could not be found within {within_s:g} s, because there are "
            "too many rows or the database is too slow. Correct the rows in the query, or deliver smaller chunks"
        )
    if lasting := [reason for reason in reasons if not isinstance(reason, Apart)]:
        if isinstance(lasting[0], Unlisted):
            raise lasting[0].error
        raise PermanentError(f"the chunk was refused as a whole, although each row alone was accepted: {lasting[0]}")
