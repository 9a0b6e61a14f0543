"""A real Sentinel, a primary and a replica: the primary dies in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.processes import Child
from tests.support.redis_tools import opened, stream_ids
from tests.support.servers.ports import free_port
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.waiting import wait_until
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink_backends.redis.sink import RedisSink

_LONG_MS = 120_000


class Sentinel:
    """One Sentinel that fails over by itself, soon where a test says so: on a busy machine a server may be silent."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        self.port = free_port()
        conf = folder / "sentinel.conf"
        conf.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\nsentinel monitor orders 127.0.0.1 {primary.port} 1\n"
            f"sentinel auth-pass orders {PASSWORD}\nsentinel down-after-milliseconds orders {_LONG_MS}\n"
            "sentinel failover-timeout orders 20000\n"
        )
        self.child = Child(["redis-server", conf, "--sentinel"], log=folder / "sentinel.log", limit_s=120)

    def fail_over_to(self, replica: RedisServer) -> None:
        """Return when the replica is the primary in place of one that was killed."""
        self._take_for_down_after(1000)
        self.child.wait_until(lambda: int(self.told()["port"]) == replica.port, "Sentinel fails over")
        self._take_for_down_after(_LONG_MS)

    def _take_for_down_after(self, milliseconds: int) -> None:
        with redis.Redis(port=self.port) as client:
            client.sentinel_set("orders", "down-after-milliseconds", milliseconds)

    def told(self) -> dict[str, Any]:
        with redis.Redis(port=self.port, decode_responses=True) as client:
            found: dict[str, Any] = client.sentinel_master("orders")
            return found

    def sees_a_replica(self) -> bool:
        try:
            return int(self.told()["num-slaves"]) == 1
        except (redis.ConnectionError, redis.TimeoutError):
            return False


@pytest.fixture
def pair(new_redis: Callable[..., RedisServer]) -> tuple[RedisServer, RedisServer]:
    primary = new_redis("--masterauth", PASSWORD)
    replica = new_redis("--masterauth", PASSWORD, "--replicaof", f"127.0.0.1 {primary.port}")
    with primary.client() as client:
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica follows")
    return primary, replica


@pytest.fixture
def sentinel(tmp_path: Path, pair: tuple[RedisServer, RedisServer]) -> Iterator[Sentinel]:
    folder = tmp_path / "sentinel"
    folder.mkdir()
    found = Sentinel(folder, pair[0])
    try:
        found.child.wait_until(found.sees_a_replica, "Sentinel knows the replica")
        yield found
    finally:
        found.child.kill()


def test_a_sentinel_itself_is_no_target(sentinel: Sentinel) -> None:
    sink = RedisSink(f"redis://127.0.0.1:{sentinel.port}/0", key="orders:{id}")
    with pytest.raises(PermanentError, match="is a Redis Sentinel, but a Sentinel holds no rows"):
        sink.open(CONTEXT)
    sink.close()


def test_after_a_fail_over_in_mid_batch_every_row_is_there_once(
    pair: tuple[RedisServer, RedisServer], sentinel: Sentinel
) -> None:
    """The address follows the primary, as a name or a proxy does; chunks that the replica lacked come again."""
    primary, replica = pair
    with opened(primary, kind="stream", key="orders", wait_replicas=1) as sink:
        sink.write(chunk(ids(1, 2)))
        primary.kill()
        with pytest.raises(OutcomeUnknownError):
            sink.write(chunk(ids(3, 4), first=2))
    sentinel.fail_over_to(replica)
    with opened(replica, kind="stream", key="orders") as sink:
        position = sink.last(SLOT)
        assert position is not None
        assert position.rows == 2
        with pytest.raises(
            OutcomeUnknownError, match="lost rows that it acknowledged"
        ):  # a chunk that follows what the server never had
            sink.write(chunk(ids(5), first=4, after=position))
        for first in (0, 2, 2):
            sink.write(chunk(ids(first + 1, first + 2), first=first, after=position if first else None))
    assert stream_ids(replica) == [1, 2, 3, 4]


def test_the_old_primary_comes_back_as_a_replica_and_refuses_loudly(
    pair: tuple[RedisServer, RedisServer], sentinel: Sentinel
) -> None:
    primary, replica = pair
    primary.kill()
    sentinel.fail_over_to(replica)
    primary.start()

    def is_replica() -> bool:
        with primary.client() as client:
            return bool(client.info("replication")["role"] == "slave")

    sentinel.child.wait_until(is_replica, "Sentinel makes the old primary a replica")
    with opened(primary, kind="stream", key="orders") as sink, pytest.raises(redis.ReadOnlyError):
        sink.write(chunk(ids(1)))
    assert stream_ids(replica) == []
