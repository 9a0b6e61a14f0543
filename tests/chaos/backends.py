"""One scenario per backend: processes deliver into a real server and are killed at random moments."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote, urlencode

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.chaos.backend_deaths import KILLS, Target, killed_before
from tests.chaos.orphans import executors_of_a_cluster
from tests.chaos.processes import killed_drivers
from tests.chaos.scenario import Scenario
from tests.chaos.targets import Row
from tests.support.avro import records
from tests.support.kafka_topics import new_topic, read
from tests.support.servers.databases import PASSWORD as SQL_PASSWORD
from tests.support.servers.databases import (
    PASSWORD_VARIABLE,
    USER,
    DatabaseServer,
    MariadbServer,
    PostgresqlServer,
    servers_folder,
)
from tests.support.servers.dynamodb_server import ACCESS, REGION, DynamoDbServer
from tests.support.servers.http_target import HttpTarget
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.minio import MinioServer
from tests.support.servers.redis_server import PASSWORD as REDIS_PASSWORD
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY
from tests.support.servers.s3_server import S3Server

REDIS_VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"
ICEBERG_VARIABLE = "WAL_SINK_TEST_ICEBERG_CATALOG"


def _ids(table: pa.Table) -> list[int]:
    return [int(row) for row in table["id"].to_numpy()]


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Target]:
    path = folder / "target.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER, word TEXT)")
        yield Target(
            f"sqlite:///{path}?table=orders", lambda: [row for (row,) in database.execute("SELECT id FROM orders")]
        )


@contextmanager
def sql_server(kind: type[DatabaseServer], mode: str, folder: Path) -> Iterator[Target]:  # noqa: ARG001
    with servers_folder() as place, kind(place / "server") as server:
        database = server.new_database()
        key = " PRIMARY KEY" if mode == "upsert" else ""
        server.query(database, f"CREATE TABLE orders (id BIGINT{key}, word VARCHAR(40))")
        if kind is PostgresqlServer:
            server.query(database, f"ALTER TABLE orders OWNER TO {USER}")
        options = {"table": "orders", "mode": mode, "password_env": PASSWORD_VARIABLE}
        options |= {"key": "id"} if mode == "upsert" else {}
        yield Target(
            server.url(database, options=urlencode(options)),
            lambda: [int(row) for (row,) in server.query(database, "SELECT id FROM orders")],
            {PASSWORD_VARIABLE: SQL_PASSWORD},
        )


@contextmanager
def kafka_topic(folder: Path) -> Iterator[Target]:
    with KafkaBroker(folder / "kafka") as broker:
        topic = new_topic(broker.address)
        yield Target(
            f"kafka://{broker.address}/{topic}?key=id&transaction_timeout_s=20",
            lambda: [json.loads(message.value())["id"] for message in read(broker.address, topic)],
        )


@contextmanager
def redis_stream(folder: Path) -> Iterator[Target]:
    with RedisServer(folder / "redis") as server, server.client() as client:
        yield Target(
            f"{server.url}?kind=stream&key=orders&password_env={REDIS_VARIABLE}",
            lambda: [int(row["id"]) for _, row in client.xrange("orders")],
            {REDIS_VARIABLE: REDIS_PASSWORD},
        )


@contextmanager
def http_api(folder: Path) -> Iterator[Target]:
    with HttpTarget(folder / "api.db") as server:
        url = f"{server.url}/keys/orders#idempotent=true"
        yield Target(url, lambda: [row["id"] for row in server.store.rows("orders")])


@contextmanager
def dynamodb_table(folder: Path) -> Iterator[Target]:  # noqa: ARG001
    """Use a row's place in the WAL as its key, so that a row sent again from another place shows as a repeat."""
    with DynamoDbServer() as server:
        table = server.new_table(at="S")
        options = {"region": REGION, "endpoint_url": server.endpoint, "row_key": "at"}
        yield Target(
            f"dynamodb://{table}?{urlencode({**options, 'ledger_table': f'{table}-ledger'})}",
            lambda: server.ids(table),
            {name.upper(): value for name, value in ACCESS.items()},
        )


NAMES = quote("{batch_id}/{partition}-{file_index}.{ext}", safe="{}/")


@contextmanager
def held_files(folder: Path) -> Iterator[Target]:
    out = folder / "out"

    def ids() -> list[int]:
        return _ids(ds.dataset(out, format="parquet").to_table())

    yield Target(f"files://{quote(str(out))}?format=parquet&commit=two-phase&name_template={NAMES}", ids)


@contextmanager
def held_uploads(folder: Path) -> Iterator[Target]:  # noqa: ARG001
    with S3Server() as server:

        def ids() -> list[int]:
            client, found = server.client(), list[int]()
            for one in client.list_objects_v2(Bucket=server.bucket, Prefix="out/").get("Contents", ()):
                body = client.get_object(Bucket=server.bucket, Key=one["Key"])["Body"].read()
                found += _ids(pq.read_table(io.BytesIO(body)))
            return found

        environment = {
            "AWS_ACCESS_KEY_ID": str(server.storage_options["key"]),
            "AWS_SECRET_ACCESS_KEY": str(server.storage_options["secret"]),
            "AWS_ENDPOINT_URL": server.endpoint,
        }
        url = f"files+s3://{server.bucket}/out?format=parquet&commit=two-phase&name_template={NAMES}"
        yield Target(url, ids, environment)


def _in_delta(url: str, names: Callable[[], Iterable[str]], read: Callable[[str], bytes], **environment: str) -> Target:
    def rows() -> list[Row]:
        return _rows_in_delta(set(names()), read)

    return Target(url, lambda: [row for row, _ in rows()], environment, rows)


def _rows_in_delta(found: Collection[str], read: Callable[[str], bytes]) -> list[Row]:
    """The rows that a Delta table shows by the entries of its log, read without the library that wrote them.

    Raises `AssertionError` if a batch has two commits, or if a file lies there that no entry names: the last process
    would have had to name it.
    """
    shown, batches = set[str](), list[tuple[str, int]]()
    for entry in sorted(name for name in found if name.startswith("_delta_log/") and name.endswith(".json")):
        actions = [json.loads(line) for line in read(entry).splitlines()]
        shown.update(unquote(action["add"]["path"]) for action in actions if "add" in action)
        shown.difference_update(unquote(action["remove"]["path"]) for action in actions if "remove" in action)
        batches += [(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action]
    left = {name for name in found if name.endswith(".parquet") and not name.startswith("_delta_log/")} - shown
    assert not left, f"files that no entry of the log names: {sorted(left)}"
    twice = [batch for batch, times in Counter(batches).items() if times > 1]
    assert not twice, f"positions with two commits: {twice}"
    tables = [pq.read_table(io.BytesIO(read(name))) for name in sorted(shown)]
    return [(row["id"], row["word"]) for table in tables for row in table.to_pylist()]


@contextmanager
def delta_table(folder: Path) -> Iterator[Target]:
    table = folder / "table"

    def names() -> Iterable[str]:
        return (path.relative_to(table).as_posix() for path in table.rglob("*") if path.is_file())

    yield _in_delta(f"delta://{quote(str(table))}?create=true", names, lambda name: (table / name).read_bytes())


@contextmanager
def delta_table_on_s3(folder: Path) -> Iterator[Target]:
    with MinioServer(folder / "minio") as server:
        client = server.client()

        def read(name: str) -> bytes:
            data: bytes = client.get_object(Bucket=server.bucket, Key=f"table/{name}")["Body"].read()
            return data

        def names() -> Iterable[str]:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket, Prefix="table/")
            return (one["Key"][6:] for page in pages for one in page.get("Contents", ()))

        environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        yield _in_delta(f"delta+s3://{server.bucket}/table?create=true", names, read, **environment)


def _in_iceberg(folder: Path, catalog: str, newest: Callable[[], str], **environment: str) -> Target:
    """A table whose files are in a local folder. `newest` reads from the catalogue where its metadata is."""
    options = f"catalog.type=sql&{catalog}&catalog.warehouse=file://{quote(str(folder))}&create=true"

    def rows() -> list[Row]:
        return _rows_in_iceberg(folder, newest())

    return Target(f"iceberg://lake.orders?{options}", lambda: [row for row, _ in rows()], environment, rows)


def _rows_in_iceberg(folder: Path, metadata: str) -> list[Row]:
    """The rows that an Iceberg table shows by its metadata and manifests, read without the library that wrote them.

    Raises `AssertionError` if a batch has two commits, or if a file of rows, a manifest or a list of manifests lies
    there that no snapshot names.
    """

    def place(address: str) -> Path:
        return Path(address.removeprefix("file://"))

    told, named, shown, batches = json.loads(place(metadata).read_bytes()), set[Path](), set[Path](), list[int]()
    for snapshot in told["snapshots"]:
        marks = [mark for key, mark in snapshot["summary"].items() if key.startswith("wal-sink.")]
        batches += [json.loads(mark)["batch"] for mark in marks]
        manifests = [place(one["manifest_path"]) for one in records(place(snapshot["manifest-list"]).read_bytes())]
        entries = [entry for manifest in manifests for entry in records(manifest.read_bytes()) if entry["status"] != 2]
        files = {place(entry["data_file"]["file_path"]) for entry in entries}
        named |= {place(snapshot["manifest-list"]), *manifests, *files}
        shown = files if snapshot["snapshot-id"] == told["current-snapshot-id"] else shown
    left = {path for path in folder.rglob("*.*") if path.suffix in {".avro", ".parquet"}} - named
    assert not left, f"files that no snapshot names: {sorted(path.name for path in left)}"
    twice = [batch for batch, times in Counter(batches).items() if times > 1]
    assert not twice, f"batches with two commits: {twice}"
    tables = [pq.read_table(path) for path in sorted(shown)]
    return [(row["id"], row["word"]) for table in tables for row in table.to_pylist()]


_NEWEST = "SELECT metadata_location FROM iceberg_tables"


@contextmanager
def iceberg_table(folder: Path) -> Iterator[Target]:
    folder.mkdir(parents=True, exist_ok=True)
    catalog = folder / "catalog.db"

    def newest() -> str:
        with closing(sqlite3.connect(catalog)) as database:
            return str(database.execute(_NEWEST).fetchone()[0])

    yield _in_iceberg(folder / "lake", f"catalog.uri=sqlite:///{quote(str(catalog))}", newest)


@contextmanager
def iceberg_table_of_postgresql(folder: Path) -> Iterator[Target]:
    with servers_folder() as place, PostgresqlServer(place / "server") as server:
        database = server.new_database()
        uri = {ICEBERG_VARIABLE: server.url(database, password=True).replace("://", "+psycopg://", 1)}

        def newest() -> str:
            return str(server.query(database, _NEWEST)[0][0])

        yield _in_iceberg(folder / "lake", f"options_from_env=uri:{ICEBERG_VARIABLE}", newest, **uri)


TARGETS: Mapping[str, Callable[[Path], AbstractContextManager[Target]]] = {
    "SQLite": sqlite_file,
    "PostgreSQL (COPY)": partial(sql_server, PostgresqlServer, "append"),
    "PostgreSQL (upsert)": partial(sql_server, PostgresqlServer, "upsert"),
    "MariaDB": partial(sql_server, MariadbServer, "append"),
    "Kafka": kafka_topic,
    "Redis stream": redis_stream,
    "HTTP API with keys": http_api,
    "DynamoDB (moto)": dynamodb_table,
    "files, two-phase": held_files,
    "files on S3 (moto), two-phase": held_uploads,
    "a Delta table": delta_table,
    "a Delta table on S3 (MinIO)": delta_table_on_s3,
    "an Iceberg table": iceberg_table,
    "an Iceberg table, catalogue on PostgreSQL": iceberg_table_of_postgresql,
}
SCENARIOS = [
    Scenario(
        name=f"killed before {name}",
        law="each row is in the target once",
        unit="kill",
        run=partial(killed_before, target_in),
    )
    for name, target_in in TARGETS.items()
]
EACH_ONCE = "each row of a Spark query is in the table once, each batch in one commit, and no file is left over"
SCENARIOS += [
    Scenario(
        "drivers killed before a Delta table", EACH_ONCE, "kill", partial(killed_drivers, most=KILLS, lake=delta_table)
    ),
    Scenario(
        "cluster: executors killed before a Delta table on S3 (MinIO)",
        EACH_ONCE,
        "kill",
        partial(executors_of_a_cluster, lake=delta_table_on_s3),
    ),
    Scenario(
        "drivers killed before an Iceberg table",
        EACH_ONCE,
        "kill",
        partial(killed_drivers, most=KILLS, lake=iceberg_table),
    ),
    Scenario(
        "cluster: executors killed before an Iceberg table",
        EACH_ONCE,
        "kill",
        partial(executors_of_a_cluster, lake=iceberg_table),
    ),
]
