"""`examine` of every ready sink against a real server: it tells what fits, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.support import Finding, Level
from tests.support.kafka_topics import admin, new_name, new_topic
from tests.support.servers.databases import DatabaseServer
from tests.support.servers.dynamodb_server import REGION, DynamoDbServer
from tests.support.servers.http_target import HttpTarget
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.ports import free_port
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.servers.s3_server import S3Server
from wal_sink.errors import PermanentError
from wal_sink.sinks.calls import Examined
from wal_sink_backends.dynamodb import DynamoDbPutSink, DynamoDbSink
from wal_sink_backends.files import FilesSink, TwoPhaseFilesSink
from wal_sink_backends.http import HttpLookupSink, HttpSink
from wal_sink_backends.kafka import KafkaSink
from wal_sink_backends.redis import RedisSink
from wal_sink_backends.sql import SqlSink

SCHEMA = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}).schema
VARIABLE = "REDIS_LOGIN"
DATABASES = ("postgresql", "mariadb")


def fine(sink: Any, schema: Any = SCHEMA) -> Sequence[Finding]:
    assert isinstance(sink, Examined)
    found = sink.examine(schema)
    assert {one.level for one in found} == {Level.OK}
    return found


def words(found: Sequence[Finding]) -> str:
    return "; ".join(one.found for one in found)


@pytest.fixture(params=DATABASES)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


def tables(server: DatabaseServer, database: str) -> set[str]:
    schema = "public" if server.scheme == "postgresql" else database
    query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
    return {name for (name,) in server.query(database, query)}


def test_a_database_without_the_table_is_fine_and_stays_without_it(server: DatabaseServer) -> None:
    database = server.new_database()
    shown = words(fine(SqlSink(server.url(database, password=True), "orders")))
    assert "the first delivery makes the ledger" in shown
    assert "the first delivery makes this table" in shown
    assert tables(server, database) == set()
    with pytest.raises(PermanentError, match="does not exist"):
        SqlSink(server.url(database, password=True), "orders", create_table=False).examine(SCHEMA)


def test_columns_of_a_database_are_compared(server: DatabaseServer) -> None:
    database = server.new_database()
    server.query(database, "CREATE TABLE orders (id bigint, name text)")
    sink = SqlSink(server.url(database, password=True), "orders")
    assert "takes the columns id, name" in words(fine(sink))
    assert "with the columns" in words(fine(sink, None))
    server.query(database, "CREATE TABLE other (id bigint)")
    with pytest.raises(PermanentError, match="has no column 'name'"):
        SqlSink(server.url(database, password=True), "other").examine(SCHEMA)
    server.query(database, "CREATE TABLE strict (id bigint, name text, since bigint NOT NULL)")
    with pytest.raises(PermanentError, match="needs a value"):
        SqlSink(server.url(database, password=True), "strict").examine(SCHEMA)
    server.query(database, "CREATE VIEW shown AS SELECT * FROM orders")
    with pytest.raises(PermanentError, match="view"):
        SqlSink(server.url(database, password=True), "shown").examine(SCHEMA)
    assert tables(server, database) == {"orders", "other", "strict", "shown"}


def test_a_database_file_is_only_read(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    sink = SqlSink(f"sqlite:///{file}", "orders")
    assert "makes this database" in words(fine(sink))
    assert not file.exists()
    sqlite3.connect(file).close()
    file.touch()
    assert "makes this table" in words(fine(sink))
    assert file.read_bytes() == b""
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(PermanentError, match="not a database"):
        sink.examine(SCHEMA)


def test_a_topic_is_found_and_the_ledger_is_not_made(kafka: KafkaBroker) -> None:
    topic, ledger = new_topic(kafka.address), new_name()
    shown = words(fine(KafkaSink(kafka.address, topic, ledger_topic=ledger, key="id")))
    assert "3 partitions" in shown
    assert "makes the ledger" in shown
    assert ledger not in admin(kafka.address).list_topics(timeout=20).topics
    assert "the ledger exists" in words(
        fine(KafkaSink(kafka.address, topic, ledger_topic=new_topic(kafka.address)), None)
    )
    with pytest.raises(PermanentError, match="'day'"):
        KafkaSink(kafka.address, topic, ledger_topic=ledger, key="day").examine(SCHEMA)
    with pytest.raises(PermanentError, match="does not exist"):
        KafkaSink(kafka.address, new_name(), ledger_topic=ledger).examine(SCHEMA)


def test_a_redis_is_asked_for_its_kind_and_gets_no_key(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    sink = RedisSink(redis_server.url, key="orders:{id}", password_env=VARIABLE)
    keys = sink_keys(redis_server)
    assert "can be reached" in words(fine(sink))
    assert sink_keys(redis_server) <= keys  # keys of other tests may expire
    with pytest.raises(PermanentError, match="'day'"):
        RedisSink(redis_server.url, key="orders:{day}", password_env=VARIABLE).examine(SCHEMA)


def sink_keys(server: RedisServer) -> set[bytes]:
    with server.client() as client:
        return set(client.keys())


def test_a_redis_that_evicts_is_refused(new_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    server = new_redis("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(PermanentError, match="allkeys-lru"):
        RedisSink(server.url, key="orders:{id}", password_env=VARIABLE).examine(SCHEMA)


def test_a_service_gets_no_request(http_target: HttpTarget) -> None:
    before = len(http_target.requests)
    url = f"{http_target.url}/rows"
    assert "no request was sent" in words(fine(HttpSink(url)))
    lookup = HttpLookupSink(url, lookup_url=f"{url}/{{key}}")
    assert len(fine(lookup)) == 2
    assert len(http_target.requests) == before
    with pytest.raises(ConnectionError, match="cannot be reached"):
        HttpSink(f"https://127.0.0.1:{free_port()}/").examine(SCHEMA)
    with pytest.raises(PermanentError, match="NO_SUCH_VARIABLE"):
        HttpSink(url, headers_from_env={"Authorization": "NO_SUCH_VARIABLE"}).examine(SCHEMA)


def test_tables_of_dynamodb_are_described(dynamodb_server: DynamoDbServer) -> None:
    name = dynamodb_server.new_table(id="N")
    given: dict[str, Any] = {"region": REGION, "endpoint_url": dynamodb_server.endpoint}
    ledger = f"{name}-ledger"
    assert "makes the ledger" in words(fine(DynamoDbSink(name, ledger_table=ledger, **given)))
    assert "the key of the table is id" in words(fine(DynamoDbPutSink(name, **given), None))
    assert ledger not in dynamodb_server.client.list_tables()["TableNames"]
    with pytest.raises(PermanentError, match="'id' is not among the columns"):
        DynamoDbPutSink(name, **given).examine(pa.schema([pa.field("name", pa.string())]))
    with pytest.raises(PermanentError, match="this table does not exist"):
        DynamoDbSink(name, ledger_table=ledger, create_ledger=False, **given).examine(SCHEMA)
    with pytest.raises(PermanentError, match="expected only the string 'slot'"):
        DynamoDbSink(name, ledger_table=dynamodb_server.new_table(id="N"), **given).examine(SCHEMA)


@pytest.mark.parametrize("kind", [FilesSink, TwoPhaseFilesSink])
def test_a_folder_is_looked_into_and_stays_as_it_is(kind: Any, tmp_path: Path) -> None:
    assert "can be reached" in words(fine(kind(f"file://{tmp_path}/new", format="parquet")))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match="cannot write in"):
        kind(f"file://{tmp_path}/file", format="parquet").examine(SCHEMA)


@pytest.mark.s3
def test_a_bucket_of_files_is_listed(s3_server: S3Server, s3_url: str) -> None:
    sink = FilesSink(s3_url, format="parquet", storage_options=s3_server.storage_options)
    assert "can be reached" in words(fine(sink))
    with pytest.raises(PermanentError, match="NO_SUCH_VARIABLE"):
        FilesSink(s3_url, format="parquet", options_from_env={"key": "NO_SUCH_VARIABLE"}).examine(SCHEMA)
