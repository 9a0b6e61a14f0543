"""Answers of DynamoDB, also about tables that are not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import pytest

from tests.house.sinks import Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.dynamodb_tools import KINDS, SECRET, opened
from tests.support.servers.dynamodb_server import ACCESS, DynamoDbServer, Fault
from wal_sink.errors import PermanentError
from wal_sink_backends.dynamodb import calls as dynamodb_clients
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink, TryAgainError

# Answers of DynamoDB.

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
        with pytest.raises(TryAgainError, match=r"the table of the ledger was not found. It was just created"):
            sink.write(chunk(ids(1)))
        sink.write(chunk(ids(1)))
    assert server.ids(table) == [1]


@pytest.fixture
def own_session() -> Iterator[None]:
    """Credentials that are found in this test are not those of the next."""
    dynamodb_clients.session.cache_clear()
    yield
    dynamodb_clients.session.cache_clear()


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
def test_credentials_that_stay_unknown_are_permanent(server: DynamoDbServer, kind: Any) -> None:
    operation = "GetItem" if kind is DynamoDbSink else "BatchWriteItem"
    server.faults.append(Fault(operation, "UnrecognizedClientException", times=9))
    with opened(server, server.new_table(), kind) as sink:
        with pytest.raises(TryAgainError, match="UnrecognizedClientException"):
            sink.write(chunk(ids(1)))
        with pytest.raises(PermanentError, match="New credentials were read, but DynamoDB refuses them too") as caught:
            sink.write(chunk(ids(1)))
        assert SECRET not in str(caught.value)
    server.faults[:] = [Fault("DescribeTable", "UnrecognizedClientException", times=9)]
    with (
        pytest.raises(PermanentError, match="New credentials were read, but DynamoDB refuses them too"),
        opened(server, "orders", kind),
    ):
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
    with (
        opened(server, server.new_table()) as sink,
        pytest.raises(TryAgainError, match="write to the ledger item for slot"),
    ):
        sink.write(chunk(ids(1)))
    assert [operation for operation, _ in server.requests].count("TransactWriteItems") == 3


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
        pytest.raises(TryAgainError, match="throttles the table, and 2 items were not written"),
    ):
        sink.write(chunk(ids(1, 2, 3)))
    assert time.monotonic() - started_s < 60
    assert server.ids(table) == [1]


# Tables and credentials that are not there.


def test_a_ledger_that_may_not_be_made(server: DynamoDbServer) -> None:
    with (
        pytest.raises(
            PermanentError, match=r"this table does not exist\. Create it with the partition key 'slot' of type string"
        ),
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


def test_a_table_without_that_row_key(server: DynamoDbServer) -> None:
    with (
        pytest.raises(PermanentError, match=r"the key of this table is \{'id': 'N'\}, but row_key='at' needs a table"),
        opened(server, server.new_table(), row_key="at"),
    ):
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("own_session")
def test_credentials_are_read_anew_when_opening(
    server: DynamoDbServer, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamodb_clients.session().get_credentials()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    server.faults.append(Fault("DescribeTable", "UnrecognizedClientException"))
    table = server.new_table()
    server.signers.clear()
    with opened(server, table, kind):
        assert server.signers[:2] == [ACCESS["aws_access_key_id"], "renewed"]
