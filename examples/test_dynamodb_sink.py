# python examples/test_dynamodb_sink.py     (or: pytest examples/test_dynamodb_sink.py)
"""How to test a sink with `SinkContract`: this sink writes to DynamoDB, which moto mocks.

It needs no Spark, no server and no account: moto's `mock_aws` answers in the test's own process.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from wal_sink import Chunk, PermanentError, Sink, SinkContext
from wal_sink.testing import SinkContract

REGION = "eu-central-1"
MOST_BYTES = 400_000  # DynamoDB's limit for an item is 400 KB
_numbers = itertools.count()


class DynamoDbSink(Sink):
    """One item per row, under the row's own key: a repeated row overwrites itself."""

    idempotent = True

    def __init__(self, table: str) -> None:
        self.name = table
        self.client: Any = None

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - not needed here
        self.client = boto3.client("dynamodb", region_name=REGION)  # not in __init__: a client cannot be pickled

    def write(self, chunk: Chunk) -> None:
        items = [self.item(key, row) for key, row in zip(chunk.row_keys(), json.loads(chunk.to_json()), strict=True)]
        for item in items:
            self.client.put_item(TableName=self.name, Item=item)

    def close(self) -> None:
        self.client.close()
        self.client = None

    def item(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(row)
        if len(text) > MOST_BYTES:  # no retry would help
            raise PermanentError(f"row {key} has {len(text)} bytes, more than an item holds: columns {list(row)}")
        return {"row_key": {"S": key}, "row": {"S": text}}


class TestDynamoDbSink(SinkContract):
    every = 10  # creating a client is slow: test every tenth point

    @pytest.fixture(autouse=True)
    def aws(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        with mock_aws():
            yield

    @pytest.fixture
    def target(self, aws: None) -> str:  # noqa: ARG002 - moto must be active first
        return self.another("")

    def another(self, target: str) -> str:  # noqa: ARG002 - every target is a new table
        name = f"orders-{next(_numbers)}"
        boto3.client("dynamodb", region_name=REGION).create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "row_key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "row_key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def make_sink(self, target: str) -> DynamoDbSink:
        return DynamoDbSink(target)

    def rows_in(self, target: str) -> list[dict[str, Any]]:
        pages = boto3.client("dynamodb", region_name=REGION).get_paginator("scan").paginate(TableName=target)
        return [json.loads(item["row"]["S"]) for page in pages for item in page["Items"]]


if __name__ == "__main__":
    if pytest.main([__file__, "-q", "-p", "no:cacheprovider"]) != 0:
        raise SystemExit(1)
    print("ok: the sink keeps its contract at every point where its process may die")
