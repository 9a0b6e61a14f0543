"""`DeltaSink` with `mode="upsert"`: one row a key, in one MERGE with the position."""

from __future__ import annotations

import itertools
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.support.change_history import NEWER_BY, Model, batches_of, history, rows_of, table_of
from tests.support.delta_tables import ROWS, Declared, at, batch, context, entries, opened, rows_in
from wal_sink.errors import ConfigError, PermanentError
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.table import Table
from wal_sink_backends.delta.urls import delta_sink

MARKING: dict[str, Any] = {
    "mode": "upsert",
    "key": "id",
    "newer_by": NEWER_BY,
    "delete_when": "gone",
    "on_delete": "mark",
    "create": True,
}


class DiedError(BaseException):
    """Nothing after it runs, as in a process that was killed."""


@pytest.mark.parametrize("seed", range(3))
def test_a_change_log_with_a_kill_in_each_batch(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    changes, model = history(seed, changes=600, keys=40), Model(mark=True)
    table = tmp_path / "table"
    steps = ["look", "read", "merge", "append"]
    for number, some in enumerate(batches_of(changes, 60)):
        cut = chance.randrange(1, 60)
        parts = [one for one in (table_of(some[:cut], flag="gone"), table_of(some[cut:], flag="gone")) if one.num_rows]
        names = parts[0].column_names
        with pytest.MonkeyPatch.context() as patch:
            calls, dies_at = itertools.count(1), chance.randrange(2, 12)
            for step in steps:
                patch.setattr(Table, step, dying(getattr(Table, step), calls, dies_at))
            try:
                with opened(table, context(columns=names), **MARKING) as sink:
                    sink.commit(batch(sink, number, *parts))
            except DiedError:
                pass
        with opened(table, context(columns=names), **MARKING) as sink:
            if sink.position() != at(number):
                sink.commit(batch(sink, number, *parts))
            assert sink.position() == at(number)
        assert rows_of(rows_in(table)) == model.apply(some).rows, number


def dying(call: Any, calls: Any, at_call: int) -> Any:
    def wrapped(*given: Any) -> Any:
        if next(calls) == at_call:
            raise DiedError
        found = call(*given)
        if next(calls) == at_call:
            raise DiedError
        return found

    return wrapped


def test_a_batch_that_alters_nothing_has_its_position(tmp_path: Path) -> None:
    some = table_of(history(1, changes=20, keys=5), flag="gone")
    with opened(tmp_path / "t", context(columns=some.column_names), **MARKING) as sink:
        sink.commit(batch(sink, 0, some))
        sink.commit(batch(sink, 1, some))
        assert sink.position() == at(1)
    assert DeltaTable(str(tmp_path / "t")).version() == 2


def test_another_writer_between_look_and_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = history(2, changes=40, keys=5)
    first, second, theirs = (table_of(changes[a : a + 10], flag="gone") for a in (0, 10, 20))
    folder = tmp_path / "t"
    merge = Table.merge
    with opened(folder, context(columns=first.column_names), **MARKING) as sink:
        sink.commit(batch(sink, 0, first))
        one = batch(sink, 1, second)
        calls: list[int] = []

        def merge_later(self: Table, *given: Any) -> bool:
            calls.append(1)
            if len(calls) == 1:
                with opened(folder, context("other", columns=first.column_names), **MARKING) as other:
                    other.commit(batch(other, 0, theirs))
            return merge(self, *given)

        monkeypatch.setattr(Table, "merge", merge_later)
        sink.commit(one)
    assert len(calls) == 3
    model = Model(mark=True)
    for first_row in (0, 20, 10):
        model.apply(changes[first_row : first_row + 10])
    assert rows_of(rows_in(folder)) == model.rows


def test_a_catch_up_after_a_rollback_brings_no_older_row_back(tmp_path: Path) -> None:
    changes = history(5, changes=60, keys=8)
    first, second, third = (table_of(changes[at : at + 20], flag="gone") for at in (0, 20, 40))
    folder = tmp_path / "t"
    with opened(folder, context(columns=first.column_names), **MARKING) as sink:
        for number, rows in enumerate((first, second, third)):
            sink.commit(batch(sink, number, rows))
        DeltaTable(str(folder)).restore(1)
        assert sink.position() == at(2, held=0)
        for number, rows in ((1, second), (2, third)):
            sink.commit(batch(sink, number, rows))
        assert sink.position() == at(2)
    model = Model(mark=True)
    for number in range(3):
        model.apply(changes[20 * number : 20 * number + 20])
    assert rows_of(rows_in(folder)) == model.rows


def test_two_rows_of_one_key_without_a_version_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [pa.table({"id": ids, "n": [1, 2]}) for ids in ([1, 2], [1, 1], [2, 2])]
    with opened(tmp_path / "t", context(columns=["id", "n"]), mode="upsert", key="id", create=True) as sink:
        for number, table in enumerate(rows):
            sink.commit(batch(sink, number, table))
    assert sorted(tuple(row.values()) for row in rows_in(tmp_path / "t")) == [(1, 2), (2, 2)]
    assert ["several rows at once have one key" in record.getMessage() for record in caplog.records] == [True]


def test_plain_upserts_of_names_and_texts_that_need_quotes(tmp_path: Path) -> None:
    """delta#338: two rows of a batch with one key fail no MERGE."""
    names = ['Key"1', "select", "v-2", "note"]

    def rows(*values: tuple[Any, ...]) -> pa.Table:
        kinds = [pa.string(), pa.date32(), pa.decimal128(9, 2), pa.list_(pa.string())]
        columns = zip(*values, strict=True)
        return pa.table(
            {name: pa.array(list(column), kind) for name, kind, column in zip(names, kinds, columns, strict=True)}
        )

    day, long, one, two = date(2026, 1, 1), "k" * 300, Decimal(1), Decimal(2)
    options: dict[str, Any] = {"mode": "upsert", "key": ['Key"1', "select"], "newer_by": "v-2", "create": True}
    with opened(tmp_path / "t", context(columns=names), **options) as sink:
        sink.commit(batch(sink, 0, rows((long, day, one, ["a"]), ("k'", day, two, ["b"]), (long, day, one, ["c"]))))
        sink.commit(batch(sink, 1, rows(("k'", day, one, ["d"]), (long + "x", day, None, None))))
        sink.commit(batch(sink, 2, rows((long, day, None, ["e"]), (long + "x", day, None, ["f"]))))
    assert sorted(tuple(row.values()) for row in rows_in(tmp_path / "t")) == [
        ("k'", day, two, ["b"]),
        (long, day, one, ["c"]),
        (long + "x", day, None, ["f"]),
    ]


@pytest.mark.parametrize("name", ["id", "v", "gone"])
def test_key_version_and_flag_do_not_come(tmp_path: Path, name: str) -> None:
    """Stored rows would have NULL there."""
    rows = pa.table({"id": pa.array([1]), "v": pa.array([1]), "gone": [False], "note": ["x"], "more": ["y"]})
    write_deltalake(str(tmp_path / "t"), rows.drop_columns([name, "more"]))
    with opened(
        tmp_path / "t", context(columns=rows.column_names), **{**MARKING, "newer_by": "v"}, evolve="add"
    ) as sink:
        one = batch(sink, 0, rows)
        with pytest.raises(PermanentError, match=f"the table has no column '{name}'"):
            sink.commit(one)
    assert DeltaTable(str(tmp_path / "t")).version() == 0


def test_a_column_that_comes_with_an_upsert(tmp_path: Path) -> None:
    old = pa.table({"id": pa.array([1, 2]), "v": pa.array([1, 1])})
    new = pa.table({"id": pa.array([2, 3]), "v": pa.array([2, 2]), "more": ["b", "c"]})
    options: dict[str, Any] = {"mode": "upsert", "key": "id", "newer_by": "v", "evolve": "add", "create": True}
    with opened(tmp_path / "t", context(columns=new.column_names), **options) as sink:
        for number, rows in enumerate((old, new, pa.table({"id": pa.array([2]), "v": pa.array([3])}))):
            sink.commit(batch(sink, number, rows))
    found = sorted(tuple(row.values()) for row in rows_in(tmp_path / "t"))
    assert found == [(1, 1, None), (2, 3, "b"), (3, 2, "c")], "a column that the query lacks keeps its value"


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({**MARKING, "on_delete": "delete"}, "delete_when needs on_delete='mark'"),
    ({**MARKING, "key": ()}, "expected different columns for key and newer_by"),
    ({**MARKING, "newer_by": "id"}, "expected different columns for key and newer_by"),
    ({**MARKING, "newer_by": ()}, "a change stream needs key and newer_by"),
    ({"key": "id"}, "key, newer_by and delete_when need mode='upsert'"),
    ({"mode": "merge"}, "mode='merge'"),
]


def test_a_url_has_several_columns_with_commas() -> None:
    found = delta_sink("delta:///x?mode=upsert&key=id,day&newer_by=at,pos&delete_when=gone&on_delete=mark")._upserts
    assert found is not None
    assert (found.key, found.newer_by) == (("id", "day"), ("at", "pos"))


@pytest.mark.parametrize(("options", "told_of"), ARGUMENTS)
def test_arguments_that_cannot_work(options: dict[str, Any], told_of: str) -> None:
    with pytest.raises(ConfigError, match=told_of):
        DeltaSink("/table", **options)


def column(kind: Any, *values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, kind), "note": ["x"] * len(values)})


@pytest.mark.parametrize(
    ("options", "rows", "told_of"),
    [
        ({"key": "id"}, column(pa.int64(), None), "key column 'id' is NULL in 1 rows"),
        ({"key": "id"}, column(pa.float64(), 1.0), "column 'id' of key or newer_by is double. Cast it in the query"),
        ({"key": "no"}, column(pa.int64(), 1), "column 'no' of key or newer_by is not among"),
        (
            {"key": "id", "newer_by": "note", "delete_when": "gone", "on_delete": "mark"},
            column(pa.int64(), 1, 2).append_column("gone", pa.array([None, True])),
            "1 rows cannot be applied: column 'gone' of the change stream is NULL",
        ),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, options: dict[str, Any], rows: pa.Table, told_of: str) -> None:
    with opened(tmp_path / "t", context(columns=rows.column_names), mode="upsert", create=True, **options) as sink:
        one = batch(sink, 0, rows)
        with pytest.raises(PermanentError, match=told_of):
            sink.commit(one)
        assert sink.position() is None


@pytest.mark.parametrize(
    ("declared", "told_of"),
    [
        (Declared(1, 2, properties={"delta.appendOnly": "true"}), "delta.appendOnly=true"),
        (Declared(3, 7, ["deletionVectors"]), "the feature deletionVectors, which deltalake cannot read"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, declared: Declared, told_of: str) -> None:
    table = declared.make(tmp_path / "t")
    with opened(table, mode="upsert", key="id") as sink:
        with pytest.raises(PermanentError, match=told_of):
            sink.examine(None)
        one = batch(sink, 0)
        with pytest.raises(PermanentError, match=told_of):
            sink.commit(one)


def test_the_library_merges_into_the_next_version_or_fails(tmp_path: Path) -> None:
    """A merge that other writers overtook is no rebased one, and one that alters nothing commits nothing."""
    write_deltalake(str(tmp_path / "t"), ROWS)
    late, later = DeltaTable(str(tmp_path / "t")), DeltaTable(str(tmp_path / "t"))
    write_deltalake(str(tmp_path / "t"), ROWS.slice(0, 0), mode="append")

    def merge(table: DeltaTable, rows: pa.Table, condition: str) -> None:
        properties = CommitProperties(max_commit_retries=0, app_transactions=[Transaction("wal-sink/x", 1)])
        merging = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t", commit_properties=properties)
        merging.when_matched_update({"note": "s.note"}, condition).execute()

    with pytest.raises(CommitFailedError):
        merge(late, ROWS, "true")
    later.update_incremental()
    merge(later, ROWS, "false")
    assert (later.version(), later.transaction_version("wal-sink/x")) == (1, None)
    merge(later, ROWS, "true")
    assert (later.version(), later.transaction_version("wal-sink/x")) == (2, 1)
    kinds = [kind for action in entries(tmp_path / "t", 2) for kind in action]
    assert sorted(kinds) == ["add", "commitInfo", "remove", "txn"]
