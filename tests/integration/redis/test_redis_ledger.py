"""The ledger of `RedisSink`: position and term beside the rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.kit import CASES, REFUSALS, STORED
from tests.house.sinks import Position
from tests.support.chunks import SLOT, chunk, ids
from tests.support.redis_tools import VARIABLE, ledger, opened, stream_ids
from tests.support.servers.redis_server import RedisServer
from wal_sink.errors import FencedError, HistoryError
from wal_sink.testing import query_into
from wal_sink_backends.redis.rows import LEDGER
from wal_sink_backends.redis.sink import RedisSink


def test_position_and_term_stand_in_one_hash(server: RedisServer) -> None:
    with opened(server) as sink:
        assert sink.last(SLOT) is None
        sink.write(chunk(ids(1, 2), batch=5, term=3))
        assert sink.last(SLOT) == Position(SLOT, 5, 2, "a")
    assert ledger(server) == {"term": "3", "batch_id": "5", "rows": "2", "segment_id": "a"}


def test_positions_are_one_round_trip(server: RedisServer) -> None:
    slots = [f"wal/default/{number}" for number in range(1_000)]
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        for number in (0, 999):
            sink.write(chunk(ids(number), slot=slots[number]))
        connections = client.info("stats")["total_connections_received"]
        sent: list[Any] = []
        connection = sink._client.connection_pool.get_connection()
        send = connection.send_packed_command

        def counted(data: Any, **more: Any) -> None:
            sent.append(data)
            send(data, **more)

        connection.send_packed_command = counted
        sink._client.connection_pool.release(connection)
        found = sink.positions(slots)
        assert len(sent) == 1
        assert list(found) == slots
        held = {slot: position for slot, position in found.items() if position is not None}
        assert held == {slots[number]: Position(slots[number], 0, 1, "a") for number in (0, 999)}
        assert sink.positions([]) == {}
        assert len(sent) == 1
        assert client.info("stats")["total_connections_received"] == connections


def everything(server: RedisServer) -> dict[str, bytes]:
    with server.client() as client, server.client(decode_responses=False) as raw:
        return {key: raw.dump(key) for key in client.keys("*")}


@pytest.mark.parametrize("term", [4, 5, 6])
def test_the_script_decides_as_every_ledger_does(server: RedisServer, term: int) -> None:
    at = STORED.position
    entry = {"term": STORED.term, "batch_id": at.batch_id, "rows": at.rows, "segment_id": at.segment_id}
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        for case in (case for case in CASES if case.term == term):
            client.delete("orders")
            client.delete(f"{LEDGER}{SLOT}")
            if case.stored:
                client.hset(f"{LEDGER}{SLOT}", mapping=entry)
            if case.verdict in REFUSALS:
                kind, told = REFUSALS[case.verdict]
                with pytest.raises(kind, match=told):
                    sink.write(case.chunk())
            else:
                assert sink.write(case.chunk()) is None
            is_new = case.verdict == "new"
            assert stream_ids(server) == (list(case.rows) if is_new else []), case
            assert sink.last(SLOT) == (case.chunk().position if is_new else at if case.stored else None), case


def test_a_term_without_a_position_refuses_lower_ones_alone(server: RedisServer) -> None:
    """An operator who ends a script between its first write and its rows leaves such an entry."""
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        client.hset(f"{LEDGER}{SLOT}", "term", 5)
        assert sink.last(SLOT) is None
        with pytest.raises(
            FencedError,
            match="a process with term 5 has already written to this slot, but the term of this process is 4",
        ):
            sink.write(chunk(ids(1), term=4))
        assert sink.write(chunk(ids(2), term=5)) is None
    assert stream_ids(server) == [2]


def test_a_chunk_less_its_rows_still_moves_the_ledger(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink:
        sink.write(chunk(ids(1, 2)).without([0, 1]))
        sink.write(chunk(ids(3, 4), first=2).without([0]))
        assert sink.last(SLOT) == Position(SLOT, 0, 4, "a")
    assert stream_ids(server) == [4]


def test_an_emptied_redis_is_refused(server: RedisServer) -> None:
    sink = RedisSink(server.url, kind="stream", key="orders", password_env=VARIABLE)
    told = "batch 0 was delivered and marked, but the target holds nothing"
    with pytest.raises(HistoryError, match=told), query_into(sink) as query:  # noqa: PT012
        query.batch(ids(1, 2))
        with server.client() as client:
            client.flushall()
        query.batch(ids(3))
    assert stream_ids(server) == []


def test_a_redis_restored_to_before_the_marker_is_refused(server: RedisServer) -> None:
    sink = RedisSink(server.url, kind="stream", key="orders", password_env=VARIABLE)
    told = "batch 1 was delivered and marked, but the target holds batch 0"
    with pytest.raises(HistoryError, match=told), query_into(sink) as query:  # noqa: PT012
        query.batch(ids(1))
        old = everything(server)
        query.batch(ids(2))
        with server.client() as client:
            client.flushall()
            for key, value in old.items():
                client.restore(key, 0, value)
        query.batch(ids(3))
    assert stream_ids(server) == [1]
