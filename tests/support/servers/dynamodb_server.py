"""moto's DynamoDB over HTTP on 127.0.0.1, with faults for single requests.

As a program (`python dynamodb_server.py`) it prints its address and can be killed. It keeps everything in memory.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3

from tests.support.servers.moto_server import MotoServer, Wsgi, body_of, set_body

REGION = "eu-central-1"
ACCESS = {"aws_access_key_id": "test-access-key", "aws_secret_access_key": "hunter2-of-dynamodb"}
_numbers = itertools.count()


@dataclass
class Fault:
    """A fault of the next requests of an operation."""

    operation: str
    code: str = ""
    """The code of an error that replaces the effect and the answer."""
    lose_answer: bool = False
    """True if the request has its effect, but its answer is an error of the server."""
    unprocessed: int = 0
    """The number of items at the end of a BatchWriteItem, or of keys of a BatchGetItem, that are left over."""
    reasons: tuple[str, ...] = ()
    """The reasons of a cancelled transaction."""
    status: str = ""
    """The table's status in the answer to a DescribeTable."""
    times: int = 1


class Tables:
    """The tables of a server, as a test sees them by `client`."""

    client: Any

    def new_table(self, *, index: str = "", index_type: str = "S", **key: str) -> str:
        """Make an empty table of this key, `id="N"` by default, optionally with a global index on another attribute."""
        name = f"orders-{next(_numbers)}"
        create_table(self.client, name, key or {"id": "N"}, index={index: index_type} if index else {})
        return name

    def items(self, table: str) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("scan").paginate(TableName=table)
        return [item for page in pages for item in page["Items"]]

    def ids(self, table: str) -> list[int]:
        return sorted(int(item["id"]["N"]) for item in self.items(table))


class DynamoDbServer(MotoServer, Tables):
    """A running server, with faults for single requests."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.signers: list[str] = []
        """The access key of every request."""

    def start(self) -> None:
        super().start()
        self.client = dynamodb_client(self.endpoint)

    def stop(self) -> None:
        self.client.close()
        super().stop()

    def handle(self, app: Wsgi, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = json.loads(body_of(environ) or b"{}")
        operation = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")[2]
        with self.turn:
            self.requests.append((operation, request))
            self.signers.append(environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0])
            return list(self._carry_out(app, environ, start_response, operation, request))

    def _carry_out(
        self, app: Wsgi, environ: dict[str, Any], start: Any, operation: str, request: dict[str, Any]
    ) -> Iterable[bytes]:
        fault = next((one for one in self.faults if one.times > 0 and one.operation == operation), None)
        if fault is None:
            return app(environ, start)
        fault.times -= 1
        if fault.code:
            reasons = [{"Code": code, "Message": f"about {code}"} for code in fault.reasons]
            return _fail(start, fault.code, {"CancellationReasons": reasons} if reasons else {})
        if fault.unprocessed:
            return _respond(start, "200 OK", _partly(app, environ, request, fault.unprocessed))
        answer = _answer(app, environ)
        if fault.status:
            return _respond(start, "200 OK", {"Table": {**answer["Table"], "TableStatus": fault.status}})
        return _fail(start, "InternalServerError", {}, status="500 Internal Server Error")


def _partly(app: Wsgi, environ: dict[str, Any], request: dict[str, Any], count: int) -> dict[str, Any]:
    """Carry out a batch without its last items. Return the answer, which names these."""
    ((table, batch),) = request["RequestItems"].items()
    reads = isinstance(batch, dict)
    items = batch["Keys"] if reads else batch

    def some(part: list[Any]) -> dict[str, Any]:
        return {table: {**batch, "Keys": part} if reads else part}

    answer: dict[str, Any] = {"Responses": {table: []}} if reads else {}
    if items[:-count]:
        set_body(environ, json.dumps({**request, "RequestItems": some(items[:-count])}).encode())
        answer = _answer(app, environ)
    return {**answer, "UnprocessedKeys" if reads else "UnprocessedItems": some(items[-count:])}


def _answer(app: Wsgi, environ: dict[str, Any]) -> dict[str, Any]:
    """Let moto carry out a request. Return its answer, which the client does not get."""
    answer: dict[str, Any] = json.loads(b"".join(app(environ, lambda *_: None)) or b"{}")
    return answer


def _fail(start: Any, code: str, more: dict[str, Any], status: str = "400 Bad Request") -> Iterable[bytes]:
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    return _respond(start, status, {"__type": kind, "message": f"a test says {code}", **more})


def _respond(start: Any, status: str, answer: dict[str, Any]) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/x-amz-json-1.0")])
    return [json.dumps(answer).encode()]


def dynamodb_client(endpoint: str, access: Mapping[str, str] = ACCESS) -> Any:
    """Return a client for tests."""
    given: dict[str, Any] = {"endpoint_url": endpoint, "region_name": REGION, **access}
    return boto3.client("dynamodb", **given)


def create_table(client: Any, name: str, key: dict[str, str], index: dict[str, str] | None = None) -> None:
    """Create a table of this key, with a global index on each attribute of `index` alone."""
    indexes = [
        {
            "IndexName": f"by-{one}",
            "KeySchema": [{"AttributeName": one, "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "ALL"},
        }
        for one in index or {}
    ]
    attributes = {**key, **(index or {})}
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": one, "KeyType": kind} for one, kind in zip(key, ("HASH", "RANGE"), strict=False)],
        AttributeDefinitions=[{"AttributeName": one, "AttributeType": kind} for one, kind in attributes.items()],
        BillingMode="PAY_PER_REQUEST",
        **({"GlobalSecondaryIndexes": indexes} if indexes else {}),
    )


if __name__ == "__main__":
    with DynamoDbServer() as server:
        print(f"serving {server.endpoint}", flush=True)  # noqa: T201
        threading.Event().wait()
