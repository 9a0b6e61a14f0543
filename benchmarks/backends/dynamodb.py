"""DynamoDB, simulated by moto: `DynamoDbSink` compared with boto3, with 99 rows per transaction."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from benchmarks.backends.backend import ISO, Backend, Tables, Way, rows_of, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from tests.support.processes import CHECKOUT, Child
from tests.support.servers.dynamodb_server import ACCESS, REGION, create_table, dynamodb_client
from wal_sink_backends.dynamodb.sink import MOST_ROWS, DynamoDbSink

TRANSACT = "boto3's transact_write_items"
PROGRAM = CHECKOUT / "tests" / "support" / "servers" / "dynamodb_server.py"


class DynamoDb(Backend[str]):
    """A backend with one table per measurement, in the tests' server process.

    The table has few rows, because moto copies all of them at each write.
    """

    key = "dynamodb"
    title = f"Chunks of {MOST_ROWS} rows to DynamoDB (moto)"
    chunk_rows = MOST_ROWS
    share = 1 / 1000

    def ways(self) -> Mapping[str, Way[str]]:
        return {NAME: self._by_sink, TRANSACT: self._by_transactions}

    @cached_property
    def _endpoint(self) -> str:
        self._stack.enter_context(patch.dict(os.environ, {name.upper(): value for name, value in ACCESS.items()}))
        server = Child.python(PROGRAM, log=self._folder / "dynamodb.log", limit_s=60)
        self._stack.callback(server.kill)
        server.wait_for_output("serving http")
        return server.output.split("serving ")[1].split()[0]

    def empty(self, folder: Path) -> str:  # noqa: ARG002 - the table lies in the server
        name = f"orders-{uuid.uuid4().hex}"
        with closing(self._client()) as client:
            create_table(client, name, {"id": "N"})
        return name

    def count(self, target: str) -> int:
        with closing(self._client()) as client:
            pages = client.get_paginator("scan").paginate(TableName=target, Select="COUNT")
            return sum(int(page["Count"]) for page in pages)

    def remove(self, target: str) -> None:
        with closing(self._client()) as client:
            for name in client.list_tables()["TableNames"]:
                if name.startswith(target):
                    client.delete_table(TableName=name)

    def _by_sink(self, name: str, tables: Tables) -> float:
        sink = DynamoDbSink(name, region=REGION, endpoint_url=self._endpoint, ledger_table=f"{name}-ledger")
        return written(sink, tables)

    def _by_transactions(self, name: str, tables: Tables) -> float:
        with closing(self._client()) as client:
            client.describe_table(TableName=name)  # connects
            watch = Stopwatch()
            for table in tables:
                puts = [{"Put": {"TableName": name, "Item": item}} for item in _items(table)]
                client.transact_write_items(TransactItems=puts)
            return watch.seconds()

    def _client(self) -> Any:
        return dynamodb_client(self._endpoint)


def _items(table: pa.Table) -> list[dict[str, dict[str, str]]]:
    kinds = [(name, "N" if name in ("id", "amount") else "S") for name in table.column_names]
    return [
        {name: {kind: str(value)} for (name, kind), value in zip(kinds, row, strict=True)}
        for row in rows_of(table, ISO)
    ]
