"""The small world of the simulation with its WAL on S3: a server, a proxy in front of it, and an oracle at the server.

The oracle sees every object that the server creates or deletes, at that moment. It does not rely on the run's answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.faulty_proxy import FaultyProxy
from tests.chaos.followed_world import FollowedWorld
from tests.chaos.spoiling import IMPATIENT, Client
from tests.house.stores import S3Store, Store, StoreSpec
from tests.simulation.histories.plans import Shape
from tests.simulation.histories.process import Process
from tests.support.servers.s3_server import S3Server
from wal_sink.testing import FaultyStore

PREFIX = "wal"


class S3Place:
    """One server, one proxy, and one client of it at a time. Worlds follow each other on it."""

    steady = True

    def __init__(self, server: S3Server, proxy: FaultyProxy) -> None:
        self.server = server
        self.proxy = proxy
        self._client: Client | None = None
        self.connect(IMPATIENT)

    def connect(self, client: Client) -> None:
        """Use another client from now on."""
        if client is self._client:
            return
        self._client = client
        options = {**self.server.storage_options, "endpoint_url": self.proxy.url, "config_kwargs": dict(client)}
        self.store = S3Store(StoreSpec(f"s3://{self.server.bucket}/{PREFIX}", options))

    def world(self, kind: str, batches: Shape) -> S3World:
        self.proxy.arm()
        self.proxy.stored.clear()
        self.server.clear()
        return S3World(self, kind, batches)


@contextmanager
def empty_s3_server() -> Iterator[S3Server]:
    """Yield a separate server without objects."""
    with S3Server("wal-sink-chaos") as server:
        server.clear()  # all servers of one process share their buckets
        yield server


@contextmanager
def s3_place() -> Iterator[S3Place]:
    """Yield a separate server and proxy."""
    with empty_s3_server() as server, FaultyProxy(server.endpoint) as proxy:
        yield S3Place(server, proxy)


class S3World(FollowedWorld):
    """A world whose `wal` is a copy of the bucket, kept up to date by the server."""

    def __init__(self, place: S3Place, kind: str, batches: Shape) -> None:
        super().__init__(kind, batches=batches)
        self._place = place
        place.server.after_request = self._note

    def wal_of(self, process: Process) -> Store:
        return FaultyStore(self._place.store, process.point)

    def _note(self, method: str, path: str, status: int) -> None:
        """Note a request. The server's thread calls it, one request at a time."""
        if method != "GET" and status < 300:
            objects = self._place.server.objects()
            self.follow({key.removeprefix(f"{PREFIX}/"): data for key, data in objects.items()}, f"{method} {path}")
