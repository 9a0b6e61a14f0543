"""A stub of a REST catalogue, over a catalogue of pyiceberg: only the requests that `IcebergSink` makes."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

from tests.support.servers.http_server import HttpRequest, HttpServer

_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
    ValueError: 400,
}


class RestStub(HttpServer):
    """The server, on a free port."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._catalog = catalog

    def handle(self, request: HttpRequest, body: bytes) -> None:
        try:
            status, told = 200, self._answer(request.command, request.path.split("?")[0].split("/")[2:], body)
        except tuple(_STATUS) as error:
            status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
            told = json.dumps({"error": {"message": str(error), "type": type(error).__name__, "code": status}})
        request.answer(status, told.encode(), {"Content-Type": "application/json"})

    def _answer(self, method: str, path: list[str], body: bytes) -> str:
        match method, path:
            case "GET", ["config"]:
                return '{"defaults": {}, "overrides": {}}'
            case "GET" | "HEAD", ["namespaces", namespace]:
                properties = dict(self._catalog.load_namespace_properties(namespace))
                return json.dumps({"namespace": [namespace], "properties": properties})
            case "POST", ["namespaces"]:
                self._catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return "{}"
            case "POST", ["namespaces", namespace, "tables"]:
                given: dict[str, Any] = json.loads(body)
                schema = Schema.model_validate(given["schema"])
                return _told(self._catalog.create_table(f"{namespace}.{given['name']}", schema))
            case "GET", ["namespaces", namespace, "tables", table]:
                return _told(self._catalog.load_table(f"{namespace}.{table}"))
            case "POST", ["namespaces", namespace, "tables", table]:
                asked = CommitTableRequest.model_validate_json(body)
                found = self._catalog.load_table(f"{namespace}.{table}")
                return self._catalog.commit_table(found, asked.requirements, asked.updates).model_dump_json()
        raise ValueError(f"the stub knows no {method} {path}")


def _told(table: Table) -> str:
    location: dict[str, Any] = {"metadata-location": table.metadata_location}
    return TableResponse(**location, metadata=table.metadata, config={}).model_dump_json()
