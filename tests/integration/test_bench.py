"""The benchmarks' harness, with so little work that its numbers mean nothing: it measures, counts rows, writes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks.backends import Backends
from benchmarks.contests import TARGETS, Target, backend_contests, contests
from benchmarks.flink import Flink
from benchmarks.measure import Bout, Contest, Contestant, Deadline, Measured, Unit, ratio
from benchmarks.ours import Ours
from benchmarks.report import PLOTS, write_report
from benchmarks.results import Results
from benchmarks.sizes import SIZES, TINY
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import table_of, write_workloads
from tests.components import require
from tests.databases import HOW_TO_GET_THEM, program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MACHINE = {"cores": "2"}
SPARK_CONTESTS = ("staging", "csv-flights", "sql", "parquet", "small", "latency")
"""Each way a contestant measures, once."""


def silent(_: str) -> None:
    """Says nothing."""


def counting(name: str, seen: list[str], value: float = 1.0) -> Contestant:
    def measure(folder: Path) -> float:
        assert list(folder.iterdir()) == []
        (folder / "left").touch()
        seen.append(name)
        return value

    return Contestant(name, measure)


def test_contestants_take_turns_in_an_order_that_turns_each_round(tmp_path: Path) -> None:
    seen: list[str] = []
    contest = Contest("c", "A contest", Unit.SECONDS, (counting("a", seen), counting("b", seen)))
    bout = Bout([contest], tmp_path, Deadline(1))
    bout.run(3, silent)
    assert "".join(seen) == "abbaab"
    assert [len(one.values) for one in bout.measured.values()] == [3, 3]


def test_without_time_left_a_round_is_left_out_and_told(tmp_path: Path) -> None:
    seen: list[str] = []
    contest = Contest("c", "A contest", Unit.SECONDS, (counting("a", seen),))
    bout = Bout([contest], tmp_path, Deadline(-1))
    bout.run(1, silent)
    assert (seen, bout.skipped) == ([], ["c, round 1"])


def test_a_ratio_is_taken_round_by_round() -> None:
    found = ratio([1.0, 20.0, 3.0], [2.0, 40.0, 3.0])
    assert (found.median, found.least, found.most) == (0.5, 0.5, 1.0)


def test_more_rows_and_less_time_reach_a_target() -> None:
    target = Target("c", "what", 0.8, "rival")
    assert target.holds(0.9, Unit.ROWS_PER_S)
    assert not target.holds(0.9, Unit.SECONDS)


def test_every_target_is_of_a_contest_and_its_contestants(tmp_path: Path) -> None:
    work = write_workloads(tmp_path, TINY)
    flink = Flink(tmp_path, tmp_path)
    spark: SparkSession = None  # type: ignore[assignment]  # nothing is measured
    with closing(Backends(0)) as backends:
        backends.has_postgresql = backends.has_kafka = True  # none is started before it is measured
        there = {
            (contest.key, contestant.name)
            for contest in (
                *contests(Ours(spark), SparkRivals(spark), flink, work, TINY),
                *backend_contests(backends),
            )
            for contestant in contest.contestants
        }
    for target in TARGETS:
        assert {(target.contest, target.ours), (target.contest, target.rival or target.ours)} <= there


def test_results_are_written_and_read_again_and_every_plot_is_a_picture(tmp_path: Path) -> None:
    ours, theirs = Measured("null", "wal-sink", Unit.ROWS_PER_S, [4.0, 6.0]), [10.0, 10.0]
    rival = Measured("null", "foreachBatch + mapInArrow", Unit.ROWS_PER_S, theirs)
    contest = Contest("null", "Nowhere & back", Unit.ROWS_PER_S, ())
    results = Results.of("tiny", MACHINE, [contest], [ours, rival, Measured("x", "y", Unit.SECONDS)], ["a note"])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results

    write_report(results, tmp_path)

    text = (tmp_path / "RESULTS.md").read_text()
    assert "| whole path, null sink, against foreachBatch | ≥ 0.6 | 0.5 (0.4 to 0.6) | **no** |" in text
    assert "| whole path, SQLite | ≥ 0.9 | not measured | |" in text
    assert "- a note" in text
    assert ET.fromstring((tmp_path / PLOTS / "null.svg").read_text()).tag.endswith("svg")  # noqa: S314


def test_the_table_is_the_same_each_time_and_its_digests_are_64_digits() -> None:
    table = table_of(5, 3)
    assert table.equals(table_of(5, 3))
    assert table.column("id").to_pylist() == [5, 6, 7]
    assert [len(str(digest)) for digest in table.column("digest").to_pylist()] == [64] * 3
    assert len(set(table.column("digest").to_pylist())) == 3


def test_sizes_have_a_limit_of_time() -> None:
    assert SIZES["full"].minutes <= 30
    assert SIZES["quick"].minutes <= 5


@pytest.mark.spark
def test_ours_and_spark_rivals_are_measured(spark: SparkSession, tmp_path: Path) -> None:
    work = write_workloads(tmp_path / "work", TINY)
    everything = contests(Ours(spark), SparkRivals(spark), None, work, TINY)
    bout = Bout([contest for contest in everything if contest.key in SPARK_CONTESTS], tmp_path, Deadline(5))
    bout.run(1, silent)
    assert {key for key, _ in bout.measured} == set(SPARK_CONTESTS)
    assert all(one.values[0] > 0 for one in bout.measured.values())


def test_backends_and_their_clients_are_measured(tmp_path: Path) -> None:
    require(program("initdb") is not None, HOW_TO_GET_THEM)
    with closing(Backends(20_000)) as backends:
        for contestant in (*backends.postgresql(), *backends.kafka()):
            assert contestant.measure(tmp_path) > 0, contestant.name
