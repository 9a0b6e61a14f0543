"""Rows as DynamoDB items, and those that can be none."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Rejected
from tests.support.chunks import chunk, ids, raw_texts
from tests.support.dynamodb_tools import KINDS, opened
from tests.support.servers.dynamodb_server import DynamoDbServer, Fault
from wal_sink.errors import PermanentError
from wal_sink.testing.data.tables import COLUMN_TYPES
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table()
    rows = pa.table({"id": [0, 1, 2]} | dict(COLUMN_TYPES))
    with opened(server, table, kind) as sink:
        assert sink.write(chunk(rows)) is None
    first, second, last = sorted(server.items(table), key=lambda item: str(item["id"]["N"]))
    assert first["bigint"] == {"N": "-9223372036854775808"}
    assert first["decimal"] == {"N": "1.500000000000000000"}
    assert second["decimal"] == {"N": "-0.000000000000000001"}
    assert first["float"] == first["double"] == {"N": "0.1"}
    assert second["double"] == {"S": "1e300"}
    assert [one["not a number"] for one in (first, second, last)] == [
        {"S": "NaN"},
        {"S": "Infinity"},
        {"S": "-Infinity"},
    ]
    assert (first["boolean"], first["binary"]) == ({"BOOL": True}, {"B": b"\0\xff"})
    assert (first["string"], second["string"]) == ({"S": "ü\n\"'\\\0"}, {"S": ""})
    assert first["date"] == {"S": "0001-01-01"}
    assert first["array"] == {"L": [{"N": "1"}, {"NULL": True}]}
    assert first["map"] == {"M": {"a": {"N": "1"}}}
    assert first["struct"] == {"M": {"a": {"N": "1"}, "b": {"L": [{"S": "x"}, {"NULL": True}]}}}
    assert {str(value) for name, value in last.items() if name not in ("id", "not a number")} == {"{'NULL': True}"}


def test_binary_and_maps_inside_others(server: DynamoDbServer) -> None:
    table = server.new_table()
    inner = pa.array([[{"b": b"\0\1"}]], pa.list_(pa.struct([("b", pa.binary())])))
    by_number = pa.array([[(1, "x")]], pa.map_(pa.int64(), pa.string()))
    with opened(server, table) as sink:
        sink.write(chunk(pa.table({"id": [1], "inner": inner, "by_number": by_number})))
    (item,) = server.items(table)
    assert item["inner"] == {"L": [{"M": {"b": {"B": b"\0\1"}}}]}
    assert item["by_number"] == {"L": [{"M": {"key": {"N": "1"}, "value": {"S": "x"}}}]}


def test_nulls_may_be_left_out(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table, nulls="omit") as sink:
        sink.write(chunk(pa.table({"id": [1], "gone": pa.nulls(1, pa.string())})))
    assert server.items(table) == [{"id": {"N": "1"}}]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_are_no_utf8_are_told_and_never_become_one_key(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table(id="S")
    rows = chunk(pa.table({"id": raw_texts(b"\xff", b"\xfe", b"ok"), "n": [1, 2, 3]}))
    with opened(server, table, kind) as sink:
        refused = sink.write(rows)
        assert isinstance(refused, Rejected)
        assert refused.reasons == dict.fromkeys(
            (0, 1), "column 'id' holds bytes that are not UTF-8 text: invalid start byte"
        )
        assert sink.write(rows.without(refused.reasons)) is None
    assert server.items(table) == [{"id": {"S": "ok"}, "n": {"N": "3"}}]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_rows_of_one_key_the_last_stays(
    server: DynamoDbServer, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = server.new_table(id="N", day="S")
    rows = pa.table({"id": [1, 2, 1], "day": ["mo", "mo", "mo"], "late": [1, 2, 3]})
    with opened(server, table, kind) as sink:
        sink.write(chunk(rows))
    assert {item["id"]["N"]: item["late"]["N"] for item in server.items(table)} == {"1": "3", "2": "2"}
    assert "several rows at once have one key" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_differ_in_the_last_of_38_digits_are_two_items(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table()
    numbers = [Decimal("1234567890123456789012345678901234567" + last) for last in "889"]
    rows = pa.table({"id": pa.array(numbers, pa.decimal128(38, 0)), "late": [1, 2, 3]})
    with opened(server, table, kind) as sink:
        assert sink.write(chunk(rows)) is None
    assert {item["id"]["N"]: item["late"]["N"] for item in server.items(table)} == {
        str(numbers[0]): "2",
        str(numbers[2]): "3",
    }


def test_equal_numbers_are_one_key_and_digits_beyond_38_stay(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(pa.table({"id": [0.0, -0.0, 1.5], "wide": [Decimal(1), Decimal(1), Decimal("1e0")]})))
        wide = Decimal("1" + "0" * 70 + "1")
        sink.write(chunk(pa.table({"id": [2.0], "wide": pa.array([wide], pa.decimal256(76, 0))}), first=3))
    assert sorted(float(item["id"]["N"]) for item in server.items(table)) == [0.0, 1.5, 2.0]
    assert [item["wide"] for item in server.items(table) if float(item["id"]["N"]) == 2] == [{"S": str(wide)}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_no_number_is_told_by_row(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table()
    rows = pa.table({"id": [1.0, float("nan"), float("inf"), 1e300, 2.0]})
    with opened(server, table, kind) as sink:
        refused = sink.write(chunk(rows))
    assert isinstance(refused, Rejected)
    assert list(refused.reasons) == [1, 2, 3]
    assert refused.reasons[1] == "column 'id' of the row's key is NaN, but DynamoDB cannot hold this value as a number"
    assert [float(item["id"]["N"]) for item in server.items(table)] == ([] if kind is DynamoDbSink else [1.0, 2.0])


def test_a_full_item_collection_is_told_by_row(server: DynamoDbServer) -> None:
    table = server.new_table()
    server.faults.append(Fault("BatchWriteItem", "ItemCollectionSizeLimitExceededException", times=2))
    with opened(server, table, DynamoDbPutSink) as sink:
        refused = sink.write(chunk(ids(1, 2)))
    assert list(refused.reasons) == [0]
    assert "ItemCollectionSizeLimitExceededException" in refused.reasons[0]
    assert server.ids(table) == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_no_item_can_hold_are_told(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table(name="S")
    rows = pa.table({"name": ["a", None, "", "k" * 2049, "e"], "text": ["", "", "", "", "x" * 410_000]})
    with opened(server, table, kind) as sink:
        refused = sink.write(chunk(rows))
    assert isinstance(refused, Rejected)
    assert refused.reasons[1] == "column 'name' of the row's key is NULL"
    assert refused.reasons[2] == "column 'name' of the row's key has 0 bytes, expected 1 to 2048"
    assert refused.reasons[3] == "column 'name' of the row's key has 2049 bytes, expected 1 to 2048"
    assert refused.reasons[4].startswith("the item has about 4100")
    assert [item["name"]["S"] for item in server.items(table)] == ([] if kind is DynamoDbSink else ["a"])


def test_a_chunk_that_the_server_refuses_writes_nothing(server: DynamoDbServer) -> None:
    server.faults.append(Fault("TransactWriteItems", "ValidationException"))
    table = server.new_table()
    with opened(server, table) as sink, pytest.raises(PermanentError, match=r"batch 0, chunk a-0-1: .*a test says"):
        sink.write(chunk(ids(1)))
    assert server.ids(table) == []


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (pa.table({"di": [1]}), {}, "the table's key 'id' is not among the columns di"),
        (pa.table({"id": ["1"]}), {}, "column 'id' would be stored as S, but the table's key is N"),
        (pa.table({"id": [1], "": [1]}), {}, "a column has an empty name"),
        (pa.Table.from_arrays([pa.array([1])] * 2, names=["id", "id"]), {}, "column 'id' occurs 2 times"),
    ],
)
def test_columns_that_do_not_fit(server: DynamoDbServer, rows: Any, more: dict[str, Any], message: str) -> None:
    table = server.new_table()
    for kind in KINDS:
        with opened(server, table, kind, **more) as sink, pytest.raises(PermanentError, match=message):
            sink.write(chunk(rows))
    assert server.items(table) == []


def test_a_column_named_as_row_key(server: DynamoDbServer) -> None:
    with (
        opened(server, server.new_table(id="S"), row_key="id") as sink,
        pytest.raises(PermanentError, match="column 'id' has the name of row_key"),
    ):
        sink.write(chunk(ids(1)))
