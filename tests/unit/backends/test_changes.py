"""Rows of a change stream: which of several with one key counts, and which cannot be applied."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from wal_sink import ConfigError, PermanentError
from wal_sink_backends.common.changes import Changes


def changes(**given: Any) -> Changes | None:
    arguments = {
        "key": ["id"],
        "newer_by": ["at", "pos"],
        "operation": "op",
        "delete_when": None,
        "on_delete": "delete",
    }
    return Changes.of("sink", **{**arguments, **given})


def read(**given: Any) -> Changes:
    found = changes(**given)
    assert found is not None
    return found


def stream(*rows: tuple[Any, Any, Any, Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    kinds = [pa.int64(), pa.string(), pa.int64(), pa.int64()]
    names = ["id", "op", "at", "pos"]
    return pa.table({name: pa.array(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)})


@pytest.mark.parametrize(
    ("rows", "newest"),
    [
        ([(1, "c", 1, 1), (1, "u", 1, 2), (2, "c", 1, 1)], [1, 2]),
        ([(1, "u", 2, 0), (1, "c", 1, 9)], [0]),
        ([(1, "u", 1, 1), (1, "u", 1, 1)], [0]),
        ([(1, "u", 1, 1), (1, "d", 1, 1)], [1]),
        ([(1, "d", 1, 1), (1, "u", 1, 1)], [0]),
        ([(1, "d", 1, 1), (1, "d", 1, 1)], [0]),
        ([(1, "d", 1, 1), (1, "r", 1, 2)], [1]),
    ],
    ids=["later", "earlier", "a repeat", "a delete after", "a delete before", "two deletes", "a new life"],
)
def test_the_newest_row_of_a_key_counts(rows: list[Any], newest: list[int]) -> None:
    assert read().newest(stream(*rows)) == newest


def test_a_boolean_column_may_tell_what_deletes() -> None:
    found = read(operation=None, delete_when="gone", newer_by=["at"])
    table = pa.table({"id": [b"a", b"a"], "at": [1, 1], "gone": [False, True]})
    assert (found.deletes(table), found.newest(table), found.refused(table)) == ([False, True], [1], {})


def test_what_cannot_be_applied_is_named_row_by_row() -> None:
    rows = stream((1, "c", 1, 1), (None, "c", 1, 1), (1, None, 1, 1), (1, "c", None, 1), (1, "t", 1, 1), (1, "", 1, 1))
    assert read().refused(rows) == {
        1: "column 'id' of the change stream is NULL",
        2: "column 'op' of the change stream is NULL",
        3: "column 'at' of the change stream is NULL",
        4: "operation 't' is unknown, expected c, r, u, d",
        5: "operation '' is unknown, expected c, r, u, d",
    }
    assert read().deletes(stream((1, "c", 1, 1), (2, "d", 1, 1))) == [False, True]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key": []}, "needs key and newer_by"),
        ({"newer_by": []}, "needs key and newer_by"),
        ({"delete_when": "gone"}, "pass one of them"),
        ({"operation": None, "on_delete": "mark"}, "needs delete_when"),
        ({"on_delete": "mark"}, "needs delete_when instead of operation"),
        ({"on_delete": "forget"}, "on_delete"),
        ({"newer_by": ["id"]}, "expected different columns"),
        ({"operation": ""}, "expected different columns"),
    ],
)
def test_arguments_that_cannot_work_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        changes(**given)


def test_without_an_operation_there_is_no_change_stream() -> None:
    assert changes(operation=None) is None
    assert read(operation=None, delete_when="gone", on_delete="mark").on_delete == "mark"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"newer_by": ["lsn"]}, "column 'lsn' of the change stream is not among"),
        ({"operation": "id", "key": ["at"], "newer_by": ["pos"]}, "column 'id' is int64, expected a text column"),
        ({"operation": None, "delete_when": "op"}, "column 'op' is string, expected a boolean column"),
    ],
)
def test_columns_that_do_not_fit_are_refused(given: dict[str, Any], told: str) -> None:
    read().check(stream((1, "c", 1, 1)).schema, "batch 1")
    with pytest.raises(PermanentError, match=told):
        read(**given).check(stream((1, "c", 1, 1)).schema, "batch 1")
