"""`wal-sink catch-up` of a Delta table that somebody restored, as a user types it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from deltalake import DeltaTable

from tests.support.command import invoke, invoke_json
from tests.support.delta_tables import ids_in
from tests.support.staged_log import stage
from wal_sink_backends.delta.table import Table

BATCHES = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a WAL and a table that has its batches in versions 1 to 4."""
    more(tmp_path, BATCHES)
    return tmp_path


def more(folder: Path, batches: int, code: int = 0) -> Result:
    """Stage batches of two rows up to a number of them, and drain."""
    stage(folder, batches, lambda id_, _: [pa.table({"id": [id_, 100 + id_]})], is_over=True)
    return run(folder, "drain", "--start-from", "earliest", code=code)


def run(folder: Path, verb: str, *given: str, code: int = 0) -> Result:
    to = f"delta://{folder}/table?create=true"
    return invoke(verb, str(folder / "wal"), "--to", to, "--name", "a", *given, code=code)


def catch_up(folder: Path, *given: str, code: int = 0) -> Result:
    return run(folder, "catch-up", "--why", "rolled back", "--yes", *given, code=code)


def table(folder: Path) -> DeltaTable:
    return DeltaTable(str(folder / "table"))


def expected(batches: int) -> list[int]:
    return [*range(batches), *range(100, 100 + batches)]


@pytest.mark.parametrize("version", range(BATCHES))
def test_a_restored_table_is_refused_then_gets_each_batch_in_one_commit_and_the_drain_goes_on(
    folder: Path, version: int
) -> None:
    table(folder).restore(version)
    assert "wal-sink catch-up WAL --name SINK --to TARGET --why TEXT" in more(folder, BATCHES + 1, code=1).stderr
    lacks = BATCHES - version

    plan = json.loads(catch_up(folder, "--dry-run", "--json").stdout)
    assert (plan["held_through"], len(plan["batches"])) == (version - 1, lacks)
    assert table(folder).version() == BATCHES + 1
    assert f"{lacks} batch" in catch_up(folder).stdout

    assert ids_in(folder / "table") == expected(BATCHES)
    assert table(folder).version() == BATCHES + 1 + lacks
    more(folder, BATCHES + 1)
    assert ids_in(folder / "table") == expected(BATCHES + 1)
    run(folder, "verify")


def test_a_table_that_lacks_nothing_gets_no_commit(folder: Path) -> None:
    assert "according to its position, the target lacks no batch\n" in catch_up(folder).stdout
    assert table(folder).version() == BATCHES
    table(folder).restore(BATCHES - 1)
    catch_up(folder)
    table(folder).restore(BATCHES)
    assert "the target lacks no batch" in catch_up(folder).stdout
    assert table(folder).version() == BATCHES + 3
    more(folder, BATCHES + 1)
    assert ids_in(folder / "table") == expected(BATCHES + 1)


@pytest.mark.parametrize(
    ("version", "at", "codes"),
    [(1, 1, (1, 2)), (1, 2, (1, 2)), (2, 1, (0,)), (2, 2, (1, 0)), (4, 1, (1, 0)), (4, 2, (0,))],
    ids=str,
)
def test_a_table_that_is_restored_again_meanwhile_is_never_taken_for_the_expected_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, at: int, codes: Sequence[int]
) -> None:
    """Just before the first or second commit of the catch-up. Then the same command is repeated."""
    append, count = Table.append, list[int]()

    def restored(reached: Table, files: Sequence[Any], positions: Mapping[str, int], told: Any) -> None:
        count.append(1)
        if len(count) == at:
            table(folder).restore(version)
        append(reached, files, positions, told)

    table(folder).restore(2)
    monkeypatch.setattr(Table, "append", restored)
    *_, last = [catch_up(folder, code=code) for code in codes]
    if last.exit_code:
        assert "was restored again to an older state" in last.stderr
        invoke("sinks", "retire", str(folder / "wal"), *re.findall("catch-up-[0-9a-f]+", last.stderr))
        catch_up(folder)
    assert ids_in(folder / "table") == expected(BATCHES)
    more(folder, BATCHES + 1)
    assert ids_in(folder / "table") == expected(BATCHES + 1)


def test_options_that_a_commit_cannot_keep_are_refused_by_name(folder: Path) -> None:
    table(folder).restore(1)
    for given, named in (
        (("--on-rejected", "dead_letter"), "on_rejected"),
        (("--rows-per-s", "5"), "rows_per_s"),
        (("--order", "total"), "max_concurrency=1 (total order)"),
    ):
        assert named in catch_up(folder, *given, code=2).stderr
    assert all(sink["changes"] == [] for sink in invoke_json("sinks", "list", str(folder / "wal")))


def test_a_table_that_was_made_anew_needs_the_word_that_it_is_empty(folder: Path) -> None:
    for path in sorted((folder / "table").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    assert "--empty" in catch_up(folder, code=2).stderr
    catch_up(folder, "--empty")
    more(folder, BATCHES + 1)
    assert ids_in(folder / "table") == expected(BATCHES + 1)
