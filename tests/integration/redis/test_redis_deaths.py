"""Redis servers, connections and writers that end at any moment."""

from __future__ import annotations

import random
import socket
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.house.sinks import Position
from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.processes import Child
from tests.support.redis_tools import VARIABLE, ledger, opened, stream_ids, wait_until_alone
from tests.support.servers.ports import listening
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink_backends.redis.sink import RedisSink


class LossyProxy:
    """Passes everything on to a server, until it is told to lose an answer: then it passes the request and hangs up."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.lose = False
        self._listener = listening()
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
    from wal_sink.sinks.chunk import Chunk, Position
    from wal_sink.sinks.base import SinkContext
    from wal_sink_backends.redis.urls import redis_sink

    slot = "wal/default/0"
    sink = redis_sink(sys.argv[1])
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot)
    batch, done = (last.batch_id, last.rows) if last else (0, 0)
    at = last
    pa.table({"id": [1]})
    print("ready", flush=True)
    try:
        while True:
            for first in range(done, 600, 200):
                ids = [batch * 600 + row for row in range(first, first + 200)]
                chunk = Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * 200}), key=f"s{batch}-{first}")
                at, rows = Position(slot, batch, first + 200, f"s{batch}"), range(first, first + 200)
                whose = dict(batch_id=batch, segment_id=f"s{batch}", position=at, start=first, follows=last)
                sink.write(dataclasses.replace(chunk, rows=rows, **whose))
            batch, done, last = batch + 1, 0, at
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
            if number == 2:  # on a busy machine the others may have been killed before they wrote
                writer.wait_until(lambda: bool(ledger(server)), "it wrote")
            if victim == "server":
                server.kill()
                writer.wait_for_output("the server is gone")
                server.start()
            else:
                assert writer.running, writer.output
                writer.kill()
        wait_until_alone(server)
        found, at = stream_ids(server), ledger(server)
        known = int(at["batch_id"]) * 600 + int(at["rows"]) if at else 0
        assert found == list(range(known)), f"seed {seed}"
        counts.append(known)
    assert counts == sorted(counts)
    assert counts[-1] > 0


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
    second = chunk(ids(1, 2, 3, 4), batch=1, segment="b", after=Position(SLOT, 0, 1, "a"))
    for number in range(2):
        with opened(server, kind="stream", key="orders") as sink:
            assert (sink.last(SLOT) is None) == (number == 0)
            sink.write(chunk(ids(0)) if number == 0 else second)
    server.kill()
    tear(server)
    server.start(repair=repair)
    assert stream_ids(server) == [0]
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(second)
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
