"""Families of histories for the simulation's tests. Each history is run to its end and judged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tests.simulation.histories.plans import THREE_BATCHES, At, Deed, Fault, Shape
from tests.simulation.world import World, crash_then_finish, dies, effects, finish
from wal_sink.errors import FencedError

SHORT: Shape = ((5, 3), (2,))
SINGLE: Shape = ((2,), (1,))
LONG: Shape = ((2,), (1,), (3,), (1,), (2,), (1,), (2,))
BEFORE_SENDING = ("before sink", "")
BEFORE_MARKER = ("before create", "/markers/")


def crashes(
    kind: str,
    *,
    batches: Shape = THREE_BATCHES,
    retention: int = 200,
    retention_bytes: int | None = None,
    lagging: bool = False,
    forgets: bool = False,
) -> Iterator[World]:
    """One history for each effect of a run, with a crash after this effect. `forgets` as in `crash_then_finish`."""

    def world() -> World:
        return World(kind, batches=batches, retention=retention, retention_bytes=retention_bytes, lagging=lagging)

    undisturbed = world().life()
    undisturbed.live()
    for point in effects(undisturbed.points):
        crashed = world()
        crash_then_finish(crashed, point, forgets=forgets)
        crashed.check_end(crashes=1)
        yield crashed


def replays(kind: str) -> Iterator[World]:
    """The same, with a checkpoint that forgot its newest commit."""
    return crashes(kind, forgets=True)


def backlogs(kind: str) -> Iterator[World]:
    """The same for a run that delivers after all batches are complete."""
    return crashes(kind, lagging=True)


def collections(kind: str) -> Iterator[World]:
    """The same for a run that collects the batches it delivered."""
    return crashes(kind, batches=LONG, retention=1)


def collections_by_bytes(kind: str) -> Iterator[World]:
    """The same where a collection makes milestones, and keeps some batches longer."""
    return crashes(kind, batches=LONG, retention=1, retention_bytes=1)


def double_crashes(kind: str) -> Iterator[World]:
    """Histories with one crash while the first batch is under way, and another after an effect of the recovery."""
    for first in range(1, 12):
        for second in range(1, 12):
            world = World(kind)
            for effect in (first, second):
                world.life(dies("after", number=effect)).live()
            assert world.life().live()
            world.check_end(crashes=2)
            yield world


def failing_sends(kind: str) -> Iterator[World]:
    """One history for each send of a run: it fails once, before or after its effect."""
    for number in count(1):
        world = World(kind)
        assert world.life(Fault(Deed.FAIL, At(number, "sink"))).live()
        if not any(times for name, times in world.hits.items() if name.startswith("sink failed")):
            return
        world.check_end(crashes=1)
        yield world


def successions(kind: str, *, batches: Shape = SHORT) -> Iterator[tuple[World, FencedError | None]]:
    """One history for each point of a life: another process runs to its end there, then the first one goes on.

    Each comes with the error that fenced the first one.
    """
    for number in count(1):
        world = World(kind, batches=batches, zombies=True)
        old = world.standing_still("", number=number)
        if old.done:
            return
        assert world.life().live()
        error = finish(old)
        world.check_end(crashes=1)
        yield world, error


def late_finishes(kind: str, *, batches: Shape = SHORT, stop_at: tuple[str, str] = BEFORE_MARKER) -> Iterator[World]:
    """One history for each point of a newer process's life: an older process stands still and goes on there.

    By default it stands still before its first marker.
    """
    for number in range(1, 80):
        world = World(kind, batches=batches, zombies=True)
        old = world.standing_still(*stop_at)
        new = world.standing_still("", number=number)
        if new.done:
            return
        finish(old)
        finish(new)
        assert world.life().live()
        world.check_end(crashes=2)
        yield world


def late_finishes_of_single_chunks(kind: str) -> Iterator[World]:
    """Late finishes of batches of one chunk. They have no progress: only the marker shows that they were delivered."""
    return late_finishes(kind, batches=SINGLE)


def late_sends(kind: str) -> Iterator[World]:
    """Late finishes of a process that stands still before its first send."""
    return late_finishes(kind, stop_at=BEFORE_SENDING)
