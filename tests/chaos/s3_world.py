"""The small world of the simulation with its WAL on S3: a server, a proxy in front of it, and an oracle at the server.

The oracle sees every object that the server creates or deletes, at that moment. It does not rely on the run's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.chaos.faulty_proxy import FaultyProxy
from tests.simulation.histories.plans import Shape
from tests.simulation.histories.process import Process
from tests.simulation.world import World
from tests.support.servers.s3_server import S3Server
from wal_sink.stores.base import Store
from wal_sink.stores.s3 import S3Store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FaultyStore

PREFIX = "wal"
Client = Mapping[str, object]
"""The arguments of botocore's `Config` about time limits and retries."""

IMPATIENT: Client = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 1},
}
"""A client without retries, so that each fault meets the code above the store."""


class S3Place:
    """One server, one proxy, and one client of it at a time. Worlds follow each other on it."""

    def __init__(self, server: S3Server, proxy: FaultyProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.store = self.connect(IMPATIENT)

    def connect(self, client: Client) -> S3Store:
        """Use another client from now on."""
        options = {**self.server.storage_options, "endpoint_url": self.proxy.url, "config_kwargs": dict(client)}
        self.store = S3Store(StoreSpec(f"s3://{self.server.bucket}/{PREFIX}", options))
        return self.store

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


class S3World(World):
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
            self._follow(f"{method} {path}")

    def _follow(self, request: str) -> None:
        """Make the copy equal to the bucket. The judge looks at each difference, as it does at each step."""
        there = {key.removeprefix(f"{PREFIX}/"): data for key, data in self._place.server.objects().items()}
        known = self.wal.objects
        for path in sorted(known.keys() - there.keys()):
            self.judge.deleting(path)
            self.wal.delete([path])
        for path, data in there.items():
            if path not in known:
                self.wal.create(path, data)
                self.judge.created(self.lives, path, data)
            elif known[path] != data:
                self.judge.blame(f"{request}: {path} was overwritten with other bytes")


def rows_lost_and_repeated(world: World) -> tuple[int, int]:
    """Count in the target: the evaluated rows that never arrived, and the rows that arrived more than once."""
    wanted = {(batch_id, row) for batch_id, parts in enumerate(world.plan.batches) for row in range(sum(parts))}
    came = [(batch_id, row) for _, batch_id, row in world.rows]
    return len(wanted.difference(came)), len(came) - len(set(came))
