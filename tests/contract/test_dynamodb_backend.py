"""The DynamoDB sinks keep the contracts of their kinds, against Amazon's DynamoDB Local."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from boto3.dynamodb.types import TypeDeserializer

from tests.support.contracts import FoldedContract
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.dynamodb_server import ACCESS, REGION
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
        self.made: list[Any] = []
        yield
        for sink in self.made:  # of processes that died, which have nobody else to close their sockets
            sink.close()

    @pytest.fixture
    def target(self, dynamodb_local: DynamoDbLocal) -> Table:
        return self.another(Table(dynamodb_local, ""))

    def another(self, target: Table) -> Table:
        return Table(target.server, target.server.new_table(row_key="S"))

    def make_sink(self, target: Table) -> Any:
        self.made.append(self.new_sink(target.name, region=REGION, endpoint_url=target.server.endpoint))
        return self.made[-1]

    def new_sink(self, table: str, **where: Any) -> Any:
        return DynamoDbSink(table, row_key="row_key", ledger_table=f"{table}-ledger", **where)

    def rows_in(self, target: Table) -> list[Any]:
        read = TypeDeserializer().deserialize
        items = target.server.items(target.name)
        return [{name: read(value) for name, value in item.items()} for item in items]

    def secrets(self) -> list[str]:
        return [ACCESS["aws_secret_access_key"]]


class TestTransactions(DynamoDbContract):
    pass


class TestPuts(DynamoDbContract):
    def new_sink(self, table: str, **where: Any) -> Any:
        return DynamoDbPutSink(table, row_key="row_key", **where)
