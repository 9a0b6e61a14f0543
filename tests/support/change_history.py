"""A generated change log of a table, and what a target must hold after it: for tests of sinks with change streams.

Inserts, updates, deletes, changed keys (a delete and an insert of one version), snapshot reads, events that come late
or again, and equal versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from tests.house.sinks import Chunk, Position
from tests.support.chunks import chunk

KEY, NEWER_BY = ("shop", "id"), ("file", "pos")
CHANGES: dict[str, Any] = {"newer_by": NEWER_BY, "operation": "op"}
MARKS: dict[str, Any] = {"newer_by": NEWER_BY, "delete_when": "gone", "on_delete": "mark"}
_KINDS: dict[str, Any] = {
    "shop": pa.string(),
    "id": pa.int64(),
    "file": pa.string(),
    "pos": pa.int64(),
    "op": pa.string(),
    "note": pa.string(),
}


class Change(NamedTuple):
    """One event. Its key is `shop` and `id`, its version `file`, then `pos`."""

    shop: str
    id: int
    file: str
    pos: int
    op: str
    note: str | None

    @property
    def key(self) -> tuple[str, int]:
        return self.shop, self.id

    @property
    def version(self) -> tuple[str, int]:
        return self.file, self.pos

    @property
    def is_delete(self) -> bool:
        return self.op == "d"


class Row(NamedTuple):
    """A row of a target. Only one of `on_delete="mark"` may be `gone`."""

    shop: str
    id: int
    file: str
    pos: int
    note: str | None
    gone: bool = False


def change(key: int, op: str, pos: int, note: str | None = "", *, file: str = "a") -> Change:
    return Change("x", key, file, pos, op, note)


def history(seed: int, *, changes: int = 120, keys: int = 6, per_id: int = 1, lateness: int = 20) -> list[Change]:
    """At least so many changes over so many keys, in the order of their arrival.

    `per_id`: how many keys share an `id`; with 1, it alone names a row. `lateness`: how many changes may overtake one.
    """
    chance = Random(seed)
    alive: set[int] = set()
    events: list[tuple[float, Change]] = []

    def late() -> float:
        return chance.random() ** 3 * lateness  # a few of them by much

    def add(arrival: float, number: int, key: int, op: str) -> None:
        at = (f"log.{number // 50 + 9:06}", number % 50) if op != "r" else ("", 0)  # a larger position in an older file
        note = None if chance.random() < 0.1 else f"{op} {number}"
        one = Change(f"{'aB'[key % 2]}{key % 3}", key // per_id, *at, op, note)
        events.append((arrival + late(), one))
        alive.discard(key) if op == "d" else alive.add(key)

    for key in chance.sample(range(keys), keys // 2):
        add(chance.random() * changes / 3, 0, key, "r")
    for number in range(changes):
        key, old, new = (chance.randrange(keys) for _ in range(3))
        add(number, number, key, "c" if key not in alive else chance.choice("uuud"))
        if old in alive and old not in (key, new) and chance.random() < 0.2:  # a changed key
            add(number, number, old, "d")
            add(number, number, new, "c")
        arrival, one = chance.choice(events)
        if chance.random() < 0.1:  # again, perhaps much later
            events.append((number + late(), one))
        if chance.random() < 0.1:  # another event of the same version
            events.append((arrival - 1 + late(), one._replace(op=chance.choice("ud"), note="equal")))
    return [one for _, one in sorted(events, key=lambda each: each[0])]


def table_of(changes: Iterable[Change], *, flag: str = "") -> pa.Table:
    """The rows of a query: with `op`, or in its place with a boolean column `flag`."""
    changes = list(changes)
    columns = zip(*changes, strict=True) if changes else [()] * len(_KINDS)
    named = zip(_KINDS.items(), columns, strict=True)
    table = pa.table({name: pa.array(values, kind) for (name, kind), values in named})
    if not flag:
        return table
    return table.drop_columns(["op"]).append_column(flag, pa.array([one.is_delete for one in changes], pa.bool_()))


def batches_of(changes: Sequence[Change], size: int) -> Iterator[Sequence[Change]]:
    for first in range(0, len(changes), size):
        yield changes[first : first + size]


@dataclass
class Model:
    """The newest version of a key counts; at equality a delete wins, else the row stays. Every delete is remembered."""

    mark: bool = False
    folds: bool = True
    """Whether a transaction has only its newest change of each key: the note that a mark keeps depends on it."""
    _newest: dict[tuple[str, int], Change] = field(default_factory=dict)
    """By key. A delete has the note of the row that it marks."""

    def apply(self, changes: Iterable[Change]) -> Model:
        """Take the changes of a transaction."""
        newest: dict[tuple[str, int], Change] = {}
        for one in changes if self.folds else ():
            _take(newest, one)
        for one in newest.values() if self.folds else changes:
            before = self._newest.get(one.key)
            _take(self._newest, one._replace(note=before.note) if before and one.is_delete else one)
        return self

    @property
    def rows(self) -> list[Row]:
        kept = (one for one in self._newest.values() if self.mark or not one.is_delete)
        return sorted(Row(*one.key, *one.version, one.note, one.is_delete) for one in kept)


def _take(rows: dict[tuple[str, int], Change], one: Change) -> None:
    stored = rows.get(one.key)
    if stored is None or (one.version, one.is_delete) > (stored.version, stored.is_delete):
        rows[one.key] = one


def rows_of(found: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows of a target that may have numbers as text and leave out NULL."""
    return sorted(
        Row(
            row["shop"],
            int(row["id"]),
            row["file"],
            int(row["pos"]),
            row.get("note"),
            row.get("gone") in (True, "true"),
        )
        for row in found
    )


def as_sent(changes: Sequence[Change], found: Sequence[Row], *, flag: str = "") -> list[dict[str, Any]]:
    """The rows of a target for `crash_matrix`, which expects every sent row: all of them if the target is as the model.

    Else the rows that it holds, none of which was sent.
    """
    if found != Model(mark=bool(flag), folds=False).apply(changes).rows:
        return [{"op": "not as the model", **row._asdict()} for row in found]
    rows: list[dict[str, Any]] = table_of(changes, flag=flag).to_pylist()
    return rows


def deliveries(
    seed: int, changes: Sequence[Change], *, flag: str = "", batches: int = 12
) -> Iterator[tuple[Chunk, Sequence[Change]]]:
    """Chunks of three segments a batch, which take turns in a random order, and old letters replayed in between."""
    chance = Random(seed)
    sent = list(batches_of(changes, -(-len(changes) // batches)))
    ends: dict[str, Position] = {}
    for batch, rows in enumerate(sent):
        waiting = {number: list(enumerate(batches_of(rows[number::3], 4))) for number in range(3)}
        starts = dict(ends)
        while numbers := [number for number, parts in waiting.items() if parts]:
            number = chance.choice(numbers)
            place, part = waiting[number].pop(0)
            slot = f"wal/default/{number}"
            named: dict[str, Any] = {"segment": f"{batch}-{number}", "slot": slot, "after": starts.get(slot)}
            one = chunk(table_of(part, flag=flag), batch=batch, first=4 * place, **named)
            ends[slot] = one.position
            yield one, part
            if chance.random() < 0.2:  # a letter of an older batch
                old = chance.randrange(batch + 1)
                letter, name = chance.sample(sent[old], min(3, len(sent[old]))), f"{batch}-{number}-{place}"
                named = {"segment": f"letter-{name}", "slot": f"wal/default/0/{old}/{name}"}
                yield chunk(table_of(letter, flag=flag), batch=old, **named), letter
