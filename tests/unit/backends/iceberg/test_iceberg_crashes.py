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
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.contracts import FoldedContract
from tests.support.iceberg_tables import (
    NAME,
    ROWS,
    at,
    batch,
    catalog_in,
    context,
    deliver,
    files_of,
    ids_in,
    made,
    named_files,
    opened,
    rows_in,
    table_of,
    there,
)
from wal_sink_backends.iceberg import IcebergSink
from wal_sink_backends.iceberg.table import Table

TABLES = [ROWS, pa.table({"id": pa.array([4], pa.int64()), "note": ["d"]}), ROWS.slice(0, 0)]
_numbers = itertools.count()


class TestIceberg(FoldedContract):
    """A table of a catalogue on SQLite, which its first batch makes. A target is the folder of both."""

    law = "[`IcebergSink`](sinks/iceberg.md)"
    every = 15

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        return tmp_path / "lake"

    def make_sink(self, target: Path) -> IcebergSink:
        return IcebergSink(NAME, catalog=catalog_in(target), create=True)

    def rows_in(self, target: Path) -> list[dict[str, Any]]:
        return rows_in(catalog_in(target))

    def tables(self) -> list[pa.Table]:
        return TABLES

    def another(self, target: Path) -> Path:
        return target.with_name(f"lake-{next(_numbers)}")

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
        was = table_of(catalog_in(saved))
        manage = there(catalog_in(target)).manage_snapshots()
        if was is None or (head := was.current_snapshot()) is None:
            manage.remove_branch("main").commit()
        else:
            manage.set_current_snapshot(head.snapshot_id).commit()


# --- each request


class Died(BaseException):
    """The process ended here."""


CALLS = {
    "look": Table,
    "create": Table,
    "_write": Table,
    "size": Table,
    "create_namespace": SqlCatalog,
    "create_table": SqlCatalog,
    "commit_table": SqlCatalog,
    "_write_metadata": MetastoreCatalog,
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_dies_at_a_request_leaves_a_batch_that_the_next_one_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, *, after: bool
) -> None:
    """Each call of this kind in turn, until a process gets through without reaching another one."""
    number = 0
    for number in itertools.count():
        properties = catalog_in(tmp_path / str(number))
        with monkeypatch.context() as patch, opened(properties, create=True) as sink:
            died = _die_at(patch, call, number, after=after)
            with suppress(Died):
                deliver(sink, 0, 1)
        with opened(properties, create=True) as sink:
            for batch_id in range(2):
                if (position := sink.position()) is None or position.batch_id < batch_id:
                    sink.commit(batch(sink, batch_id))
            assert sink.position() == at(1)
        assert ids_in(properties) == [1, 1, 2, 2, 3, 3]
        table = there(properties)
        assert len(table.metadata.snapshots) == 2
        assert files_of(table) == named_files(table), "no file is left over"
        if not died:
            break
    assert number > 0, "a plain delivery makes such a call"


def _die_at(monkeypatch: pytest.MonkeyPatch, call: str, number: int, *, after: bool) -> list[bool]:
    """End the process at the n-th call. Nothing that it does afterwards, in handlers of exceptions, has an effect."""
    owner = CALLS[call]
    real: Callable[..., Any] = getattr(owner, call)
    died, count = list[bool](), itertools.count()

    def dying(*given: Any, **named: Any) -> Any:
        if died:
            raise Died
        if next(count) == number:
            died.append(True)
            if after:
                real(*given, **named)
            raise Died
        return real(*given, **named)

    is_static = isinstance(owner.__dict__.get(call), staticmethod)
    monkeypatch.setattr(owner, call, staticmethod(dying) if is_static else dying)
    return died


def test_another_sink_is_not_disturbed(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path)
    made(properties)
    with opened(properties) as sink, opened(properties, context("other")) as other:
        first, second = batch(sink, 0), batch(other, 0)
        other.commit(second)
        sink.commit(first)
        assert (sink.position(), other.position()) == (at(0), at(0))
    assert ids_in(properties) == [1, 1, 2, 2, 3, 3]
    assert table_of(properties) is not None
