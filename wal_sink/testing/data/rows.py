"""Row by row comparison of the sent rows with the rows in a target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.foreign)

    def __str__(self) -> str:
        named = {"lost": self.lost, "repeated": self.repeated, "never sent": self.foreign}
        return "; ".join(f"{len(rows)} {what}: {shown(rows)}" for what, rows in named.items() if rows) or "none"


class Rows:
    """Rows with their counts, identified by the values of the sent columns, in order."""

    def __init__(self, columns: Sequence[str], counts: Counter[_Key]) -> None:
        self._columns = tuple(columns)
        self._counts = counts

    @classmethod
    def sent(cls, tables: Iterable[pa.Table]) -> Rows:
        """Every row of the tables, which have the same columns."""
        given = list(tables)
        columns = given[0].column_names if given else []
        return cls(columns, Counter(_key(row, columns) for table in given for row in table.to_pylist()))

    def found(self, rows: Iterable[Row]) -> Rows:
        """The rows of a target, reduced to the same columns. Raises `AssertionError` for anything that is no row."""
        return Rows(self._columns, Counter(_key(row, self._columns) for row in rows))

    def added_since(self, before: Rows) -> Rows:
        """These rows without those that were there before."""
        return Rows(self._columns, self._counts - before._counts)

    def difference(self, found: Rows) -> Difference:
        """The difference between `found` and these rows, which were sent."""
        sent = self._counts
        repeated = Counter({key: times - sent[key] for key, times in found._counts.items() if key in sent})
        return Difference(
            lost=self._texts(sent - found._counts),
            repeated=self._texts(+repeated),
            foreign=self._texts(Counter({key: times for key, times in found._counts.items() if key not in sent})),
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
