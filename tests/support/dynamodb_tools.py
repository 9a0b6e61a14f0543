"""Helpers for tests of the DynamoDB sinks on moto's server, with faults that DynamoDB has and moto has not.

`tests/contract/test_dynamodb_backend.py` tests the contract of these kinds of sinks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.support.chunks import CONTEXT
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.dynamodb_server import ACCESS, REGION, DynamoDbServer
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

SECRET = ACCESS["aws_secret_access_key"]
KINDS = [DynamoDbSink, DynamoDbPutSink]


@contextlib.contextmanager
def opened(server: DynamoDbServer | DynamoDbLocal, table: str, kind: Any = DynamoDbSink, **more: Any) -> Iterator[Any]:
    own = {"ledger_table": f"{table}-ledger"} if kind is DynamoDbSink else {}
    given: dict[str, Any] = {"region": REGION, "endpoint_url": server.endpoint} | own | more
    sink = kind(table, **given)
    try:
        sink.open(CONTEXT)
        yield sink
    finally:
        sink.close()
