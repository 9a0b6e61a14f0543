"""moto's DynamoDB over HTTP on 127.0.0.1, made as atomic as DynamoDB itself, with faults for single requests.

As a program (`python dynamodb_server.py`) it prints its address and can be killed. It keeps everything in memory.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

REGION = "eu-central-1"
ACCESS = {"aws_access_key_id": "test-access-key", "aws_secret_access_key": "hunter2-of-dynamodb"}
_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]
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
    """The number of items at the end of a BatchWriteItem that are left unprocessed."""
    unread: int = 0
    """The number of keys at the end of a BatchGetItem that are left unread."""
    reasons: tuple[str, ...] = ()
    """The reasons of a cancelled transaction."""
    status: str = ""
    """The table's status in the answer to a DescribeTable."""
    times: int = 1


class DynamoDbServer:
    """A running server. moto reads first and writes then, so requests are handled one at a time."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.signers: list[str] = []
        """The access key of every request."""
        self._turn = threading.Lock()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def start(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs every request
        self._server.start()
        running = self._server._server
        assert running is not None
        running.app = self._one_by_one(running.app)
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client = dynamodb_client(self.endpoint)

    def stop(self) -> None:
        running = self._server._server
        self.client.close()
        self._server.stop()
        if running is not None:
            running.server_close()

    def new_table(self, **key: str) -> str:
        """Make an empty table of this key, `id="N"` by default."""
        name = f"orders-{next(_numbers)}"
        create_table(self.client, name, key or {"id": "N"})
        return name

    def items(self, table: str) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("scan").paginate(TableName=table)
        return [item for page in pages for item in page["Items"]]

    def ids(self, table: str) -> list[int]:
        return sorted(int(item["id"]["N"]) for item in self.items(table))

    def _one_by_one(self, app: _Wsgi) -> _Wsgi:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            operation = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")[2]
            with self._turn:
                self.requests.append((operation, json.loads(body or b"{}")))
                self.signers.append(environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0])
                return list(self._carry_out(app, environ, start_response, operation, body))

        return answer

    def _carry_out(
        self, app: _Wsgi, environ: dict[str, Any], start: Any, operation: str, body: bytes
    ) -> Iterable[bytes]:
        fault = next((one for one in self.faults if one.times > 0 and one.operation == operation), None)
        if fault is None:
            environ["wsgi.input"] = io.BytesIO(body)
            return app(environ, start)
        fault.times -= 1
        if fault.code:
            reasons = [{"Code": code, "Message": f"about {code}"} for code in fault.reasons]
            return _respond(start, fault.code, {"CancellationReasons": reasons} if reasons else {})
        if fault.unprocessed:
            return self._leave(app, environ, start, json.loads(body), fault.unprocessed)
        if fault.unread:
            return self._leave_unread(app, environ, start, json.loads(body), fault.unread)
        environ["wsgi.input"] = io.BytesIO(body)
        answer = b"".join(app(environ, lambda *_: None))
        if fault.status:
            start("200 OK", [("Content-Type", "application/x-amz-json-1.0")])
            table = {**json.loads(answer)["Table"], "TableStatus": fault.status}
            return [json.dumps({"Table": table}).encode()]
        return _respond(start, "InternalServerError", {}, status="500 Internal Server Error")

    def _leave(
        self, app: _Wsgi, environ: dict[str, Any], start: Any, request: dict[str, Any], count: int
    ) -> Iterable[bytes]:
        ((table, puts),) = request["RequestItems"].items()
        kept, left = puts[:-count], puts[-count:]
        if kept:
            body = json.dumps({**request, "RequestItems": {table: kept}}).encode()
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            list(app(environ, lambda *_: None))
        start("200 OK", [("Content-Type", "application/x-amz-json-1.0")])
        return [json.dumps({"UnprocessedItems": {table: left}}).encode()]

    def _leave_unread(
        self, app: _Wsgi, environ: dict[str, Any], start: Any, request: dict[str, Any], count: int
    ) -> Iterable[bytes]:
        ((table, asked),) = request["RequestItems"].items()
        kept, left = asked["Keys"][:-count], asked["Keys"][-count:]
        found: dict[str, Any] = {"Responses": {table: []}}
        if kept:
            body = json.dumps({**request, "RequestItems": {table: {**asked, "Keys": kept}}}).encode()
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            found = json.loads(b"".join(app(environ, lambda *_: None)))
        start("200 OK", [("Content-Type", "application/x-amz-json-1.0")])
        return [json.dumps({**found, "UnprocessedKeys": {table: {**asked, "Keys": left}}}).encode()]


def _respond(start: Any, code: str, more: dict[str, Any], status: str = "400 Bad Request") -> Iterable[bytes]:
    start(status, [("Content-Type", "application/x-amz-json-1.0")])
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    return [json.dumps({"__type": kind, "message": f"a test says {code}", **more}).encode()]


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
    server = DynamoDbServer()
    server.start()
    print(f"serving {server.endpoint}", flush=True)  # noqa: T201
    threading.Event().wait()
