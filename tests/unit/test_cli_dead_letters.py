"""`wal-sink dead-letters`: what was refused is listed, shown and sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.simulation.small_run import serving
from wal_sink.chunk import Chunk
from wal_sink.cli.main import main
from wal_sink.run import Run
from wal_sink.settings import Delivery, Settings
from wal_sink.sink import Rejected
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

MODULE = """
from wal_sink import Rejected

def take(chunk):
    with open("taken.txt", "a") as file:
        file.writelines(f"{name}\\n" for name in chunk.table.column("name").to_pylist())

def refuse(chunk):
    return Rejected({0: "never"})
"""


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
    run.open([serving(run, "default", Delivery(refusing, on_rejected="dead_letter"))])
    run.become_stager()
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    for _ in FakeQuery(checkpoint, lambda *_: [table]).batches(run, 2):
        run.deliver_all()
    return str(tmp_path / "wal")


def invoke(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["dead-letters", *args])
    assert result.exit_code == code, result.output
    return result


def said(*args: str) -> Any:
    return json.loads(invoke(*args, "--json").stdout)


def test_they_are_listed(wal: str) -> None:
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
    assert "1 rows" in text
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
    assert (
        "2 dead letters would be sent to take: 2 rows" in invoke("replay", wal, "--to", "mine:take", "--dry-run").stdout
    )
    assert not (tmp_path / "taken.txt").exists()


def test_they_are_sent_again_once(wal: str, tmp_path: Path) -> None:
    assert "2 dead letters were sent to take: 2 rows" in invoke("replay", wal, "--to", "mine:take").stdout
    assert said("replay", wal, "--to", "mine:take")["letters"] == 0
    assert (tmp_path / "taken.txt").read_text() == "b\nb\n"
    assert all(letter["replayed"] for letter in said("list", wal))


def test_what_is_refused_again_is_told(wal: str) -> None:
    assert "2 rows were refused again" in invoke("replay", wal, "--to", "mine:refuse").stdout
    assert [letter["replay_of"] != "" for letter in said("list", wal)] == [False, True, False, True]


def test_a_sink_that_is_not_there_is_bad_use(wal: str) -> None:
    assert "has no sink 'b'; it has default" in invoke("list", wal, "--name", "b", code=2).output


def test_a_folder_that_is_no_wal_is_told(tmp_path: Path) -> None:
    assert "holds no wal.json" in invoke("list", str(tmp_path), code=1).output
