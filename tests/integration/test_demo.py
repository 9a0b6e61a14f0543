"""The demo in small, and its proof: one that could not fail would prove nothing."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import wal_sink.walsink
from examples.demo import command, proof, source
from examples.demo.controller import Killed, Result
from examples.demo.folder import Folder
from examples.demo.job import CARRIER_NAME, DELAY_CLASS, DELIVERED_COLUMNS, EXACT, PLAIN
from examples.demo.plain_sink import ROW_KEY
from examples.demo.plan import Aim, planned_kills
from examples.demo.stage import make_folder
from examples.demo.watch import Seen, Watch
from tests.house.operate import WalFacts, read_batches, read_status
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.components import require
from tests.support.fixtures.spark import JAVA_HINT
from tests.support.processes import Child, python_environment
from tests.support.programs.quick_workers import SUBMIT
from wal_sink import Chunk, ConfigError, Delivery, DeliveryError, PermanentError, Settings, Sink, WalSink
from wal_sink.testing import FakeQuery

ROWS = 50


@pytest.fixture
def stream(tmp_path: Path) -> source.Stream:
    """Fifty flights in three files, all arrived."""
    made = source.write_stream(tmp_path, files=3, rows=ROWS)
    for number in range(3):
        made.arrive(number)
    return made


def enriched(stream: source.Stream) -> list[dict[str, str | int | None]]:
    """Return the rows that a right query delivers, in plain Python and apart from the proof's own code."""
    names = dict(list(csv.reader(stream.airlines.read_text().splitlines()))[1:])
    rows: list[dict[str, str | int | None]] = []
    for path in stream.arrived:
        for row in csv.DictReader(path.read_text().splitlines()):
            typed: dict[str, str | int | None] = {
                name: None if value == "NA" else value if name in source.TEXTS else int(value)
                for name, value in row.items()
            }
            delay = row["dep_delay"]
            late = (
                "on time"
                if delay != "NA" and int(delay) <= 15
                else "late"
                if delay != "NA" and int(delay) <= 60
                else ""
            )
            typed[CARRIER_NAME] = names[row["carrier"]]
            typed[DELAY_CLASS] = "cancelled" if row["dep_time"] == "NA" else late or "very late"
            rows.append(typed)
    return rows


def as_table(path: Path, rows: list[dict[str, str | int | None]]) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE flights ({', '.join(DELIVERED_COLUMNS)})")
    marks = ", ".join("?" for _ in DELIVERED_COLUMNS)
    values = [[row[name] for name in DELIVERED_COLUMNS] for row in rows]
    connection.executemany(f"INSERT INTO flights VALUES ({marks})", values)
    connection.commit()
    connection.close()
    return path


def judged(stream: source.Stream, rows: list[dict[str, str | int | None]]) -> proof.Compared:
    expected = proof.source_rows(stream.arrived, stream.airlines)
    return proof.compare(expected, proof.table_rows(as_table(stream.folder.parent / "t.db", rows)))


def test_the_proof_accepts_what_is_right(stream: source.Stream) -> None:
    found = judged(stream, enriched(stream))
    assert found == proof.Compared(rows=ROWS, lost=0, duplicated=0, foreign=0)
    assert found.is_exact


def test_the_proof_sees_a_lost_row(stream: source.Stream) -> None:
    found = judged(stream, enriched(stream)[1:])
    assert (found.lost, found.duplicated, found.is_exact) == (1, 0, False)


def test_the_proof_sees_a_row_that_came_twice(stream: source.Stream) -> None:
    rows = enriched(stream)
    found = judged(stream, [*rows, rows[7], rows[7]])
    assert (found.lost, found.duplicated, found.is_exact) == (0, 2, False)


def test_a_lost_row_is_not_made_up_for_by_one_that_came_twice(stream: source.Stream) -> None:
    rows = enriched(stream)
    found = judged(stream, [*rows[1:], rows[-1]])
    assert (found.rows, found.lost, found.duplicated) == (ROWS, 1, 1)


@pytest.mark.parametrize(
    ("column", "value"), [("distance", 1), (CARRIER_NAME, "x"), (DELAY_CLASS, None), ("tailnum", "?")]
)
def test_the_proof_sees_an_altered_value(stream: source.Stream, column: str, value: str | int | None) -> None:
    rows = enriched(stream)
    rows[3][column] = value
    found = judged(stream, rows)
    assert (found.lost, found.foreign, found.duplicated) == (1, 1, 0)


def test_the_plain_files_are_read_with_their_repeats(stream: source.Stream, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for number in range(2):
        with (plain / f"batch-{number}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [ROW_KEY, *DELIVERED_COLUMNS])
            writer.writeheader()
            writer.writerows({ROW_KEY: "k", **row} for row in enriched(stream)[: 10 + number])
    found = proof.compare(proof.source_rows(stream.arrived, stream.airlines), proof.plain_rows(plain))
    assert (found.rows, found.lost, found.duplicated, found.foreign) == (21, ROWS - 11, 10, 0)


def test_the_verdict() -> None:
    cases: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
        ((9, 0, 0, 0), (9, 0, 0, 0), True),
        ((9, 0, 0, 0), (14, 0, 5, 0), True),
        ((9, 0, 0, 0), (15, 0, 6, 0), False),
        ((9, 0, 0, 0), (8, 1, 0, 0), False),
        ((10, 0, 1, 0), (9, 0, 0, 0), False),
        ((8, 1, 0, 0), (9, 0, 0, 0), False),
        ((9, 1, 0, 1), (9, 0, 0, 0), False),
    ]
    for exact, plain, holds in cases:
        verdict = proof.Proof(9, proof.Compared(*exact), proof.Compared(*plain), window_rows=5)
        assert verdict.holds is holds


def test_every_row_of_the_stream_has_its_own_number(stream: source.Stream) -> None:
    numbers = [row["row_id"] for path in stream.arrived for row in csv.DictReader(path.read_text().splitlines())]
    assert len(numbers) == ROWS
    assert Counter(numbers).most_common(1)[0][1] == 1
    assert stream.ended.exists()


def test_kills_are_spread_and_repeatable() -> None:
    for seed in range(20):
        plan = planned_kills(5, 20, seed)
        assert plan == planned_kills(5, 20, seed)
        assert [kill.file for kill in plan] == sorted({kill.file for kill in plan})
        assert plan[-1].file < 18
        assert plan[0].aim is not Aim.TAKEOVER
        assert Counter(kill.aim for kill in plan) == {Aim.STAGING: 2, Aim.DELIVERY: 2, Aim.TAKEOVER: 1}


def test_more_kills_than_batches_are_refused() -> None:
    with pytest.raises(ConfigError, match="need at least 7 batches"):
        planned_kills(5, 6, seed=0)


def test_a_folder_of_the_users_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other things"):
        make_folder(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_folder_of_an_earlier_demo_is_made_anew(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "out")
    (folder / "flights.db").touch()
    assert not (make_folder(folder) / "flights.db").exists()


# --- the look at the store, against wal-sink's own


class Taking(Sink):
    """Takes every chunk, or refuses the second one of each segment."""

    def __init__(self, *, refuses_second: bool = False) -> None:
        self._refuses_second = refuses_second

    def write(self, chunk: Chunk) -> None:
        if self._refuses_second and chunk.start:
            raise PermanentError("not this one")


@dataclass
class Watched:
    """A log of batches with two segments of two chunks each, and two looks at it: the demo's and wal-sink's."""

    folder: Path

    def __post_init__(self) -> None:
        self.checkpoint, self.log = (open_store(StoreSpec(str(self.folder / name))) for name in ("checkpoint", "wal"))
        self.watch = Watch(Folder(self.log.root), Folder(self.checkpoint.root))
        run = Run(self.log, self.checkpoint, Settings(chunk_rows=1))
        run.open()
        run.become_stager()
        self.batches = FakeQuery(self.checkpoint, lambda *_: [pa.table({"id": [1, 2]})] * 2).batches(run, 3)

    def drain(self, plain: Sink) -> None:
        targets = {EXACT: Delivery(Taking(), start_from="earliest"), PLAIN: Delivery(plain, start_from="earliest")}
        WalSink(targets, wal=self.log.root, checkpoint=self.checkpoint.root).drain()

    def look(self) -> Seen:
        """The demo's look, held to each number that wal-sink tells as well."""
        seen, status, batches = self.watch.look(), read_status(self.log), read_batches(WalFacts(self.log))
        assert seen.staged == status.newest_batch
        assert seen.queries == status.stager_term
        through = {sink.name: sink.delivered_through for sink in status.sinks}
        assert seen.delivered == {name: through.get(name, -1) for name in (EXACT, PLAIN)}
        assert seen.takeovers == max((sink.term for sink in status.sinks if sink.name == PLAIN), default=0)
        assert self.watch.attempts() == {batch.batch_id: batch.attempts for batch in batches}
        return seen


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)  # one that another test made
    return Watched(tmp_path)


def test_a_look_at_an_empty_log_finds_nothing(watched: Watched) -> None:
    seen = watched.look()
    assert (seen.started, seen.staged, seen.completed, seen.delivered_to_all) == (-1, -1, -1, -1)
    assert seen.is_idle
    assert watched.watch.moment(seen) == "between two batches"
    assert watched.watch.segments_in_delivery(seen, PLAIN) == 0


def test_a_look_at_a_delivery_under_way_tells_its_batch_and_its_chunks(watched: Watched) -> None:
    next(watched.batches)
    seen = watched.look()
    assert watched.watch.moment(seen) == "batch 0 complete, its delivery not begun"
    assert watched.watch.segments_in_delivery(seen, PLAIN) == 2

    watched.drain(Taking())
    seen = watched.look()
    assert (seen.completed, seen.delivered_to_all, seen.is_idle) == (0, 0, True)

    next(watched.batches)
    with pytest.raises(DeliveryError):
        watched.drain(Taking(refuses_second=True))
    seen = watched.look()
    chunks = len(list((watched.folder / f"wal/sinks/plain/progress/{1:019}").iterdir()))
    assert seen.delivered[PLAIN] == 0
    assert chunks > 0
    assert f"delivering batch 1 to the plain folder, chunks recorded: {chunks}" in watched.watch.moment(seen)


def test_a_batch_that_spark_began_is_told(watched: Watched) -> None:
    next(watched.batches)
    watched.drain(Taking())
    (watched.folder / "checkpoint/offsets/1").touch()
    seen = watched.look()
    assert (seen.started, seen.is_idle) == (1, False)
    assert watched.watch.moment(seen) == "staging batch 1"
    assert watched.watch.moment(replace(seen, staged=1)) == "batch 1 staged, its checkpoint not complete"


def test_every_attempt_is_counted_and_the_released_manifest_counts(watched: Watched) -> None:
    next(watched.batches)
    (first,) = (watched.folder / "wal/batches" / f"{0:019}").glob("manifest-*")
    record = json.loads(first.read_text())
    record["body"]["segments"] *= 2
    newer = first.with_name(f"{first.stem[:-10]}{int(first.stem[-10:]) + 1:010}.json")
    newer.write_text(json.dumps(record))
    seen = watched.watch.look()
    assert watched.watch.attempts() == {0: 2}
    assert watched.watch.segments_in_delivery(seen, PLAIN) == 4  # nothing is released: the newest counts

    newer.unlink()
    watched.drain(Taking())  # which releases the first
    newer.write_text(json.dumps(record))
    assert watched.watch.segments_in_delivery(seen, PLAIN) == 2


# --- what it prints


def result(*, holds: bool = True, windows: tuple[int, ...] = (4000, 0)) -> Result:
    kills = tuple(Killed(1.0, "staging batch 3", 3, window) for window in windows)
    counts = proof.Compared(9 if holds else 8, 0 if holds else 1, 0, 0)
    return Result(
        proof=proof.Proof(9, counts, proof.Compared(11, 0, 2, 0), window_rows=sum(windows)),
        kills=kills,
        files=20,
        batches=19,
        replayed=(3,) if kills else (),
        restaged=(),
        chunk_rows=2000,
        seed=7,
        seconds=99.0,
        wal="an out/wal",
        database="an out/flights.db",
        checkpoint="an out/checkpoint",
    )


def test_the_result_says_what_was_counted_and_what_was_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    command._print_result(result(), "again")
    printed = capsys.readouterr().out
    assert "It holds: lost 0, duplicated 0; the plain sink got 2 rows twice (99 s)" in printed
    assert "19 from 20 files; replayed by Spark after a kill: 1 (3)" in printed
    assert "4,000 + 0 rows" in printed


def test_a_broken_promise_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    command._print_result(result(holds=False), "again")
    printed = capsys.readouterr().out
    assert "THE PROMISE WAS BROKEN" in printed
    assert "It holds" not in printed


@pytest.mark.parametrize(("debug", "exit_code", "raised"), [([], 2, "SystemExit"), (["--debug"], 1, "ConfigError")])
def test_bad_use_is_told_in_a_line_unless_tracebacks_are_wanted(
    tmp_path: Path, debug: list[str], exit_code: int, raised: str
) -> None:
    require(shutil.which("java") is not None, JAVA_HINT)
    args = ["--out", str(tmp_path / "out"), "--batches", "3", "--kills", "2", *debug]
    result = CliRunner().invoke(command.demo, args)
    assert (result.exit_code, type(result.exception).__name__) == (exit_code, raised)
    assert ("ConfigError: 2 kills need at least 4 batches" in result.stderr) is not bool(debug)


@pytest.mark.spark
def test_the_demo_in_small(tmp_path: Path) -> None:
    require(shutil.which("java") is not None, JAVA_HINT)
    args: list[str | Path] = ["--rows", "20000", "--batches", "4", "--kills", "1", "--json"]
    program = [sys.executable, "-m", "examples.demo", "--out", tmp_path / "out", *args]
    quick = python_environment({"PYSPARK_SUBMIT_ARGS": SUBMIT})
    with Child(program, log=tmp_path / "demo.log", env=quick, limit_s=400) as child:
        output = child.succeed()
    result = json.loads(output[output.index("\n{") :])
    assert result["holds"]
    assert result["proof"]["exact"] == {"rows": 20000, "lost": 0, "duplicated": 0, "foreign": 0}
    assert result["proof"]["plain"]["lost"] == 0
    assert result["proof"]["plain"]["duplicated"] <= result["proof"]["window_rows"]
    assert result["batches"] in {3, 4}  # Spark may merge two files when it was killed before it noted a batch
    assert len(result["kills"]) == 1
    assert not (tmp_path / "out" / "spark").exists()
