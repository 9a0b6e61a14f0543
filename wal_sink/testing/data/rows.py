"""Row by row comparison of the sent rows with the rows in a target, where a value may have another form."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

Row: TypeAlias = Mapping[str, Any]
"""One row of a target: at least the columns that were sent, by name. Other columns are ignored."""

_Key: TypeAlias = tuple[Any, ...]
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a target's rows and every sent row once. Each text shows one row."""

    lost: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    """Repeated rows. A row that the target has three times appears here twice."""
    foreign: tuple[str, ...] = ()
    """Rows that were never sent, or that were changed on the way."""
    replaced: tuple[str, ...] = ()
    """Rows in the place of which a later one should stand."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.foreign or self.replaced)

    def __str__(self) -> str:
        named = {"lost": self.lost, "repeated": self.repeated, "never sent": self.foreign, "old": self.replaced}
        return "; ".join(f"{len(rows)} {what}: {shown(rows)}" for what, rows in named.items() if rows) or "none"


class Rows:
    """Rows with their counts, identified by the values of the sent columns, in order."""

    def __init__(self, columns: Sequence[str], counts: Counter[_Key], replaced: Collection[_Key] = ()) -> None:
        self._columns = tuple(columns)
        self._counts = counts
        self._replaced = replaced

    @classmethod
    def sent(cls, tables: Iterable[pa.Table], key: Sequence[str] = ()) -> Rows:
        """Every row of the tables, which have the same columns. `key`: columns by which a row replaces earlier ones."""
        given = list(tables)
        columns = given[0].column_names if given else []
        rows = [(row, _key(row, columns)) for table in given for row in table.to_pylist()]
        newest = {_key(row, key) if key else at: values for at, (row, values) in enumerate(rows)}.values()
        return cls(columns, Counter(newest), {values for _, values in rows}.difference(newest))

    def found(self, rows: Iterable[Row]) -> Rows:
        """The rows of a target, reduced to the same columns. Raises `AssertionError` for anything that is no row."""
        return Rows(self._columns, Counter(_key(row, self._columns) for row in rows))

    def added_since(self, before: Rows) -> Rows:
        """These rows without those that were there before."""
        return Rows(self._columns, self._counts - before._counts)

    def difference(self, found: Rows) -> Difference:
        """The difference between `found` and these rows, which were sent."""
        sent, old = self._counts, self._replaced
        others = {key: times for key, times in found._counts.items() if key not in sent}
        repeated = Counter({key: times - sent[key] for key, times in found._counts.items() if key in sent})
        return Difference(
            lost=self._texts(sent - found._counts),
            repeated=self._texts(+repeated),
            foreign=found._texts(Counter({key: times for key, times in others.items() if key not in old})),
            replaced=self._texts(Counter({key: times for key, times in others.items() if key in old})),
        )

    def __len__(self) -> int:
        return self._counts.total()

    def _texts(self, counts: Counter[_Key]) -> tuple[str, ...]:
        return tuple(str(dict(zip(self._columns, key, strict=True))) for key in counts.elements())


def shown(rows: Sequence[object]) -> str:
    """The first rows as text for a message."""
    more = f" and {len(rows) - _MOST_SHOWN} more" if len(rows) > _MOST_SHOWN else ""
    return ", ".join(_short(str(row)) for row in rows[:_MOST_SHOWN]) + more


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _key(row: object, columns: Sequence[str]) -> _Key:
    if not isinstance(row, Mapping) or not all(name in row for name in columns):
        raise AssertionError(
            f"rows_in(target) returned {_short(repr(row))}: expected one mapping per row, with the columns "
            f"{list(columns)}"
        )
    return tuple(_hashable(row[name]) for name in columns)


def _hashable(value: Any) -> Any:
    """The value as a key of a dict: 1, 1.0 and Decimal(1) are equal, as are all NaN. Unhashable values become text."""
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - only NaN differs from itself
        return math.nan  # a dict finds it because it is the same object
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


_DURATION = re.compile(r"((?P<days>-?\d+) days?,? )?(?P<minus>-?)(?P<h>\d+):(?P<m>\d\d):(?P<s>\d\d(\.\d+)?)")
"""A duration in the form in which databases show it."""

Same = Callable[[Any, Any], bool]
"""A comparison: it gets a sent value and a found value."""


def same_value(sent: Any, found: Any) -> bool:
    """Whether two values are equal, or forms of the same value.

    Accepted forms: a number or an instant as text, bytes as base64 or hexadecimal digits, nested values as JSON, NaN as
    NaN. Not accepted: shortened or rounded values, NULL in place of a value, and a `repr()`.
    """
    if sent is None or found is None:
        return sent is found
    if isinstance(sent, Mapping | list | tuple):
        return _same_nested(sent, found)
    # `str` of bytes is their `repr`, which is Python source code and not a value.
    has_text = isinstance(found, str) and not isinstance(sent, bytes | bytearray)
    return (has_text and found == str(sent)) or any(
        compare(sent, found) for kind, compare in _COMPARED if isinstance(sent, kind)
    )


def missing_row(
    sent: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], found: Sequence[Mapping[str, Any]], same: Same
) -> Mapping[str, Any] | None:
    """The first sent row that is missing in `found`; None if all are there.

    Columns that no found row has are not compared. `sent` has each row in two forms, as Python values and as JSON
    values; each value must match one of them.
    """
    left = list(found)
    shown = {name for row in found for name in row}
    for row, as_json in sent:
        names = [name for name in row if name in shown]
        for at, other in enumerate(left):
            if all(same(row[name], other.get(name)) or same(as_json[name], other.get(name)) for name in names):
                del left[at]
                break
        else:
            return row
    return None


def _same_bool(sent: bool, found: Any) -> bool:  # noqa: FBT001 - a value
    return found == sent or str(found).lower() in {str(sent).lower(), str(int(sent))}


def _same_number(sent: float | Decimal, found: Any) -> bool:
    with suppress(InvalidOperation, ValueError, TypeError):
        one, other = Decimal(str(sent)), Decimal(str(found))
        return one == other or (one.is_nan() and other.is_nan()) or _same_float(sent, other)
    return False


def _same_float(sent: float | Decimal, found: Decimal) -> bool:
    """Whether two floats are equal. 32-bit floats are often shown with fewer digits than Python uses."""
    if not isinstance(sent, float) or not math.isfinite(sent) or not found.is_finite():
        return False
    if float(found) == sent:
        return True
    with suppress(OverflowError):
        return _of_32_bits(sent) == sent and _of_32_bits(float(found)) == sent
    return False


def _of_32_bits(number: float) -> float:
    value: float = struct.unpack("f", struct.pack("f", number))[0]
    return value


def _same_instant(sent: dt.datetime, found: Any) -> bool:
    if isinstance(found, str):
        with suppress(ValueError):
            found = dt.datetime.fromisoformat(found)
    return isinstance(found, dt.datetime) and _utc(found) == _utc(sent)


def _utc(instant: dt.datetime) -> dt.datetime:
    return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)


def _same_date(sent: dt.date, found: Any) -> bool:
    if isinstance(found, dt.datetime):
        return found == dt.datetime.combine(sent, dt.time(), found.tzinfo)
    return bool(found == sent)


def _same_bytes(sent: bytes, found: Any) -> bool:
    if not isinstance(found, str):
        return bool(found == sent)
    if found == base64.b64encode(sent).decode() or found.removeprefix("\\x").lower() == sent.hex():
        return True
    with suppress(UnicodeEncodeError):
        return found.encode("utf-8", "surrogateescape") == sent
    return False


def _same_text(sent: str, found: Any) -> bool:
    return (found.decode("utf-8", "replace") if isinstance(found, bytes) else found) == sent


def _same_duration(sent: dt.timedelta, found: Any) -> bool:
    if isinstance(found, str) and (parts := _DURATION.fullmatch(found)):
        sign = -1 if parts["minus"] else 1
        time = dt.timedelta(hours=int(parts["h"]), minutes=int(parts["m"]), seconds=float(parts["s"]))
        found = dt.timedelta(days=int(parts["days"] or 0)) + sign * time
    return bool(found == sent)


_COMPARED: tuple[tuple[Any, Callable[[Any, Any], bool]], ...] = (
    (bool, _same_bool),
    (int | float | Decimal, _same_number),
    (dt.datetime, _same_instant),
    (dt.date, _same_date),
    (dt.timedelta, _same_duration),
    (bytes, _same_bytes),
    (str, _same_text),
)


def _same_nested(sent: Any, found: Any) -> bool:
    if isinstance(found, str | bytes):
        try:
            found = json.loads(found, parse_float=Decimal)
        except ValueError:
            return False
    if isinstance(sent, Mapping) and isinstance(found, Mapping):
        return all(same_value(value, found.get(name)) for name, value in sent.items())
    one, other = _items(sent), _items(found)
    return len(one) == len(other) and all(map(same_value, one, other))


def _items(value: Any) -> list[Any]:
    """The items of a list, or of a map as pairs, in each of the usual notations."""
    if isinstance(value, Mapping):
        return [list(pair) for pair in value.items()]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return [value]
    entries = [entry for entry in value if isinstance(entry, Mapping) and set(entry) == {"key", "value"}]
    if entries and len(entries) == len(value):
        return [[entry["key"], entry["value"]] for entry in entries]
    return list(value)
