"""Maps in every sink that writes rows as JSON: objects as Spark's `to_json` has them, or entries on request."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.kit import chunks_of
from tests.house.sinks import Chunk
from tests.integration.http.conftest import keyed  # noqa: F401 - a fixture
from tests.support.chunks import CONTEXT
from tests.support.http_collection import Collection, write
from tests.support.redis_tools import VARIABLE
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink.errors import ConfigError
from wal_sink.testing import query_into
from wal_sink_backends.dynamodb import items as dynamodb_items
from wal_sink_backends.dynamodb.items import Keys
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink
from wal_sink_backends.files.urls import files_sink
from wal_sink_backends.http.sink import HttpSink
from wal_sink_backends.http.urls import http_sink
from wal_sink_backends.kafka.messages import Messages
from wal_sink_backends.kafka.sink import KafkaSink
from wal_sink_backends.kafka.urls import kafka_sink
from wal_sink_backends.redis.sink import RedisSink
from wal_sink_backends.redis.urls import redis_sink
from wal_sink_backends.sql.sink import SqlSink
from wal_sink_backends.sql.urls import mariadb_sink, postgresql_sink, sqlite_sink

Maps = Literal["object", "entries"]
TABLE = pa.table({"id": [1], "tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
OBJECT: Any = {"a": 1}
ENTRIES: Any = [{"key": "a", "value": 1}]
BOTH = pytest.mark.parametrize(("maps", "wanted"), [("object", OBJECT), ("entries", ENTRIES)])


def chunk() -> Chunk:
    (made,) = chunks_of(TABLE)
    return made


@BOTH
@pytest.mark.parametrize("form", ["jsonl", "json"])
@pytest.mark.parametrize("kind", [FilesSink, TwoPhaseFilesSink])
def test_files(tmp_path: Path, maps: Maps, wanted: Any, form: Any, kind: Any) -> None:
    with query_into(kind(f"file://{tmp_path}/out", format=form, maps=maps)) as query:
        query.batch(TABLE)
    (file,) = (tmp_path / "out").rglob(f"*.{form}")
    found = json.loads(file.read_text())
    assert (found if form == "jsonl" else found[0]) == {"id": 1, "tags": wanted}


def test_parquet_keeps_its_maps(tmp_path: Path) -> None:
    with query_into(FilesSink(f"file://{tmp_path}/out", format="parquet", maps="entries")) as query:
        query.batch(TABLE)
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pa.types.is_map(pq.read_schema(file).field("tags").type)


@BOTH
def test_sqlite(tmp_path: Path, maps: Maps, wanted: Any) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path}/rows.db", "rows", maps=maps)
    with query_into(sink) as query:
        query.batch(TABLE)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        ((tags,),) = database.execute("SELECT tags FROM rows").fetchall()
    assert json.loads(tags) == wanted


@BOTH
def test_kafka(maps: Maps, wanted: Any) -> None:
    """The content of messages. Sending them is tested with a broker."""
    sink = KafkaSink("127.0.0.1:1", "rows", key="tags", maps=maps)
    made = sink._format.messages(chunk().table, partitions=1, most_bytes=1_000_000, needs_keys=False)
    messages: Messages = made[0]
    assert json.loads(messages.values[0] or b"") == {"id": 1, "tags": wanted}
    assert json.loads(messages.keys[0] or b"") == wanted


def test_a_map_of_dynamodb_in_which_a_key_stands_twice_is_refused() -> None:
    """Its own maps hold a key once. Before: the last one stayed, and nobody was told."""
    tags = pa.array([[("a", 1), ("a", 2)], [("a", 1)]], pa.map_(pa.string(), pa.int64()))
    (made,) = chunks_of(pa.table({"id": [1, 2], "tags": tags}))
    items, refused = dynamodb_items.encoded(made, None, "null", Keys({"id": "N"}, ()), "a test")
    assert refused == {0: "a map holds the key 'a' twice, and DynamoDB keeps only one of them"}
    assert [item.attributes["tags"] for item in items] == [{"M": {"a": {"N": "1"}}}]


URLS = [
    (http_sink, "https://host/x#maps="),
    (files_sink, "files:///tmp/wal-sink-maps?maps="),
    (files_sink, "files:///tmp/wal-sink-maps?commit=two-phase&maps="),
    (sqlite_sink, "sqlite:////tmp/rows.db?table=rows&maps="),
    (postgresql_sink, "postgresql://u@host/db?table=rows&maps="),
    (mariadb_sink, "mariadb://u@host/db?table=rows&maps="),
    (kafka_sink, "kafka://host:9092/topic?maps="),
    (redis_sink, "redis://host/0?key=a:{id}&maps="),
]


@pytest.mark.parametrize(("make", "url"), URLS, ids=[url.partition(":")[0] for _, url in URLS])
def test_a_url_says_how_maps_are_written(make: Any, url: str) -> None:
    sink = make(f"{url}entries")
    made = sink._format.maps if isinstance(sink, KafkaSink) else sink._maps
    assert made == "entries"
    with pytest.raises(ConfigError, match=r"maps='pairs': expected one of 'object', 'entries'"):
        make(f"{url}pairs")


@pytest.mark.processes
@BOTH
@pytest.mark.parametrize("body", ["json", "jsonl", "rows"])
def test_http(keyed: Collection, maps: Maps, wanted: Any, body: Any) -> None:  # noqa: F811
    write(HttpSink(keyed.url, body=body, maps=maps), chunk())
    assert keyed.server.store.rows(keyed.name) == [{"id": 1, "tags": wanted}]


@pytest.mark.processes
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
