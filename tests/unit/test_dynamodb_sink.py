"""The DynamoDB sinks against moto's server, with faults DynamoDB has and moto has not.

What every sink of their kinds must do is tested in `tests/contract/test_dynamodb_backend.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import textwrap
import time
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import botocore.exceptions
import pyarrow as pa
import pytest

from tests.contract.dynamodb_server import ACCESS, REGION, DynamoDbServer, Fault, create_table, dynamodb_client
from tests.processes import CHECKOUT, Child
from wal_sink.chunk import Chunk, Position
from wal_sink.errors import ConfigError, DivergentReplay, FencedError, HistoryError, PermanentError
from wal_sink.sink import Rejected, SinkContext
from wal_sink.testing import FakeQuery
from wal_sink.testing.tables import COLUMN_TYPES
from wal_sink_backends import dynamodb_calls
from wal_sink_backends.dynamodb import DynamoDbPutSink, DynamoDbSink, TryAgainError, dynamodb_sink

SLOT = "wal/default/0"
CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
SECRET = ACCESS["aws_secret_access_key"]
KINDS = [DynamoDbSink, DynamoDbPutSink]


@pytest.fixture
def server(dynamodb_server: DynamoDbServer) -> DynamoDbServer:
    return dynamodb_server


@contextlib.contextmanager
def opened(server: DynamoDbServer, table: str, kind: Any = DynamoDbSink, **more: Any) -> Iterator[Any]:
    own = {"ledger_table": f"{table}-ledger"} if kind is DynamoDbSink else {}
    given: dict[str, Any] = {"region": REGION, "endpoint_url": server.endpoint} | own | more
    sink = kind(table, **given)
    try:
        sink.open(CONTEXT)
        yield sink
    finally:
        sink.close()


def chunk(table: pa.Table, *, batch: int = 0, first: int = 0, segment: str = "a", term: int = 1) -> Chunk:
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(SLOT, batch, end, segment),
        term=term,
    )


def ids(*values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


# The ledger.


def test_the_ledger_is_made_once(server: DynamoDbServer) -> None:
    table = server.new_table()
    for _ in range(2):
        with opened(server, table) as sink:
            assert sink.last(SLOT) is None
    assert [operation for operation, _ in server.requests].count("CreateTable") == 2, "the table's, and one"


def test_the_position_outlives_the_connection(server: DynamoDbServer) -> None:
    table = server.new_table()
    for _ in range(2):
        with opened(server, table) as sink:
            sink.write(chunk(ids(1, 2), batch=5))
            assert sink.last(SLOT) == Position(SLOT, 5, 2, "a")
    assert server.ids(table) == [1, 2]


def test_what_is_known_writes_nothing(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1), batch=1, segment="b"))
        sink.write(chunk(ids(2, 3)))
        sink.write(chunk(ids(1), batch=1, segment="b"))
    assert server.ids(table) == [1]
    assert [operation for operation, _ in server.requests].count("TransactWriteItems") == 1


def test_even_a_repeat_of_a_lower_term_is_refused(server: DynamoDbServer) -> None:
    with opened(server, server.new_table()) as sink:
        sink.write(chunk(ids(1), term=7))
        with pytest.raises(FencedError, match="term 7 has written, this sender's is 6"):
            sink.write(chunk(ids(1), term=6))


def test_other_histories_are_refused(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1, 2)))
        with pytest.raises(DivergentReplay, match="segment a, the chunk is of segment b"):
            sink.write(chunk(ids(3), segment="b"))
        with pytest.raises(HistoryError, match="cuts this chunk in two"):
            sink.write(chunk(ids(2, 3), first=1))
    assert server.ids(table) == [1, 2]


def test_a_chunk_without_rows_moves_the_ledger(server: DynamoDbServer) -> None:
    with opened(server, server.new_table()) as sink:
        sink.write(chunk(ids(1)).without([0]))
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")


def test_who_is_overtaken_between_reading_and_writing_looks_again(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as zombie, opened(server, table) as successor:
        client = _Hooked(zombie._calls.client, get_item=overtaken_once(zombie._calls.client, successor))
        zombie._calls.client = client
        with pytest.raises(FencedError, match="term 2 has written, this sender's is 1"):
            zombie.write(chunk(ids(1), term=1))
    assert server.ids(table) == [1]


class _Hooked:
    """A client, with some methods in place of its own."""

    def __init__(self, client: Any, **methods: Any) -> None:
        self._client = client
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def overtaken_once(client: Any, successor: Any) -> Any:
    """`get_item`, after which a successor writes the same chunk."""
    todo = [chunk(ids(1), term=2)]

    def get_item(**arguments: Any) -> Any:
        found = client.get_item(**arguments)
        if todo:
            successor.write(todo.pop())
        return found

    return get_item


@pytest.mark.parametrize("kept", [0, 1])
def test_a_table_restored_to_before_the_marker_is_refused(server: DynamoDbServer, kept: int) -> None:
    """Emptied, or taken back to the first batch."""
    table = server.new_table()
    sink = DynamoDbSink(
        table, region=REGION, endpoint_url=server.endpoint, ledger_table=f"{table}-ledger", row_key=None
    )
    remembered = "batch 0" if kept else "nothing"
    told = f"batch 1 was delivered and marked, but its target remembers {remembered}"
    with pytest.raises(HistoryError, match=told), FakeQuery.over(sink) as query:  # noqa: PT012
        query.batch(ids(1))
        (old,) = server.items(f"{table}-ledger")
        query.batch(ids(2))
        server.client.delete_item(TableName=f"{table}-ledger", Key={"slot": old["slot"]})
        if kept:
            server.client.put_item(TableName=f"{table}-ledger", Item=old)
        query.batch(ids(3))
    assert server.ids(table) == [1, 2]


# Chunks that fit, and those that do not.


def test_99_rows_are_one_transaction(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(*range(99))))
        with pytest.raises(PermanentError, match=r"100 rows.*takes 99 rows.*Settings\(chunk_rows=99"):
            sink.write(chunk(ids(*range(100)), first=99))
    assert server.ids(table) == list(range(99))
    (puts,) = [body["TransactItems"] for operation, body in server.requests if operation == "TransactWriteItems"]
    assert len(puts) == 100


def test_4_mb_are_too_much_for_a_transaction(server: DynamoDbServer) -> None:
    wide = pa.table({"id": list(range(11)), "text": ["x" * 390_000] * 11})
    with opened(server, server.new_table()) as sink:
        with pytest.raises(PermanentError, match=r"11 rows, 42\d+ bytes"):
            sink.write(chunk(wide))
        assert sink.last(SLOT) is None


def test_puts_take_chunks_of_any_size(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table, DynamoDbPutSink) as sink:
        sink.write(chunk(ids(*range(120))))
    assert server.ids(table) == list(range(120))


# Items.


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
def test_of_two_rows_of_one_key_the_last_stays(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table(id="N", day="S")
    rows = pa.table({"id": [1, 2, 1], "day": ["mo", "mo", "mo"], "late": [1, 2, 3]})
    with opened(server, table, kind) as sink:
        sink.write(chunk(rows))
    assert {item["id"]["N"]: item["late"]["N"] for item in server.items(table)} == {"1": "3", "2": "2"}


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
    assert refused.reasons[1] == "column 'id' of its key is NaN, which no number of DynamoDB is"
    assert [float(item["id"]["N"]) for item in server.items(table)] == ([] if kind is DynamoDbSink else [1.0, 2.0])


def test_a_full_item_collection_is_told_by_row(server: DynamoDbServer) -> None:
    table = server.new_table()
    server.faults.append(Fault("BatchWriteItem", "ItemCollectionSizeLimitExceededException", times=2))
    with opened(server, table, DynamoDbPutSink) as sink:
        refused = sink.write(chunk(ids(1, 2)))
    assert list(refused.reasons) == [0]
    assert "ItemCollectionSizeLimitExceededException" in refused.reasons[0]
    assert server.ids(table) == [2]


def test_row_keys_make_every_row_an_item(server: DynamoDbServer) -> None:
    table = server.new_table(at="S")
    with opened(server, table, row_key="at") as sink:
        sink.write(chunk(ids(1, 1, 1), first=4))
    assert sorted(item["at"]["S"] for item in server.items(table)) == ["a-4", "a-5", "a-6"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_no_item_can_hold_are_told(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table(name="S")
    rows = pa.table({"name": ["a", None, "", "k" * 2049, "e"], "text": ["", "", "", "", "x" * 410_000]})
    with opened(server, table, kind) as sink:
        refused = sink.write(chunk(rows))
    assert isinstance(refused, Rejected)
    assert refused.reasons[1] == "column 'name' of its key is NULL"
    assert refused.reasons[2] == "column 'name' of its key has 0 bytes, expected 1 to 2048"
    assert refused.reasons[3] == "column 'name' of its key has 2049 bytes, expected 1 to 2048"
    assert refused.reasons[4].startswith("it has about 4100")
    assert [item["name"]["S"] for item in server.items(table)] == ([] if kind is DynamoDbSink else ["a"])


def test_an_item_that_only_the_server_refuses_is_told(server: DynamoDbServer) -> None:
    """moto takes 405,000 bytes, DynamoDB 409,600."""
    table = server.new_table()
    rows = pa.table({"id": list(range(26)), "text": ["x" * (409_000 if number == 7 else 9) for number in range(26)]})
    with opened(server, table, DynamoDbPutSink) as sink:
        refused = sink.write(chunk(rows))
    assert list(refused.reasons) == [7]
    assert "Item size has exceeded the maximum allowed size" in refused.reasons[7]
    assert server.ids(table) == [number for number in range(26) if number != 7]


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
        (pa.table({"id": ["1"]}), {}, "column 'id' would be stored as S, the table's key is N"),
        (pa.table({"id": [1], "": [1]}), {}, "a column has no name"),
        (pa.Table.from_arrays([pa.array([1])] * 2, names=["id", "id"]), {}, "column 'id' stands 2 times"),
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


# What DynamoDB answers.

MAY_PASS = ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"]


@pytest.mark.parametrize("code", [*MAY_PASS, "InternalServerError", "TransactionInProgressException"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_waiting")
def test_errors_that_may_pass(server: DynamoDbServer, kind: Any, code: str) -> None:
    table = server.new_table()
    operation = "TransactWriteItems" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, code, times=3))
    with opened(server, table, kind) as sink:
        with pytest.raises(botocore.exceptions.ClientError, match=code):  # botocore repeats some of them itself, twice
            sink.write(chunk(ids(1)))
        server.faults.clear()
        sink.write(chunk(ids(1)))
    assert server.ids(table) == [1]


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's own retries wait up to seconds."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)


@pytest.mark.parametrize("code", ["SerializationException", "AccessDeniedException"])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_that_will_not_pass(server: DynamoDbServer, kind: Any, code: str) -> None:
    operation = "TransactWriteItems" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, code))
    told = rf"batch 0, chunk a-0-1: .*{code}.*a test says"
    with opened(server, server.new_table(), kind) as sink, pytest.raises(PermanentError, match=told) as caught:
        sink.write(chunk(ids(1)))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("operation", ["GetItem", "TransactWriteItems"])
def test_a_ledger_that_is_not_known_everywhere_yet(server: DynamoDbServer, operation: str) -> None:
    table = server.new_table()
    server.faults.append(Fault(operation, "ResourceNotFoundException"))
    with opened(server, table) as sink:
        with pytest.raises(TryAgainError, match="the ledger's table is not found, or not yet"):
            sink.write(chunk(ids(1)))
        sink.write(chunk(ids(1)))
    assert server.ids(table) == [1]


@pytest.fixture
def own_session() -> Iterator[None]:
    """Credentials that are found in this test are not those of the next."""
    dynamodb_calls.session.cache_clear()
    yield
    dynamodb_calls.session.cache_clear()


STALE = ["ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"]


@pytest.mark.parametrize("code", STALE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("own_session")
def test_credentials_are_read_anew(
    server: DynamoDbServer, kind: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = server.new_table()
    operation = "TransactWriteItems" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, code))
    with opened(server, table, kind) as sink:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        with pytest.raises(TryAgainError, match=f"batch 0, chunk a-0-1: .*{code}"):
            sink.write(chunk(ids(1)))
        assert "renewed" not in server.signers
        server.signers.clear()
        sink.write(chunk(ids(1)))
        assert set(server.signers) == {"renewed"}
    assert server.ids(table) == [1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("own_session")
def test_credentials_are_read_anew_when_opening(
    server: DynamoDbServer, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamodb_calls.session().get_credentials()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    server.faults.append(Fault("DescribeTable", "UnrecognizedClientException"))
    table = server.new_table()
    server.signers.clear()
    with opened(server, table, kind):
        assert server.signers[:2] == [ACCESS["aws_access_key_id"], "renewed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("own_session")
def test_credentials_that_stay_unknown_are_permanent(server: DynamoDbServer, kind: Any) -> None:
    operation = "GetItem" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, "UnrecognizedClientException", times=9))
    with opened(server, server.new_table(), kind) as sink:
        with pytest.raises(TryAgainError, match="UnrecognizedClientException"):
            sink.write(chunk(ids(1)))
        with pytest.raises(PermanentError, match="nor are those that are found now") as caught:
            sink.write(chunk(ids(1)))
        assert SECRET not in str(caught.value)
    server.faults[:] = [Fault("DescribeTable", "UnrecognizedClientException", times=9)]
    with pytest.raises(PermanentError, match="nor are those that are found now"), opened(server, "orders", kind):
        pass


def test_a_cancelled_transaction_tells_why(server: DynamoDbServer) -> None:
    table = server.new_table()
    cancelled = "TransactionCanceledException"
    server.faults += [
        Fault("TransactWriteItems", cancelled, reasons=("None", "TransactionConflict", "None")),
        Fault("TransactWriteItems", cancelled, reasons=("None", "ThrottlingError", "ProvisionedThroughputExceeded")),
        Fault("TransactWriteItems", cancelled, reasons=("None", "ValidationError", "None")),
        Fault("TransactWriteItems", cancelled, reasons=("ItemCollectionSizeLimitExceeded", "None", "None")),
    ]
    with opened(server, table) as sink:
        with pytest.raises(TryAgainError, match="cancelled the transaction: TransactionConflict"):
            sink.write(chunk(ids(1, 2)))
        with pytest.raises(TryAgainError, match="ProvisionedThroughputExceeded, ThrottlingError"):
            sink.write(chunk(ids(1, 2)))
        assert sink.write(chunk(ids(1, 2))) == Rejected({1: "ValidationError: about ValidationError"})
        assert list(sink.write(chunk(ids(1, 2))).reasons) == [0]
        assert sink.last(SLOT) is None
        sink.write(chunk(ids(1, 2)))
    assert server.ids(table) == [1, 2]


def test_a_ledger_that_others_keep_moving_may_be_tried_again(server: DynamoDbServer) -> None:
    moved = ("None", "ConditionalCheckFailed")
    server.faults.append(Fault("TransactWriteItems", "TransactionCanceledException", reasons=moved, times=9))
    with opened(server, server.new_table()) as sink, pytest.raises(TryAgainError, match="others move the ledger"):
        sink.write(chunk(ids(1)))
    assert [operation for operation, _ in server.requests].count("TransactWriteItems") == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_waiting")
def test_an_answer_that_got_lost(server: DynamoDbServer, kind: Any) -> None:
    """Of the first try; botocore repeats it under the same token, and the core would."""
    table = server.new_table()
    operation = "TransactWriteItems" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, lose_answer=True))
    with opened(server, table, kind) as sink:
        sink.write(chunk(ids(1, 2)))
        sink.write(chunk(ids(3), first=2))
    assert server.ids(table) == [1, 2, 3]
    tokens = [body.get("ClientRequestToken") for name, body in server.requests if name == "TransactWriteItems"]
    assert not tokens or tokens[0] == tokens[1]


def test_unprocessed_items_are_put_again(server: DynamoDbServer) -> None:
    table = server.new_table()
    server.faults.append(Fault("BatchWriteItem", unprocessed=20, times=1))
    server.faults.append(Fault("BatchWriteItem", unprocessed=3, times=2))
    with opened(server, table, DynamoDbPutSink) as sink:
        sink.write(chunk(ids(*range(25))))
    assert server.ids(table) == list(range(25))
    sizes = [len(*body["RequestItems"].values()) for name, body in server.requests if name == "BatchWriteItem"]
    assert sizes == [25, 20, 3, 3]


def test_waiting_for_unprocessed_items_is_bounded(server: DynamoDbServer) -> None:
    table = server.new_table()
    server.faults.append(Fault("BatchWriteItem", unprocessed=2, times=10**6))
    started_s = time.monotonic()
    with (
        opened(server, table, DynamoDbPutSink, max_wait_s=0.2) as sink,
        pytest.raises(TryAgainError, match="left 2 items unprocessed for too long"),
    ):
        sink.write(chunk(ids(1, 2, 3)))
    assert time.monotonic() - started_s < 20
    assert server.ids(table) == [1]


# Tables and credentials that are not there.


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_table(server: DynamoDbServer, kind: Any) -> None:
    with pytest.raises(PermanentError, match=r"'no-such', .* there is no such table"), opened(server, "no-such", kind):
        pass


def test_a_ledger_that_may_not_be_made(server: DynamoDbServer) -> None:
    with (
        pytest.raises(PermanentError, match="there is none; create it with the string partition key 'slot'"),
        opened(server, server.new_table(), create_ledger=False),
    ):
        pass


def test_a_ledger_that_is_being_made_is_waited_for(server: DynamoDbServer) -> None:
    table, ledger_table = server.new_table(), server.new_table(slot="S")
    server.requests.clear()
    server.faults.append(Fault("DescribeTable", status="CREATING", times=3))  # of the table, of the ledger twice
    with opened(server, table, ledger_table=ledger_table, create_ledger=False) as sink:
        assert [operation for operation, _ in server.requests] == ["DescribeTable"] * 4
        sink.write(chunk(ids(1)))
    assert server.ids(table) == [1]


def test_what_cannot_be_opened_leaves_no_client(server: DynamoDbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = dynamodb_calls.Calls.close

    def noted(calls: dynamodb_calls.Calls) -> None:
        closed.append("once")
        close(calls)

    monkeypatch.setattr(dynamodb_calls.Calls, "close", noted)
    sink = DynamoDbSink(
        server.new_table(), region=REGION, endpoint_url=server.endpoint, ledger_table="none", create_ledger=False
    )
    with pytest.raises(PermanentError, match="there is none"):
        sink.open(CONTEXT)
    assert closed == ["once"]


def test_a_ledger_that_is_another_table(server: DynamoDbServer) -> None:
    with (
        pytest.raises(PermanentError, match=r"its key is \{'id': 'N'\}, expected the string 'slot' alone"),
        opened(server, server.new_table(), ledger_table=server.new_table()),
    ):
        pass


def test_a_table_without_that_row_key(server: DynamoDbServer) -> None:
    with (
        pytest.raises(PermanentError, match=r"its key is \{'id': 'N'\}; row_key='at' needs a table"),
        opened(server, server.new_table(), row_key="at"),
    ):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_vanishes(server: DynamoDbServer, kind: Any) -> None:
    table = server.new_table()
    with opened(server, table, kind) as sink:
        server.client.delete_table(TableName=table)
        with pytest.raises(PermanentError, match="batch 0, chunk a-0-1"):
            sink.write(chunk(ids(1)))


def test_no_credentials(server: DynamoDbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dynamodb_calls.session.cache_clear()
    for name in ACCESS:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    try:
        with pytest.raises(PermanentError, match="Unable to locate credentials"), opened(server, "orders"):
            pass
        with pytest.raises(PermanentError, match="You must specify a region"):
            DynamoDbSink("orders").open(CONTEXT)
    finally:
        dynamodb_calls.session.cache_clear()


@pytest.mark.usefixtures("no_waiting")
def test_nobody_listening(server: DynamoDbServer) -> None:
    with (
        pytest.raises(botocore.exceptions.EndpointConnectionError, match=r"127\.0\.0\.1:1"),
        opened(server, "orders", endpoint_url="http://127.0.0.1:1"),
    ):
        pass


# Killed processes.

WRITER = textwrap.dedent(
    """
    import sys
    import pyarrow as pa
    from wal_sink.chunk import Position
    from wal_sink.sink import SinkContext
    from wal_sink.testing.bench import chunks_of, slot
    from wal_sink_backends.dynamodb import dynamodb_sink

    sink = dynamodb_sink(sys.argv[1])
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot())
    pa.table({"id": [1]})
    print("ready", flush=True)
    for batch in range(last.batch_id if last else 0, 10**6):
        for chunk in chunks_of(pa.table({"id": range(batch * 20, batch * 20 + 20)}), batch_id=batch, chunk_rows=5):
            sink.write(chunk)
    """
)


def test_a_writer_killed_at_any_moment_leaves_rows_and_ledger_equal(server: DynamoDbServer, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    table = server.new_table(at="S")
    url = f"dynamodb://{table}?region={REGION}&endpoint_url={server.endpoint}&row_key=at&ledger_table={table}-ledger"
    counts = []
    for number in range(3):
        with Child.python(WRITER, url, log=tmp_path / f"{number}.log") as writer:
            writer.wait_for_output("ready")
            time.sleep(moments.uniform(0.05, 0.5))
            assert writer.running, writer.output
            writer.kill()
        ledger = server.items(f"{table}-ledger")
        known = sum(int(one["batch_id"]["N"]) * 20 + int(one["rows"]["N"]) for one in ledger)
        assert server.ids(table) == list(range(known)), f"seed {seed}"
        counts.append(known)
    assert counts == sorted(counts)
    assert counts[-1] > 0, "the writers were killed before they wrote"


@pytest.mark.usefixtures("no_waiting", "server")
def test_a_server_killed_in_mid_batch_loses_nothing_silently(tmp_path: Path) -> None:
    """moto keeps all in memory: after a kill its tables are gone, and the sink says so."""
    program = CHECKOUT / "tests" / "contract" / "dynamodb_server.py"
    with Child.python(program, log=tmp_path / "server.log") as child:
        child.wait_for_output("serving")
        endpoint = child.output.split("serving ")[1].split()[0]
        with contextlib.closing(dynamodb_client(endpoint)) as client:
            create_table(client, "orders", {"id": "N"})
        sink = DynamoDbSink("orders", region=REGION, endpoint_url=endpoint)
        sink.open(CONTEXT)
        sink.write(chunk(ids(1)))
        child.kill()
        with pytest.raises(botocore.exceptions.BotoCoreError):
            sink.write(chunk(ids(2), first=1))
        sink.close()


# Arguments and URLs.


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        ("", {}, "expected the name of a DynamoDB table"),
        ("orders", {"nulls": "drop"}, "expected 'null' or 'omit'"),
        ("orders", {"row_key": ""}, "expected the name of the table's partition key"),
        ("orders", {"timeout_s": 0}, "timeout_s=0"),
        ("orders", {"endpoint_url": "ftp://u:hunter2@x"}, "endpoint_url='ftp://x': expected http"),
        ("orders", {"ledger_table": "orders"}, "a table other than 'orders'"),
    ],
)
def test_arguments_that_cannot_work(table: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        DynamoDbSink(table, **arguments)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("dynamodb://?region=x", "expected dynamodb://TABLE"),
        ("dynamodb://orders/more", "expected dynamodb://TABLE"),
        ("dynamodb://orders?regoin=x", "unknown options regoin; known are mode, row_key"),
        ("dynamodb://orders?mode=put&ledger_table=x", "mode=put has no options ledger_table; it has row_key"),
        ("dynamodb://orders?region=x&region=y", "options given twice: region"),
        ("dynamodb://orders?mode=both", "mode='both': expected one of transactional, put"),
        ("dynamodb://orders?timeout_s=long", "expected numbers of seconds"),
        ("dynamodb://orders?create_ledger=maybe", "create_ledger true or false"),
    ],
)
def test_urls_that_cannot_work(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dynamodb_sink(url)


def test_by_url(server: DynamoDbServer) -> None:
    table = server.new_table()
    sink = dynamodb_sink(f"dynamodb://{table}?mode=put&region={REGION}&endpoint_url={server.endpoint}&max_wait_s=5")
    assert repr(sink) == f"DynamoDbPutSink('{table}', '{server.endpoint}')"
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert server.ids(table) == [1]
    assert repr(dynamodb_sink("dynamodb://Orders?region=x")) == "DynamoDbSink('Orders', 'x')"


def test_it_is_an_entry_point() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["wal_sink.backends"]["dynamodb"]
    assert EntryPoint("dynamodb", value, "wal_sink.backends").load() is dynamodb_sink


@pytest.mark.parametrize("kind", KINDS)
def test_write_before_open_says_so(kind: Any) -> None:
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        kind("orders").write(chunk(ids(1)))
