"""A crash after any effect of a three-batch run keeps I1 to I8, for every kind of sink; so does a second crash."""

from __future__ import annotations

from functools import cache

import pytest

from tests.simulation.histories.plans import THREE_BATCHES, Deed
from tests.simulation.world import KINDS, World, deaths, effects, points_of


@cache
def undisturbed_effects(kind: str) -> list[int]:
    return effects(points_of(kind))


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_after_any_effect_keeps_the_invariants(kind: str) -> None:
    worlds = list(deaths(World(kind)))
    assert len(worlds) == len(undisturbed_effects(kind))
    for world in worlds:
        assert world.life().live()
        world.check_end(crashes=1)


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_crash_during_recovery_keeps_the_invariants(kind: str) -> None:
    for recovery in list(deaths(World(kind)))[1::3]:
        for world in list(deaths(recovery))[1:24:3]:
            assert world.hits[Deed.CRASH] == 2
            assert world.life().live()
            world.check_end(crashes=2)


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_spark_runs_again_after_a_crash_is_neither_repeated_nor_mixed(kind: str) -> None:
    replays = 0
    for world in deaths(World(kind)):
        world.forget_newest_commit()
        assert world.life().live()
        world.check_end(crashes=1)
        replays += bool(world.hits["replayed batch"])

    assert replays >= 10, "too few released batches were replayed to prove anything"


@pytest.mark.parametrize("kind", KINDS)
def test_a_delivered_batch_that_spark_runs_again_is_evaluated_and_neither_staged_nor_sent(kind: str) -> None:
    world = World(kind)
    assert world.life().live()
    world.forget_newest_commit()
    objects = world.wal.list("batches", recursive=True)

    assert world.life().live()

    assert world.hits["replayed batch"] == 1
    evaluated = [attempt.batch_id for attempt in world.judge.attempts]
    assert evaluated == [*range(len(THREE_BATCHES)), len(THREE_BATCHES) - 1], "the batch must be evaluated once"
    assert world.wal.list("batches", recursive=True) == objects
    world.check_end(crashes=0)
