"""A record under another record's path is refused when it is read, and no row is delivered because of it."""

from __future__ import annotations

import pytest

from tests.house.log import paths
from tests.simulation.test_history import damage
from tests.simulation.world import World, dies
from wal_sink.errors import CorruptError

BATCHES = ((3,), (3,), (1,))


def crashed_in_batch_1() -> World:
    """A world in which batch 0 and the first chunk of batch 1 are delivered, and their progress is recorded."""
    world = World(batches=BATCHES)
    assert not world.life(dies("after create", paths.progress("default", 1, 0, 2))).live()
    return world


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (paths.release(1), paths.release(0)),
        (paths.manifest(1, 1, 2), paths.manifest(0, 1, 1)),
        (paths.progress("default", 1, 0, 2), paths.progress("default", 0, 0, 2)),
        (paths.marker("default", 0), paths.release(0)),
    ],
    ids=["release", "manifest", "progress", "marker"],
)
def test_a_record_of_another_batch_is_refused_and_nothing_is_sent(place: str, other: str) -> None:
    world = crashed_in_batch_1()
    right, sent = world.wal.read(place), len(world.rows)
    damage(world, place, world.wal.read(other))

    with pytest.raises(CorruptError, match=place):
        world.life().live()

    assert len(world.rows) == sent
    damage(world, place, right)
    assert world.life().live()
    world.check_end(crashes=1)


def test_progress_of_a_segment_that_the_batch_does_not_have_is_refused() -> None:
    world = crashed_in_batch_1()
    stray = paths.progress("default", 1, 4, 2)
    world.wal.create(stray, world.wal.read(paths.progress("default", 1, 0, 2)))

    with pytest.raises(CorruptError, match=stray):
        world.life().live()


def test_progress_that_is_listed_but_gone_is_looked_for_again() -> None:
    world = crashed_in_batch_1()
    record = paths.progress("default", 1, 0, 2)
    vanished: list[str] = []

    def hook(_: object, what: str, where: str) -> None:
        if (what, where) == ("before read", record):
            world.wal.delete([record])
            vanished.append(where)

    assert world.life(hook=hook).live()
    assert vanished
    world.check_end(crashes=2)
