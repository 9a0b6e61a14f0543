"""Maps as JSON reach servers."""

from __future__ import annotations

import json
from typing import Any, Literal

import pyarrow as pa
import pytest

from tests.integration.http.conftest import keyed  # noqa: F401 - a fixture
from tests.support.chunks import CONTEXT
from tests.support.http_collection import Collection, write
from tests.support.redis_tools import VARIABLE
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing.contract.calls import chunks_of
from wal_sink_backends.http.sink import HttpSink
from wal_sink_backends.redis.sink import RedisSink

Maps = Literal["object", "entries"]
TABLE = pa.table({"id": [1], "tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
OBJECT: Any = {"a": 1}
ENTRIES: Any = [{"key": "a", "value": 1}]
BOTH = pytest.mark.parametrize(("maps", "wanted"), [("object", OBJECT), ("entries", ENTRIES)])


def chunk() -> Chunk:
    (made,) = chunks_of(TABLE)
    return made


@BOTH
@pytest.mark.parametrize("body", ["json", "jsonl", "rows"])
def test_http(keyed: Collection, maps: Maps, wanted: Any, body: Any) -> None:  # noqa: F811
    write(HttpSink(keyed.url, body=body, maps=maps), chunk())
    assert keyed.server.store.rows(keyed.name) == [{"id": 1, "tags": wanted}]


@BOTH
@pytest.mark.parametrize("kind", ["hash", "stream", "set"])
def test_redis(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, maps: Maps, wanted: Any, kind: Any) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    with redis_server.client() as client:
        client.flushall()
    key = f"maps-{kind}-{maps}:{{id}}"
    sink = RedisSink(redis_server.url, kind=kind, key=key, password_env=VARIABLE, maps=maps)
    sink.open(CONTEXT)
    try:
        assert sink.write(chunk()) is None
    finally:
        sink.close()
    with redis_server.client() as client:
        name = key.format(id=1)
        read: Any = {
            "hash": lambda: client.hget(name, "tags"),
            "stream": lambda: client.xrange(name)[0][1]["tags"],
            "set": lambda: json.dumps(json.loads(next(iter(client.smembers(name))))["tags"]),
        }[kind]
        assert json.loads(read()) == wanted
