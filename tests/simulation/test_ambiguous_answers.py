"""A store that answers with an error, before or after the effect: the run recovers, or ends with an error."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.world import KINDS, World, dies_at, fails_at, points_of
from wal_sink.errors import OutcomeUnknownError, StoreError, WalSinkError

LEAST_POINTS = 100
STEP = {"plain": 1, "at_most_once": 1, "transactional": 1}
"""The distance between the points that are tried. It is 3 for the other kinds, which differ little from these."""


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_at_any_point_is_repaired_by_the_run_or_ends_it_loudly_and_the_next_run_finishes(kind: str) -> None:
    points = points_of(kind)
    endings: Counter[str] = Counter()

    for point in range(1, len(points) + 1, STEP.get(kind, 3)):
        world = World(kind)
        life = world.life(*fails_at(point))
        try:
            assert life.live()
            endings["recovered"] += 1
        except StoreError:
            endings["loud"] += 1
            assert not life.delivering, f"{points[point - 1]}: the committer did not try again"
            assert world.life().live()
        world.check_end(crashes=1)

    assert endings.total() >= LEAST_POINTS / STEP.get(kind, 3)
    assert endings["recovered"] >= endings.total() / 3, endings


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_create_that_cannot_be_read_back_stops_nothing_that_could_go_on(kind: str) -> None:
    points = points_of(kind)
    creates = [number for number, name in enumerate(points, 1) if " create " in name]
    assert len(creates) >= 20

    for point in creates:
        world = World(kind)
        life = world.life(*fails_at(point, point + 1))
        try:
            assert life.live()
        except (StoreError, OutcomeUnknownError):
            assert not life.delivering, f"{points[point - 1]}: the committer did not try again"
            assert world.life().live()
        world.check_end(crashes=2)


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "idempotent", "lookup", "transactional"])
def test_a_sink_that_fails_while_the_store_fails_too_loses_nothing(kind: str) -> None:
    """The sink's answer is lost together with the store's next answers."""
    points = points_of(kind)
    sends = [number for number, name in enumerate(points, 1) if name.startswith(("before sink ", "after sink "))]
    assert sends

    for point in sends:
        for lost in range(1, 5):
            world = World(kind)
            life = world.life(*fails_at(*range(point, point + lost + 1)))
            assert life.live()
            world.check_end(crashes=1 + lost)


def test_a_store_that_stays_down_ends_the_run_within_its_budget_and_the_error_names_it() -> None:
    world = World()
    start = next(number for number, name in enumerate(points_of("plain"), 1) if name.startswith("before sink "))
    life = world.life(*fails_at(*range(start, start + 1000)))

    with pytest.raises(WalSinkError, match="simulated failure"):
        life.live()

    assert len(life.points) < start + 200
    assert world.life().live()
    world.check_end(crashes=10)


def test_the_progress_record_of_a_lost_answer_is_taken_for_the_runs_own() -> None:
    points = points_of("plain")
    record = next(number for number, name in enumerate(points, 1) if name.startswith("after create sinks/default/prog"))
    world = World()

    life = world.life(*fails_at(record))
    assert life.live()

    world.check_end(crashes=0)
    assert not any(name.startswith("before list sinks/default/progress") for name in life.points), (
        "the run listed progress, though its record exists"
    )


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["at_most_once", "lookup", "segment"])
def test_an_error_after_a_crash_keeps_the_invariants(kind: str) -> None:
    sends = [number for number, name in enumerate(points_of(kind), 1) if name.startswith("after sink ")]
    assert len(sends) >= 3

    for crash in sends[:3]:
        recovery = World(kind)
        recovery.life(dies_at(crash)).live()
        recovering = recovery.life()
        assert recovering.live()
        for point in range(20, min(50, len(recovering.points))):
            world = World(kind)
            world.life(dies_at(crash)).live()
            try:
                assert world.life(*fails_at(point)).live()
            except StoreError:
                assert world.life().live()
            world.check_end(crashes=2)


@pytest.mark.parametrize("object_name", ["manifest", "segment batches"])
def test_a_failure_of_staging_surfaces_in_the_query(object_name: str) -> None:
    points = points_of("plain")
    point = next(number for number, name in enumerate(points, 1) if name.startswith("before") and object_name in name)
    world = World()

    with pytest.raises((StoreError, OutcomeUnknownError)):
        world.life(*fails_at(*range(point, point + 40))).live()

    assert world.judge.completed == set()
    assert world.life().live()
    world.check_end(crashes=0)
