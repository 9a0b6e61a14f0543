"""Each backend compared with direct use of its target's client. The servers are those of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.backends.backend import Backend
from benchmarks.backends.dynamodb import DynamoDb
from benchmarks.backends.files import Files, TwoPhaseFiles
from benchmarks.backends.http import Http
from benchmarks.backends.kafka import Kafka
from benchmarks.backends.redis import Redis
from benchmarks.backends.sql import Mariadb, Postgresql, Sqlite
from tests.support.servers.databases import servers_folder


class Backends:
    """All backends. A server is started when it is first measured. Close this object at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        place = self._stack.enter_context(servers_folder()), self._stack
        self.sqlite = Sqlite(*place)
        self.kafka = Kafka(*place)
        self.postgresql = Postgresql(*place)
        self._others: tuple[Backend[Any], ...] = (
            self.sqlite,
            Mariadb(*place),
            Redis(*place),
            Http(*place),
            DynamoDb(*place),
            Files(*place),
            TwoPhaseFiles(*place),
        )

    def close(self) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Backend[Any]]:
        yield from (self.postgresql, self.kafka, *self._others)
