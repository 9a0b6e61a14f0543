"""A generated change log of a table, and what a target must hold after it: for tests of sinks with change streams.

Inserts, updates, deletes, changed keys (a delete and an insert), events that come late or again, and equal versions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_KINDS: dict[str, Any] = {
    "id": pa.int64(),
    "op": pa.string(),
    "at": pa.timestamp("us", "UTC"),
    "pos": pa.int64(),
    "note": pa.string(),
}


class Change(NamedTuple):
    """One event. Its version is `at`, then `pos`."""

    id: int
    op: str
    at: dt.datetime
    pos: int
    note: str | None

    @property
    def version(self) -> tuple[dt.datetime, int]:
        return self.at, self.pos


def history(seed: int, *, changes: int, keys: int, lateness: int = 20) -> list[Change]:
    """At least so many changes over so many keys, in the order of their arrival."""
    chance = Random(seed)
    alive: set[int] = set()
    events: list[tuple[float, Change]] = []

    def add(number: int, key: int, op: str) -> None:
        at = _EPOCH + dt.timedelta(seconds=number // 7)
        note = None if chance.random() < 0.1 else f"{op} {number}"
        events.append((number + chance.random() * lateness, Change(key, op, at, number, note)))
        alive.discard(key) if op == "d" else alive.add(key)

    for number in range(changes):
        key = chance.randrange(keys)
        add(number, key, "c" if key not in alive else chance.choice("uuud"))
        if alive and chance.random() < 0.05:  # a changed key
            add(number, chance.choice(sorted(alive)), "d")
            add(number, chance.randrange(keys, 2 * keys), "c")
        arrival, change = chance.choice(events)
        if chance.random() < 0.1:  # again, perhaps much later
            events.append((number + chance.random() * lateness, change))
        if chance.random() < 0.05:  # another event of the same version
            events.append((arrival + chance.uniform(-1, 1), change._replace(op=chance.choice("ud"), note="equal")))
    return [change for _, change in sorted(events, key=lambda each: each[0])]


def table_of(changes: Iterable[Change], *, flag: str = "") -> pa.Table:
    """The rows of a query: with `op`, or in its place with a boolean column `flag`."""
    rows = [change._asdict() for change in changes]
    table = pa.Table.from_pylist(rows, pa.schema(_KINDS))
    if not flag:
        return table
    deletes = pa.array([row["op"] == "d" for row in rows], pa.bool_())
    return table.drop_columns(["op"]).append_column(flag, deletes)


def batches_of(changes: Sequence[Change], size: int) -> Iterator[Sequence[Change]]:
    for first in range(0, len(changes), size):
        yield changes[first : first + size]


@dataclass
class Model:
    """The rows of a target that applied changes in this order, and remembers every delete."""

    mark: bool = False
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By key: the stored columns, with `mark` also `gone`."""
    _deleted: dict[int, tuple[dt.datetime, int]] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change]) -> Model:
        for change in changes:
            stored = self.rows.get(change.id)
            known = [self._deleted[change.id]] if change.id in self._deleted else []
            known += [(stored["at"], stored["pos"])] if stored else []
            newest = max(known, default=None)
            if change.op == "d":
                if newest is None or change.version >= newest:
                    self._delete(change, stored)
            elif newest is None or change.version > newest:
                self.rows[change.id] = self._columns(change)
        return self

    def _delete(self, change: Change, stored: dict[str, Any] | None) -> None:
        if not self.mark:
            self.rows.pop(change.id, None)
            self._deleted[change.id] = change.version
        elif stored is None:
            self.rows[change.id] = self._columns(change)
        else:
            stored |= {"at": change.at, "pos": change.pos, "gone": True}

    def _columns(self, change: Change) -> dict[str, Any]:
        columns = {name: value for name, value in change._asdict().items() if name != "op"}
        return columns | ({"gone": change.op == "d"} if self.mark else {})


def as_sent(changes: Sequence[Change], found: dict[int, dict[str, Any]], *, flag: str = "") -> list[dict[str, Any]]:
    """The rows of a target for `crash_matrix`, which expects every sent row: all of them if the target is as the model.

    Else the rows that it holds, none of which was sent.
    """
    if found != Model(mark=bool(flag)).apply(changes).rows:
        return [{"op": "not as the model", **row} for row in found.values()]
    rows: list[dict[str, Any]] = table_of(changes, flag=flag).to_pylist()
    return rows
