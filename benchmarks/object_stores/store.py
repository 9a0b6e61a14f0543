"""The S3 server of these contests, and the ways to it: directly answered, or 40 ms later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.object_stores.slow_proxy import SlowProxy
from tests.support.go_programs import MINIO
from tests.support.servers.databases import servers_folder
from tests.support.servers.minio import MinioServer
from tests.support.servers.s3_product import S3Product
from tests.support.servers.seaweedfs import SeaweedServer
from wal_sink.stores.spec import StoreSpec

DELAY_S = 0.04
"""Added to each answer: about what a bucket in the same region takes."""


@dataclass(slots=True)
class Way:
    """One way to the server: a proxy, and what the last run through it cost."""

    proxy: SlowProxy
    server: S3Product
    requests: float = 0.0
    """The requests of the last run through this way, for each of its batches."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_log(self) -> StoreSpec:
        """The folder of a new log, which no other run has."""
        folder = f"s3://{self.server.bucket}/{self.proxy.port}/{next(self._numbers)}"
        endpoint = f"http://127.0.0.1:{self.proxy.port}"
        return StoreSpec(folder, {**self.server.storage_options, "endpoint_url": endpoint})


class ObjectStore:
    """The server, started at the first use: MinIO if `make servers` has built it, otherwise SeaweedFS. Close it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: S3Product | None = None
        self._ways: dict[float, Way] = {}

    @property
    def server(self) -> S3Product:
        if self._server is None:
            kind = MinioServer if MINIO.path.is_file() else SeaweedServer
            folder = self._stack.enter_context(servers_folder())
            self._server = self._stack.enter_context(kind(folder / "s3"))
        return self._server

    def way(self, delay_s: float) -> Way:
        """The way on which each answer takes so much longer."""
        if delay_s not in self._ways:
            proxy = SlowProxy(int(self.server.endpoint.rpartition(":")[2]), delay_s)
            self._stack.callback(proxy.close)
            self._ways[delay_s] = Way(proxy, self.server)
        return self._ways[delay_s]

    def remove(self, log: StoreSpec) -> None:
        """Remove the folder of a log, past the proxies: the server keeps its files in memory."""
        bucket, _, folder = log.url.removeprefix("s3://").partition("/")
        client = self.server.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{folder}/"):
            for found in page.get("Contents", []):
                client.delete_object(Bucket=bucket, Key=found["Key"])

    def close(self) -> None:
        self._stack.close()
