"""`wal-sink sinks`: list, retire, rename; and what `status` says of a sink that nobody serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.house.log import paths
from tests.house.stores import StoreSpec, open_store
from tests.support.cli_targets import taken
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of three batches: sink `a` has them all, sink `b` two."""
    monkeypatch.chdir(tmp_path)
    stage(tmp_path, 2)
    drain(str(tmp_path / "wal"), "a", "--start-from", "earliest")
    drain(str(tmp_path / "wal"), "b", "--start-from", "earliest")
    stage(tmp_path, 3)
    drain(str(tmp_path / "wal"), "a")
    (tmp_path / "taken.txt").unlink()
    return str(tmp_path / "wal")


def drain(wal: str, name: str, *more: str, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", "tests.support.cli_targets:take", "--name", name, *more, code=code)


def listed(wal: str) -> Any:
    return invoke_json("sinks", "list", wal)


def test_a_sink_that_holds_everything_back_is_marked(wal: str) -> None:
    """Nothing told of it."""
    expected = (
        "nothing after batch 1 is deleted until sink 'b' has it, but no running process is known to serve this sink"
    )

    assert expected in invoke("status", wal).stdout
    assert expected in invoke("sinks", "list", wal).stdout
    assert [(sink["name"], sink["state"], sink["pending_batches"]) for sink in listed(wal)] == [
        ("a", "ended", 0),
        ("b", "ended", 1),
    ]


def test_retiring_asks_before_it_gives_batches_up(wal: str) -> None:
    said = invoke("sinks", "retire", wal, "b", code=2).stderr
    assert "sink 'b'" in said
    assert "has not delivered 1 batch that the WAL holds (batch 2)" in said
    assert "--drop-pending 1" in said

    text = invoke("sinks", "retire", wal, "b", "--drop-pending", "1").stdout

    assert "sink 'b' is retired: it has every batch through 1; this sink skips 1 batch, from 2 on" in text
    assert [sink["state"] for sink in listed(wal)] == ["ended", "retired"]
    for verb in (("status", wal), ("sinks", "list", wal)):
        assert "nothing after batch" not in invoke(*verb).stdout
    assert "sink 'b'" in drain(wal, "b", code=2).stderr
    assert "was retired at" in drain(wal, "b", code=2).stderr
    done = invoke_json("sinks", "retire", wal, "a")
    assert done == {"name": "a", "through": 2, "dropped": []}


def test_a_renamed_sink_is_drained_under_its_new_name(wal: str) -> None:
    assert "sink 'b' is called 'c' from now on" in invoke("sinks", "rename", wal, "b", "c").stdout

    drain(wal, "c")

    assert taken() == [2]
    assert "sink 'b' was renamed to 'c'" in drain(wal, "b", code=2).stderr
    assert [(sink["name"], sink["folder"]) for sink in listed(wal)] == [("a", "a"), ("c", "b")]
    assert invoke_json("sinks", "rename", wal, "c", "d") == {"sink": "d", "renamed_from": "c"}


def test_a_new_sink_begins_and_ends_with_the_batches_that_are_named(wal: str) -> None:
    said = drain(wal, "c", code=2).stderr  # an old one that stays registered keeps every batch for ever
    assert "wal-sink sinks rename WAL OLD c" in said
    assert "wal-sink sinks retire WAL OLD" in said
    assert "The WAL holds batches 0 to 2" in drain(wal, "c", "--start-from", "9", code=2).stderr
    assert "expected earliest, next or the number of a batch" in drain(wal, "c", "--start-from", "-1", code=2).stderr
    said = drain(wal, "c", "--start-from", "1", "--through", "1", code=2).stderr
    assert "sink 'a'" in said
    assert "(--yes)" in " ".join(said.split())

    drain(wal, "c", "--start-from", "1", "--through", "1", "--yes")

    assert taken() == [1]
    assert [(sink["name"], sink["state"]) for sink in listed(wal)][2] == ("c", "retired")


def test_take_over_lets_a_sink_be_retired_whose_holder_nobody_knows(wal: str) -> None:
    store = open_store(StoreSpec(wal))
    role = paths.committer_role("a")
    newest = max(name for name in store.list(paths.terms(role)) if "ended" not in name)
    store.delete([f"{paths.terms(role)}/{newest}"])
    store.create(f"{paths.terms(role)}/{newest}", b"damaged")

    assert "--take-over" in invoke("sinks", "retire", wal, "a", code=1).stderr
    invoke("sinks", "retire", wal, "a", "--take-over")
