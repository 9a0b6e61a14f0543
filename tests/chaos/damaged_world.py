"""Worlds that stopped half-way, and are continued many times, each time with one object damaged.

A *scene* is the state that a process left when it died at one of its points: WAL, checkpoint, target, and the knowledge
of the judge. Any number of starts can follow, each in a branch of its world. An undamaged start shows first which
objects the next start reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tests.house.protocol import COLLECT_EVERY_BATCHES
from tests.simulation.histories.plans import THREE_BATCHES, Shape
from tests.simulation.world import Life, World, dies_at, effects
from wal_sink.errors import ConfigError, CorruptError

_KEPT = 2
_ALL = 200
_COLLECTED: Shape = ((3,), *[(1,)] * (COLLECT_EVERY_BATCHES + _KEPT), (2, 1))
"""Enough batches for one collection, which leaves a low-water record."""
_PATTERNS = {
    "wal.json": r"wal\.json",
    "term": r"terms/.*",
    "manifest": r"batches/\d+/manifest-.*",
    "release": r"batches/\d+/release\.json",
    "segment": r"batches/.*\.parquet",
    "sink.json": r"sinks/[^/]*/sink\.json",
    "progress": r"sinks/[^/]*/progress/.*",
    "marker": r"sinks/[^/]*/markers/.*",
    "low water": r"low-water/.*",
}
KINDS = tuple(_PATTERNS)
_MOST_SCENES = 24
"""The most scenes of one story, evenly spread."""


def kind_of(path: str) -> str:
    """Return the kind of an object of a WAL. Empty for the objects that a probe left."""
    return next((kind for kind, pattern in _PATTERNS.items() if re.fullmatch(pattern, path)), "")


class Ending(StrEnum):
    """The result of a start on a damaged object."""

    NAMED = "named in a clear error"
    READ = "read, where the byte means nothing"
    """The last line end of a record is such a byte."""
    UNREAD = "never read"


@dataclass(frozen=True, slots=True)
class Story:
    """A run each of whose stages is a scene."""

    sink: str
    batches: Shape
    retention: int
    kinds: tuple[str, ...]
    """The kinds of objects that are damaged in this story."""
    once: str = ""
    """The story has no scenes before the first point that begins with this text."""

    def world(self) -> World:
        """Make a world of this story."""
        return World(self.sink, batches=self.batches, retention=self.retention)

    def points(self) -> list[int]:
        """Return the points at which its process may die: after each effect."""
        undisturbed = self.world().life()
        undisturbed.live()
        first = next(at for at, point in enumerate(undisturbed.points, 1) if point.startswith(self.once))
        return [point for point in effects(undisturbed.points) if point >= first]

    def scene(self, point: int) -> Scene:
        """Return the state that a crash at this point leaves."""
        world = self.world()
        assert not world.life(dies_at(point)).live()
        return Scene.of(self, world)


STORIES = (
    Story("plain", THREE_BATCHES, _ALL, tuple(kind for kind in KINDS if kind != "low water")),
    Story("transactional", THREE_BATCHES, _ALL, ("manifest", "release", "segment", "marker")),
    Story("plain", _COLLECTED, _KEPT, ("low water",), once="after create low-water"),
)


@cache
def scenes_of(story: Story) -> Sequence[Scene]:
    """Return the scenes of a story. Each process makes them once."""
    points = story.points()
    step = -(-len(points) // _MOST_SCENES)
    return [story.scene(point) for point in points[::step]]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The state that a dead process left."""

    story: Story
    left: World
    """The world as it was left. Each start gets a branch of it."""
    reads: frozenset[str]
    """The paths of the WAL that the next start reads."""

    @classmethod
    def of(cls, story: Story, left: World) -> Scene:
        world = left.branch(left.plan)
        life = world.life()
        assert life.live()
        world.check_end(crashes=1)
        return cls(story, left, frozenset(filter(LifeReads(life), left.wal.objects)))

    @property
    def wal(self) -> dict[str, bytes]:
        return self.left.wal.objects

    def start_on(self, world: World, path: str, damaged: bytes) -> Ending:
        """Damage an object in a branch of `left`, start, restore the object, start again.

        Raises `AssertionError` if a start misbehaves. The object is restored unless the first start deleted it, even if
        that start wrote something else in its place.
        """
        replace(world, path, damaged)
        life = world.life()
        ending = Ending.NAMED
        try:
            assert life.live()
        except (CorruptError, ConfigError) as error:
            if path not in str(error):
                raise AssertionError("the error does not name the object") from error
        else:
            world.check_end(crashes=1)
            ending = Ending.READ if LifeReads(life)(path) else Ending.UNREAD
        replace(world, path, self.wal[path])
        assert world.life().live()
        world.check_end(crashes=1)
        return ending


class LifeReads:
    """Tells whether a life read an object."""

    def __init__(self, life: Life) -> None:
        self._points = frozenset(life.points)

    def __call__(self, path: str) -> bool:
        return f"before read {path}" in self._points


def replace(world: World, path: str, data: bytes) -> None:
    """Replace the bytes of an object, which wal-sink itself never does. Do nothing if the object is gone."""
    if path in world.wal.objects:
        world.wal.delete([path])
        world.wal.create(path, data)
