"""Families of histories for the simulation's tests. Each history is run to its end and judged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from tests.simulation.histories.plans import THREE_BATCHES, At, Deed, Fault, Shape
from tests.simulation.world import World, deaths, finish
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
    lagging: bool = False,
    forgets: bool = False,
    begin: int = 0,
) -> Iterator[World]:
    """One history for each effect of a run from `begin` on, with a crash after this effect.

    With `forgets`, the checkpoint forgets its newest commit after the crash.
    """

    undisturbed = World(kind, batches=batches, retention=retention, lagging=lagging)
    for crashed in islice(deaths(undisturbed), begin, None):
        if forgets:
            crashed.forget_newest_commit()
        assert crashed.life().live()
        crashed.check_end(crashes=1)
        yield crashed


def replays(kind: str, *, begin: int = 0) -> Iterator[World]:
    """The same, with a checkpoint that forgot its newest commit."""
    return crashes(kind, forgets=True, begin=begin)


def backlogs(kind: str) -> Iterator[World]:
    """The same for a run that delivers after all batches are complete."""
    return crashes(kind, lagging=True)


def collections(kind: str) -> Iterator[World]:
    """The same for a run that collects the batches it delivered."""
    return crashes(kind, batches=LONG, retention=1)


def double_crashes(kind: str) -> Iterator[World]:
    """Histories with one crash while the first batch is under way, and another after an effect of the recovery."""
    for recovery in reversed(list(deaths(World(kind)))[1:12]):  # later ones show more
        for world in list(deaths(recovery))[1:12]:
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


def late_finishes(
    kind: str, *, batches: Shape = SHORT, stop_at: tuple[str, str] = BEFORE_MARKER, begin: int = 0
) -> Iterator[World]:
    """One history for each point of a newer process's life after `begin`: an older one stands still and goes on there.

    By default it stands still before its first marker.
    """
    for number in range(begin + 1, 80):
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


def late_finishes_of_single_chunks(kind: str, *, begin: int = 0) -> Iterator[World]:
    """Late finishes of batches of one chunk. They have no progress: only the marker shows that they were delivered."""
    return late_finishes(kind, batches=SINGLE, begin=begin)


def late_sends(kind: str, *, begin: int = 0) -> Iterator[World]:
    """Late finishes of a process that stands still before its first send."""
    return late_finishes(kind, stop_at=BEFORE_SENDING, begin=begin)
