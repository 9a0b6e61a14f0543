"""Worlds that stopped half-way, and are continued many times, each time with one object damaged.

A *scene* is the state that a process left when it died at one of its points: WAL, checkpoint, target, and the knowledge
of the oracle. It can be entered any number of times. An undamaged start shows first which objects the next start reads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tests.simulation.scenarios import lower_retention
from tests.simulation.world import BATCHES, Life, Shape, Target, World, crash_at, effects
from wal_sink.committer.collection import COLLECT_EVERY_BATCHES
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.settings import Settings
from wal_sink.stores.memory import MemoryStore

_KEPT = 2
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
_OF_TARGET = ("rows", "keys", "ledger")
_OF_ORACLE = ("completed", "evaluated_tag", "staged_tag", "released_tag", "marked")


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
    settings: Settings
    kinds: tuple[str, ...]
    """The kinds of objects that are damaged in this story."""
    once: str = ""
    """The story has no scenes before the first point that begins with this text."""

    def world(self) -> World:
        """Make a world of this story. All lie at one place: a WAL names its place, and any of them must read it."""
        name = f"damaged-{self.sink}-{len(self.batches)}"
        return World(self.sink, batches=self.batches, settings=self.settings, name=name)

    def points(self) -> list[int]:
        """Return the points at which its process may die: after each effect."""
        undisturbed = self.world().life()
        undisturbed.live()
        first = next(at for at, point in enumerate(undisturbed.points, 1) if point.startswith(self.once))
        return [point for point in effects(undisturbed.points) if point >= first]

    def scene(self, point: int) -> Scene:
        """Return the state that a crash at this point leaves."""
        world = self.world()
        assert not world.life(crash_at(point)).live()
        return Scene.of(self, world)


STORIES = (
    Story("plain", BATCHES, Settings(chunk_rows=2), tuple(kind for kind in KINDS if kind != "low water")),
    Story("transactional", BATCHES, Settings(chunk_rows=2), ("manifest", "release", "segment", "marker")),
    Story("plain", _COLLECTED, lower_retention(_KEPT), ("low water",), once="after create low-water"),
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
    wal: Mapping[str, bytes]
    checkpoint: Mapping[str, bytes]
    known: Mapping[str, Any]
    """The knowledge of the target and of the oracle."""
    reads: frozenset[str]
    """The paths of `wal` that the next start reads."""

    @classmethod
    def of(cls, story: Story, world: World) -> Scene:
        known = {name: getattr(world.target, name) for name in _OF_TARGET}
        known |= {name: getattr(world, name) for name in _OF_ORACLE}
        left = cls(story, _objects(world.wal), _objects(world.checkpoint), copy.deepcopy(known), frozenset())
        life = world.life()
        assert life.live()
        world.check_end(crashes=1)
        return cls(story, left.wal, left.checkpoint, left.known, frozenset(filter(LifeReads(life), left.wal)))

    def enter(self, world: World) -> None:
        """Put the scene into a world of its story, in place of the world's present state."""
        _fill(world.wal, self.wal)
        _fill(world.checkpoint, self.checkpoint)
        world.target = Target(world)
        for name, value in copy.deepcopy(dict(self.known)).items():
            setattr(world.target if name in _OF_TARGET else world, name, value)
        world.releases, world.violations, world.lives = {}, [], world.lives[:1]

    def start_on(self, world: World, path: str, damaged: bytes) -> Ending:
        """Damage an object, start, restore the object, start again. Raises `AssertionError` if a start misbehaves.

        The object is restored unless the first start deleted it, even if that start wrote something else in its place.
        """
        self.enter(world)
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
    if path in world.wal.list("", recursive=True):
        world.wal.delete([path])
        world.wal.create(path, data)
        world.releases.clear()


def _objects(store: MemoryStore) -> dict[str, bytes]:
    return {path: store.read(path) for path in store.list("", recursive=True)}


def _fill(store: MemoryStore, objects: Mapping[str, bytes]) -> None:
    store.delete(store.list("", recursive=True))
    for path, data in objects.items():
        store.create(path, data)
