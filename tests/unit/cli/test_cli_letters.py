"""`wal-sink letters`: what was refused is listed, shown and sent again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cli_targets import taken
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage

TAKE, REFUSE = "tests.support.cli_targets:take", "tests.support.cli_targets:refuse"


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of two delivered batches; one row of each was refused."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    stage(tmp_path, 2, lambda *_: [table], chunk_rows=2)
    drained(str(tmp_path / "wal"), "default", "refuse_b")
    return str(tmp_path / "wal")


def drained(wal: str, name: str, to: str) -> None:
    to = f"tests.support.cli_targets:{to}"
    invoke("drain", wal, "--name", name, "--to", to, "--start-from", "earliest", "--on-rejected", "dead_letter")


def test_dead_letters_are_listed(wal: str) -> None:
    assert "has no sink 'b'; it has 'default'" in invoke("letters", "list", wal, "--name", "b", code=2).output
    found = invoke_json("letters", "list", wal)
    assert [(letter["batch_id"], letter["rows"], letter["kept"], letter["replayed"]) for letter in found] == [
        (0, 1, "rejected", False),
        (1, 1, "rejected", False),
    ]
    text = invoke("letters", "list", wal).stdout
    assert "[b] is no name" in text
    assert "2 dead letters, 2 rows" in text


def test_the_rows_of_a_batch_are_shown(wal: str) -> None:
    found = invoke_json("letters", "show", wal, "1")
    assert found["columns"] == ["id", "name"]
    assert [(row["reason"], row["values"]) for row in found["rows"]] == [("[b] is no name", [2, "b"])]
    assert found["rows"][0]["key"].endswith("-1")
    text = invoke("letters", "show", wal, "1").stdout
    assert "[b] is no name" in text
    assert "1 row" in text.splitlines()
    assert "0 rows" in invoke("letters", "show", wal, "7").stdout


def test_a_dry_run_sends_nothing(wal: str, tmp_path: Path) -> None:
    assert invoke_json("letters", "replay", wal, "--to", TAKE, "--dry-run") == {
        "sink": "default",
        "target": "take",
        "dry_run": True,
        "letters": 2,
        "rows": 2,
        "rejected": 0,
    }
    assert (
        "2 dead letters to send to take: 2 rows" in invoke("letters", "replay", wal, "--to", TAKE, "--dry-run").stdout
    )
    assert not (tmp_path / "taken.txt").exists()


def test_dead_letters_are_sent_again_once(wal: str) -> None:
    assert "2 dead letters sent to take: 2 rows" in invoke("letters", "replay", wal, "--to", TAKE).stdout
    assert invoke_json("letters", "replay", wal, "--to", TAKE)["letters"] == 0
    assert taken() == [0, 1]
    assert [bool(letter["replayed"]) for letter in invoke_json("letters", "list", wal)] == [True, True]


@pytest.mark.processes
def test_columns_are_renamed_for_a_drain_an_examination_and_a_replay(wal: str, tmp_path: Path) -> None:
    target, columns = f"sqlite:///{tmp_path}/t.db?table=t", '{"id": "number", "name": null}'
    invoke("drain", wal, "--name", "b", "--to", target, "--start-from", "earliest", "--columns", columns)
    invoke("doctor", wal, "--to", target, "--checkpoint", str(tmp_path / "checkpoint"), "--columns", columns)
    doubtful = invoke("doctor", wal, "--to", target, "--checkpoint", str(tmp_path / "checkpoint"), code=1)
    assert "'id'" in " ".join(doubtful.stdout.split())
    unfit = invoke("letters", "replay", wal, "--to", target, "--columns", '{"no": "number"}', code=1)
    assert "the query has no column 'no'" in " ".join(unfit.output.split())
    invoke("letters", "replay", wal, "--to", target, "--columns", columns)
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        found = database.execute("SELECT * FROM t").fetchall()
    assert sorted(found) == sorted([(1,), (2,), (3,)] * 2 + [(2,)] * 2)
    assert "expected one JSON object" in invoke("drain", wal, "--to", target, "--columns", "id=number", code=2).output


def test_what_is_refused_again_ends_the_command_with_1_and_is_listed_once(wal: str) -> None:
    """It was listed under both refusals. The newest counts, and tells where the row was before."""
    text = invoke("letters", "replay", wal, "--to", REFUSE, code=1).stdout
    assert "2 dead letters sent to refuse: 0 rows" in text
    assert "rejected again: 2 rows; their reasons" in text

    found = invoke_json("letters", "list", wal)

    told = [(letter["batch_id"], letter["rows"], letter["replayed"]) for letter in found]
    assert told == [(0, 1, False), (1, 1, False)]
    assert all(letter["replay_of"] and letter["reasons"] == ["never"] for letter in found)
    assert "2 dead letters, 2 rows" in invoke("letters", "list", wal).stdout
    assert [row["reason"] for row in invoke_json("letters", "show", wal, "1")["rows"]] == ["never"]
    again = invoke_json("letters", "replay", wal, "--to", REFUSE, code=1)
    assert (again["letters"], again["rows"], again["rejected"]) == (2, 0, 2)


def test_a_dead_letter_of_which_a_part_was_refused_again_shows_what_is_left(wal: str) -> None:
    """The rest was taken, so only the refused row is to be sent once more."""
    drained(wal, "all", "refuse_all")

    first = invoke_json("letters", "replay", wal, "--to", REFUSE, "--name", "all", code=1)

    assert (first["rows"], first["rejected"]) == (2, 4)
    kept = [(letter["rows"], letter["replayed"]) for letter in invoke_json("letters", "list", wal, "--name", "all")]
    assert sorted(kept) == [(1, False), (1, False), (1, False), (1, False), (1, True), (1, True)]
    assert invoke_json("letters", "replay", wal, "--to", TAKE, "--name", "all")["rows"] == 4


def test_without_a_name_those_of_all_sinks_are_listed(wal: str) -> None:
    """Only `default` was looked at, so those of any other sink were overlooked."""
    drained(wal, "all", "refuse_all")

    found = invoke_json("letters", "list", wal)

    assert [letter["sink"] for letter in found] == ["all"] * 4 + ["default"] * 2
    text = invoke("letters", "list", wal).stdout
    assert "6 dead letters, 8 rows" in text
    assert "all " in text
    assert {letter["sink"] for letter in invoke_json("letters", "list", wal, "--name", "default")} == {"default"}
