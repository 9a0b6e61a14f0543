"""Amazon's DynamoDB Local: the service's own checks of items, in memory, in a JVM on 127.0.0.1."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from botocore.exceptions import BotoCoreError, ClientError

from tests.support.processes import Child
from tests.support.servers.dynamodb_server import ACCESS, create_table, dynamodb_client
from tests.support.servers.jars import Module, jars, java

VERSION = "2.6.1"
LOCAL_ACCESS = {**ACCESS, "aws_access_key_id": "testaccesskey"}
"""It accepts only letters and digits."""
_numbers = itertools.count()


class DynamoDbLocal:
    """A running server. Use it in a `with` statement."""

    def __init__(self, log: Path) -> None:
        self._jars = jars(
            f"dynamodb-local-{VERSION}", [Module("com.amazonaws", "DynamoDBLocal", (VERSION,), with_what_it_needs=True)]
        )
        self._log = log
        self._port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.client = dynamodb_client(self.endpoint, LOCAL_ACCESS)

    def __enter__(self) -> Self:
        """Start the server. sqlite4java expects its library under a name without a version."""
        library = self._log.with_name("dynamodb-local-library")
        library.mkdir(exist_ok=True)
        for found in self._jars.glob("libsqlite4java-linux-*.so"):
            (library / found.name).symlink_to(found)
        main = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
        options = ["-Xmx256m", f"-Djava.library.path={library}", "-cp", f"{self._jars}/*", main]
        command = [java(), *options, "-port", str(self._port), "-inMemory", "-disableTelemetry"]
        self._child = Child(command, log=self._log, limit_s=60, cwd=self._log.parent)
        try:
            self._child.wait_until(self._answers, "DynamoDB Local answers")
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._child.kill()

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

    def put(self, table: str, item: Mapping[str, Any]) -> None:
        """Put one item directly, to see the server's answer."""
        self.client.put_item(TableName=table, Item=item)

    def _answers(self) -> bool:
        try:
            self.client.list_tables(Limit=1)
        except (BotoCoreError, ClientError):
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
