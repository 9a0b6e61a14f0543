"""A small part of `make chaos`, with a fixed seed: faults of S3, races for one object, damaged objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import corruption, races, store_faults, store_kills
from tests.chaos.racing import LOST, NOBODY, WON
from tests.chaos.s3_faults import FAULTS
from tests.chaos.s3_world import s3_place
from tests.chaos.scenario import Effort, Scenario
from tests.chaos.spoiling import BATCHES, Campaign, Fault, Stage, spoil
from tests.chaos.store_places import AZURITE, FAKE_GCS, HDFS, MINIO, SEAWEEDFS, WEBHDFS, ServedStore, place_at
from tests.chaos.store_world import Sight, StoreWorld
from tests.house.stores import MemoryStore, ObjectMissing, StoreSpec
from tests.support.servers.azurite import AzuriteServer
from tests.support.servers.minio import MinioServer

pytest_plugins = ["tests.support.fixtures.servers"]

SEED = 7
LEAST = 0.0001
"""A share so small that every scenario does its minimum."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with s3_place() as place:
        yield Stage(place)


@pytest.mark.s3
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_spoilt_request_is_repaired_or_told_and_the_next_start_finishes(
    fault: Fault, stage: Stage, tmp_path: Path
) -> None:
    outcome = spoil(fault, stage, Effort(SEED, tmp_path, LEAST))
    assert outcome.holds, outcome


SERVED = [
    pytest.param(SEAWEEDFS, "seaweedfs", 3, marks=pytest.mark.s3),
    pytest.param(MINIO, "minio", 3, marks=pytest.mark.s3),
    pytest.param(AZURITE, "azurite", 3),
    pytest.param(FAKE_GCS, "fake_gcs", 3),
    pytest.param(WEBHDFS, "hdfs", 3, marks=pytest.mark.hdfs),
    pytest.param(HDFS, "hdfs", 2, marks=pytest.mark.hdfs),
]


@pytest.mark.parametrize(("store", "server", "least"), SERVED)
def test_spoilt_requests_to_a_server_lose_nothing(
    store: ServedStore, server: str, least: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    effort = Effort(SEED, tmp_path, LEAST)
    outcome = store_faults.run_at(store, request.getfixturevalue(server), effort, least=least)
    assert outcome.holds, outcome


@pytest.mark.s3
def test_a_minio_that_is_killed_amid_a_run_loses_nothing(minio: MinioServer) -> None:
    (mortal,) = MINIO.mortals
    outcome = store_kills.kill_at(mortal, [MINIO], minio, Effort(SEED, Path(), LEAST), rounds=2)
    assert outcome.holds, outcome


def test_an_empty_answer_to_a_listing_of_azurite_is_told_and_the_next_start_finishes(azurite: AzuriteServer) -> None:
    """Azure's own client meets it with an `AttributeError`."""
    (fault,) = (fault for fault in store_faults.OVER_HTTP if fault.name == "empty answer of success")
    with place_at(AZURITE, azurite) as place:
        stage = Stage(place)
        target = next(one for one in stage.targets(fault, "plain", taken_over=False) if "comp=list" in one.what)
        outcome = Campaign(stage, Effort(SEED, Path(), 1)).run([(fault, target)])
    assert outcome.holds, outcome


@pytest.mark.parametrize(("store", "name"), [(AZURITE, "azurite"), (FAKE_GCS, "fake_gcs")], ids=["Azurite", "GCS"])
def test_runs_that_die_on_an_emulator_are_finished_by_the_next(
    store: ServedStore, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outcome = store_kills.die_at(store, request.getfixturevalue(name), Effort(SEED, tmp_path, LEAST), least=2)
    assert outcome.holds, outcome


def test_a_release_that_was_not_seen_since_the_server_died_is_seen_before_its_rows_are_sent() -> None:
    store = MemoryStore(StoreSpec("memory://not-seen"))
    down = iter([True])

    def names() -> list[str]:
        found = store.list("", recursive=True)
        if any(name.endswith("/release.json") for name in found) and next(down, False):
            raise ConnectionError("set by a test")
        return found

    world = StoreWorld(store, Sight(names, store.read), "plain", BATCHES, mortal=True)
    assert world.life().live()
    world.check_end(crashes=0)
    assert next(down, False) is False


@pytest.mark.parametrize("scenario", corruption.SCENARIOS, ids=[scenario.name for scenario in corruption.SCENARIOS])
def test_damage_is_told_or_has_no_effect(scenario: Scenario, tmp_path: Path) -> None:
    outcome = scenario.run(Effort(SEED, tmp_path, 0.01))
    assert outcome.holds, outcome
    assert "named in a clear error" in outcome.detail


@pytest.mark.s3
def test_one_process_wins_on_s3_and_all_read_its_bytes(tmp_path: Path) -> None:
    outcome = races.race_on_s3(20, tmp_path, count=3)
    assert outcome.holds, outcome


@pytest.mark.parametrize("name", ["memory", "generic store"])
def test_one_thread_wins_and_all_read_its_bytes(name: str, tmp_path: Path) -> None:
    scenario = next(scenario for scenario in races.SCENARIOS if scenario.name.endswith(name))
    outcome = scenario.run(Effort(SEED, tmp_path, 0.05))
    assert outcome.holds, outcome


def test_two_winners_or_foreign_bytes_would_show() -> None:
    won, lost = bytes([WON, 0]), bytes([LOST, 0])
    assert races.judge([won, lost], 1).holds
    assert not races.judge([won, won], 1).holds, "two winners"
    assert not races.judge([lost, lost], 1).holds, "no winner"
    assert not races.judge([won, bytes([LOST, NOBODY])], 1).holds, "foreign bytes"
    assert not races.judge([won, b""], 1).holds, "a racer that did not finish"


def test_a_store_that_looks_first_and_writes_then_has_two_winners(tmp_path: Path) -> None:
    store = Hesitant(f"memory://hesitant-{tmp_path.name}")
    assert not races.race_threads(store, 5).holds


class Hesitant(MemoryStore):
    """A store that looks whether a path is free, waits until the others have looked too, and then writes."""

    def __init__(self, url: str) -> None:
        super().__init__(StoreSpec(url))
        self._looked = threading.Barrier(races.RACERS)

    def create(self, path: str, data: bytes) -> None:
        try:
            self.read(path)
        except ObjectMissing:
            self._looked.wait(30)
            self.delete([path])
        super().create(path, data)
