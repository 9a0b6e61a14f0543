"""Generated change streams, in chunks as a sink gets them, and the rows that a target must have in the end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tests.house.sinks import Chunk, Position
from tests.support.chunks import chunk

KEY, NEWER_BY = ("shop", "id"), ("file", "pos")


class Event(NamedTuple):
    """A change of one key."""

    shop: str
    id: int
    file: str
    pos: int
    op: str
    value: str | None

    @property
    def version(self) -> tuple[str, int]:
        return self.file, self.pos

    @property
    def is_delete(self) -> bool:
        return self.op == "d"


def history(seed: int, *, keys: int = 6, changes: int = 120) -> list[Event]:
    """Inserts, updates, deletes and changes of keys in the order of a source, with every ambiguity that it may have."""
    some = random.Random(seed)
    names = [(f"{'aB'[number % 2]}{number % 3}", number // 2) for number in range(keys)]
    events: list[Event] = []
    for number in range(changes):
        at = (f"log.{number // 50 + 9:03}", number % 50)  # a larger position in an older file
        key = some.choice(names)
        kind = some.choices(["u", "d", "moved", "equal"], [5, 3, 1, 1])[0]
        if kind == "moved":  # two events of one version
            other = some.choice([name for name in names if name != key])
            events += [Event(*key, *at, "d", None), Event(*other, *at, "c", f"{number} moved")]
        elif kind == "equal":  # two events of one key and version
            last = some.choice(["d", "u"])
            events += [Event(*key, *at, "u", f"{number} first"), Event(*key, *at, last, f"{number} second")]
        else:
            events.append(Event(*key, *at, kind, f"{number}" if kind == "u" else None))
    snapshot = [Event(*key, "", 0, "r", "read") for key in some.sample(names, len(names) // 2)]
    return snapshot + events


def table_of(events: Sequence[Event]) -> pa.Table:
    """The rows with the columns of both ways to tell a delete."""
    columns = [[event[at] for event in events] for at in range(len(Event._fields))]
    kinds = (pa.string(), pa.int32(), pa.string(), pa.int64(), pa.string(), pa.string())
    named = zip(Event._fields, columns, kinds, strict=True)
    table = pa.table({name: pa.array(values, kind) for name, values, kind in named})
    return table.append_column("gone", pa.array([event.is_delete for event in events], pa.bool_()))


@dataclass
class Model:
    """The rows of a target: the newest version of a key counts. At equality a delete wins, else the row stays."""

    rows: dict[tuple[str, int], Event] = field(default_factory=dict)
    marked: dict[tuple[str, int], Event] = field(default_factory=dict)
    """The same with deletes that mark: the values are those of the stored row."""

    def take(self, events: Sequence[Event]) -> None:
        """Take the events of a chunk."""
        counting: dict[tuple[str, int], Event] = {}
        for event in events:
            _take(counting, event)
        for key, event in counting.items():
            before = self.marked.get(key)
            if _take(self.rows, event):
                self.marked[key] = event._replace(value=before.value) if event.is_delete and before else event

    def stored_with_marks(self) -> list[tuple[Any, ...]]:
        """The rows with `on_delete="mark"`."""
        return sorted(
            (event.shop, event.id, event.file, event.pos, event.value, event.is_delete)
            for event in self.marked.values()
        )

    def stored(self) -> list[tuple[Any, ...]]:
        """The rows with `on_delete="delete"`."""
        kept = (event for event in self.rows.values() if not event.is_delete)
        return sorted((event.shop, event.id, event.file, event.pos, event.value) for event in kept)


def _take(rows: dict[tuple[str, int], Event], event: Event) -> bool:
    """Take an event if it counts. Returns whether it does."""
    stored = rows.get(key := (event.shop, event.id))
    counts = stored is None or (event.version, event.is_delete) > (stored.version, stored.is_delete)
    if counts:
        rows[key] = event
    return counts


def deliveries(
    seed: int, events: Sequence[Event], *, without: str, batches: int = 12
) -> Iterator[tuple[Chunk, list[Event]]]:
    """Chunks of several segments a batch, in a random order: late and repeated events, and old letters replayed.

    `without`: the column of the other way to tell a delete.
    """
    some = random.Random(seed)
    sent: list[list[Event]] = [[] for _ in range(batches)]
    for number, event in enumerate(events):
        due = number * batches // len(events)
        for _ in range(some.choices([1, 2], [5, 1])[0]):
            sent[min(batches - 1, due + some.choice([0, 0, 0, 1, 4]))].append(event)
    ends: dict[str, Position] = {}
    for batch, rows in enumerate(sent):
        some.shuffle(rows)
        parts = [rows[number::3] for number in range(3)]
        chunks = [
            (number, part[first : first + 4], first)
            for number, part in enumerate(parts)
            for first in range(0, len(part), 4)
        ]
        slots = some.sample([number for number, _, _ in chunks], len(chunks))  # each segment in its order
        waiting = {number: iter([one for one in chunks if one[0] == number]) for number in range(3)}
        starts = dict(ends)
        for number in slots:
            _, part, first = next(waiting[number])
            slot = f"wal/default/{number}"
            one = chunk(
                table_of(part).drop_columns([without]),
                batch=batch,
                first=first,
                segment=f"{batch}-{number}",
                slot=slot,
                after=starts.get(slot),
            )
            ends[slot] = one.position
            yield one, part
            if some.random() < 0.2:  # a letter of an older batch
                old = some.randrange(batch + 1)
                letter = some.sample(sent[old], min(3, len(sent[old])))
                slot = f"wal/default/0/{old}/{batch}-{number}-{first}"
                yield (
                    chunk(
                        table_of(letter).drop_columns([without]),
                        batch=old,
                        segment=f"letter-{batch}-{number}-{first}",
                        slot=slot,
                    ),
                    letter,
                )
