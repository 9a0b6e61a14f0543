"""Families of histories for the simulation's tests. Each history is run to its end and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.world import (
    Hook,
    Life,
    Puppet,
    Shape,
    World,
    crash_at,
    crash_then_finish,
    effects,
    forget_newest_commit,
)
from wal_sink.errors import FencedError
from wal_sink.settings import Settings
from wal_sink.stores.base import ObjectExists

SHORT: Shape = ((5, 3), (2,))
SINGLE: Shape = ((2,), (1,))
LONG: Shape = ((2,), (1,), (3,), (1,), (2,), (1,), (2,))


def lower_retention(batches: int, **settings: Any) -> Settings:
    """Settings that keep fewer batches than a real WAL may."""
    lowered = Settings(chunk_rows=2, **settings)
    object.__setattr__(lowered, "retention_batches", batches)
    return lowered


def crashes(kind: str) -> Iterator[World]:
    """One history for each effect of a run, with a crash after this effect."""
    undisturbed = World(kind).life()
    undisturbed.live()
    for point in effects(undisturbed.points):
        world = World(kind)
        crash_then_finish(world, point)
        world.check_end(crashes=1)
        yield world


def replays(kind: str) -> Iterator[World]:
    """One history for each effect of a run: a crash after it, and a checkpoint that forgot its newest commit."""
    undisturbed = World(kind).life()
    undisturbed.live()
    for point in effects(undisturbed.points):
        world = World(kind)
        crash_then_finish(world, point, between=forget_newest_commit)
        world.check_end(crashes=1)
        yield world


def double_crashes(kind: str) -> Iterator[World]:
    """Histories with one crash while the first batch is under way, and another after an effect of the recovery."""
    undisturbed = World(kind).life()
    undisturbed.live()
    for first in effects(undisturbed.points)[1:12]:
        recovery = World(kind)
        recovery.life(crash_at(first)).live()
        recovering = recovery.life()
        recovering.live()
        for second in effects(recovering.points)[1:12]:
            world = World(kind)
            crash_then_finish(world, first, second)
            world.check_end(crashes=2)
            yield world


def successions(kind: str, *, batches: Shape = SHORT) -> Iterator[World]:
    """One history for each point of a life: another process runs to its end there, then the first one goes on."""
    undisturbed = World(kind, batches=batches).life()
    undisturbed.live()
    for point in range(1, len(undisturbed.points) + 1):
        world = World(kind, batches=batches, zombies=True)
        world.life(_superseded_at(point)).live_on()
        assert len(world.lives) == 2, f"point {point} was never reached"
        check_succession(world)
        yield world


def failing_sends(kind: str) -> Iterator[World]:
    """One history for each send of a run: it fails once, before or after its effect."""
    undisturbed = World(kind).life()
    undisturbed.live()
    for point, name in enumerate(undisturbed.points, 1):
        if name.startswith(("before sink ", "after sink ")):
            world = World(kind)
            assert world.life(_fails_at(point, ConnectionError("target down"))).live()
            world.check_end(crashes=1)
            yield world


def backlogs(kind: str) -> Iterator[World]:
    """One history for each effect of a run that delivers after all batches are complete: a crash after it."""
    undisturbed = World(kind, lagging=True).life()
    undisturbed.live()
    for point in effects(undisturbed.points):
        world = World(kind, lagging=True)
        crash_then_finish(world, point)
        world.check_end(crashes=1)
        yield world


def before_marker(_: Life, what: str, where: str) -> bool:
    return what == "before create" and "/markers/" in where


def before_sending(_: Life, what: str, where: str) -> bool:  # noqa: ARG001
    return what == "before sink"


def late_finishes(
    kind: str, *, batches: Shape = SHORT, stop_at: Callable[[Life, str, str], bool] = before_marker
) -> Iterator[World]:
    """One history for each point of a newer process's life: an older process stands still and goes on there.

    By default it stands still before its first marker.
    """
    for point in range(1, 80):
        world = World(kind, batches=batches, zombies=True)
        old = Puppet(world, stop_at=stop_at)
        assert old.run_to_stop()
        new = world.life(_lets_go(old, point))
        try:
            new.live()
        except (ObjectExists, FencedError) as error:  # the old process was faster
            new.error = error
        if not old.let_go_already:
            return
        world.life().live()
        check_succession(world, takeovers=2)
        yield world


def late_finishes_of_single_chunks(kind: str) -> Iterator[World]:
    """Late finishes of batches of one chunk. They have no progress: only the marker shows that they were delivered."""
    return late_finishes(kind, batches=SINGLE)


def late_sends(kind: str) -> Iterator[World]:
    """Late finishes of a process that stands still before its first send."""
    return late_finishes(kind, stop_at=before_sending)


def collections(kind: str) -> Iterator[World]:
    """One history for each effect of a run that collects the batches it delivered: a crash after it."""
    settings = lower_retention(1)
    undisturbed = World(kind, batches=LONG, settings=settings).life()
    undisturbed.live()
    for point in effects(undisturbed.points):
        world = World(kind, batches=LONG, settings=settings)
        crash_then_finish(world, point)
        world.check_end(crashes=1)
        yield world


def check_succession(world: World, *, takeovers: int = 1) -> None:
    """Check I1 to I8. By I7 a superseded process sends at most the chunk that it held."""
    world.check_end(crashes=takeovers)
    held = {"segment": 3, "batch": 5}.get(world.kind, 1)
    assert len(world.target.late) <= held, f"I7: {len(world.target.late)} chunks from a superseded process"


def _superseded_at(point: int) -> Hook:
    def hook(life: Life, what: str, where: str) -> None:  # noqa: ARG001
        if len(life.points) == point:
            assert life.world.life().live()

    return hook


def _fails_at(point: int, error: Exception) -> Hook:
    def hook(life: Life, what: str, where: str) -> None:  # noqa: ARG001
        if len(life.points) == point:
            raise error

    return hook


def _lets_go(old: Puppet, point: int) -> Hook:
    def hook(life: Life, what: str, where: str) -> None:  # noqa: ARG001
        if len(life.points) == point:
            old.let_go()

    return hook
