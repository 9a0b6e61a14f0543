"""Redis servers, connections and writers that end at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.house.kit import slot
from tests.house.sinks import Position
from tests.support.chunks import CONTEXT, SLOT, chunk, ids
from tests.support.processes import Child
from tests.support.programs.url_writers import BATCH_ROWS, killed_at_any_moment
from tests.support.redis_tools import VARIABLE, ledger, opened, stream_ids, wait_until_alone
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.servers.tcp_proxy import TcpProxy
from wal_sink_backends.redis.sink import RedisSink


def test_an_answer_that_got_lost(server: RedisServer) -> None:
    with TcpProxy(server.port) as proxy:
        sink = RedisSink(f"redis://127.0.0.1:{proxy.port}/0", kind="stream", key="orders", password_env=VARIABLE)
        sink.open(CONTEXT)
        proxy.cut(b"EVAL", "after")
        with pytest.raises(redis.ConnectionError):
            sink.write(chunk(ids(1)))
        assert stream_ids(server) == [1]
        sink.write(chunk(ids(1)))
        sink.close()
    assert stream_ids(server) == [1]


@pytest.mark.parametrize("victim", ["writer", "server"])
def test_a_kill_at_any_moment_leaves_rows_and_ledger_equal(
    new_redis: Callable[..., RedisServer], tmp_path: Path, victim: str
) -> None:
    server = new_redis()
    url = f"{server.url}?kind=stream&key=orders&password_env={VARIABLE}"

    def held() -> tuple[list[int], int]:
        at = ledger(server, slot())
        return stream_ids(server), int(at["batch_id"]) * BATCH_ROWS + int(at["rows"]) if at else 0

    def kill(writer: Child) -> None:
        if victim == "server":
            server.kill()
            assert writer.wait() == 1, writer.output
            server.start()
        else:
            writer.kill()
        wait_until_alone(server)

    killed_at_any_moment(url, tmp_path, held, env={VARIABLE: PASSWORD}, kill=kill)


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
