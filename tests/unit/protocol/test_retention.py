"""Objects are collected, some are held back, and a log costs few requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import wal_sink.protocol.collect
from tests.house.log import Log, paths
from tests.simulation.histories.lives import lower_retention
from tests.simulation.scenarios import LONG, collections
from tests.simulation.world import World
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError
from wal_sink.settings import Delivery, Settings
from wal_sink.stores import creation
from wal_sink.testing import simulated_runtime

KEPT = 4


@pytest.fixture
def collects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)


def batch_ids(place: Place, folder: str) -> list[int]:
    return [int(name.rstrip("/").removesuffix(".json")) for name in place.wal.list(folder)]


def low_water(place: Place) -> int:
    return max(batch_ids(place, paths.LOW_WATER), default=-1)


@pytest.mark.usefixtures("collects_often")
def test_low_water_moves_before_anything_is_deleted() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 9)

    first_raise = next(n for n, name in enumerate(place.requests) if name.startswith("create low-water"))
    deletes = [n for n, name in enumerate(place.requests) if name.startswith(("delete batches", "delete sinks"))]
    assert deletes
    assert first_raise < deletes[0]


@pytest.mark.no_cover
@pytest.mark.usefixtures("collects_often")
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "transactional"])
def test_a_crash_at_any_point_of_a_collection_keeps_the_invariants(kind: str) -> None:
    assert sum(1 for _ in collections(kind)) >= 60


@pytest.mark.usefixtures("collects_often")
def test_what_a_crash_left_of_a_collection_goes_with_the_next() -> None:
    place = Place()
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    place.stream(run, 6)
    leftover = f"{paths.batch(0)}/left.parquet"
    place.wal.create(leftover, b"")

    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 7)

    assert leftover not in place.wal.list("", recursive=True)


@pytest.mark.usefixtures("collects_often")
def test_a_probe_that_a_crash_left_goes_with_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before it was known for so long that no process can be using it."""
    place = Place()
    leftover, _ = creation.new_object(simulated_runtime(1))
    place.wal.create(leftover, b"")
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    place.stream(run, 6)
    assert leftover in place.wal.list("", recursive=True)

    monkeypatch.setattr(creation, "LEFT_BEHIND_S", 0.0)
    place.stream(run, 8)

    assert leftover not in place.wal.list("", recursive=True)


@pytest.mark.usefixtures("collects_often")
def test_the_retention_window_keeps_markers_releases_and_segments() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 9)

    kept = list(range(10 - KEPT, 10))
    assert low_water(place) == kept[0] - 1
    assert batch_ids(place, paths.BATCHES) == kept
    assert batch_ids(place, paths.markers("a")) == kept


@pytest.mark.usefixtures("collects_often")
def test_terms_and_registrations_are_never_collected() -> None:
    place = Place()
    for through in (3, 6, 9):
        place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), through)

    assert batch_ids(place, paths.terms(paths.STAGER_ROLE)) == [1, 2, 3]
    assert batch_ids(place, paths.terms(paths.committer_role("a"))) == [1, 2, 3]
    assert place.wal.list("sinks/a", recursive=True).count("sink.json") == 1


@pytest.mark.usefixtures("collects_often")
def test_an_absent_sink_holds_collection_back_and_costs_no_listings_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 5)
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(KEPT)), 1)
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))

    place.stream(run, 12)
    place.requests.clear()
    place.stream(run, 30)

    assert low_water(place) == -1
    assert batch_ids(place, paths.BATCHES) == list(range(31))
    assert sum(name.startswith("list") for name in place.requests) <= 18 / 5 * 4 + 4


@pytest.mark.usefixtures("collects_often")
def test_a_sink_that_returns_catches_up_and_lets_collection_go_on() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(KEPT)), 1)
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 12)
    late = Recorder()

    run = place.open({"a": Recorder(), "b": late}, settings=lower_retention(KEPT))
    run.deliver_all()
    place.stream(run, 13)

    assert late.batches == list(range(2, 14))
    assert low_water(place) >= 12 - KEPT


def test_a_new_name_on_a_wal_with_history_is_refused_with_the_ways_out() -> None:
    place = Place()
    place.stream(place.open({"old": Recorder()}), 2)

    with pytest.raises(ConfigError, match=r"'new' is new to .* already holds batches up to 2") as refused:
        place.open({"new": Recorder()})

    assert "start_from='earliest'" in str(refused.value)
    assert "wal-sink sinks rename WAL OLD new" in str(refused.value)
    assert "wal-sink sinks retire WAL OLD" in str(refused.value)
    assert "'old'" in str(refused.value)
    assert place.wal.list("sinks") == ["old/"]


@pytest.mark.usefixtures("collects_often")
def test_a_new_sink_from_the_earliest_gets_everything_that_is_left() -> None:
    place = Place()
    place.stream(place.open({"old": Recorder()}, settings=lower_retention(KEPT)), 9)
    new = Recorder()

    place.open({"old": Recorder(), "new": Delivery(new, start_from="earliest")}).deliver_all()

    assert new.batches == list(range(10 - KEPT, 10))


def test_a_new_sink_from_the_next_gets_only_what_is_completed_from_now_on() -> None:
    place = Place()
    place.stream(place.open({"old": Recorder()}), 2)
    new = Recorder()

    run = place.open({"old": Recorder(), "new": Delivery(new, start_from="next")})
    run.deliver_all()
    place.stream(run, 4)

    assert new.batches == [3, 4]


@pytest.mark.usefixtures("collects_often")
def test_a_sink_that_registers_while_low_water_moves_keeps_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    place, late = Place(), Recorder()
    raise_low_water = Log.raise_low_water

    def register_first(self: Log, batch_id: int, marked: Mapping[str, int]) -> None:
        if "late/" not in place.wal.list("sinks"):
            place.open({"late": Delivery(late, start_from="earliest")})
        raise_low_water(self, batch_id, marked)

    monkeypatch.setattr(Log, "raise_low_water", register_first)
    place.stream(place.open({"old": Recorder()}, settings=lower_retention(KEPT)), 9)

    place.open({"late": Delivery(late)}).deliver_all()

    assert late.batches == list(range(10))


def test_a_failing_collection_stops_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    for error in (StoreError("down"), OutcomeUnknownError("no answer")):
        place, sink = Place(), Recorder()
        run = place.open({"a": sink}, settings=lower_retention(KEPT))

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(type(run._collector), "collect", fail)
        place.stream(run, 8)

        assert sink.batches == list(range(9))
        assert "will be repeated" in caplog.text


def test_an_idle_run_asks_the_store_for_nothing() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 2)
    place.requests.clear()

    for _ in range(10):
        run.deliver_all()

    assert place.requests == []


def test_less_than_spark_keeps_is_refused() -> None:
    with pytest.raises(ConfigError, match="retention_batches=99: expected at least 100"):
        Settings(retention_batches=99)


@pytest.mark.usefixtures("collects_often")
def test_collection_deletes_nothing_that_an_undelivered_batch_needs() -> None:
    """The judge watches every single delete."""
    world = World(batches=LONG, retention=1)
    life = world.life()
    assert life.live()

    assert any(point.startswith("before delete batches") for point in life.points)
    assert world.judge.deletions
    world.check_end(crashes=0)
