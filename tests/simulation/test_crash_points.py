"""A crash at every store operation and sink call of a three-batch run, for every kind of sink, ends in I1 to I8."""

from __future__ import annotations

import pytest

from tests.simulation.world import BATCHES, KINDS, World, run_to_the_end


@pytest.mark.parametrize("kind", KINDS)
def test_an_undisturbed_run_delivers_every_row_once(kind: str) -> None:
    world = World(kind)

    assert world.live()

    world.check_end(crashes=0)
    assert len(world.target.rows) == sum(sum(partitions) for partitions in BATCHES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_every_single_point_keeps_the_invariants(kind: str) -> None:
    undisturbed = World(kind)
    assert undisturbed.live()
    points = len(undisturbed.points)

    for point in range(1, points + 1):
        world = World(kind, crash_points=[point])
        run_to_the_end(world)
        assert world.lives == 2, f"point {point} was never reached"
        world.check_end(crashes=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_crash_during_recovery_keeps_the_invariants(kind: str) -> None:
    undisturbed = World(kind)
    assert undisturbed.live()

    for first in range(3, len(undisturbed.points), 7):
        for second in range(first + 1, first + 40, 5):
            world = World(kind, crash_points=[first, second])
            run_to_the_end(world)
            world.check_end(crashes=world.lives - 1)
