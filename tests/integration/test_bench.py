"""The benchmarks' harness, with so little work that its numbers mean nothing: it measures, counts rows, writes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

import benchmarks.__main__ as run
from benchmarks import encoding, processor, timeline
from benchmarks.backends import Backends
from benchmarks.backends.http import body_of
from benchmarks.breakdown import breakdown, steps
from benchmarks.contests import (
    FEWER_ROUNDS,
    OBJECT_KEYS,
    OBJECT_TARGETS,
    TARGETS,
    UNITS,
    WITHOUT_TARGET,
    Sides,
    Target,
    contests,
)
from benchmarks.figures import (
    BEGIN,
    COST_PAGE,
    DOCUMENTS,
    END,
    PLOTS,
    README,
    THREE_FIGURES,
    committed_figures,
    figures,
    figures_in,
    write_figures,
)
from benchmarks.flink import Flink
from benchmarks.measure import Bout, Contest, Contestant, Deadline, Measured, Unit, ratio
from benchmarks.object_stores.contestants import ObjectContests, queries
from benchmarks.object_stores.slow_proxy import SlowProxy
from benchmarks.object_stores.store import ObjectStore
from benchmarks.ours import Ours
from benchmarks.report import write_report
from benchmarks.results import Results
from benchmarks.sizes import SIZES, TINY
from benchmarks.spark_rivals import SparkRivals
from benchmarks.workloads import GROUPS, table_of, write_workloads
from tests.support.components import require
from tests.support.processes import CHECKOUT
from tests.support.servers.http_server import HttpRequest, HttpServer
from wal_sink import Chunk

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


def test_contests_that_only_report_have_fewer_rounds(tmp_path: Path) -> None:
    seen: list[str] = []
    both = [Contest(key, key, Unit.SECONDS, (counting(key, seen),)) for key in ("a", "b")]
    Bout(both, tmp_path, Deadline(1)).run(3, silent, fewer={"b": 1})
    assert "".join(seen) == "abaa"
    plan = run.Plan(SIZES["full"])
    assert set(plan.fewer) == FEWER_ROUNDS == WITHOUT_TARGET | set(OBJECT_KEYS[2:])
    assert {"small-rows", "parquet", *BACKENDS}.difference(("postgresql", "kafka")) == WITHOUT_TARGET
    assert run.Plan(SIZES["full"], rounds=9).fewer == {}


def test_a_ratio_is_taken_round_by_round() -> None:
    found = ratio([1.0, 20.0, 3.0], [2.0, 40.0, 3.0])
    assert (found.median, found.least, found.most) == (0.5, 0.5, 1.0)


def test_more_rows_and_less_time_reach_a_target() -> None:
    target = Target("c", "what", 0.8, "rival")
    assert target.holds(0.9, Unit.ROWS_PER_S)
    assert not target.holds(0.9, Unit.SECONDS)


def test_every_target_is_of_a_contest_and_its_contestants(backends: Backends, tmp_path: Path) -> None:
    work = write_workloads(tmp_path, TINY)
    objects = ObjectContests(no_spark, ObjectStore())
    sides = Sides(Ours(no_spark), SparkRivals(no_spark), Flink(tmp_path, tmp_path), backends, objects)
    everything = list(contests(sides, work, TINY))
    there = {(contest.key, contestant.name) for contest in everything for contestant in contest.contestants}
    for target in (*TARGETS, *OBJECT_TARGETS):
        assert {(target.contest, target.ours), (target.contest, target.rival or target.ours)} <= there
    assert [contest.key for contest in everything if contest.key in BACKENDS] == list(BACKENDS)
    assert {contest.key for contest in everything} == set(UNITS)


def test_without_options_the_full_size_is_measured() -> None:
    assert run._options([]).size == "full"
    assert run._options(["--quick"]).size == "quick"


def test_every_round_is_kept_whatever_becomes_of_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = iter((1.0, 2.0))
    contest = Contest("sqlite", "A contest", Unit.SECONDS, (Contestant("a", lambda _: next(values)),))
    monkeypatch.setattr(run, "contests", lambda *_: [contest])
    kept = tmp_path / "results.json"

    with pytest.raises(StopIteration):
        run.measure(run.Plan(TINY, rounds=3, only=("sqlite",)), "make bench", lambda results: results.save(kept))

    results = Results.load(kept)
    assert [one.values for one in results.measured] == [[1.0, 2.0]]
    assert results.notes[-1] == "the run ended early: after 2 of 3 rounds"


def test_a_run_that_is_ended_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def end(_: Path) -> float:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(run, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(run, "contests", lambda *_: [Contest("sqlite", "", Unit.SECONDS, (Contestant("a", end),))])
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        run.measure(run.Plan(TINY, only=("sqlite",)), "make bench", lambda _: None)

    assert list((tmp_path / "cache").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_is_missing_is_told_in_the_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    there = Contest("sqlite", "A contest", Unit.SECONDS, (counting("a", seen),))
    absent = Contest("redis", "Another", Unit.SECONDS, (counting("b", seen),), lambda: "install it")
    monkeypatch.setattr(run, "contests", lambda *_: [there, absent])

    run.measure(run.Plan(TINY, only=("sqlite", "redis")), "make bench", lambda results: results.save(tmp_path / "kept"))

    results = Results.load(tmp_path / "kept")
    assert (seen, list(results.titles)) == (["a"], ["sqlite"])
    assert results.notes[1:] == ["redis was not measured: install it"]


def test_backends_tell_what_they_lack(backends: Backends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tests.support.servers.server.POSTGRESQL", tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    told = {backend.key: backend.missing() for backend in backends}
    assert {key for key, why in told.items() if why} == {"postgresql", "kafka", "mariadb", "redis"}
    assert "apt-get install" in told["postgresql"]
    assert "Java" in told["kafka"]
    work = write_workloads(tmp_path, TINY)
    sides = Sides(Ours(no_spark), SparkRivals(no_spark), None, backends, ObjectContests(no_spark, ObjectStore()))
    on_spark = [contest for contest in contests(sides, work, TINY) if contest.key not in BACKENDS]
    assert all("Java" in contest.missing() for contest in on_spark)


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


def test_the_time_of_the_table_is_told_with_what_the_log_takes_of_it() -> None:
    table = SIZES["tiny"].table_rows
    measured = [
        Measured("staging", "mapInArrow that drops its rows", Unit.SECONDS, [1.0, 3.0]),
        Measured("staging", "wal-sink", Unit.SECONDS, [5.0]),
        Measured("null", "wal-sink", Unit.ROWS_PER_S, [table / 9.0]),
    ]
    results = Results("tiny", MACHINE, {}, measured)

    assert [step.seconds for step in steps(results)] == pytest.approx([5.0, 9.0])
    assert [step.log for step in steps(results)] == [3.0, None]
    assert [line.split(" | ", 1)[1] for line in list(breakdown(results))[2:4]] == ["5 | 2 | 3 |", "9 |  |  |"]


def some_results() -> Results:
    measured = [
        Measured(contest, name, Unit.ROWS_PER_S, [value])
        for contest, name, value in (
            ("null", "wal-sink", 4.0),
            ("null", "foreachBatch + mapInArrow", 10.0),
            ("sqlite", "wal-sink", 8.0),
            ("sqlite", "sqlite3's executemany", 10.0),
            ("postgresql-path", "wal-sink", 7.0),
            ("postgresql-path", "foreachBatch + mapInArrow", 10.0),
        )
    ]
    titles = {"null": "Nowhere & back", "sqlite": "The table to SQLite"}
    return Results("tiny", MACHINE, titles, measured, ["a note"], date="2026-11-22", command="make bench")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_figures_stand_between_the_markers_of_a_document(document: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for each in DOCUMENTS:
        (tmp_path / each).write_text(f"before\n{BEGIN}\nof another run\n{END}\nafter\n")

    for _ in range(2):
        write_figures([some_results()], tmp_path)

    text = (tmp_path / document).read_text()
    assert text == f"before\n{BEGIN}{figures([some_results()], document)}{END}\nafter\n"


def test_the_cost_page_has_every_target_and_every_picture() -> None:
    text = figures([some_results()], COST_PAGE)
    assert "`make bench` on 2026-11-22: 2 cores, Python 3.11." in text
    assert "| whole path, null sink, against foreachBatch | ≥ 0.6 | 0.4 (0.4 to 0.4) | **no** |" in text
    assert all(f"| {target.what} |" in text for target in TARGETS)
    assert "| The table to SQLite | sqlite3's executemany | 0.8 (0.8 to 0.8) |" in text
    assert "![Nowhere & back](plots/null.svg)" in text
    assert "- a note\n" in text


def test_readme_has_three_figures_and_counts_what_was_missed() -> None:
    lines = figures([some_results()], README).strip().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("- **0.7** of the rows per second of `foreachBatch`")
    assert lines[1:3] == [f"- not measured: {what}" for what in list(THREE_FIGURES)[1:]]
    assert lines[3].startswith(
        f"- {len(TARGETS)} of {len(TARGETS)} performance goals are **not reached**: [all numbers](docs/cost.md)"
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_figures_of_a_document_are_those_of_the_committed_results(document: str) -> None:
    """Without results there are none. `make bench ARGS=--report` writes all of them again."""
    assert figures_in((CHECKOUT / document).read_text()) == committed_figures(document)


def test_every_committed_plot_is_of_a_contest_with_results() -> None:
    runs = Results.load_all(CHECKOUT / "benchmarks")
    measured = {key for results in runs for key in results.titles if results.of_contest(key)}
    assert {path.stem for path in PLOTS.iterdir()} == measured


def test_the_table_is_the_same_each_time_and_its_digests_are_64_digits() -> None:
    table = table_of(5, 3)
    assert table.equals(table_of(5, 3))
    assert table.column("id").to_pylist() == [5, 6, 7]
    assert [len(str(digest)) for digest in table.column("digest").to_pylist()] == [64] * 3
    assert len(set(table.column("digest").to_pylist())) == 3


def test_sizes_have_a_limit_of_time() -> None:
    assert SIZES["full"].minutes <= 30
    assert SIZES["quick"].minutes <= 5


def test_what_goes_into_a_database_is_six_batches(tmp_path: Path) -> None:
    work = write_workloads(tmp_path, TINY).sql
    assert work.rows == TINY.sql_rows
    assert len(list(work.folder.iterdir())) == 6 * work.files_per_batch


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


def test_the_grouped_query_expects_every_group_of_every_batch(tmp_path: Path) -> None:
    work = write_workloads(tmp_path, TINY)
    _, grouped = queries(work.objects, work.grouped, GROUPS)
    assert (grouped.rows, grouped.work.batches) == (1_000, 1)
    assert grouped.number(7.0) == 7.0
    with pytest.raises(RuntimeError, match="found 999"):
        grouped.require_all(999)


class Hello(HttpServer):
    def handle(self, request: HttpRequest, body: bytes) -> None:
        request.answer(200, body or b"hello", {})


def test_a_slow_proxy_delays_each_answer_and_counts_the_requests() -> None:
    with Hello() as server, closing(SlowProxy(int(server.url.rpartition(":")[2]), delay_s=0.2)) as proxy:
        began_s = time.monotonic()
        connection = HTTPConnection("127.0.0.1", proxy.port, timeout=10)
        for body in (b"", b"GET x" * (1 << 18), b""):
            connection.request("PUT", "/", body)
            assert connection.getresponse().read() == (body or b"hello")
        connection.close()
        assert time.monotonic() - began_s >= 0.6
        assert proxy.requests == 3


def measure_on_spark(
    session: Callable[[], SparkSession], backends: Backends, keys: tuple[str, ...], folder: Path
) -> dict[tuple[str, str], Measured]:
    work = write_workloads(folder / "work", TINY)
    with closing(ObjectStore()) as store:
        sides = Sides(Ours(session), SparkRivals(session), None, backends, ObjectContests(session, store))
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


def test_rows_that_did_not_arrive_end_the_run(backends: Backends, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="found 0, expected 3"):
        backends.sqlite.rate(3, lambda _: 1.0, tmp_path)


def test_the_rival_posts_the_bodies_that_our_sink_posts() -> None:
    table = table_of(0, 100)
    assert body_of(table) == Chunk.of(table, key="k").to_json()


def test_a_timeline_tells_jobs_and_objects_in_order_and_counts_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, folder = tmp_path / "events", tmp_path / "run"
    events.mkdir()
    started = {"Job ID": 1, "Submission Time": 7_000_050, "Stage IDs": [3]}
    ran = {"Launch Time": 7_000_060, "Finish Time": 7_000_090}
    lines = (
        {"Event": "SparkListenerJobStart", **started, "Properties": {"spark.job.description": "batch 0:\n stage"}},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 3, "Task Info": ran},
        {"Event": "SparkListenerJobStart", "Job ID": 2, "Submission Time": 9_000_000, "Stage IDs": []},
    )  # fmt: skip
    (events / "log").write_text("\n".join(map(json.dumps, lines)))
    for number, name in enumerate(
        ("checkpoint/offsets/0", "wal/sinks/a/progress/0000000000000000000/0.json", "checkpoint/commits/0")
    ):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (7_000 + number / 10, 7_000 + number / 10))

    timeline._tell(timeline.Ran("wal-sink", 7_000_000, 7_000_400, folder), timeline._jobs(events))

    assert capsys.readouterr().out.splitlines() == [
        "       0  offsets/0",
        "      50  job: batch 0: stage; tasks 60-90",
        "     200  commits/0",
        "     400  the end",
        "          1 records of progress for batch 0",
    ]


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        ("Spark's JVM", "java", "java org.apache.spark.deploy.SparkSubmit pyspark-shell"),
        ("Python workers", "python3", "python -m pyspark.daemon"),
        ("proxies", "python3", "python -c from multiprocessing.spawn import spawn_main"),
        ("servers", "minio", "minio server --address 127.0.0.1:1"),
    ],
)
def test_a_process_is_told_by_its_kind(kind: str, name: str, command: str) -> None:
    assert processor.kind_of(1, name, command.split()) == kind
    assert processor.kind_of(os.getpid(), name, command.split()) == "this process"


def test_what_processes_took_between_two_looks_is_summed_by_kind() -> None:
    before = {(1, "servers"): 2.0, (2, "proxies"): 1.0, (3, "servers"): 9.0}
    after = {(1, "servers"): 3.0, (2, "proxies"): 1.5, (4, "servers"): 0.25}

    assert processor.by_kind(before, after) == {"servers": 1.25, "proxies": 0.5}


def test_this_process_is_among_those_that_are_looked_at() -> None:
    assert processor.seconds_by_process()[os.getpid(), "this process"] > 0


def test_what_encoding_takes_is_told_by_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encoding, "ROWS", 1_000)
    monkeypatch.setattr("sys.argv", ["encoding", "--turns", "1"])

    encoding.main()

    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 + len(encoding.OTHERS)
    assert all(" ms " in line and line.endswith(" MB") for line in said)
