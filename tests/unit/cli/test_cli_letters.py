"""`wal-sink letters`: what was refused is listed, shown and sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Rejected
from tests.house.stores import StoreSpec, open_store
from tests.support.small_run import served_sink
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery

MODULE = """
from wal_sink import Rejected

def take(chunk):
    with open("taken.txt", "a") as file:
        file.writelines(f"{name}\\n" for name in chunk.table.column("name").to_pylist())

def refuse(chunk):
    return Rejected({0: "never"})
"""


MORE = """
from wal_sink import Rejected

def refuse_first(chunk):
    return Rejected({0: "the first"})
"""


def refusing_all(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "none"))


def refusing(chunk: Chunk) -> Rejected | None:
    names = chunk.table.column("name").to_pylist()
    refused = {index: f"[{name}] is no name" for index, name in enumerate(names) if name == "b"}
    return Rejected(refused) if refused else None


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of two delivered batches; one row of each was refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings(chunk_rows=2))
    run.open([served_sink(run, "default", Delivery(refusing, on_rejected="dead_letter"))])
    run.become_stager()
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    for _ in FakeQuery(checkpoint, lambda *_: [table]).batches(run, 2):
        run.deliver_all()
    return str(tmp_path / "wal")


def invoke(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["letters", *args])
    assert result.exit_code == code, result.output
    return result


def said(*args: str, code: int = 0) -> Any:
    return json.loads(invoke(*args, "--json", code=code).stdout)


def test_dead_letters_are_listed(wal: str) -> None:
    assert "has no sink 'b'; it has 'default'" in invoke("list", wal, "--name", "b", code=2).output
    found = said("list", wal)
    assert [(letter["batch_id"], letter["rows"], letter["kept"], letter["replayed"]) for letter in found] == [
        (0, 1, "rejected", False),
        (1, 1, "rejected", False),
    ]
    text = invoke("list", wal).stdout
    assert "[b] is no name" in text
    assert "2 dead letters, 2 rows" in text


def test_the_rows_of_a_batch_are_shown(wal: str) -> None:
    found = said("show", wal, "1")
    assert found["columns"] == ["id", "name"]
    assert [(row["reason"], row["values"]) for row in found["rows"]] == [("[b] is no name", [2, "b"])]
    assert found["rows"][0]["key"].endswith("-1")
    text = invoke("show", wal, "1").stdout
    assert "[b] is no name" in text
    assert "1 row" in text.splitlines()
    assert "0 rows" in invoke("show", wal, "7").stdout


def test_a_dry_run_sends_nothing(wal: str, tmp_path: Path) -> None:
    assert said("replay", wal, "--to", "mine:take", "--dry-run") == {
        "sink": "default",
        "target": "take",
        "dry_run": True,
        "letters": 2,
        "rows": 2,
        "rejected": 0,
    }
    assert "2 dead letters to send to take: 2 rows" in invoke("replay", wal, "--to", "mine:take", "--dry-run").stdout
    assert not (tmp_path / "taken.txt").exists()


def test_dead_letters_are_sent_again_once(wal: str, tmp_path: Path) -> None:
    assert "2 dead letters sent to take: 2 rows" in invoke("replay", wal, "--to", "mine:take").stdout
    assert said("replay", wal, "--to", "mine:take")["letters"] == 0
    assert (tmp_path / "taken.txt").read_text() == "b\nb\n"
    assert [bool(letter["replayed"]) for letter in said("list", wal)] == [True, True]


def test_what_is_refused_again_ends_the_command_with_1_and_the_counts(wal: str) -> None:
    """It ended with 0, though nothing had arrived."""
    text = invoke("replay", wal, "--to", "mine:refuse", code=1).stdout

    assert "2 dead letters sent to refuse: 0 rows" in text
    assert "rejected again: 2 rows; see" in text
    found = json.loads(invoke("replay", wal, "--to", "mine:refuse", "--json", code=1).stdout)
    assert (found["letters"], found["rows"], found["rejected"]) == (2, 0, 2)


def test_a_row_that_was_refused_again_is_listed_once(wal: str) -> None:
    """It was listed under both refusals. The newest counts, and tells where the row was before."""
    invoke("replay", wal, "--to", "mine:refuse", code=1)

    found = said("list", wal)

    assert [(letter["batch_id"], letter["rows"], letter["replayed"]) for letter in found] == [
        (0, 1, False),
        (1, 1, False),
    ]
    assert all(letter["replay_of"] and letter["reasons"] == ["never"] for letter in found)
    assert "2 dead letters, 2 rows" in invoke("list", wal).stdout
    assert [row["reason"] for row in said("show", wal, "1")["rows"]] == ["never"]


def test_a_dead_letter_of_which_a_part_was_refused_again_shows_what_is_left(wal: str, tmp_path: Path) -> None:
    """The rest was taken, so only the refused row is to be sent once more."""
    (tmp_path / "more.py").write_text(MORE)
    store = open_store(StoreSpec(wal))
    run = Run(store, open_store(StoreSpec(str(tmp_path / "checkpoint"))), Settings(chunk_rows=2))
    run.open([served_sink(run, "all", Delivery(refusing_all, on_rejected="dead_letter", start_from="earliest"))])
    run.deliver_all()

    first = said("replay", wal, "--to", "more:refuse_first", "--name", "all", code=1)

    assert (first["rows"], first["rejected"]) == (2, 4)
    kept = [(letter["rows"], letter["replayed"]) for letter in said("list", wal, "--name", "all")]
    assert sorted(kept) == [(1, False), (1, False), (1, False), (1, False), (1, True), (1, True)]
    assert said("replay", wal, "--to", "mine:take", "--name", "all")["rows"] == 4


def test_without_a_name_those_of_all_sinks_are_listed(wal: str, tmp_path: Path) -> None:
    """Only `default` was looked at, so those of any other sink were overlooked."""
    run = Run(open_store(StoreSpec(wal)), open_store(StoreSpec(str(tmp_path / "checkpoint"))), Settings())
    run.open([served_sink(run, "all", Delivery(refusing_all, on_rejected="dead_letter", start_from="earliest"))])
    run.deliver_all()

    found = said("list", wal)

    assert [letter["sink"] for letter in found] == ["all"] * 4 + ["default"] * 2
    text = invoke("list", wal).stdout
    assert "6 dead letters, 8 rows" in text
    assert "all " in text
    assert {letter["sink"] for letter in said("list", wal, "--name", "default")} == {"default"}
