"""Rows that Amazon's own DynamoDB Local refuses, which moto takes: each becomes a rejected row, and no other does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.dynamodb_tools import KINDS, opened
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.dynamodb_server import create_table
from wal_sink import Delivery
from wal_sink.errors import PermanentError
from wal_sink.testing import query_into
from wal_sink_backends.dynamodb.sink import DynamoDbSink, TryAgainError


@pytest.fixture
def server(dynamodb_local: DynamoDbLocal) -> DynamoDbLocal:
    return dynamodb_local


def nested(levels: int) -> Any:
    """A type of so many lists in each other, with one text in the innermost."""
    kind: Any = pa.string()
    for _ in range(levels):
        kind = pa.list_(kind)
    return kind


def in_lists(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def told(server: DynamoDbLocal, table: str, kind: Any, rows: pa.Table, **more: Any) -> dict[int, str]:
    """The rows that a sink refuses, and why; the others are written then, as dead letters would have it."""
    with opened(server, table, kind, **more) as sink:
        first = chunk(rows)
        refused = sink.write(first)
        assert isinstance(refused, Rejected)
        if kind is DynamoDbSink:
            assert server.items(table) == []
            assert sink.last(SLOT) is None
            assert sink.write(first.without(refused.reasons)) is None
    return dict(refused.reasons)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_key_of_an_index_is_a_rejected_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table(index="day")
    reasons = told(server, table, kind, pa.table({"id": [1, 2, 3], "day": ["mo", "", "x" * 2049]}))
    assert reasons == {
        1: "column 'day', the key of index 'by-day', has 0 bytes, expected 1 to 2048",
        2: "column 'day', the key of index 'by-day', has 2049 bytes, expected 1 to 2048",
    }
    assert server.ids(table) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_null_in_the_key_of_an_index_is_a_rejected_row_unless_it_is_left_out(
    server: DynamoDbLocal, kind: Any
) -> None:
    rows = pa.table({"id": [1, 2], "day": ["mo", None]})
    table = server.new_table(index="day")
    assert told(server, table, kind, rows) == {
        1: "column 'day' is NULL, but it is the key of index 'by-day'. A key cannot be NULL. Correct the row, or "
        "pass nulls='omit': the item is then stored without this attribute, and does not appear in the index"
    }
    omitting = server.new_table(index="day")
    with opened(server, omitting, kind, nulls="omit") as sink:
        assert sink.write(chunk(rows)) is None
    assert server.ids(omitting) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_out_of_range_in_the_key_of_an_index_is_a_rejected_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table(index="n", index_type="N")
    reasons = told(server, table, kind, pa.table({"id": [1, 2, 3], "n": [1.5, 1e300, float("nan")]}))
    assert (
        reasons[1] == "column 'n', the key of index 'by-n', is 1e300, but DynamoDB cannot hold this value as a number"
    )
    assert list(reasons) == [1, 2]
    assert server.ids(table) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_another_type_than_an_index_is_permanent(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table(index="day")
    with (
        opened(server, table, kind) as sink,
        pytest.raises(
            PermanentError, match=r"'day' would be stored as N, but the key of index 'by-day' is S\. Cast the column"
        ),
    ):
        sink.write(chunk(pa.table({"id": [1], "day": [1]})))
    assert server.items(table) == []


@pytest.mark.parametrize("kind", KINDS)
def test_nesting_that_only_the_server_refuses_is_a_rejected_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    deep = pa.array([in_lists(40), None, []], nested(40))
    reasons = told(server, table, kind, pa.table({"id": [1, 2, 3], "deep": deep}))
    assert list(reasons) == [0]
    assert "Nesting Levels have exceeded supported limits" in reasons[0]
    assert server.ids(table) == [2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_names_in_maps_that_only_the_server_refuses_are_rejected_rows(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    maps = pa.array([[("", 1)], [("k", 1)], [("k" * 70_000, 1)]], pa.map_(pa.string(), pa.int64()))
    reasons = told(server, table, kind, pa.table({"id": [1, 2, 3], "m": maps}))
    assert list(reasons) == [0, 2]
    assert server.ids(table) == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_at_the_edge_is_held_and_one_beyond_is_text(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    numbers = [9.99e125, 1e126, 1e-130, 1e-131, -9.99e125, float("inf")]
    with opened(server, table, kind) as sink:
        assert sink.write(chunk(pa.table({"id": range(6), "n": numbers}))) is None
    kinds = {int(item["id"]["N"]): next(iter(item["n"])) for item in server.items(table)}
    assert kinds == {0: "N", 1: "S", 2: "N", 3: "S", 4: "N", 5: "S"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_of_just_400_kb_is_taken_and_one_more_byte_is_a_rejected_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table(id="S")
    left = 400 * 1024 - len("id") - len("1") - len("text")
    rows = pa.table({"id": ["1", "2"], "text": ["x" * left, "x" * (left + 1)]})
    assert list(told(server, table, kind, rows)) == [1]
    assert [item["id"]["S"] for item in server.items(table)] == ["1"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_made_anew_with_another_key_is_no_fault_of_its_rows(server: DynamoDbLocal, kind: Any) -> None:
    """Every row of the stream would become a dead letter."""
    table = server.new_table()
    with opened(server, table, kind) as sink:
        server.client.delete_table(TableName=table)
        create_table(server.client, table, {"id": "S"})
        with pytest.raises(TryAgainError, match=r"batch 0, chunk a-0-2: .*the table was altered in the meantime"):
            sink.write(chunk(ids(1, 2)))
        with pytest.raises(PermanentError, match="would be stored as N, but the table's key is S"):
            sink.write(chunk(ids(1, 2)))
    assert server.items(table) == []


@pytest.mark.parametrize("kind", KINDS)
def test_poison_rows_become_dead_letters_and_the_query_goes_on(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table(index="day")
    where: dict[str, Any] = {"region": "eu-central-1", "endpoint_url": server.endpoint}
    own: dict[str, Any] = {"ledger_table": f"{table}-ledger"} if kind is DynamoDbSink else {"idempotent": True}
    sink = kind(table, **where, **own)
    with query_into(Delivery(sink, on_rejected="dead_letter")) as query:
        for first in (0, 4):
            deep = pa.array([None, in_lists(40), None, []], nested(40))
            days = ["mo", "tu", "", "we"]
            query.stage(pa.table({"id": range(first, first + 4), "day": days, "deep": deep}))
            query.complete()
            query.deliver()
    assert server.ids(table) == [0, 3, 4, 7]
