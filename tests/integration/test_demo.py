"""The demo in small, and its proof: one that could not fail would prove nothing."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from examples.demo import proof, source
from examples.demo.job import CARRIER_NAME, DELAY_CLASS, DELIVERED_COLUMNS
from tests.support.components import require
from tests.support.fixtures.spark import JAVA_HINT
from tests.support.processes import Child, python_environment
from tests.support.programs.quick_workers import SUBMIT

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


# --- the look at the store, against wal-sink's own


# --- what it prints


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
