"""The DynamoDB sinks keep the contracts of their kinds, against Amazon's DynamoDB Local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from boto3.dynamodb.types import TypeDeserializer

from tests.support.contracts import LOSSES, FoldedContract, faults
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.dynamodb_server import ACCESS, REGION
from tests.support.wrong_sinks import WAKES
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink


@dataclass(frozen=True)
class Table:
    server: DynamoDbLocal
    name: str


class DynamoDbContract(FoldedContract):
    every = 17
    each_line = False

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        with self.closing():
            yield

    @contextmanager
    def closing(self) -> Iterator[None]:
        self.made: list[Any] = []
        yield
        for sink in self.made:  # of processes that died, which have nobody else to close their sockets
            sink.close()

    @pytest.fixture
    def target(self, dynamodb_local: DynamoDbLocal) -> Table:
        return self.another(Table(dynamodb_local, ""))

    def another(self, target: Table) -> Table:
        return Table(target.server, target.server.new_table(**{"id": "N"} if self.is_keyed else {"row_key": "S"}))

    def make_sink(self, target: Table) -> Any:
        self.made.append(self.new_sink(target.name, region=REGION, endpoint_url=target.server.endpoint))
        return self.made[-1]

    def new_sink(self, table: str, **where: Any) -> Any:
        row_key = None if self.is_keyed else "row_key"
        return DynamoDbSink(table, row_key=row_key, ledger_table=f"{table}-ledger", **where)

    def rows_in(self, target: Table) -> list[Any]:
        read = TypeDeserializer().deserialize
        items = target.server.items(target.name)
        return [{name: read(value) for name, value in item.items()} for item in items]

    def secrets(self) -> list[str]:
        return [ACCESS["aws_secret_access_key"]]


class TestTransactions(DynamoDbContract):
    key = ("id",)
    law = "[`DynamoDbSink`](sinks/dynamodb.md)"


class TestPuts(DynamoDbContract):
    law = "[`DynamoDbPutSink(row_key=…)`](sinks/dynamodb.md)"

    def new_sink(self, table: str, **where: Any) -> Any:
        return DynamoDbPutSink(table, row_key="row_key", **where)


class PutsByOwnKeys(DynamoDbContract):
    law = "[`DynamoDbPutSink` with other keys](sinks/dynamodb.md)"

    def another(self, target: Table) -> Table:
        return Table(target.server, target.server.new_table(id="N"))

    def new_sink(self, table: str, **where: Any) -> Any:
        return DynamoDbPutSink(table, **where)

    def test_a_process_may_wake_after_its_successor_has_finished(self, target: Table) -> None:
        self._check_matrix(target, ("stands still",), ("id",))


def test_a_late_put_of_an_own_key_brings_an_old_item_back(dynamodb_local: DynamoDbLocal) -> None:
    contract = PutsByOwnKeys()
    with contract.closing():
        assert faults(contract, Table(dynamodb_local, ""), WAKES, *LOSSES) == {}
