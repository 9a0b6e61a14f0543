"""Redis servers that refuse, are full, are replicas or wait for some."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
import redis

from tests.house.sinks import Chunk, Position
from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.processes import CHECKOUT
from tests.support.redis_tools import VARIABLE, ledger, opened, stream_ids
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink_backends.redis import rows as redis_rows
from wal_sink_backends.redis import sink as redis_backend
from wal_sink_backends.redis.rows import LEDGER
from wal_sink_backends.redis.sink import Kind, RedisSink
from wal_sink_backends.redis.urls import redis_sink

# Servers that refuse.


def test_a_wrong_password(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "wrong-one")
    with pytest.raises(PermanentError, match="check user, password and rights") as caught, opened(server):
        pass
    assert "wrong-one" not in str(caught.value)


def test_a_full_redis_may_be_tried_again(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        sink.write(chunk(ids(1)))
        client.config_set("maxmemory", "1mb")
        with pytest.raises(redis.OutOfMemoryError):
            sink.write(chunk(ids(2, 3), first=1))
        assert stream_ids(server) == [1]
        client.config_set("maxmemory", 0)
        sink.write(chunk(ids(2, 3), first=1))
    assert stream_ids(server) == [1, 2, 3]


def test_a_redis_that_fills_up_takes_whole_chunks(server: RedisServer) -> None:
    """Redis checks its memory only before a script's first write, so no chunk is cut."""
    wide = pa.table({"id": list(range(200)), "text": ["x" * 5000] * 200})
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_500_000)
        with pytest.raises(redis.OutOfMemoryError):  # noqa: PT012 - which of them fails is Redis' matter
            for number in range(50):
                sink.write(chunk(wide, first=number * 200))
        assert len(stream_ids(server)) == int(ledger(server)["rows"]) > 0


def test_a_redis_that_may_drop_the_ledger_is_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with (
        pytest.raises(PermanentError, match=r"maxmemory-policy allkeys-lru.* Set maxmemory-policy to noeviction"),
        opened(server),
    ):
        pass


def test_a_cluster_is_refused(new_redis: Callable[..., RedisServer]) -> None:
    with pytest.raises(PermanentError, match="is a Redis Cluster"), opened(new_redis("--cluster-enabled", "yes")):
        pass


def limited(server: RedisServer, *rights: str, **more: Any) -> RedisSink:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", f">{PASSWORD}", "~*", *rights)
    given: dict[str, Any] = {"kind": "stream", "key": "orders", "password_env": VARIABLE} | more
    return RedisSink(f"redis://limited@127.0.0.1:{server.port}/0", **given)


def test_an_older_redis_gets_no_more_arguments_than_it_takes(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not tell its version may be one. The limit is lowered, for speed."""
    monkeypatch.setattr(redis_backend, "MOST_ARGUMENTS", 100)
    sink = limited(server, "+@all", "-info")
    sink.open(CONTEXT)
    sink.write(chunk(ids(*range(20))))  # a key, two counts and two texts each
    with pytest.raises(PermanentError, match=r"21 rows are 105 arguments, .* a smaller Settings\(chunk_rows=…\)"):
        sink.write(chunk(ids(*range(21)), first=20))
    sink.close()
    with opened(server, kind="stream", key="orders") as newer:
        newer.write(chunk(ids(*range(21)), first=20))
    assert len(stream_ids(server)) == 41


def test_what_cannot_be_opened_leaves_no_connection(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        sink = RedisSink(server.url, key="orders:{id}", password_env=VARIABLE)
        with pytest.raises(PermanentError, match="may delete the ledger without an error"):
            sink.open(CONTEXT)
        wait_until(lambda: len(client.client_list()) == 1, "the server ended the connection")
    with pytest.raises(RuntimeError, match="not open"):
        sink.last(SLOT)


@pytest.mark.parametrize("command", ["eval", "xadd", "hset", "hmget", "type"])
def test_a_right_that_is_missing_is_named_and_nothing_is_written(server: RedisServer, command: str) -> None:
    sink = limited(server, "+@all", f"-{command}")
    sink.open(CONTEXT)
    with pytest.raises(PermanentError, match=r"batch 0, chunk a-0-2.*(?i:permission|not allowed|can't run)"):
        sink.write(chunk(ids(1, 2)))
    sink.close()
    assert stream_ids(server) == []
    assert "rows" not in ledger(server)


def test_the_rights_the_documentation_names_are_enough(server: RedisServer) -> None:
    text = (CHECKOUT / "docs" / "sinks" / "redis.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("ACL SETUSER")]
    rights, of_changes = ([word for word in line.split() if word.startswith("+")] for line in lines)
    kinds: tuple[Kind, ...] = ("stream", "hash", "set")
    for kind in kinds:
        sink = limited(server, *rights)
        sink._kind, sink._template = kind, redis_rows.KeyTemplate(f"{kind}:{{id}}")
        sink.open(CONTEXT)
        sink.write(chunk(pa.table({"id": [1], "gone": pa.nulls(1)}), first={"stream": 0, "hash": 1, "set": 2}[kind]))
        sink.last(SLOT)
        sink.close()
    with server.client() as client:
        assert set(client.keys("*")) == {"stream:1", "hash:1", "set:1", f"{LEDGER}{SLOT}"}
        client.flushall()
    options: dict[str, Any] = {"newer_by": "at", "delete_when": "gone", "deletes_kept": 1}
    sink = limited(server, *rights, *of_changes, kind="hash", key="orders:{id}", **options)
    sink.open(CONTEXT)
    for batch in range(3):  # a hash, its delete, and that delete is forgotten
        rows = pa.table({"id": [1], "at": [batch], "gone": [batch == 1], "note": pa.nulls(1)})
        sink.write(chunk(rows, batch=batch, after=sink.last(SLOT)))
    sink.close()
    with server.client() as client:
        assert client.hget(f"{LEDGER}wal/default/deleted", "covered") == "2"


# Replicas.


def test_a_replica_may_be_tried_again(server: RedisServer, new_redis: Callable[..., RedisServer]) -> None:
    """After a failover the same address may be the master."""
    replica = new_redis("--replicaof", f"127.0.0.1 {server.port}", "--masterauth", PASSWORD)
    with opened(replica) as sink:
        with pytest.raises(redis.ResponseError, match=r"(?i)read only|master"):
            sink.write(chunk(ids(1)))
        with replica.client() as client:
            client.slaveof()
        sink.write(chunk(ids(1)))


NO_REPLICA = "0 replicas have the rows, expected wait_replicas=1"


def doubt(sink: RedisSink, one: Chunk) -> str:
    """Return why it is not known whether the rows are safe. The server itself may be slow on a busy machine."""
    with pytest.raises(OutcomeUnknownError) as caught:
        sink.write(one)
    return str(caught.value)


def test_a_write_waits_for_replicas(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with opened(server, kind="stream", key="orders", wait_replicas=1, timeout_s=2) as sink:
        wait_until(lambda: NO_REPLICA in doubt(sink, chunk(ids(1))))
        with pytest.raises(OutcomeUnknownError):  # the ledger has it; the replica still has not
            sink.write(chunk(ids(1)))
        replica = new_redis("--replicaof", f"127.0.0.1 {server.port}", "--masterauth", PASSWORD)
        wait_until(lambda: stream_ids(replica) == [1], "the replica follows")
    with opened(server, kind="stream", key="orders", wait_replicas=1, timeout_s=2 * PATIENCE_S) as sink:
        sink.write(chunk(ids(1)))
        sink.write(chunk(ids(2), first=1))
    assert stream_ids(replica) == stream_ids(server) == [1, 2]


@contextmanager
def with_replica(server: RedisServer, new_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """A replica that has all that the server has so far."""
    replica = new_redis("--replicaof", f"127.0.0.1 {server.port}", "--masterauth", PASSWORD)
    with server.client() as client:
        wait_until(lambda: client.wait(1, 500) >= 1, "the replica follows")
    try:
        yield replica
    finally:
        replica.go_on()


def through(proxy: TcpProxy, **more: Any) -> RedisSink:
    given: dict[str, Any] = {"kind": "stream", "key": "orders", "password_env": VARIABLE} | more
    return RedisSink(f"redis://127.0.0.1:{proxy.port}/0", **given)


def write_patiently(sink: RedisSink, one: Chunk) -> None:
    """Until the replica has the rows, as it may be slow on a busy machine."""

    def is_written() -> bool:
        try:
            sink.write(one)
        except OutcomeUnknownError:
            return False
        return True

    wait_until(is_written, "the replica has the rows")


def test_a_connection_cut_between_the_script_and_its_wait_gives_no_assurance(
    new_redis: Callable[..., RedisServer],
) -> None:
    """WAIT on a new connection, which wrote nothing, would count a replica that has none of the rows. (Where that
    connection logs in first, Redis 7.0 takes it for one that wrote all there is; so this server asks for no password.)
    """
    server = new_redis()
    with with_replica(server, new_redis) as replica, TcpProxy(server.port) as proxy, server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "nopass")
        sink = through(proxy, wait_replicas=1, timeout_s=2, password_env=None)
        sink.open(CONTEXT)
        write_patiently(sink, chunk(ids(1)))
        replica.stand_still()
        proxy.cut(b"*3\r\n$4\r\nWAIT", "at")
        with pytest.raises(OutcomeUnknownError, match="the connection failed before 1 replicas acknowledged"):
            sink.write(chunk(ids(2), first=1))
        wait_until(lambda: proxy.cuts == 1 and client.xlen("orders") == 2)
        wait_until(lambda: NO_REPLICA in doubt(sink, chunk(ids(2), first=1)))
        replica.go_on()
        write_patiently(sink, chunk(ids(2), first=1))
        assert stream_ids(replica) == [1, 2]
        sink.close()


# A server that is replaced by one with an older state, as by a replica that had not got everything.


def test_a_url_with_the_path_of_a_socket_makes_a_sink_that_writes(server: RedisServer) -> None:
    sink = redis_sink(f"redis+unix://{server.folder}/redis.sock?key=orders:{{id}}&password_env={VARIABLE}")
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert ledger(server)["rows"] == "1"


def test_a_server_without_an_append_only_file_is_warned_of(
    new_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis("--appendonly", "no")
    with caplog.at_level(logging.WARNING, "wal_sink_backends.redis.sink"):
        for _ in range(2):
            with opened(server):
                pass
    (warned,) = [record.getMessage() for record in caplog.records if "append-only" in record.getMessage()]
    assert server.url in warned


def test_a_server_replaced_unseen_by_one_with_an_older_state(
    server: RedisServer, new_redis: Callable[..., RedisServer]
) -> None:
    """redis-py connects anew without a word: the chunk is the first to meet the other server."""
    older = new_redis()
    for each in (server, older):
        with opened(each, kind="stream", key="orders") as sink:
            sink.write(chunk(ids(1)))
    with TcpProxy(server.port) as proxy:
        sink = through(proxy)
        sink.open(CONTEXT)
        sink.write(chunk(ids(2), first=1))
        follows = sink.last(SLOT)
        proxy.lead_to(older.port)
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            sink.write(chunk(ids(3), first=2))
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            sink.write(chunk(ids(3), batch=1, segment="b", after=follows))
        assert stream_ids(older) == [1]
        assert sink.positions([SLOT]) == {SLOT: Position(SLOT, 0, 1, "a")}
        for first in (1, 2):
            sink.write(chunk(ids(first + 1), first=first))
        sink.close()
    assert stream_ids(older) == [1, 2, 3]
    assert stream_ids(server) == [1, 2]


def test_a_server_that_restarts_without_its_newest_writes(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis("--appendonly", "no")
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1)))
        with server.client() as client:
            client.save()
        sink.write(chunk(ids(2), first=1))
        server.kill()
        server.start()
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 1, expected it at batch 0, row 2\. "
        ):
            sink.write(chunk(ids(3), first=2))
    assert stream_ids(server) == [1]
