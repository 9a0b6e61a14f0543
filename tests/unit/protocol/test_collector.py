"""The collector alone: when it is due, how far low water may rise, what is deleted and what stays."""

from __future__ import annotations

import pytest

from tests.house.log import NOTHING, LowWater, Marker, Release, SinkRecord, encode, paths
from tests.house.protocol import COLLECT_EVERY_BATCHES, Collector, Run
from tests.house.stores import ObjectMissing
from tests.house.support import StoppedError
from tests.support.small_run import Place, Recorder
from wal_sink.errors import FencedError
from wal_sink.protocol import collect as collection
from wal_sink.protocol.collect import KEPT_LOW_WATERS

KEPT = 4


def mark(place: Place, sink: str, *batch_ids: int) -> None:
    for batch_id in batch_ids:
        marker = Marker(
            batch_id=batch_id, term=1, run_id="r", rows=1, last_delivered_batch=NOTHING, id="x", created="now"
        )
        place.wal.create(paths.marker(sink, batch_id), encode(marker))


def know(place: Place, sink: str, first_batch: int) -> None:
    record = SinkRecord(name=sink, sink_kind="plain", first_batch=first_batch, identity="", id="x", created="now")
    place.wal.create(paths.sink(sink), encode(record))


def raise_low_water(place: Place, *batch_ids: int) -> None:
    for batch_id in batch_ids:
        place.wal.create(
            paths.low_water(batch_id), encode(LowWater(batch_id=batch_id, marked={}, id="x", created="now"))
        )


def fill(place: Place, sink: str, *batch_ids: int) -> None:
    """Something of everything that is collected."""
    for batch_id in batch_ids:
        release = Release(
            batch_id=batch_id, term=1, attempt=1, fingerprint="f", run_id="r", sink="a", id="x", created="now"
        )
        place.wal.create(paths.release(batch_id), encode(release))
        place.wal.create(f"{paths.attempt_folder(batch_id, 1, 1)}/a.parquet", b"")
        place.wal.create(paths.progress(sink, batch_id, 0, 1), b"")


def collecting(place: Place, *sinks: str) -> tuple[Run, Collector]:
    run = place.open({sink: Recorder() for sink in sinks})
    place.requests.clear()
    return run, Collector(run.shared, retention_batches=KEPT)


def low_water(place: Place) -> int:
    return max((paths.parse_number(name) or 0 for name in place.wal.list(paths.LOW_WATER)), default=NOTHING)


# When it is due.


def test_a_collection_is_due_once_so_many_batches_beyond_the_retention_are_marked() -> None:
    _, collector = collecting(Place())
    first = KEPT - 1 + COLLECT_EVERY_BATCHES

    assert not collector.is_due(first - 1)
    assert collector.is_due(first)
    collector.put_off(first)
    assert not collector.is_due(first + COLLECT_EVERY_BATCHES - 1)
    assert collector.is_due(first + COLLECT_EVERY_BATCHES)


def test_earlier_collections_count_and_are_read_once() -> None:
    place = Place()
    _, collector = collecting(place)
    raise_low_water(place, 10)

    assert not collector.is_due(10 + KEPT + COLLECT_EVERY_BATCHES - 1)
    assert collector.is_due(10 + KEPT + COLLECT_EVERY_BATCHES)
    assert place.requests == [f"list {paths.LOW_WATER}"]


def test_a_wal_that_begins_late_is_not_due_before_it_has_so_many_batches() -> None:
    place = Place()
    list(place.query().batches(place.open({}), 7))
    place.wal.delete(place.wal.list("", recursive=True))
    run, collector = collecting(place)
    list(place.query().batches(run, 8))
    assert run.history.wal is not None
    assert run.history.wal.first_batch == 7

    assert not collector.is_due(6 + KEPT + COLLECT_EVERY_BATCHES - 1)
    assert collector.is_due(6 + KEPT + COLLECT_EVERY_BATCHES)


# How far low water rises.


def test_low_water_rises_to_what_every_sink_has_less_the_retention() -> None:
    place = Place()
    run, collector = collecting(place, "a", "b")
    mark(place, "a", 30)
    mark(place, "b", 20)

    assert collector.collect(run.committers[0].term) == low_water(place) == 20 - KEPT


def test_a_sink_without_a_marker_needs_everything_from_its_first_batch_on() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    know(place, "b", first_batch=12)
    mark(place, "a", 30)

    assert collector.collect(run.committers[0].term) == 11 - KEPT


def test_traces_of_a_sink_without_a_registration_hold_nothing_back() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    place.wal.create("sinks/gone/notes.txt", b"")
    mark(place, "a", 30)

    assert collector.collect(run.committers[0].term) == 30 - KEPT


def test_without_sinks_nothing_is_collected() -> None:
    place = Place()
    run, _ = collecting(place, "a")
    term = run.committers[0].term
    place.wal.delete([paths.sink("a")])

    assert Collector(run.shared, retention_batches=KEPT).collect(term) == NOTHING
    assert place.wal.list(paths.LOW_WATER) == []


@pytest.mark.parametrize("present", [26, 27, 40])
def test_low_water_that_is_there_already_or_higher_stays_and_nothing_is_written(present: int) -> None:
    place = Place()
    run, collector = collecting(place, "a")
    mark(place, "a", 30)
    raise_low_water(place, present)
    fill(place, "a", 3)

    assert collector.collect(run.committers[0].term) == present

    assert not [name for name in place.requests if not name.startswith(("list", "read"))]
    assert not collector.is_due(present + KEPT + COLLECT_EVERY_BATCHES - 1)


def test_a_superseded_process_collects_nothing() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    place.open({"a": Recorder()})
    mark(place, "a", 30)
    fill(place, "a", 3)

    with pytest.raises(FencedError):
        collector.collect(run.committers[0].term)

    assert low_water(place) == NOTHING
    assert place.wal.list(paths.batch(3))


# Objects that are deleted.


def test_everything_through_low_water_goes_and_everything_above_stays() -> None:
    place = Place()
    run, collector = collecting(place, "a", "b")
    for sink in ("a", "b"):
        mark(place, sink, 15, 16, 17, 20)
    fill(place, "a", 15, 16, 17)
    place.wal.create(paths.progress("b", 16, 0, 1), b"")
    place.wal.create(paths.progress("b", 17, 0, 1), b"")

    collector.collect(run.committers[0].term)

    assert place.wal.list(paths.BATCHES) == [f"{paths.batch_name(17)}/"]
    for sink in ("a", "b"):
        assert place.wal.list(paths.progress_batches(sink)) == [f"{paths.batch_name(17)}/"]
        assert [paths.parse_number(name) for name in place.wal.list(paths.markers(sink))] == [17, 20]
    assert len(place.wal.list(paths.batch(17), recursive=True)) == 2
    assert not [name for name in place.requests if name.endswith("/")]


def test_folders_that_are_no_batches_are_left_alone() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    mark(place, "a", 30)
    strange = [f"{paths.BATCHES}/notes/x", f"{paths.progress_batches('a')}/notes/x", f"{paths.markers('a')}/notes"]
    for path in strange:
        place.wal.create(path, b"")

    collector.collect(run.committers[0].term)

    assert all(place.wal.read(path) == b"" for path in strange)


def test_the_newest_low_waters_stay_so_that_a_listing_beside_it_finds_one() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    mark(place, "a", 100)
    raise_low_water(place, *range(1, 2 * KEPT_LOW_WATERS))

    collector.collect(run.committers[0].term)

    kept = [paths.parse_number(name) for name in place.wal.list(paths.LOW_WATER)]
    assert kept == [*range(KEPT_LOW_WATERS + 1, 2 * KEPT_LOW_WATERS), 100 - KEPT]


def test_a_sink_that_registers_while_low_water_rises_keeps_what_it_needs() -> None:
    place = Place()
    run, collector = collecting(place, "a")
    mark(place, "a", 30)
    fill(place, "a", 8, 9, 10)
    create = place.wal.create

    def registered_just_after(path: str, data: bytes) -> None:
        create(path, data)
        if path.startswith(paths.LOW_WATER):
            place.wal.create = create  # type: ignore[method-assign]
            know(place, "b", first_batch=9)

    place.wal.create = registered_just_after  # type: ignore[method-assign]

    assert collector.collect(run.committers[0].term) == 30 - KEPT

    assert place.wal.list(paths.BATCHES) == [f"{paths.batch_name(batch_id)}/" for batch_id in (9, 10)]


def test_a_registration_that_one_read_misses_holds_back_what_its_sink_needs() -> None:
    """It was read a second time, and its sink was counted as none: low water rose past what the sink lacks."""
    place = Place()
    run, collector = collecting(place, "a", "b")
    collector.expect([], served=["a", "b"])
    mark(place, "a", 30)
    read = place.wal.read

    def misses_once(path: str) -> bytes:
        if path == paths.sink("b"):
            place.wal.read = read  # type: ignore[method-assign]
            raise ObjectMissing(path)
        return read(path)

    place.wal.read = misses_once  # type: ignore[method-assign]

    assert collector.collect(run.committers[0].term) == NOTHING


# A collection of many batches.


def test_objects_are_deleted_in_groups_in_the_order_batches_progress_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each group before the next folder is listed: memory stays bounded, and a stop loses no work."""
    monkeypatch.setattr(collection, "GROUP_PATHS", 5)
    place = Place()
    run, collector = collecting(place, "a")
    fill(place, "a", *range(20))
    mark(place, "a", *range(30))
    beats: list[float] = []

    def beat(seconds: float) -> bool:
        beats.append(seconds)
        return False

    object.__setattr__(run.shared, "pause", beat)

    collector.collect(run.committers[0].term)

    acts = [each.split() for each in place.requests if each.startswith(("list batches/", "delete"))]
    deletes = [path for verb, path in acts if verb == "delete"]
    kinds = ["batches" if each.startswith("batches") else "markers" if "/markers" in each else "p" for each in deletes]
    assert kinds == sorted(kinds, key=["batches", "p", "markers"].index)
    assert "delete" in [verb for verb, _ in acts][:7], "before the last of 20 batches was listed"
    assert len(beats) >= len(deletes) / 5
    assert set(beats) == {0}
    assert place.wal.list(paths.BATCHES) == []
    assert len(place.wal.list(paths.markers("a"))) == KEPT


def test_a_run_that_ends_leaves_the_rest_to_the_next_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "GROUP_PATHS", 5)
    place = Place()
    run, collector = collecting(place, "a")
    fill(place, "a", *range(20))
    mark(place, "a", *range(30))
    object.__setattr__(run.shared, "pause", lambda _: True)
    with pytest.raises(StoppedError):
        collector.collect(run.committers[0].term)
    assert 0 < len(place.wal.list(paths.BATCHES)) < 20

    object.__setattr__(run.shared, "pause", lambda _: False)
    mark(place, "a", 40)
    collector.collect(run.committers[0].term)
    assert place.wal.list(paths.BATCHES) == []


def test_a_batch_that_was_deleted_twice_is_not_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A versioned bucket of MinIO lists its folder for ever, so each collection listed all batches that ever were."""
    place = Place()
    run, collector = collecting(place, "a")
    found = place.wal.list
    monkeypatch.setattr(
        place.wal,
        "list",
        lambda prefix, *, after="", recursive=False: (
            [
                name
                for name in map("{}/".format, map(paths.batch_name, range(40)))
                if prefix == paths.BATCHES and not recursive and name > after
            ]
            or found(prefix, after=after, recursive=recursive)
        ),
    )
    term = run.committers[0].term

    listed = []
    for marked in (10, 20, 30, 40):
        mark(place, "a", marked)
        place.requests.clear()
        collector.collect(term)
        listed.append(sum(request.startswith(f"list {paths.BATCHES}/") for request in place.requests))

    assert listed == [7, 17, 20, 20]
