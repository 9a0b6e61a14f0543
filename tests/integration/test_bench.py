"""The benchmarks' harness, with so little work that its numbers mean nothing: it measures, counts rows, writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks.backends import Backends
from benchmarks.contests import (
    LAKE_KEYS,
    LAKE_TARGETS,
    OBJECT_KEYS,
    OBJECT_TARGETS,
    TARGETS,
    UNITS,
    Sides,
    contests,
)
from benchmarks.figures import (
    DOCUMENTS,
    committed_figures,
    figures_in,
)
from benchmarks.flink import Flink
from benchmarks.lakes import LakeContests
from benchmarks.measure import Bout, Contest, Contestant, Deadline, Measured, Unit
from benchmarks.object_stores.contestants import ObjectContests
from benchmarks.object_stores.store import ObjectStore
from benchmarks.ours import Ours
from benchmarks.report import write_report
from benchmarks.results import Results
from benchmarks.sizes import TINY
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import write_workloads
from tests.support.components import require
from tests.support.processes import CHECKOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MACHINE = {"cores": "2", "Python": "3.11"}
SPARK_CONTESTS = ("staging", "csv-flights", "sql", "parquet", "small", "small-rows", "latency")
"""Each way a contestant measures, once."""
LIMIT_MIN = 60
"""More than a test may take: a contest that a slow machine left out would be missed."""
BACKENDS = ("postgresql", "kafka", "sqlite", "mariadb", "redis", "http", "dynamodb", "files", "files-two-phase")


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    with closing(Backends()) as found:
        yield found


def no_spark() -> SparkSession:
    raise AssertionError("nothing is measured")


def silent(_: str) -> None:
    """Says nothing."""


def counting(name: str, seen: list[str], value: float = 1.0) -> Contestant:
    def measure(folder: Path) -> float:
        assert list(folder.iterdir()) == []
        (folder / "left").touch()
        seen.append(name)
        return value

    return Contestant(name, measure)


def test_every_target_is_of_a_contest_and_its_contestants(backends: Backends, tmp_path: Path) -> None:
    work = write_workloads(tmp_path, TINY)
    objects = ObjectContests(no_spark, ObjectStore())
    lakes = LakeContests(no_spark)
    sides = Sides(Ours(no_spark), SparkRivals(no_spark), Flink(tmp_path, tmp_path), backends, objects, lakes)
    everything = list(contests(sides, work, TINY))
    there = {(contest.key, contestant.name) for contest in everything for contestant in contest.contestants}
    for target in (*TARGETS, *OBJECT_TARGETS, *LAKE_TARGETS):
        assert {(target.contest, target.ours), (target.contest, target.rival or target.ours)} <= there
    assert [contest.key for contest in everything if contest.key in BACKENDS] == list(BACKENDS)
    assert {contest.key for contest in everything} == set(UNITS)


def test_results_are_written_and_read_again_and_every_plot_is_a_picture(tmp_path: Path) -> None:
    ours, theirs = Measured("null", "wal-sink", Unit.ROWS_PER_S, [4.0, 6.0]), [10.0, 10.0]
    rival = Measured("null", "foreachBatch + mapInArrow", Unit.ROWS_PER_S, theirs)
    contest = Contest("null", "Nowhere & back", Unit.ROWS_PER_S, ())
    began = Results("tiny", MACHINE, notes=["a note"], date="2026-11-22", command="make bench")
    results = began.with_measured([contest], [ours, rival, Measured("x", "y", Unit.SECONDS)], ["another"])
    (tmp_path / "report").mkdir()
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results

    write_report([results], tmp_path / "report", tmp_path / "plots")

    text = (tmp_path / "report" / "RESULTS.md").read_text()
    assert "| whole path, null sink, against foreachBatch | ≥ 0.6 | 0.5 (0.4 to 0.6) | **no** |" in text
    assert "| whole path, SQLite | ≥ 0.9 | not measured | |" in text
    assert "- a note\n- another\n" in text
    assert "![Nowhere & back](../plots/null.svg)" in text
    assert ET.fromstring((tmp_path / "plots" / "null.svg").read_text()).tag.endswith("svg")  # noqa: S314


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_figures_of_a_document_are_those_of_the_committed_results(document: str) -> None:
    """Without results there are none. `make bench ARGS=--report` writes all of them again."""
    assert figures_in((CHECKOUT / document).read_text()) == committed_figures(document)


@pytest.mark.spark
def test_ours_and_spark_rivals_are_measured(spark: SparkSession, backends: Backends, tmp_path: Path) -> None:
    measured = measure_on_spark(lambda: spark, backends, SPARK_CONTESTS, tmp_path)
    assert {key for key, _ in measured} == set(SPARK_CONTESTS)
    assert all(one.values[0] > 0 for one in measured.values())


@pytest.mark.spark
def test_the_whole_path_into_postgresql_is_measured(spark: SparkSession, backends: Backends, tmp_path: Path) -> None:
    why = backends.postgresql.missing()
    require(not why, why)
    measured = measure_on_spark(lambda: spark, backends, ("postgresql-path",), tmp_path)
    assert [one.values[0] > 0 for one in measured.values()] == [True, True]


@pytest.mark.spark
def test_a_log_on_s3_is_measured_with_its_requests(spark: SparkSession, backends: Backends, tmp_path: Path) -> None:
    measured = measure_on_spark(lambda: spark, backends, OBJECT_KEYS[:2], tmp_path)
    assert len(measured) == 6
    assert all(one.values[0] > 0 for one in measured.values())


@pytest.mark.spark
def test_a_table_of_a_lake_is_measured_with_the_bytes_of_its_runs(
    spark: SparkSession, backends: Backends, tmp_path: Path
) -> None:
    measured = measure_on_spark(lambda: spark, backends, LAKE_KEYS, tmp_path)
    assert all(one.values[0] > 0 for one in measured.values())


def measure_on_spark(
    session: Callable[[], SparkSession], backends: Backends, keys: tuple[str, ...], folder: Path
) -> dict[tuple[str, str], Measured]:
    work = write_workloads(folder / "work", TINY)
    with closing(ObjectStore()) as store:
        sides = Sides(
            Ours(session), SparkRivals(session), None, backends, ObjectContests(session, store), LakeContests(session)
        )
        everything = contests(sides, work, TINY)
        bout = Bout([contest for contest in everything if contest.key in keys], folder, Deadline(LIMIT_MIN))
        bout.run(1, silent)
    return bout.measured


@pytest.mark.parametrize("key", BACKENDS)
def test_a_backend_and_its_client_are_measured(key: str, backends: Backends, tmp_path: Path) -> None:
    (backend,) = (one for one in backends if one.key == key)
    why = backend.missing()
    require(not why, why)
    contestants = list(backend.contestants(TINY.backend_rows))
    assert contestants
    for number, contestant in enumerate(contestants):
        (tmp_path / str(number)).mkdir()
        assert contestant.measure(tmp_path / str(number)) > 0, contestant.name
