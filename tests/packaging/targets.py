"""For each extra of the package, a real target on 127.0.0.1 that a pipeline delivers into."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.kafka_topics import new_topic, read
from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, DatabaseServer
from tests.support.servers.dynamodb_server import ACCESS, REGION
from tests.support.servers.redis_server import PASSWORD as REDIS_PASSWORD


@dataclass(frozen=True)
class Target:
    """A place for rows, and what is in it."""

    url: str
    ids: Callable[[], list[int]]
    """The ids that the target holds, sorted, each as often as it is there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    wal: str = ""
    """The URL of the WAL, if the extra is for its store."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    is_watched: bool = False
    """Whether the pipeline has metrics, which it looks at in the end."""


def _database(server: DatabaseServer) -> Target:
    database = server.new_database()
    url = server.url(database, options=f"table=orders&password_env={PASSWORD_VARIABLE}")
    return Target(
        url,
        lambda: [int(row[0]) for row in server.query(database, "SELECT id FROM orders ORDER BY id")],
        {PASSWORD_VARIABLE: PASSWORD},
    )


def _postgresql(request: pytest.FixtureRequest, _folder: Path) -> Target:
    return _database(request.getfixturevalue("postgresql"))


def _mariadb(request: pytest.FixtureRequest, _folder: Path) -> Target:
    return _database(request.getfixturevalue("mariadb"))


def _redis(request: pytest.FixtureRequest, _folder: Path) -> Target:
    server = request.getfixturevalue("redis_server")
    url = f"{server.url}?kind=stream&key=orders&password_env=REDIS_PASSWORD"

    def ids() -> list[int]:
        with server.client() as client:
            return sorted(int(entry["id"]) for _, entry in client.xrange("orders"))

    with server.client() as client:
        client.flushall()
    return Target(url, ids, {"REDIS_PASSWORD": REDIS_PASSWORD})


def _kafka(request: pytest.FixtureRequest, _folder: Path) -> Target:
    broker = request.getfixturevalue("kafka")
    topic = new_topic(broker.address)
    return Target(
        f"kafka://{broker.address}/{topic}?key=id&ledger_replication=1",
        lambda: sorted(json.loads(message.value())["id"] for message in read(broker.address, topic)),
    )


def _http(request: pytest.FixtureRequest, folder: Path) -> Target:
    target = request.getfixturevalue("http_target")
    name = folder.name
    return Target(
        f"{target.url}/keys/{name}#idempotent=true", lambda: sorted(row["id"] for row in target.store.rows(name))
    )


def _dynamodb(request: pytest.FixtureRequest, _folder: Path) -> Target:
    server = request.getfixturevalue("dynamodb_server")
    table = server.new_table()
    access = {name.upper(): value for name, value in ACCESS.items()}
    return Target(
        f"dynamodb://{table}?region={REGION}&endpoint_url={server.endpoint}", lambda: server.ids(table), access
    )


def _s3(request: pytest.FixtureRequest, folder: Path) -> Target:
    server, url = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_url")
    prefix = url.removeprefix("s3://")
    access = {
        "AWS_ACCESS_KEY_ID": server.storage_options["key"],
        "AWS_SECRET_ACCESS_KEY": server.storage_options["secret"],
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def ids() -> list[int]:
        copied = folder / "objects"
        copied.mkdir()
        inside = f"{prefix.partition('/')[2]}/lake/"
        for number, (key, content) in enumerate(sorted(server.objects().items())):
            if key.startswith(inside) and key.endswith(".parquet"):
                (copied / f"{number}.parquet").write_bytes(content)
        return sorted(int(str(row)) for row in ds.dataset(copied, format="parquet").to_table()["id"].to_pylist())

    return Target(f"files+s3://{prefix}/lake?format=parquet", ids, access, f"{url}/wal", server.storage_options)


def _delta(_request: pytest.FixtureRequest, folder: Path) -> Target:
    table = folder / "delta"

    def ids() -> list[int]:
        files = [str(path) for path in table.glob("*.parquet")]
        return sorted(int(str(row)) for row in ds.dataset(files, format="parquet").to_table()["id"].to_pylist())

    return Target(f"delta://{table}?create=true", ids)


def _iceberg(_request: pytest.FixtureRequest, folder: Path) -> Target:
    def ids() -> list[int]:
        files = [str(path) for path in folder.rglob("lake/orders/data/*.parquet")]
        return sorted(int(str(row)) for row in ds.dataset(files, format="parquet").to_table()["id"].to_pylist())

    catalog = f"catalog.type=sql&catalog.uri=sqlite:///{folder}/catalog.db&catalog.warehouse=file://{folder}/warehouse"
    return Target(f"iceberg://lake.orders?{catalog}&create=true", ids)


def _hdfs(request: pytest.FixtureRequest, folder: Path) -> Target:
    server = request.getfixturevalue("hdfs")
    return replace(_file(folder / "hdfs.db"), wal=f"{server.url}{server.new_folder()}/wal")


def _azure(request: pytest.FixtureRequest, folder: Path) -> Target:
    server = request.getfixturevalue("azurite")
    wal = f"abfs://{server.container}/{folder.name}/wal"
    return replace(_file(folder / "azure.db"), wal=wal, storage_options=server.storage_options)


def _gcs(request: pytest.FixtureRequest, folder: Path) -> Target:
    server = request.getfixturevalue("fake_gcs")
    wal = f"gs://{server.bucket}/{folder.name}/wal"
    return replace(_file(folder / "gcs.db"), wal=wal, storage_options=server.storage_options)


def _metrics(_request: pytest.FixtureRequest, folder: Path) -> Target:
    return replace(_file(folder / "watched.db"), is_watched=True)


def _file(database: Path) -> Target:
    """A target that needs no extra, for the extra of a store."""

    def ids() -> list[int]:
        with closing(sqlite3.connect(database)) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    return Target(f"sqlite:///{database}?table=orders", ids)


TARGETS: Mapping[str, Callable[[pytest.FixtureRequest, Path], Target]] = {
    "azure": _azure,
    "delta": _delta,
    "dynamodb": _dynamodb,
    "gcs": _gcs,
    "hdfs": _hdfs,
    "http": _http,
    "iceberg": _iceberg,
    "kafka": _kafka,
    "mariadb": _mariadb,
    "metrics": _metrics,
    "postgresql": _postgresql,
    "redis": _redis,
    "s3": _s3,
}
"""The target of each extra. A test compares the names with those that the package provides."""

WITHOUT_EXTRA: Mapping[str, str] = {
    "azure": "abfs://container/wal",
    "delta": "delta:///no/such/table",
    "dynamodb": "dynamodb://orders?region=eu-central-1",
    "gcs": "gs://bucket/wal",
    "hdfs": "viewfs://cluster/wal",
    "http": "http://127.0.0.1:9/orders#idempotent=true",
    "iceberg": "iceberg://lake.orders",
    "kafka": "kafka://127.0.0.1:9/orders",
    "mariadb": "mariadb://127.0.0.1:9/shop?table=orders",
    "metrics": "sqlite:///rows.db?table=orders",
    "postgresql": "postgresql://127.0.0.1:9/shop?table=orders",
    "redis": "redis://127.0.0.1:9/0?kind=stream&key=orders",
    "s3": "files+s3://bucket/orders?format=parquet",
}
"""For each extra, a URL that cannot work without it: of a WAL for a store, of a target for the others. That of
`metrics` works, and --metrics is given."""
