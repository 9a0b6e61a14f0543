"""`RedisSink` on real servers, which are killed, emptied, filled up and forbidden things.

What every transactional sink must do is tested in `tests/contract/test_redis_backend.py`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import socket
import textwrap
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from tests.fixtures_redis import PASSWORD, RedisServer
from tests.ledger_cases import CASES, REFUSALS, STORED
from tests.processes import CHECKOUT, Child
from wal_sink.chunk import Chunk, Position
from wal_sink.errors import (
    ConfigError,
    DivergentReplay,
    FencedError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
)
from wal_sink.sink import Rejected, SinkContext
from wal_sink.testing import FakeQuery
from wal_sink.testing.tables import COLUMN_TYPES
from wal_sink_backends import redis as redis_backend
from wal_sink_backends import redis_rows
from wal_sink_backends.redis import Kind, RedisSink, redis_sink
from wal_sink_backends.redis_script import LEDGER

SLOT = "wal/default/0"
CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with redis_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    yield redis_server
    with redis_server.client() as client:
        client.acl_deluser("limited")
        client.config_set("maxmemory", 0)


@contextmanager
def opened(server: RedisServer, **more: Any) -> Iterator[RedisSink]:
    given: dict[str, Any] = {"key": "orders:{id}", "password_env": VARIABLE} | more
    sink = RedisSink(server.url, **given)
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def chunk(table: pa.Table, *, batch: int = 0, first: int = 0, segment: str = "a", term: int = 1) -> Chunk:
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(SLOT, batch, end, segment),
        term=term,
    )


def ids(*values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def stream_ids(server: RedisServer, name: str = "orders") -> list[int]:
    with server.client() as client:
        return [int(row["id"]) for _, row in client.xrange(name)]


def ledger(server: RedisServer) -> dict[str, str]:
    with server.client() as client:
        found: dict[str, str] = client.hgetall(f"{LEDGER}{SLOT}")
        return found


# The ledger.


def test_position_and_term_stand_in_one_hash(server: RedisServer) -> None:
    with opened(server) as sink:
        assert sink.last(SLOT) is None
        sink.write(chunk(ids(1, 2), batch=5, term=3))
        assert sink.last(SLOT) == Position(SLOT, 5, 2, "a")
    assert ledger(server) == {"term": "3", "batch_id": "5", "rows": "2", "segment_id": "a"}


@pytest.mark.parametrize("kind", ["stream", "set", "hash"])
def test_what_is_known_changes_nothing(server: RedisServer, kind: Any) -> None:
    with opened(server, kind=kind) as sink:
        for some in (chunk(ids(1, 2)), chunk(ids(3), first=2), chunk(ids(4), batch=1, segment="b")):
            sink.write(some)
        before = everything(server)
        sink.write(chunk(ids(1, 2)))
        sink.write(chunk(ids(9, 9), batch=0, segment="z"))
        assert everything(server) == before


def everything(server: RedisServer) -> dict[str, bytes]:
    with server.client() as client, server.client(decode_responses=False) as raw:
        return {key: raw.dump(key) for key in client.keys("*")}


def test_even_a_repeat_of_a_lower_term_is_refused(server: RedisServer) -> None:
    with opened(server) as sink:
        sink.write(chunk(ids(1), term=7))
        with pytest.raises(FencedError, match="term 7 has written, this sender's is 6"):
            sink.write(chunk(ids(1), term=6))


def test_another_segment_of_the_same_batch_is_another_history(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1)))
        with pytest.raises(DivergentReplay, match="segment a, the chunk is of segment b"):
            sink.write(chunk(ids(2), segment="b"))
    assert stream_ids(server) == [1]


def test_a_chunk_cut_in_two_by_the_ledger_is_refused(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1, 2)))
        with pytest.raises(HistoryError, match="cuts this chunk in two"):
            sink.write(chunk(ids(2, 3), first=1))
    assert stream_ids(server) == [1, 2]


@pytest.mark.parametrize("term", [4, 5, 6])
def test_the_script_decides_as_every_ledger_does(server: RedisServer, term: int) -> None:
    at = STORED.position
    entry = {"term": STORED.term, "batch_id": at.batch_id, "rows": at.rows, "segment_id": at.segment_id}
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        for case in (case for case in CASES if case.term == term):
            client.delete("orders")
            client.hset(f"{LEDGER}{SLOT}", mapping=entry)
            if case.verdict in REFUSALS:
                kind, told = REFUSALS[case.verdict]
                with pytest.raises(kind, match=told):
                    sink.write(case.chunk())
            else:
                assert sink.write(case.chunk()) is None
            is_new = case.verdict == "new"
            assert stream_ids(server) == (list(case.rows) if is_new else []), case
            assert sink.last(SLOT) == (case.chunk().position if is_new else at), case


def test_a_term_without_a_position_refuses_lower_ones_alone(server: RedisServer) -> None:
    """What is left of a script that an operator ended between its first write and its rows."""
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        client.hset(f"{LEDGER}{SLOT}", "term", 5)
        assert sink.last(SLOT) is None
        with pytest.raises(FencedError, match="term 5 has written, this sender's is 4"):
            sink.write(chunk(ids(1), term=4))
        assert sink.write(chunk(ids(2), term=5)) is None
    assert stream_ids(server) == [2]


def test_an_answer_that_nobody_expects_is_no_success(server: RedisServer) -> None:
    new = next(case for case in CASES if case.verdict == "new")
    with opened(server) as sink, pytest.raises(PermanentError, match=r"the script answered .*, expected DONE or KNOWN"):
        sink._check_verdict("REFUSED", ["5", "7", "4", "m"], new.chunk(), "batch 0")


def test_a_chunk_less_its_rows_still_moves_the_ledger(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1, 2)).without([0, 1]))
        sink.write(chunk(ids(3, 4), first=2).without([0]))
        assert sink.last(SLOT) == Position(SLOT, 0, 4, "a")
    assert stream_ids(server) == [4]


def test_an_emptied_redis_is_refused(server: RedisServer) -> None:
    sink = RedisSink(server.url, kind="stream", key="orders", password_env=VARIABLE)
    told = "batch 0 was delivered and marked, but its target remembers nothing"
    with pytest.raises(HistoryError, match=told), FakeQuery.over(sink) as query:  # noqa: PT012
        query.batch(ids(1, 2))
        with server.client() as client:
            client.flushall()
        query.batch(ids(3))
    assert stream_ids(server) == []


def test_a_redis_restored_to_before_the_marker_is_refused(server: RedisServer) -> None:
    sink = RedisSink(server.url, kind="stream", key="orders", password_env=VARIABLE)
    told = "batch 1 was delivered and marked, but its target remembers batch 0"
    with pytest.raises(HistoryError, match=told), FakeQuery.over(sink) as query:  # noqa: PT012
        query.batch(ids(1))
        old = everything(server)
        query.batch(ids(2))
        with server.client() as client:
            client.flushall()
            for key, value in old.items():
                client.restore(key, 0, value)
        query.batch(ids(3))
    assert stream_ids(server) == [1]


# Rows.


def test_every_type_as_a_field(server: RedisServer) -> None:
    table = pa.table({"id": [0, 1, 2]} | {name.replace(" ", "_"): column for name, column in COLUMN_TYPES.items()})
    with opened(server) as sink:
        sink.write(chunk(table))
    with server.client(decode_responses=False) as raw:
        first, last = raw.hgetall("orders:0"), raw.hgetall("orders:2")
    assert first[b"bigint"] == b"-9223372036854775808"
    assert first[b"decimal"] == b"1.500000000000000000"
    assert first[b"string"] == "ü\n\"'\\\0".encode()
    assert first[b"binary"] == b"\0\xff"
    assert first[b"boolean"] == b"true"
    assert first[b"float"] == b"0.1"
    assert first[b"not_a_number"] == b"NaN"
    assert first[b"date"] == b"0001-01-01"
    assert first[b"timestamp"] == b"1970-01-01T00:00:00.000000Z"
    assert first[b"array"] == b"[1,null]"
    assert first[b"map"] == b'[{"key":"a","value":1}]'
    assert first[b"struct"] == b'{"a":1,"b":["x",null]}'
    assert last == {b"id": b"2", b"not_a_number": b"-Infinity"}


def test_a_row_of_a_known_key_replaces_its_fields_and_null_removes_one(server: RedisServer) -> None:
    with opened(server) as sink, server.client() as client:
        client.hset("orders:1", mapping={"mine": "kept", "note": "old"})
        sink.write(chunk(pa.table({"id": [1], "note": ["new"], "by": ["me"]})))
        assert client.hgetall("orders:1") == {"mine": "kept", "id": "1", "note": "new", "by": "me"}
        sink.write(chunk(pa.table({"id": [1], "note": ["newer"], "by": pa.nulls(1, pa.string())}), first=1))
        assert client.hgetall("orders:1") == {"mine": "kept", "id": "1", "note": "newer"}


def test_keys_of_several_columns_and_braces(server: RedisServer) -> None:
    table = pa.table({"a.b": ["ü"], "id": [7], "on": [True]})
    with opened(server, key="{{x}}:{a.b}:{id}:{on}:y") as sink, server.client() as client:
        sink.write(chunk(table))
        assert client.exists("{x}:ü:7:true:y")


def test_rows_that_cannot_be_written_are_told_and_nothing_is(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rows, "MOST_BYTES", 20)
    table = pa.table({"id": ["1", None, "wal", "4"], "text": ["a", "b", "c", "x" * 20]})
    with opened(server, key="{id}_sink:ledger:") as sink:
        assert sink.write(chunk(table)) == Rejected(
            {
                1: "a column of its key '{id}_sink:ledger:' is NULL",
                2: "its key begins with wal_sink:ledger:, which is the ledger's",
                3: "it has more than the 20 bytes that Redis takes",
            }
        )
        assert sink.last(SLOT) is None
        sink.write(chunk(table).without([1, 2, 3]))
        assert sink.last(SLOT) == Position(SLOT, 0, 4, "a")


def test_an_entry_without_any_value_is_told(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink:
        assert sink.write(chunk(ids(1, None))) == Rejected(
            {1: "every column is NULL, and an entry of a stream needs a field"}
        )


def test_a_stream_is_trimmed(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders", maxlen=10) as sink:
        for number in range(50):
            sink.write(chunk(ids(*range(20)), first=number * 20))
    assert 10 <= len(stream_ids(server)) < 300


def test_as_many_columns_as_a_script_takes(server: RedisServer) -> None:
    names = [f"c{number}" for number in range(redis_rows.MOST_COLUMNS)]
    table = pa.table({name: [1, None] for name in names[1:]} | {"c0": [1, 2]})
    with opened(server, key="{c0}") as sink:
        sink.write(chunk(table))
        with pytest.raises(PermanentError, match="3001 columns"):
            sink.write(chunk(table.append_column("one more", pa.array([1, 2])), first=2))


@pytest.mark.parametrize("kind", ["hash", "stream", "set"])
def test_rows_under_keys_of_another_type_are_named_before_anything_is_written(server: RedisServer, kind: Kind) -> None:
    with opened(server, kind=kind) as sink, server.client() as client:
        client.set("orders:2", "a text")
        client.rpush("orders:4", "a list")
        reasons = {
            1: f"key 'orders:2' is a string already; expected a {kind}",
            2: f"key 'orders:2' is a string already; expected a {kind}",
            4: f"key 'orders:4' is a list already; expected a {kind}",
        }
        some = chunk(ids(1, 2, 2, 3, 4, 5))
        assert sink.write(some) == Rejected(reasons)
        assert sorted(client.keys("*")) == ["orders:2", "orders:4"]
        assert sink.write(some.without(reasons)) is None
        assert sorted(client.keys("orders:*")) == [f"orders:{row}" for row in (1, 2, 3, 4, 5)]
        assert sink.last(SLOT) == some.position
        assert sink.write(some) is None, "the ledger has it"


def test_one_key_for_all_rows_of_another_type_is_no_fault_of_rows(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        client.set("orders", "a text")
        with pytest.raises(PermanentError, match="key 'orders' is a string already; expected a stream, or no key"):
            sink.write(chunk(ids(1, 2)))
        assert client.keys("*") == ["orders"]


def test_a_ledger_of_another_type_is_refused(server: RedisServer) -> None:
    with opened(server) as sink, server.client() as client:
        client.set(f"{LEDGER}{SLOT}", "a text")
        with pytest.raises(PermanentError, match=f"key '{LEDGER}{SLOT}' is a string already"):
            sink.write(chunk(ids(1)))
        assert client.keys("orders*") == []


# Servers that refuse.


def test_a_wrong_password(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "wrong-one")
    with pytest.raises(PermanentError, match="check user, password and rights") as caught, opened(server):
        pass
    assert "wrong-one" not in str(caught.value)


def test_no_password(server: RedisServer) -> None:
    with pytest.raises(PermanentError, match="check user, password"), opened(server, password_env=None):
        pass


def test_a_variable_that_is_not_set(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(PermanentError, match=f"environment variable {VARIABLE} is not set"), opened(server):
        pass


def test_nobody_listening() -> None:
    sink = RedisSink("redis://:hunter2@127.0.0.1:1/0", key="orders:{id}")
    with pytest.raises(redis.ConnectionError, match="Connection refused") as caught:
        sink.open(CONTEXT)
    sink.close()
    assert "hunter2" not in str(caught.value)


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
    """Memory is asked for before a script's first write only, so no chunk is cut."""
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
    with pytest.raises(PermanentError, match=r"maxmemory-policy allkeys-lru.* set noeviction"), opened(server):
        pass


def test_a_cluster_is_refused(new_redis: Callable[..., RedisServer]) -> None:
    with pytest.raises(PermanentError, match="is a Redis Cluster"), opened(new_redis("--cluster-enabled", "yes")):
        pass


def test_a_server_without_an_append_only_file_is_warned_of(
    new_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis("--appendonly", "no")
    with caplog.at_level(logging.WARNING, "wal_sink_backends.redis"):
        for _ in range(2):
            with opened(server):
                pass
    (warned,) = [record.getMessage() for record in caplog.records if "append-only" in record.getMessage()]
    assert server.url in warned


def limited(server: RedisServer, *rights: str) -> RedisSink:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", f">{PASSWORD}", "~*", *rights)
    return RedisSink(f"redis://limited@127.0.0.1:{server.port}/0", kind="stream", key="orders", password_env=VARIABLE)


def test_more_arguments_than_an_older_redis_takes(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_opened_leaves_no_connection(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        sink = RedisSink(server.url, key="orders:{id}", password_env=VARIABLE)
        with pytest.raises(PermanentError, match="may drop the ledger"):
            sink.open(CONTEXT)
        for _ in range(100):
            if len(client.client_list()) == 1:
                break
            time.sleep(0.05)
        assert len(client.client_list()) == 1
    with pytest.raises(RuntimeError, match="not open"):
        sink.last(SLOT)


def test_info_may_be_forbidden(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    redis_backend._warn_once.cache_clear()
    sink = limited(server, "+@all", "-info")
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert "INFO is forbidden" in caplog.text
    assert stream_ids(server) == [1]


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
    (line,) = [line for line in text.splitlines() if line.startswith("ACL SETUSER")]
    rights = [word for word in line.split() if word.startswith("+")]
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


def test_it_waits_for_replicas(server: RedisServer, new_redis: Callable[..., RedisServer]) -> None:
    with opened(server, kind="stream", key="orders", wait_replicas=1, timeout_s=0.5) as sink:
        with pytest.raises(OutcomeUnknownError, match="0 replicas have the rows, wait_replicas=1"):
            sink.write(chunk(ids(1)))
        with pytest.raises(OutcomeUnknownError):  # the ledger has it; the replica still has not
            sink.write(chunk(ids(1)))
        replica = new_redis("--replicaof", f"127.0.0.1 {server.port}", "--masterauth", PASSWORD)
        deadline = time.monotonic() + 20
        while stream_ids(replica) != [1] and time.monotonic() < deadline:
            time.sleep(0.05)
    with opened(server, kind="stream", key="orders", wait_replicas=1, timeout_s=10) as sink:
        sink.write(chunk(ids(1)))
        sink.write(chunk(ids(2), first=1))
    assert stream_ids(replica) == stream_ids(server) == [1, 2]


# Servers and connections that end.


def test_a_server_that_vanishes_and_comes_back(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1)))
        server.kill()
        with pytest.raises(redis.ConnectionError):
            sink.write(chunk(ids(2), first=1))
        server.start()
        sink.write(chunk(ids(2), first=1))
        sink.write(chunk(ids(2), first=1))
    assert stream_ids(server) == [1, 2]


class LossyProxy:
    """Passes everything on to a server, until it is told to lose an answer: then it passes the request and hangs up."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.lose = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
        except OSError:
            return

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            while request := client.recv(1 << 20):
                server.sendall(request)
                answer = server.recv(1 << 20)
                if self.lose:
                    self.lose = False
                    return
                client.sendall(answer)


def test_an_answer_that_got_lost(server: RedisServer) -> None:
    proxy = LossyProxy(server.port)
    sink = RedisSink(f"redis://127.0.0.1:{proxy.port}/0", kind="stream", key="orders", password_env=VARIABLE)
    sink.open(CONTEXT)
    proxy.lose = True
    with pytest.raises(redis.ConnectionError):
        sink.write(chunk(ids(1)))
    assert stream_ids(server) == [1]
    sink.write(chunk(ids(1)))
    sink.close()
    proxy.close()
    assert stream_ids(server) == [1]


WRITER = textwrap.dedent(
    """
    import sys, dataclasses
    import pyarrow as pa
    import redis
    from wal_sink.chunk import Chunk, Position
    from wal_sink.sink import SinkContext
    from wal_sink_backends.redis import redis_sink

    slot = "wal/default/0"
    sink = redis_sink(sys.argv[1])
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot)
    batch, done = (last.batch_id, last.rows) if last else (0, 0)
    pa.table({"id": [1]})
    print("ready", flush=True)
    try:
        while True:
            for first in range(done, 600, 200):
                ids = [batch * 600 + row for row in range(first, first + 200)]
                chunk = Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * 200}), key=f"s{batch}-{first}")
                at, rows = Position(slot, batch, first + 200, f"s{batch}"), range(first, first + 200)
                sink.write(dataclasses.replace(chunk, batch_id=batch, segment_id=f"s{batch}", rows=rows, position=at))
            batch, done = batch + 1, 0
    except (redis.ConnectionError, redis.TimeoutError):
        print("the server is gone", flush=True)
    """
)


@pytest.mark.parametrize("victim", ["writer", "server"])
def test_a_kill_at_any_moment_leaves_rows_and_ledger_equal(
    new_redis: Callable[..., RedisServer], tmp_path: Path, victim: str
) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    server = new_redis()
    url = f"{server.url}?kind=stream&key=orders&password_env={VARIABLE}"
    counts = []
    for number in range(3):
        log = tmp_path / f"{number}.log"
        with Child.python(WRITER, url, log=log, env={VARIABLE: PASSWORD}) as writer:
            writer.wait_for_output("ready")
            time.sleep(moments.uniform(0.02, 0.3))
            if victim == "server":
                server.kill()
                writer.wait_for_output("the server is gone", 20)
                server.start()
            else:
                assert writer.running, writer.output
                writer.kill()
        found, at = stream_ids(server), ledger(server)
        known = int(at["batch_id"]) * 600 + int(at["rows"]) if at else 0
        assert found == list(range(known)), f"seed {seed}"
        counts.append(known)
    assert counts == sorted(counts)
    assert counts[-1] > 0, "nothing was written"


def tear(server: RedisServer) -> None:
    """Leave of the append-only file what a kill leaves in the middle of the third row of its last transaction."""
    (file,) = server.append_only_files.glob("*.incr.aof")
    text = file.read_bytes()
    at = text.rindex(b"MULTI")
    for _ in range(3):
        at = text.index(b"XADD", at) + 1
    file.write_bytes(text[: at + 10])


@pytest.mark.parametrize(("repair", "after"), [(True, [1, 2, 3, 4]), (False, [1, 2, 1, 2, 3, 4])])
def test_a_torn_append_only_file_must_be_repaired_before_the_server_starts(
    new_redis: Callable[..., RedisServer], repair: bool, after: list[int]
) -> None:
    """Without the repair Redis repeats rows, two starts later. If not, docs/sinks/redis.md is outdated."""
    server = new_redis(*(() if repair else ("--aof-load-truncated", "yes")))
    for number in range(2):
        with opened(server, kind="stream", key="orders") as sink:
            assert (sink.last(SLOT) is None) == (number == 0)
            sink.write(chunk(ids(0)) if number == 0 else chunk(ids(1, 2, 3, 4), batch=1, segment="b"))
    server.kill()
    tear(server)
    server.start(repair=repair)
    assert stream_ids(server) == [0]
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1, 2, 3, 4), batch=1, segment="b"))
    assert stream_ids(server) == [0, 1, 2, 3, 4]
    server.kill()
    server.start(repair=repair)
    assert stream_ids(server) == [0, *after]


def test_a_server_that_shortens_a_torn_file_itself_is_warned_of_for_streams(
    new_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis("--aof-load-truncated", "yes")
    with opened(server):
        assert "aof-load-truncated" not in caplog.text
    with opened(server, kind="stream", key="orders"):
        assert f"{server.url} has aof-load-truncated yes" in caplog.text


def test_two_senders_of_one_chunk_write_it_once(server: RedisServer) -> None:
    start = threading.Barrier(4)

    def send() -> None:
        with opened(server, kind="stream", key="orders") as sink:
            start.wait()
            for batch in range(20):
                sink.write(chunk(ids(batch), batch=batch, segment=f"s{batch}"))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream_ids(server) == list(range(20))


# Arguments and URLs.


@pytest.mark.parametrize(
    ("url", "arguments", "message"),
    [
        ("http://:hunter2@host", {}, "^http://host: expected redis://"),
        ("redis://", {}, "expected redis://"),
        ("redis://:hunter2@host/x", {}, "^redis://host/x: expected redis://"),
        ("redis://host:port", {}, "expected redis://"),
        ("redis://host?db=hunter2", {}, "^redis://host: expected redis://"),
        ("unix://", {}, "expected redis://"),
        ("redis://host", {"kind": "list"}, "expected one of 'hash', 'stream', 'set'"),
        ("redis://host", {"key": "orders"}, "expected a column in it"),
        ("redis://host", {"key": "orders:{id"}, "expected '}'"),
        ("redis://host", {"key": "orders:{id:d}"}, "names of columns in braces"),
        ("redis://host", {"key": "wal_sink:ledger:{id}"}, "are the ledger's"),
        ("redis://host", {"maxlen": 5}, "expected a number above 0, and kind='stream'"),
        ("redis://host", {"wait_replicas": -1}, "wait_replicas of 0 or more"),
        ("redis://host", {"timeout_s": 0}, "timeout_s above 0"),
        ("redis://:hunter2@host", {"password_env": "X"}, "use one"),
        ("redis://host", {"ca_file": "/x"}, "expected a rediss:// URL"),
    ],
)
def test_arguments_that_cannot_work(url: str, arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"key": "orders:{id}"} | arguments
    with pytest.raises(ConfigError, match=message) as caught:
        RedisSink(url, **given)
    assert "hunter2" not in str(caught.value)


def test_by_url_with_its_password(server: RedisServer) -> None:
    sink = redis_sink(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/3?kind=stream&key=orders:%7Bid%7D&maxlen=100")
    assert repr(sink) == f"RedisSink('redis://127.0.0.1:{server.port}/3', kind='stream', key='orders:{{id}}')"
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    with server.client(db=3) as raw:
        assert raw.xlen("orders:1") == 1


def test_by_the_path_of_a_socket(server: RedisServer) -> None:
    sink = redis_sink(f"redis+unix://{server.folder}/redis.sock?key=orders:{{id}}&password_env={VARIABLE}")
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert ledger(server)["rows"] == "1"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("key=a:{id}&kond=set", "unknown options kond; known are key, kind, maxlen"),
        ("key=a:{id}&kind=set&key=b:{id}", "options given twice: key"),
        ("kind=set", "which keys"),
        ("key=a&kind=stream&maxlen=many", "maxlen='many': expected a number"),
    ],
)
def test_urls_that_cannot_work(query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        redis_sink(f"redis://:hunter2@host/0?{query}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+unix"])
def test_it_is_an_entry_point(scheme: str) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["wal_sink.backends"][scheme]
    assert EntryPoint(scheme, value, "wal_sink.backends").load() is redis_sink


def test_write_before_open_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        RedisSink("redis://host", key="{id}").write(chunk(ids(1)))
