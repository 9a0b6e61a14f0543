"""`gc`: debris is found and deleted, and nothing that a live query, a drain or a start may still name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import wal_sink.committer.collection
import wal_sink.repair.debris
from tests.simulation.histories.lives import lower_retention
from tests.support.repairs import end_roles, killed_everywhere, log_on, remade
from tests.support.small_run import Place, Recorder
from wal_sink.checking.verify import Check
from wal_sink.errors import ConfigError, ObjectLost
from wal_sink.recovery.sink_changes import retire
from wal_sink.repair.debris import COLLECTED, DEAD_ATTEMPTS, LOST_ATTEMPTS, PROBES, find_debris
from wal_sink.repair.gc import examples_of, gc, gc_order, plan_gc
from wal_sink.repair.journal import read_journal
from wal_sink.repair.need import SparkSide
from wal_sink.settings import Delivery
from wal_sink.stores.base import Store
from wal_sink.stores.probe import new_object
from wal_sink.testing import Crash, FaultyStore
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Release
from wal_sink.wal.segment_reader import load_segment

ROWS = [5, 3]


def dying(place: Place, at: str, batch: int) -> None:
    """A process that delivers all it can and dies at a request of a batch: its term ended."""
    run = place.open({"a": Recorder()})

    def die(what: str, where: str) -> None:
        if what.startswith(at.split(maxsplit=1)[0]) and at.split()[1] in what and at.split()[2] in where:
            raise Crash

    object.__setattr__(run.log, "store", FaultyStore(place.wal, die))
    with pytest.raises(Crash):
        place.stream(run, batch)
    end_roles(place.wal)


def littered() -> Place:
    """Batch 0 is delivered. Of batch 1 there is an attempt without a manifest, and one whose manifest will lose."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    end_roles(place.wal)
    dying(place, "before create manifest-", 1)
    dying(place, "after create manifest-", 1)
    return place


def settled() -> Place:
    """The same after a start that delivered batch 1."""
    place = littered()
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)
    return place


def kinds(place: Place) -> dict[str, int]:
    return {kind: count.objects for kind, count in plan_gc(log_on(place.wal)).kinds.items()}


def collected(place: Place, log: Log | None = None) -> dict[str, int]:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    return gc(log, gc_order(log, why="tidy"), plan_gc(log)).objects


def check_whole(store: Store, *, through: int | None = None) -> None:
    """Every segment of every manifest that is delivered can be read."""
    log = log_on(store)
    for batch_id in log.numbers(paths.BATCHES, after=log.low_water()):
        if through is not None and batch_id > through:
            return
        release = log.find(Release, paths.release(batch_id))
        names = [name for name in map(paths.parse_manifest, store.list(paths.batch(batch_id))) if name is not None]
        counts = (release.term, release.attempt) if release else max(names, default=None)
        if counts is not None:
            for segment in log.require(Manifest, paths.manifest(batch_id, *counts)).segments:
                load_segment(store, segment)


# --- what is found


def test_a_healthy_wal_has_no_debris() -> None:
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 3)

    assert kinds(place) == {}
    assert collected(place) == {}
    check_whole(place.wal)


def test_an_attempt_of_a_process_that_ended_is_debris_before_its_batch_is_released() -> None:
    place = littered()

    plan = plan_gc(log_on(place.wal))

    assert {kind: count.objects for kind, count in plan.kinds.items()} == {DEAD_ATTEMPTS: 2}
    assert plan.bytes == sum(place.wal.size(path) for path in examples_of(plan)) > 0
    assert plan.objects == 2
    collected(place)
    assert kinds(place) == {}
    check_whole(place.wal)


def test_lost_attempts_of_a_released_batch_are_debris_with_their_manifests() -> None:
    place = settled()
    before = place.wal.list("", recursive=True)

    assert kinds(place) == {LOST_ATTEMPTS: 5}
    assert place.wal.list("", recursive=True) == before

    assert collected(place) == {LOST_ATTEMPTS: 5}
    check_whole(place.wal)
    assert list(Check(place.wal).run()) == []
    later = Recorder()
    place.stream(place.open({"a": later}), 4)
    assert set(later.batches) == {3, 4}
    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.plan["found"][LOST_ATTEMPTS]["objects"]) == ("done", 5)


def test_a_segment_that_a_repeated_task_wrote_beside_the_released_ones_is_debris() -> None:
    place = settled()
    collected(place)
    [folder] = [name for name in place.wal.list(paths.batch(1)) if name.endswith("/")]
    path = paths.segment(f"{paths.batch(1)}/{folder[:-1]}", 1, 0, "f" * 32)
    sharded = paths.segment(f"{paths.batch(1)}/{folder[:-1]}", 1030, 0, "e" * 32)
    for each in (path, sharded):
        place.wal.create(each, b"12345")

    plan = plan_gc(log_on(place.wal))

    assert set(examples_of(plan)) == {path, sharded}
    assert plan.bytes == 10
    collected(place)
    assert kinds(place) == {}


def test_an_attempt_of_a_process_that_may_live_is_left_alone() -> None:
    """It was superseded, but nobody knows whether it will still create its manifest."""
    place = littered()
    terms = paths.terms(paths.STAGER_ROLE)
    place.wal.delete(f"{terms}/{name}" for name in place.wal.list(terms) if ".ended" in name)

    assert kinds(place) == {}


def test_an_attempt_whose_term_was_lost_is_left_alone() -> None:
    place = littered()
    terms = paths.terms(paths.STAGER_ROLE)
    place.wal.delete(f"{terms}/{name}" for name in place.wal.list(terms))

    assert kinds(place) == {}


@pytest.mark.parametrize("damage", ["release.json", "manifest-"])
def test_a_damaged_batch_is_left_alone(damage: str) -> None:
    place = settled()
    release = log_on(place.wal).require(Release, paths.release(1))
    counts = paths.manifest(1, release.term, release.attempt)
    path = paths.release(1) if damage == "release.json" else counts
    place.wal.delete([path])
    if damage == "release.json":
        place.wal.create(path, b"damaged")

    plan = plan_gc(log_on(place.wal))

    assert (plan.kinds, plan.damaged) == ({}, 1)


def test_a_damaged_manifest_of_a_batch_that_is_not_released_keeps_everything() -> None:
    place = littered()
    [name] = [name for name in place.wal.list(paths.batch(1)) if name.startswith("manifest")]
    place.wal.delete([f"{paths.batch(1)}/{name}"])
    place.wal.create(f"{paths.batch(1)}/{name}", b"damaged")

    plan = plan_gc(log_on(place.wal))

    assert (plan.kinds, plan.damaged) == ({}, 1)


def test_requests_of_several_batches_are_sent_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.repair.debris, "AT_ONCE", 3)
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 7)
    end_roles(place.wal)
    log = log_on(place.wal)
    together: list[int] = []

    def counting(function: Callable[[Any], Any], items: Any) -> list[Any]:
        together.append(len(items))
        return [function(item) for item in items]

    log = replace(log, runtime=replace(log.runtime, side_by_side=counting))
    plan = plan_gc(log)

    assert (plan.kinds, plan.damaged) == ({}, 0)
    record_and_root, terms, *batches = [count for count in together if count]
    assert (record_and_root, terms, batches) == (2, 1, [3, 3, 2])


def half_collected() -> Place:
    """A collection was killed after it had raised low water."""
    place = Place(rows=lambda _: [1, 1])
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), 4)
    end_roles(place.wal)
    log_on(place.wal).raise_low_water(1, {"a": 4, "b": 4})
    place.wal.create("batches/shard-3/0000000000000000001/0000000001-0000000001/001027-0000-x.parquet", b"x")
    return place


def test_batches_below_low_water_are_debris() -> None:
    place = half_collected()

    assert collected(place)[COLLECTED] == 2 * (4 + 2 * 2 + 2) + 1
    log = log_on(place.wal)
    assert log.numbers(paths.BATCHES) == [2, 3, 4]
    assert log.numbers(paths.markers("a")) == [2, 3, 4]
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), 6)
    check_whole(place.wal)


def test_a_sink_that_began_while_low_water_moved_keeps_its_batches() -> None:
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 6)
    place.open({"late": Delivery(Recorder(), start_from="earliest")})
    end_roles(place.wal)
    log_on(place.wal).raise_low_water(2)

    assert kinds(place) == {}

    retire(log_on(place.wal), "late", drop_pending=99, take_over=TakeOver.IF_GONE)
    assert COLLECTED in kinds(place)


def test_a_forgotten_sink_keeps_nothing_and_a_lost_one_everything() -> None:
    place = half_collected()
    place.wal.delete([paths.sink("b")])

    with pytest.raises(ObjectLost):
        plan_gc(log_on(place.wal))

    place.wal.create(paths.forgotten("b"), b"")
    assert kinds(place)[COLLECTED] > 0


def test_old_probes_are_debris() -> None:
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    log = log_on(place.wal)
    old = replace(log.runtime, now=lambda: log.runtime.now() - timedelta(hours=25))
    young = replace(log.runtime, now=lambda: log.runtime.now() - timedelta(hours=23))
    paths_of = [new_object(runtime)[0] for runtime in (old, young)]
    for path in (*paths_of, "probe/of-somebody-else.json"):
        place.wal.create(path, b"{}")

    assert collected(place) == {PROBES: 1}
    assert set(place.wal.list("probe")) == {paths_of[1].rpartition("/")[2], "of-somebody-else.json"}


def test_many_objects_are_named_by_examples_only() -> None:
    place = half_collected()
    for number in range(30):
        place.wal.create(f"batches/0000000000000000001/0000000001-0000000009/{number:06d}-0000-x.parquet", b"x")

    plan = plan_gc(log_on(place.wal))

    assert len(examples_of(plan)) == 20
    assert plan.objects > 30


def test_an_object_that_is_deleted_meanwhile_has_no_size() -> None:
    place = settled()
    log = log_on(place.wal)
    [debris] = find_debris(log)
    place.wal.delete(debris.paths)

    assert debris.bytes(log) == 0


def test_a_batch_that_is_released_between_two_looks_is_left_for_the_next_time() -> None:
    place = littered()
    looks: list[str] = []

    def release(what: str, where: str) -> None:
        looks.append(where)
        if what == "before list" and where == paths.batch(1) and looks.count(where) == 2:
            place.stream(place.open({"a": Recorder()}), 1)

    assert list(find_debris(log_on(place.wal, release))) == []


def test_a_batch_that_is_collected_between_two_looks_is_no_error() -> None:
    place = settled()

    def collect(what: str, where: str) -> None:
        if (what, where) == ("before read", paths.release(1)):
            place.wal.delete([where])

    assert list(find_debris(log_on(place.wal, collect))) == []


def test_attempts_of_one_process_at_two_batches_are_both_found() -> None:
    place = littered()
    [path] = [path for path in examples_of(plan_gc(log_on(place.wal))) if "/000000-" in path]
    other = path.replace(paths.batch_name(1), paths.batch_name(2))
    place.wal.create(other, b"x")
    query = place.query()
    query.complete_batch(1)
    query.start_batch(2, 2)

    plan = plan_gc(log_on(place.wal), SparkSide(lambda: place.checkpoint))

    assert {kind: count.objects for kind, count in plan.kinds.items()} == {DEAD_ATTEMPTS: 3}


def test_a_folder_that_is_empty_by_now_is_no_debris() -> None:
    place = half_collected()

    def empty(what: str, where: str) -> None:
        if what == "before list" and where == f"{paths.batch(0)}":
            place.wal.delete(f"{where}/{name}" for name in place.wal.list(where, recursive=True))

    plan = plan_gc(log_on(place.wal, empty))

    assert not [path for path in examples_of(plan) if path.startswith(paths.batch(0))]


def test_a_copy_is_refused() -> None:
    place = settled()
    copy = Place(rows=lambda _: ROWS)
    for path in place.wal.list("", recursive=True):
        copy.wal.create(path, place.wal.read(path))

    with pytest.raises(ConfigError, match="another place"):
        gc_order(log_on(copy.wal), why="")


def test_the_requests_do_not_grow_faster_than_the_batches() -> None:
    counts = []
    for batches in (10, 20):
        place = Place(rows=lambda _: ROWS)
        place.stream(place.open({"a": Recorder()}), batches - 1)
        requests: list[str] = []
        plan_gc(log_on(place.wal, lambda what, where, requests=requests: requests.append(f"{what} {where}")))  # type: ignore[misc]
        counts.append(len(requests))

    assert counts[1] - counts[0] == 10 * 3


# --- beside a live query


@pytest.mark.no_cover
@pytest.mark.parametrize("make", [littered, half_collected], ids=["attempts", "low water"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_at_every_point_of_a_live_query_nothing_is_deleted_that_it_needs(
    make: Callable[[], Place], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)
    for point in _points(make, when):
        place = make()
        recorder = _live(place, when, point)
        newest, wanted, chunks = (3, [1, 2, 3], 5) if make is littered else (6, [5, 6], 2)
        assert {batch: recorder.batches.count(batch) for batch in wanted} == dict.fromkeys(wanted, chunks)
        check_whole(place.wal)
        end_roles(place.wal)
        later = Recorder()
        place.stream(place.open({"a": later, "b": Delivery(Recorder(), start_from="next")}), newest + 1)
        assert set(later.batches) == {newest + 1}


def _points(make: Callable[[], Place], when: str) -> Iterator[int]:
    requests: list[str] = []
    _live(make(), when, -1, requests)
    return iter(range(len(requests)))


def _live(place: Place, when: str, point: int, requests: list[str] | None = None) -> Recorder:
    """A query of two batches more. At one of its requests, debris is deleted."""
    recorder, seen = Recorder(), [] if requests is None else requests

    def hook(what: str, where: str) -> None:
        if what.startswith(when):
            seen.append(where)
            if len(seen) - 1 == point:
                collected(place)

    run = place.open({"a": recorder}, settings=lower_retention(2))
    object.__setattr__(run.log, "store", FaultyStore(place.wal, hook))
    place.stream(run, 6 if log_on(place.wal).low_water() >= 1 else 3)
    return recorder


def test_a_stager_that_is_superseded_but_alive_may_still_create_its_manifest() -> None:
    """Two queries on one checkpoint: the segments of the older one stay until its batch is released."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    end_roles(place.wal)
    older = place.open({})
    query = place.query()
    query.start_batch(1, 1)
    attempt = older.begin_staging(1, planned_ms=query.planned_ms(1))
    assert attempt is not None
    from wal_sink.testing.simulation.fake_query import stage_tables  # noqa: PLC0415

    staged = stage_tables(older, attempt, place.evaluate(1, 1))
    claim(log_on(place.wal), paths.STAGER_ROLE)

    assert collected(place) == {}

    older.end_staging(attempt, staged)
    query.complete_batch(1)
    check_whole(place.wal)
    recorder = Recorder()
    place.open({"a": recorder}).deliver_all()
    assert recorder.batches.count(1) == 5


# --- killed


@pytest.mark.no_cover
@pytest.mark.parametrize("make", [littered, settled, half_collected])
def test_killed_at_any_request_the_same_command_completes_it(make: Callable[[], Place]) -> None:
    for place in killed_everywhere(remade(make), lambda place: place.wal, lambda log, place: collected(place, log)):
        check_whole(place.wal)
        states = [entry.state for entry in read_journal(log_on(place.wal))]
        assert states in ([], ["unfinished"], ["done"])
        if states != ["done"]:
            collected(place)
        assert kinds(place) == {}
        assert [entry.state for entry in read_journal(log_on(place.wal))] == ["done"]
        newest = max(log_on(place.wal).numbers(paths.markers("a")))
        later = Recorder()
        sinks = {"a": later} if make is not half_collected else {"a": later, "b": Recorder()}
        place.stream(place.open(sinks), newest + 2)
        assert set(later.batches) == {newest + 1, newest + 2}
        check_whole(place.wal)
