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

from tests.support.contracts import FoldedContract
from tests.support.delta_tables import ROWS, at, batch, context, deliver, ids_in, made, opened, rows_in
from wal_sink.testing.data.tables import COLUMN_NAMES
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.table import Table

TABLES = [ROWS, pa.table({"id": pa.array([4], pa.int64()), "note": ["d"]}), ROWS.slice(0, 0)]
_numbers = itertools.count()


class TestDelta(FoldedContract):
    """A table on a local disk, which its first batch makes."""

    law = "[`DeltaSink`](sinks/delta.md)"
    every = 5
    column_names = tuple(name for name in COLUMN_NAMES if name != "quotes")  # refused, with a backslash before a quote

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return tmp_path / "table"

    def make_sink(self, target: Path) -> DeltaSink:
        return DeltaSink(str(target), create=True)

    def rows_in(self, target: Path) -> list[dict[str, Any]]:
        return rows_in(target) if DeltaTable.is_deltatable(str(target)) else []

    def tables(self) -> list[pa.Table]:
        return TABLES

    def another(self, target: Path) -> Path:
        return target.with_name(f"table-{next(_numbers)}")

    def snapshot(self, target: Path) -> Path:
        saved = self.another(target)
        if target.exists():
            shutil.copytree(target, saved)
        return saved

    def restore(self, target: Path, saved: Path) -> None:
        shutil.rmtree(target)
        if saved.exists():
            shutil.copytree(saved, target)

    def roll_back(self, target: Path, saved: Path) -> None:
        DeltaTable(str(target)).restore(DeltaTable(str(saved)).version() if saved.exists() else 0)


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
