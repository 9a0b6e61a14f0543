"""Two processes on one WAL: the superseded one changes nothing, except that it may send the chunk that it held."""

from __future__ import annotations

import pytest

import wal_sink.committer.collection
from tests.simulation.scenarios import (
    LONG,
    SHORT,
    SINGLE,
    before_marker,
    before_sending,
    check_succession,
    late_finishes,
    lower_retention,
    successions,
)
from tests.simulation.world import KINDS, Life, Puppet, World
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, FencedError
from wal_sink.testing import Crash
from wal_sink.wal import paths

LEAST_POINTS = 80


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_succeeded_at_any_point_sends_at_most_what_it_held(kind: str) -> None:
    endings = [world.lives[0].error for world in successions(kind)]

    assert len(endings) >= LEAST_POINTS
    assert any(isinstance(error, FencedError) for error in endings), "no process was fenced in the middle of a delivery"


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "lookup", "transactional"])
def test_a_predecessor_that_finishes_at_any_point_of_its_successor_causes_no_repetition_beyond_its_chunk(
    kind: str,
) -> None:
    for batches, stop_at in ((SHORT, before_sending), (SINGLE, before_marker)):
        assert sum(1 for _ in late_finishes(kind, batches=batches, stop_at=stop_at)) >= 30


def test_a_successor_does_not_send_what_its_predecessor_marked_while_it_opened() -> None:
    world = World(batches=SINGLE, zombies=True)
    old = Puppet(world, stop_at=lambda _, what, where: what == "before create" and "/markers/" in where)
    assert old.run_to_stop()
    new = world.life(lambda life, what, where: old.let_go() if _takes_over(life, what, where) else None)

    assert new.live() is True

    assert old.let_go_already
    check_succession(world)
    assert len(world.target.keys) == len(SINGLE), "nothing was sent twice"


def _takes_over(life: Life, what: str, where: str) -> bool:
    """Whether the newer process knows the newest marker and reads progress for the first time."""
    looks = [point for point in life.points if point.startswith("before list") and "/progress/" in point]
    return what == "before list" and "/progress/" in where and len(looks) == 1


def test_a_manifest_that_a_succeeded_stager_creates_late_is_ignored() -> None:
    world = World(batches=((3,),), zombies=True)
    old = Puppet(world, stop_at=lambda _, what, where: what == "before create" and "manifest" in where)
    assert old.run_to_stop()
    new = world.life(_dies_before_release)
    new.live()
    released = world.staged_tag[0]

    old.let_go()
    assert len([name for name in world.wal.list(paths.batch(0)) if name.startswith("manifest")]) == 2
    assert world.life().live()

    assert {tag for tag, _, _ in world.target.rows} == {released}


def _dies_before_release(life: Life, what: str, where: str) -> None:  # noqa: ARG001
    if what == "before create" and where.endswith("release.json"):
        raise Crash(where)


@pytest.mark.parametrize("object_kind", ["/progress/", "/markers/", "/release.json", "manifest"])
def test_an_object_that_a_succeeded_process_creates_after_its_collection_changes_nothing(
    object_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)
    batches = ((3,), *LONG)
    world = World(batches=batches, settings=lower_retention(1), zombies=True)
    old = Puppet(world, stop_at=lambda _, what, where: what == "before create" and object_kind in where)
    assert old.run_to_stop()
    assert world.life().live()
    assert world.low_water() >= 1, "the newer process has collected the batch"
    delivered = list(world.target.rows)

    old.let_go()
    assert not isinstance(old.life.error, AssertionError)
    assert world.life().live()

    assert world.target.rows == delivered
    check_succession(world)


def test_a_succeeded_collector_moves_low_water_neither_back_nor_forward_beyond_markers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)
    world = World(batches=LONG, settings=lower_retention(1), zombies=True)
    old = Puppet(world, stop_at=lambda _, what, where: what == "before create" and where.startswith("low-water"))
    assert old.run_to_stop()
    assert world.life().live()
    before = world.low_water()

    old.let_go()

    assert world.low_water() == before
    check_succession(world)


def test_at_takeover_progress_is_read_first_and_then_its_marker_and_later_ones_and_only_then_anything_is_sent() -> None:
    world = World(batches=((3,),))
    world.life(_dies_before_marker).live()
    newer = world.life()
    assert newer.live()

    points = newer.points
    progress = _index(points, "before list sinks/default/progress/")
    marker = _index(points, f"before read {paths.marker('default', 0)}")
    sent = _index(points, "before sink ")
    later = max(number for number, point in enumerate(points[:sent]) if point == "before list sinks/default/markers")
    assert progress < marker < later < sent


def _dies_before_marker(life: Life, what: str, where: str) -> None:  # noqa: ARG001
    if what == "before create" and "/markers/" in where:
        raise Crash(where)


def _index(points: list[str], start: str) -> int:
    return next(number for number, point in enumerate(points) if point.startswith(start))


def test_a_drainer_takes_over_from_the_committer_of_a_live_query_which_goes_on_staging() -> None:
    world = World(batches=SHORT, zombies=True)
    query = world.life()
    run = query.open_run()
    drainer = world.life().open_run()
    batches = query.batches(run)

    next(batches)
    with pytest.raises(FencedError, match="a newer process took over"):
        run.deliver_all()
    drainer.history.load_owner()
    drainer.gate.search()
    drainer.deliver_all()

    assert {row[1] for row in world.target.rows} == {0}
    assert world.marked == {0}


def test_a_start_that_is_refused_fences_nobody() -> None:
    place, sink = Place(), Recorder()
    running = place.open({"a": sink})
    next(place.query().batches(running, 1))

    with pytest.raises(ConfigError, match="'unknown' is new"):
        place.open({"a": sink, "unknown": Recorder()})

    running.deliver_all()
    assert sink.batches == [0]


def test_of_two_processes_that_claim_at_the_same_time_one_is_fenced() -> None:
    world = World(batches=SHORT, zombies=True)
    first = Puppet(world, stop_at=lambda _, what, where: what == "before create" and "terms/committer" in where)
    assert first.run_to_stop()
    second = world.life().open_run()

    first.let_go()

    with pytest.raises(FencedError):
        second.committers[0].term.check(world.wal)
    world.check_end(crashes=1)
