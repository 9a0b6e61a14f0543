"""`DeltaSink` with `evolve="add"`: columns come once, in a version before that of the batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType

from tests.support.delta_tables import FIELDS, ROWS, Declared, at, batch, context, entries, made, opened, rows_in
from wal_sink.errors import PermanentError
from wal_sink_backends.delta.table import Table

NEW = pa.table(
    {
        "id": pa.array([4], pa.int64()),
        "amount": [1.5],
        "tags": [["x"]],
        "place": pa.array([{"city": "é"}]),
    }
)
OLD_ROWS = [row | {"amount": None, "tags": None, "place": None} for row in ROWS.to_pylist()]
NEW_ROWS = [{"note": None} | row for row in NEW.to_pylist()]


def names_in(table: Path) -> list[str]:
    return [field.name for field in DeltaTable(str(table)).schema().fields]


def operations_in(table: Path) -> list[str]:
    newest = DeltaTable(str(table)).version()
    told = [next(one["commitInfo"] for one in entries(table, at) if "commitInfo" in one) for at in range(newest + 1)]
    return [one["operation"] for one in told][1:]


def add_as_person(table: Path, name: str, kind: str) -> None:
    DeltaTable(str(table)).alter.add_columns(Field(name, PrimitiveType(kind)))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made(tmp_path / "table")
    return tmp_path / "table"


def test_columns_that_come_are_null_in_old_rows_and_old_programs_go_on(table: Path) -> None:
    with opened(table, evolve="add") as sink:
        sink.commit(batch(sink, 0))
        (found,) = sink.examine(NEW.schema)
        assert found.found.endswith("takes whole files. The next delivery adds the columns amount, tags, place")
        sink.commit(batch(sink, 1, NEW, ROWS))
        assert "adds" not in sink.examine(NEW.schema)[0].found
    with opened(table) as older:
        older.commit(batch(older, 2))
        assert older.position() == at(2)
    assert operations_in(table) == ["WRITE", "ADD COLUMN", "WRITE", "WRITE"]
    everything = sorted(rows_in(table), key=lambda row: row["id"])
    assert everything == [*(row for row in OLD_ROWS for _ in range(3)), *NEW_ROWS]


def test_what_the_table_has_stays_as_it_is(tmp_path: Path) -> None:
    commented = [FIELDS[0] | {"metadata": {"comment": "of the order"}, "nullable": False}, FIELDS[1]]
    table = Declared(1, 2, fields=commented, properties={"delta.appendOnly": "true"}).make(tmp_path / "table")
    before = DeltaTable(str(table))
    with opened(table, evolve="add") as sink:
        sink.commit(batch(sink, 0, NEW))
    after = DeltaTable(str(table))
    assert after.schema().fields[:2] == before.schema().fields
    assert all(field.nullable for field in after.schema().fields[2:])
    assert after.protocol() == before.protocol()
    assert (after.metadata().configuration, after.metadata().id) == (
        before.metadata().configuration,
        before.metadata().id,
    )


def test_the_library_adds_columns_as_the_next_version_or_fails_only_without_retries(table: Path) -> None:
    late, later = DeltaTable(str(table)), DeltaTable(str(table))
    write_deltalake(str(table), ROWS, mode="append")
    field = Field("more", PrimitiveType("long"))
    with pytest.raises(CommitFailedError):
        late.alter.add_columns(field, commit_properties=CommitProperties(max_commit_retries=0))
    assert names_in(table) == ["id", "note"]
    later.alter.add_columns(field)
    assert operations_in(table) == ["WRITE", "ADD COLUMN"]


def test_sinks_that_bring_columns_at_once(table: Path) -> None:
    """Each loses races against the others and looks again: no column, row or position is lost."""
    names = ["one", "two", "three", "four"]
    together = Barrier(len(names))
    failed: list[BaseException] = []

    def deliver(name: str) -> None:
        try:
            rows = NEW.append_column(name, pa.array([1]))
            with opened(table, context(name, columns=rows.column_names), evolve="add") as sink:
                one = batch(sink, 0, rows)
                together.wait(60)
                sink.commit(one)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    threads = [Thread(target=deliver, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(names_in(table)) == sorted([*ROWS.column_names, *NEW.column_names[1:], *names])
    assert sorted([row[name] or 0 for name in names] for row in rows_in(table)) == [
        [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]
    ]  # fmt: skip
    for name in names:
        with opened(table, context(name)) as sink:
            assert sink.position() == at(0)


class DiedError(BaseException):
    """Nothing after it runs, as in a process that was killed."""


def test_a_kill_at_each_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps = ["look", "add_columns", "found", "append"]
    number, died = 0, True
    while died:
        number += 1
        table = tmp_path / f"table-{number}"
        made(table)
        with opened(table, evolve="add") as sink:
            sink.commit(batch(sink, 0))
            one = batch(sink, 1, NEW)
        with pytest.MonkeyPatch.context() as patch:
            calls = itertools.count(1)
            for step in steps:
                patch.setattr(Table, step, dying(getattr(Table, step), calls, number))
            try:
                with opened(table, evolve="add") as sink:
                    sink.commit(one)
                died = False
            except DiedError:
                pass
        with opened(table, evolve="add") as sink:
            if sink.position() != at(1):
                sink.commit(one)
            assert sink.position() == at(1)
        assert sorted(rows_in(table), key=lambda row: row["id"]) == [*OLD_ROWS, *NEW_ROWS]
        assert operations_in(table) == ["WRITE", "ADD COLUMN", "WRITE"]
    assert number > 2 * 4


def dying(call: Any, calls: Any, at_call: int) -> Any:
    """The method, which dies before or after it ran."""

    def wrapped(*given: Any) -> Any:
        if next(calls) == at_call:
            raise DiedError
        found = call(*given)
        if next(calls) == at_call:
            raise DiedError
        return found

    return wrapped


@pytest.mark.parametrize("kind", ["double", "string"])
def test_a_column_that_another_writer_adds_meanwhile(table: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Table.add_columns

    def add_later(self: Table, fields: Any) -> None:
        if "amount" not in names_in(table):
            add_as_person(table, "amount", kind)
        add(self, fields)

    monkeypatch.setattr(Table, "add_columns", add_later)
    with opened(table, evolve="add") as sink:
        if kind == "double":
            sink.commit(batch(sink, 0, NEW))
            assert rows_in(table) == NEW_ROWS
        else:
            with pytest.raises(PermanentError, match="column 'amount' is string in the table and double in the batch"):
                sink.commit(batch(sink, 0, NEW))
            assert (names_in(table), rows_in(table)) == (["id", "note", "amount"], [])


@pytest.mark.parametrize(
    ("rows", "evolve", "told"),
    [
        (
            NEW,
            "refuse",
            "has no column 'amount', .* (ALTER TABLE … ADD COLUMNS (`amount` double), or evolve='add'), or",
        ),
        (NEW.select(["id", "tags"]), "refuse", "ADD COLUMNS (`tags` array<string>)"),
        (NEW.select(["id", "place"]), "refuse", "ADD COLUMNS (`place` struct<`city`: string>)"),
        (
            pa.table({"id": pa.array([1]), "of": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}),
            "refuse",
            "ADD COLUMNS (`of` map<string, long>)",
        ),
        (pa.table({"id": pa.array([1]), "Note": ["x"]}), "add", "no column 'Note', only 'note', in another case. Add"),
        (
            pa.table({"id": pa.array([1]), "local": pa.array([0], pa.timestamp("us"))}),
            "add",
            "(ALTER TABLE … SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported'), then ALTER TABLE",
        ),
    ],
    ids=["refuse", "a list", "a struct", "a map", "another case", "another feature"],
)
def test_columns_that_do_not_come(table: Path, rows: pa.Table, evolve: Any, told: str) -> None:
    with opened(table, evolve=evolve) as sink:
        one = batch(sink, 0, rows)
        with pytest.raises(PermanentError) as refused:
            sink.commit(one)
        with pytest.raises(PermanentError):
            sink.examine(rows.schema)
    first, _, last = told.partition(" .* ")
    assert first in str(refused.value)
    assert last in str(refused.value)
    assert (DeltaTable(str(table)).version(), names_in(table)) == (0, ["id", "note"])


def test_two_segments_of_a_batch_that_bring_one_column_with_two_types(table: Path) -> None:
    other = pa.table({"id": pa.array([5], pa.int64()), "amount": ["1.5"]})
    with opened(table, evolve="add") as sink:
        one = batch(sink, 0, NEW, other)
        with pytest.raises(PermanentError, match="column 'amount' is double in the table and string in the batch"):
            sink.commit(one)
    assert DeltaTable(str(table)).version() == 0
