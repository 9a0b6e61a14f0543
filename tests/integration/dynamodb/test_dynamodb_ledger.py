"""The ledger of `DynamoDbSink`, and what fits into a transaction with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Position
from tests.support.chunks import SLOT, chunk, ids
from tests.support.dynamodb_tools import opened
from tests.support.servers.dynamodb_server import REGION, DynamoDbServer, Fault, create_table
from wal_sink.errors import FencedError, HistoryError, OutcomeUnknownError, PermanentError
from wal_sink.testing import query_into
from wal_sink_backends.dynamodb.items import Identity
from wal_sink_backends.dynamodb.sink import DynamoDbSink, TryAgainError

# The ledger.


def test_the_ledger_is_made_once(server: DynamoDbServer) -> None:
    table = server.new_table()
    for _ in range(2):
        with opened(server, table) as sink:
            assert sink.last(SLOT) is None
    assert [operation for operation, _ in server.requests].count("CreateTable") == 2, "the table's, and one"


def test_positions_are_read_consistently_a_hundred_in_a_request(server: DynamoDbServer) -> None:
    slots = [f"wal/default/{number}" for number in range(250)]
    with opened(server, server.new_table()) as sink:
        for number in (0, 99, 100, 249):
            sink.write(chunk(ids(number), slot=slots[number]))
        server.requests.clear()
        found = sink.positions([*slots, slots[0]])
        requests = server.requests[:]
        assert sink.positions([]) == {}
        assert server.requests == requests
    assert [operation for operation, _ in requests] == ["DescribeTable"] + ["BatchGetItem"] * 3
    asked = [one for _, body in requests[1:] for one in body["RequestItems"].values()]
    assert [len(one["Keys"]) for one in asked] == [100, 100, 50]
    assert all(one["ConsistentRead"] is True for one in asked)
    assert list(found) == slots
    held = {slot: position for slot, position in found.items() if position is not None}
    assert held == {slots[number]: Position(slots[number], 0, 1, "a") for number in (0, 99, 100, 249)}


def test_a_table_that_forgot_is_found_out_between_two_chunks(server: DynamoDbServer) -> None:
    """Also between reading the ledger and writing: the transaction has the condition that it is unchanged."""
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1)))
        (old,) = server.items(f"{table}-ledger")
        sink.write(chunk(ids(2), first=1))
        client = sink._calls.client

        def forget(**arguments: Any) -> Any:
            found = client.get_item(**arguments)
            server.client.put_item(TableName=f"{table}-ledger", Item=old)
            return found

        sink._calls.client = _Hooked(client, get_item=forget)
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            sink.write(chunk(ids(3), first=2))
    assert server.ids(table) == [1, 2]


def test_who_is_overtaken_between_reading_and_writing_looks_again(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as zombie, opened(server, table) as newer:
        client = _Hooked(zombie._calls.client, get_item=overtaken_once(zombie._calls.client, newer))
        zombie._calls.client = client
        with pytest.raises(
            FencedError,
            match="a process with term 2 has already written to this slot, but the term of this process is 1",
        ):
            zombie.write(chunk(ids(1), term=1))
    assert server.ids(table) == [1]


class _Hooked:
    """A client, some of whose methods are replaced."""

    def __init__(self, client: Any, **methods: Any) -> None:
        self._client = client
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def overtaken_once(client: Any, newer: Any) -> Any:
    """Return a `get_item`, after which a newer process writes the same chunk."""
    todo = [chunk(ids(1), term=2)]

    def get_item(**arguments: Any) -> Any:
        found = client.get_item(**arguments)
        if todo:
            newer.write(todo.pop())
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
    told = f"batch 1 was delivered and marked, but the target holds {remembered}"
    with pytest.raises(HistoryError, match=told), query_into(sink) as query:  # noqa: PT012
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
        with pytest.raises(PermanentError, match=r"100 rows.*at most 99 rows.*Settings\(chunk_rows=99"):
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


# A table that was deleted and created again.


def recreate(server: DynamoDbServer, table: str) -> None:
    server.client.delete_table(TableName=table)
    create_table(server.client, table, {"id": "N"})


def sink_of(server: DynamoDbServer, table: str) -> DynamoDbSink:
    return DynamoDbSink(table, region=REGION, endpoint_url=server.endpoint, ledger_table=f"{table}-ledger")


def test_a_table_made_anew_in_mid_run_is_refused_before_the_next_marker(server: DynamoDbServer) -> None:
    table = server.new_table()
    told = r"deleted and created again after batch 0, row 1.*recreated_table='accept'"
    with pytest.raises(HistoryError, match=told), query_into(sink_of(server, table)) as query:  # noqa: PT012
        query.batch(ids(1))
        recreate(server, table)
        query.batch(ids(2))


def test_a_table_made_anew_while_its_sink_is_open_is_told_with_the_positions(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1)))
        recreate(server, table)
        sink.write(chunk(ids(2), first=1))  # no request more than before: the marker is what counts
        server.requests.clear()
        with pytest.raises(HistoryError, match=f"table '{table}' was deleted and created again after batch 0, row 2"):
            sink.positions([SLOT])
        assert [operation for operation, _ in server.requests] == ["DescribeTable", "BatchGetItem"]
        with pytest.raises(HistoryError, match="deleted and created again"):
            sink.write(chunk(ids(3), first=2))
    assert server.ids(table) == [2]


def test_a_table_made_anew_is_accepted_where_the_user_says_so(server: DynamoDbServer) -> None:
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1)))
    recreate(server, table)
    with opened(server, table, recreated_table="accept") as sink:
        sink.write(chunk(ids(2), first=1))
        assert sink.positions([SLOT]) == {SLOT: Position(SLOT, 0, 2, "a")}
    with opened(server, table) as sink:
        assert sink.last(SLOT) == Position(SLOT, 0, 2, "a"), "the ledger tells of the new table now"


NUMBERS_AND_TEXTS = ["term", "batch_id", "rows", "segment_id"]


@pytest.mark.parametrize(
    ("damage", "is_gone"),
    [("table", True), ("table_id", True), *((name, gone) for name in NUMBERS_AND_TEXTS for gone in (True, False))],
)
def test_a_damaged_item_of_the_ledger_is_refused(server: DynamoDbServer, damage: str, *, is_gone: bool) -> None:
    """It was a KeyError that was tried again."""
    table = server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1)))
        (item,) = server.items(f"{table}-ledger")
        if is_gone:
            del item[damage]
        else:
            item[damage] = {"BOOL": True}
        server.client.put_item(TableName=f"{table}-ledger", Item=item)
        told = r"item for slot .* is damaged.*Restore the item"
        with pytest.raises(PermanentError, match=told):
            sink.last(SLOT)
        with pytest.raises(PermanentError, match=told):
            sink.positions([SLOT])
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(ids(2), first=1))
    assert server.ids(table) == [1]


def test_another_table_than_that_of_the_ledger_is_refused_or_accepted(server: DynamoDbServer) -> None:
    """A start with another table of the same ledger went on there, and a check of an empty table found no fault."""
    table, other = server.new_table(), server.new_table()
    with opened(server, table) as sink:
        sink.write(chunk(ids(1)))
    told = f"'{other}' is given, but '{table}' has the rows up to batch 0, row 1"
    with opened(server, other, ledger_table=f"{table}-ledger") as sink, pytest.raises(HistoryError, match=told):
        sink.last(SLOT)
    with opened(server, other, ledger_table=f"{table}-ledger", recreated_table="accept") as sink:
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")


def test_a_service_that_tells_neither_id_nor_creation_is_refused() -> None:
    with pytest.raises(PermanentError, match="neither TableId nor CreationDateTime"):
        Identity.of({"TableName": "orders"}, "'orders'")


def test_the_id_of_a_table_comes_before_its_time_of_creation() -> None:
    found = {"TableName": "orders", "TableId": "7f", "CreationDateTime": 1}
    assert Identity.of(found, "'orders'") == Identity("orders", "7f")


def test_slots_that_were_left_unread_are_asked_for_again(server: DynamoDbServer) -> None:
    slots = [f"wal/default/{number}" for number in range(10)]
    with opened(server, server.new_table()) as sink:
        for slot in slots:
            sink.write(chunk(ids(1), slot=slot))
        server.requests.clear()
        server.faults += [Fault("BatchGetItem", unprocessed=10), Fault("BatchGetItem", unprocessed=4)]
        found = sink.positions(slots)
    asked = [one["Keys"] for _, body in server.requests[1:] for one in body["RequestItems"].values()]
    assert [len(keys) for keys in asked] == [10, 10, 4]
    assert found == {slot: Position(slot, 0, 1, "a") for slot in slots}


def test_waiting_for_slots_that_are_left_unread_is_bounded(server: DynamoDbServer) -> None:
    with opened(server, server.new_table()) as sink:
        sink._target = replace(sink._target, timeout_s=0.3)  # of its patience, not of its client
        server.faults.append(Fault("BatchGetItem", unprocessed=1, times=10**6))
        with pytest.raises(TryAgainError, match="1 items were not read within timeout_s"):
            sink.positions([SLOT])
