"""Amazon's DynamoDB Local: the service's own checks of items, in memory, in a JVM on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.support.programs.quick_java import QUICK
from tests.support.servers.dynamodb_server import ACCESS, Tables, dynamodb_client
from tests.support.servers.jars import Module, jars, java
from tests.support.servers.server import Server

VERSION = "2.6.1"
LOCAL_ACCESS = {**ACCESS, "aws_access_key_id": "testaccesskey"}
"""It accepts only letters and digits."""


class DynamoDbLocal(Server, Tables):
    """A server of tables that a test counts by `client`."""

    product = "DynamoDB Local"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._jars = jars(
            f"dynamodb-local-{VERSION}", [Module("com.amazonaws", "DynamoDBLocal", (VERSION,), with_what_it_needs=True)]
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Link sqlite4java's library: it is expected under a name without a version."""
        super().prepare()
        for found in self._jars.glob("libsqlite4java-linux-*.so"):
            (self.folder / found.name).unlink(missing_ok=True)
            (self.folder / found.name).symlink_to(found)
        self.client = dynamodb_client(self.endpoint, LOCAL_ACCESS)

    def command(self) -> Sequence[str | Path]:
        main = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
        options = ["-Xmx256m", f"-Djava.library.path={self.folder}", "-cp", f"{self._jars}/*", main]
        return [java(), *QUICK.split(), *options, "-port", str(self.port), "-inMemory", "-disableTelemetry"]

    def release(self) -> str:
        return VERSION

    def answers(self) -> bool:
        try:
            self.client.list_tables(Limit=1)
        except (BotoCoreError, ClientError):
            return False
        return True

    def kill(self) -> None:
        if self._child is not None:
            self.client.close()
        super().kill()

    def put(self, table: str, item: Mapping[str, Any]) -> None:
        """Put one item directly, to see the server's answer."""
        self.client.put_item(TableName=table, Item=item)
