"""The points at which a run can be disturbed, and the choice of those that are tried."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from wal_sink.testing.matrix.verdict import EVERYTHING, Point, What
from wal_sink.testing.simulation.watched import SENDING

BEFORE_SENDING = tuple(f"before {call}" for call in SENDING)
_AFTER_SENDING = tuple(f"after {call}" for call in SENDING)
_INSIDE = "inside "
_LOOKS = ("before last", "before positions")
_MARKERS = tuple(f"{when} create sinks/default/markers" for when in ("before", "after"))
FORGOTTEN = (1, 2)
"""The numbers of newest commits that a target forgets at a time. One concerns one segment, two may concern two."""
_TIMES_PER_LINE = 2
"""A line in a loop is tried twice. The second time differs from the first; later times do not differ any more."""


def points_of(names: Sequence[str], disturb: Iterable[What]) -> list[Point]:
    """Every point at which to disturb a process that passed points of these names, one kind of disturbance after the
    other.
    """
    wanted = set(disturb)
    return [point for what in EVERYTHING if what in wanted for point in _points_of_kind(what, names)]


def chosen(points: Sequence[Point], *, every: int, each_line: bool, seed: int = 0) -> list[Point]:
    """Choose one of `every` points, at random. A fixed step could miss a point that repeats itself every n points.

    With `each_line`, the choice always includes each line of the sink's code, each of its calls and each kind of
    operation of the log, for each kind of disturbance.
    """
    chance = random.Random(seed)  # noqa: S311 - a choice, not cryptography
    return [
        point
        for _, of_a_kind in groupby(points, key=lambda point: point.what)
        for point in _chosen(list(of_a_kind), every, chance, each_line=each_line)
    ]


def _points_of_kind(what: What, names: Sequence[str]) -> Iterable[Point]:
    seen: Counter[str] = Counter()
    for number, name in enumerate(names, 1):
        seen[name] += 1
        if _matters(what, name, number) and not (name.startswith(_INSIDE) and seen[name] > _TIMES_PER_LINE):
            yield from (Point(what, number, name, newest) for newest in (FORGOTTEN if what == "forgets" else (0,)))


def _matters(what: What, name: str, number: int) -> bool:
    """Tell whether a disturbance at this point differs from those at other points.

    Between two effects a process only reads, so a death at any point there leaves the same traces. A target forgets
    only between two calls of its sink: its transactions answer for everything within one call.
    """
    if what == "forgets":
        return is_between_calls(name)
    if what == "dies":
        return number == 1 or name.startswith(("after ", *BEFORE_SENDING, _INSIDE))
    return name.startswith((*BEFORE_SENDING, *_AFTER_SENDING, _INSIDE))


def is_between_calls(name: str) -> bool:
    """Tell whether a target may forget something here. A later call or read of the sink has to notice it."""
    return name.startswith((*BEFORE_SENDING, *_AFTER_SENDING, *_LOOKS, *_MARKERS))


def _chosen(points: list[Point], every: int, chance: random.Random, *, each_line: bool) -> list[Point]:
    picked: set[Point] = set()
    if each_line:
        alike: dict[str, list[Point]] = {}
        for point in points:
            alike.setdefault(point.kind, []).append(point)
        picked = {chance.choice(group) for group in alike.values()}
    wanted = -(-len(points) // every)
    others = [point for point in points if point not in picked]
    picked.update(chance.sample(others, max(0, wanted - len(picked))))
    return [point for point in points if point in picked]
