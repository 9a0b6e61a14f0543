"""Whatever dies, fails, is taken over or wakes up late: each batch is in the table once, in one commit."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.delta_tables import ROWS, at, batch, context, deliver, ids_in, made, opened, rows_in
from tests.support.laws import read_laws
from wal_sink.errors import HistoryError
from wal_sink.testing import SinkQuery, crash_matrix
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.table import Table

TABLES = [ROWS, ROWS.slice(0, 0), pa.table({"id": pa.array([4], pa.int64()), "note": ["d"]})]
_numbers = itertools.count()


def _matrix(tmp_path: Path, *, create: bool, **options: Any) -> tuple[Any, list[Path]]:
    tables: list[Path] = []

    def new_table() -> Path:
        tables.append(tmp_path / f"table-{next(_numbers)}")
        if not create:
            made(tables[-1])
        return tables[-1]

    def new_sink(table: Path) -> DeltaSink:
        return DeltaSink(str(table), create=create)

    def rows(table: Path) -> list[dict[str, Any]]:
        return rows_in(table) if DeltaTable.is_deltatable(str(table)) else []

    return crash_matrix(new_sink, rows, new_table, tables=TABLES, **options).check(), tables


def test_every_disturbance_leaves_every_row_once(tmp_path: Path) -> None:
    matrix, tables = _matrix(tmp_path, create=False)
    assert (matrix.lost, matrix.repeated, matrix.permitted) == (0, 0, 0)
    assert matrix.crashes > 100
    assert matrix.failures > 100
    assert matrix.takeovers > 100
    versions = [DeltaTable(str(table)).version() for table in tables if DeltaTable.is_deltatable(str(table))]
    assert {version for version in versions if version} == {2}, "a batch without rows makes no commit"


def test_every_death_while_the_table_is_made_leaves_every_row_once(tmp_path: Path) -> None:
    matrix, _ = _matrix(tmp_path, create=True, each_line=False, disturb=("dies",))
    assert (matrix.lost, matrix.repeated) == (0, 0)


# --- the laws of docs/laws.toml


def _start_after(folder: Path, happens: Callable[[Path], object]) -> str:
    """Deliver two batches, let something happen to the table, then start and deliver a third. Return the verdict."""
    table = folder / "table"
    made(table)
    shutil.copytree(table, folder / "before")
    try:
        with SinkQuery(lambda: DeltaSink(str(table))) as query:
            query.batch(ROWS)
            query.crash()
            happens(table)
            query.restart()
            query.batch(TABLES[2])
    except HistoryError:
        return "detected"
    return "holds" if ids_in(table) == [1, 2, 3, 4] else "cannot be seen"


def _of_a_backup(table: Path) -> None:
    shutil.rmtree(table)
    shutil.copytree(table.parent / "before", table)


def test_the_verdicts_on_delta_are_those_of_the_page(tmp_path: Path) -> None:
    law = "[`DeltaSink`](sinks/delta.md)"
    matrix, _ = _matrix(tmp_path, create=False, each_line=False, every=3, disturb=("stands still",))
    found = {
        "stands still": matrix.verdict,
        "forgets": _start_after(tmp_path / "forgets", _of_a_backup),
        "loses rows": _start_after(tmp_path / "loses", lambda table: DeltaTable(str(table)).delete()),
    }
    assert found == read_laws()[law]
    assert _start_after(tmp_path / "rolled back", lambda table: DeltaTable(str(table)).restore(0)) == "detected"


# --- each request


class Died(BaseException):
    """The process ended here."""


CALLS = ("look", "positions", "create", "entry", "append", "write", "found", "footer")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_dies_at_a_request_leaves_a_batch_that_the_next_one_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, *, after: bool
) -> None:
    """Each call of this kind in turn, until a process gets through without reaching another one."""
    number = 0
    for number in itertools.count():
        table = tmp_path / str(number)
        if call != "create":
            made(table)
        with monkeypatch.context() as patch, opened(table, create=True) as sink:
            died = _die_at(patch, call, number, after=after)
            with suppress(Died):
                deliver(sink, 0, 1)
        with opened(table, create=True) as sink:
            for batch_id in range(2):
                if (position := sink.position()) is None or position.batch_id < batch_id:
                    sink.commit(batch(sink, batch_id))
            assert sink.position() == at(1)
        assert ids_in(table) == [1, 1, 2, 2, 3, 3]
        names = {path.name for path in table.glob("*.parquet")}
        assert names == {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}, "no file is left over"
        if not died:
            break
    assert number > 0 or call in ("entry", "footer"), "a plain delivery makes such a call"


def _die_at(monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, after: bool) -> list[bool]:
    """End the process at the n-th call. Nothing that it does afterwards, in handlers of exceptions, has an effect."""
    real: Callable[..., Any] = getattr(Table, call)
    died, count = list[bool](), itertools.count()

    def dying(table: Table, *given: Any) -> Any:
        if died:
            raise Died
        if next(count) == number:
            died.append(True)
            if after:
                real(table, *given)
            raise Died
        return real(table, *given)

    monkeypatch.setattr(Table, call, dying)
    return died


def test_another_sink_is_not_disturbed(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink, opened(tmp_path, context("other")) as other:
        first, second = batch(sink, 0), batch(other, 0)
        other.commit(second)
        sink.commit(first)
        assert (sink.position(), other.position()) == (at(0), at(0))
    assert ids_in(tmp_path) == [1, 1, 2, 2, 3, 3]
