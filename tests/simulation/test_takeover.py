"""Two processes on one WAL: the superseded one changes nothing, except that it may send the chunk that it held."""

from __future__ import annotations

import pytest

import wal_sink.protocol.collect
from tests.house.log import paths
from tests.simulation.scenarios import (
    BEFORE_MARKER,
    BEFORE_SENDING,
    LONG,
    SHORT,
    SINGLE,
    late_finishes,
    late_sends,
    successions,
)
from tests.simulation.world import KINDS, Life, World, dies, finish
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, FencedError

LEAST_POINTS = 80


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_superseded_at_any_point_sends_at_most_what_it_held(kind: str) -> None:
    endings = [error for _, error in successions(kind)]

    assert len(endings) >= LEAST_POINTS
    assert any(endings), "no process was fenced in the middle of a delivery"


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "lookup", "transactional"])
def test_a_predecessor_that_finishes_at_any_point_of_its_successor_causes_no_repetition_beyond_its_chunk(
    kind: str,
) -> None:
    for batches, stop_at in ((SHORT, BEFORE_SENDING), (SINGLE, BEFORE_MARKER)):
        assert sum(1 for _ in late_finishes(kind, batches=batches, stop_at=stop_at)) >= 30


def test_a_commit_that_arrives_at_any_point_of_its_successor_is_refused_by_the_position_or_is_the_only_one() -> None:
    worlds = list(late_sends("commit"))

    assert len(worlds) >= 30
    assert 10 <= sum(world.hits["refused by its position"] > 0 for world in worlds) < len(worlds)


def test_a_successor_does_not_send_what_its_predecessor_marked_while_it_opened() -> None:
    world = World(batches=SINGLE, zombies=True)
    old = world.standing_still(*BEFORE_MARKER)
    assert not old.done
    new = world.life(hook=lambda _, what, where: finish(old) if _takes_over(new, what, where) else None)

    assert new.live()

    assert old.done
    world.check_end(crashes=1)
    assert len(world.rows) == sum(map(sum, SINGLE)), "nothing was sent twice"


def _takes_over(life: Life, what: str, where: str) -> bool:
    """Whether the newer process knows the newest marker and reads progress for the first time."""
    looks = [point for point in life.points if point.startswith("before list") and "/progress/" in point]
    return what == "before list" and "/progress/" in where and len(looks) == 1


def test_a_manifest_that_a_superseded_stager_creates_late_is_ignored() -> None:
    world = World(batches=((3,),), zombies=True)
    old = world.standing_still("before create", "manifest")
    world.life(dies("before create", "release.json")).live()
    released = world.staged_attempt(0)

    finish(old)
    assert len([name for name in world.wal.list(paths.batch(0)) if name.startswith("manifest")]) == 2
    assert world.life().live()

    assert {attempt for attempt, _, _ in world.rows} == {released}


@pytest.mark.parametrize("object_kind", ["/progress/", "/markers/", "/release.json", "manifest"])
def test_an_object_that_a_superseded_process_creates_after_its_collection_changes_nothing(
    object_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    batches = ((3,), *LONG)
    world = World(batches=batches, retention=1, zombies=True)
    old = world.standing_still("before create", object_kind)
    assert not old.done
    assert world.life().live()
    assert world.judge.low_water >= 1, "the newer process has collected the batch"
    delivered = world.rows

    finish(old)
    assert world.life().live()

    assert world.rows == delivered
    world.check_end(crashes=1)


def test_a_superseded_collector_moves_low_water_neither_back_nor_forward_beyond_markers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    world = World(batches=LONG, retention=1, zombies=True)
    old = world.standing_still("before create", "low-water")
    assert not old.done
    assert world.life().live()
    before = world.wal.list(paths.LOW_WATER)[-1]

    finish(old)

    assert world.wal.list(paths.LOW_WATER)[-1] == before
    world.check_end(crashes=1)


def test_at_takeover_progress_is_read_first_and_then_its_marker_and_later_ones_and_only_then_anything_is_sent() -> None:
    world = World(batches=((3,),))
    world.life(dies(*BEFORE_MARKER)).live()
    newer = world.life()
    assert newer.live()

    points = newer.points
    progress = _index(points, "before list sinks/default/progress/")
    marker = _index(points, f"before read {paths.marker('default', 0)}")
    sent = _index(points, "before sink ")
    later = max(number for number, point in enumerate(points[:sent]) if point == "before list sinks/default/markers")
    assert progress < marker < later < sent


def _index(points: list[str], start: str) -> int:
    return next(number for number, point in enumerate(points) if point.startswith(start))


def test_a_drainer_takes_over_from_the_committer_of_a_live_query_which_goes_on_staging() -> None:
    world = World(batches=SHORT, zombies=True, lagging=True)
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

    assert {row[1] for row in world.rows} == {0}
    assert world.facts.marked == {0}


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
    first = world.standing_still("before create", "terms/committer")
    assert not first.done
    second = world.life().open_run()

    finish(first)

    with pytest.raises(FencedError):
        second.committers[0].term.check(world.wal)
    world.check_end(crashes=1)
