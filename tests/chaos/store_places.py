"""The real servers on which `make chaos` spoils requests and kills: how each starts, and how a client reaches it.

A further store is one more entry of `STORES`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any
from urllib.parse import quote

import requests

from tests.chaos.faulty_proxy import FaultyProxy
from tests.chaos.hdfs_proxies import DATA_HOST, HadoopProxy, WebHdfsProxy
from tests.chaos.spoiling import IMPATIENT, Client
from tests.chaos.store_world import Sight, StoreWorld
from tests.house.stores import S3Store, Store, StoreSpec, opening
from tests.house.support import SYSTEM
from tests.simulation.histories.plans import Shape
from tests.support.servers.azurite import AzuriteServer
from tests.support.servers.fake_gcs import FakeGcsServer
from tests.support.servers.hdfs import Hdfs
from tests.support.servers.minio import MinioServer
from tests.support.servers.s3_product import S3Product
from tests.support.servers.seaweedfs import SeaweedServer
from wal_sink.stores import hdfs_rpc, webhdfs
from wal_sink.stores.hdfs import HdfsStore

HURRIED = replace(SYSTEM, sleep_s=lambda seconds: time.sleep(min(seconds, 0.05)))
"""A clock for a store that repeats a failed call. It may do so soon: nothing but the fault keeps it from success."""
_LOOK_S = 10
_numbers = itertools.count()


def _unchanged(store: Store, client: Client) -> None:
    """Do nothing: the spec has the limits of the client already."""


@dataclass(frozen=True, slots=True)
class Mortal:
    """A process of a server that may be killed, since what it acknowledged survives that."""

    name: str
    kill: Callable[[Any], None]
    start: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store with a server. `Any` stands for its own class of server, and of proxy."""

    name: str
    start: Callable[[Path], AbstractContextManager[Any]]
    new_proxy: Callable[[Any], AbstractContextManager[Any]]
    spec: Callable[[Any, Any, Client], StoreSpec]
    """It gets the server, its proxy, and the limits of the client. The URL has the folder `chaos`."""
    sight: Callable[[Any, str], Sight]
    """It gets the server and the path of a folder that the URL's folder has, or its container."""
    limit: Callable[[Store, Client], None] = _unchanged
    """Set the limits of a client that its spec cannot have."""
    limits: Sequence[tuple[ModuleType, str]] = ()
    """The product's own time limits of an answer, which no option changes."""
    mortals: Sequence[Mortal] = ()
    """Empty if a kill of the server loses what it acknowledged."""
    rounds: int = 100
    """The number of runs, in a whole `make chaos`, in each of which one request is spoilt."""
    steady: bool = True


@dataclass
class StorePlace:
    """One server, one proxy, and one client of it at a time. Each world has a folder for itself."""

    kind: ServedStore
    server: Any
    proxy: Any
    hurried: bool = True
    """Whether the store waits only a moment before it repeats a call."""
    mortal: bool = False
    """Whether the server may be down when the world is looked at."""
    _client: Client = field(default_factory=lambda: IMPATIENT)

    @property
    def steady(self) -> bool:
        return self.kind.steady

    def connect(self, client: Client) -> None:
        self._client = client
        for module, name in self.kind.limits:
            setattr(module, name, client["read_timeout"])

    def world(self, kind: str, batches: Shape) -> StoreWorld:
        self.proxy.arm()
        if isinstance(self.proxy, FaultyProxy):
            self.proxy.stored.clear()
        folder = f"chaos-{next(_numbers)}"
        sight = self.kind.sight(self.server, f"chaos/{folder}/")
        return StoreWorld(self._store(folder), sight, kind, batches, mortal=self.mortal)

    def _store(self, folder: str) -> Store:
        spec = self.kind.spec(self.server, self.proxy, self._client)
        store = opening._new_store(replace(spec, url=f"{spec.url}/{folder}"))
        if self.hurried and isinstance(store, (HdfsStore, S3Store)):
            store._runtime = HURRIED
        self.kind.limit(store, self._client)
        return store


@contextmanager
def place_at(kind: ServedStore, server: Any) -> Iterator[StorePlace]:
    """Yield a place at a running server."""
    kept = [(module, name, getattr(module, name)) for module, name in kind.limits]
    try:
        with kind.new_proxy(server) as proxy:
            yield StorePlace(kind, server, proxy)
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _attempts(client: Client) -> int:
    retries = client["retries"]
    assert isinstance(retries, dict)
    return int(retries["total_max_attempts"])


def s3_spec(server: Any, proxy: FaultyProxy, client: Client) -> StoreSpec:
    """Return the spec of a server that speaks S3."""
    options = {**server.storage_options, "endpoint_url": proxy.url, "config_kwargs": dict(client)}
    return StoreSpec(f"s3://{server.bucket}/chaos", options)


def s3_sight(server: Any, prefix: str) -> Sight:
    """Look at a server that speaks S3 by boto3. A world has less than one page of objects."""
    client = server.client()

    def names() -> list[str]:
        page = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix)
        return [entry["Key"].removeprefix(prefix) for entry in page.get("Contents", ())]

    return Sight(names, lambda name: client.get_object(Bucket=server.bucket, Key=prefix + name)["Body"].read())


def _azurite_spec(server: AzuriteServer, proxy: FaultyProxy, _: Client) -> StoreSpec:
    return StoreSpec(f"abfs://{server.container}/chaos", server.options_through(proxy.url))


def _azurite_sight(server: AzuriteServer, prefix: str) -> Sight:
    from azure.storage.blob import ContainerClient  # noqa: PLC0415 - of the extra azure

    connection = str(server.storage_options["connection_string"])
    client = ContainerClient.from_connection_string(connection, server.container)
    return Sight(
        lambda: [name.removeprefix(prefix) for name in client.list_blob_names(name_starts_with=prefix)],
        lambda name: client.download_blob(prefix + name).readall(),
    )


def _limit_azure(store: Any, client: Client) -> None:
    """Set the attempts and the time limit of Azure's client. Between attempts it would wait 15 seconds and more."""
    pipeline = store._fs.service_client._pipeline
    pipeline._transport.connection_config.read_timeout = client["read_timeout"]
    (retry,) = [policy for policy in pipeline._impl_policies if hasattr(policy, "initial_backoff")]
    retry.total_retries = _attempts(client) - 1
    retry.initial_backoff = retry.random_jitter_range = 0
    retry.increment_base = 1


def _gcs_spec(server: FakeGcsServer, proxy: FaultyProxy, _: Client) -> StoreSpec:
    return StoreSpec(f"gs://{server.bucket}/chaos", {**server.storage_options, "endpoint_url": proxy.url})


def _gcs_sight(server: FakeGcsServer, prefix: str) -> Sight:
    """Look at it by plain HTTP. A world has less than one page of objects."""
    objects = f"{server.endpoint}/storage/v1/b/{server.bucket}/o"

    def get(url: str, **parameters: str) -> requests.Response:
        answer = requests.get(url, parameters, timeout=_LOOK_S)
        answer.raise_for_status()
        return answer

    def names() -> list[str]:
        return [entry["name"].removeprefix(prefix) for entry in get(objects, prefix=prefix).json().get("items", ())]

    return Sight(names, lambda name: get(f"{objects}/{quote(prefix + name, safe='')}", alt="media").content)


def _limit_gcs(store: Any, client: Client) -> None:
    """Set the attempts and the time limit of gcsfs. It would ask six times, and wait five minutes for each answer."""
    from aiohttp import ClientTimeout  # noqa: PLC0415 - of the extra gcs
    from gcsfs import retry  # noqa: PLC0415

    fs, limit_s = store._fs, client["read_timeout"]
    assert isinstance(limit_s, int)
    fs.requests_timeout = ClientTimeout(total=limit_s)
    repeated: Any = retry.retry_request  # whose decorator has wrong types
    fs._request = MethodType(repeated(retries=_attempts(client))(type(fs)._request.__wrapped__), fs)


def _webhdfs_spec(server: Hdfs, proxy: WebHdfsProxy, _: Client) -> StoreSpec:
    return StoreSpec(f"{server.webhdfs_url_at(proxy.port)}/chaos")


def _hdfs_spec(_: Hdfs, proxy: HadoopProxy, __: Client) -> StoreSpec:
    quick = {"dfs.client.failover.sleep.base.millis": "20", "dfs.client.failover.sleep.max.millis": "100"}
    return StoreSpec(f"hdfs://127.0.0.1:{proxy.port}/chaos", {**quick, "dfs.client.use.datanode.hostname": "true"})


def _hdfs_sight(server: Hdfs, folder: str) -> Sight:
    """Leave out the temporary files: a name that begins with a dot is no object."""
    return Sight(
        lambda: [name for name in server.files(f"/{folder}".rstrip("/")) if not name.startswith(".")],
        lambda name: server.read(f"/{folder}{name}"),
    )


def _s3_product(kind: type[S3Product]) -> ServedStore:
    name = kind.product
    return ServedStore(
        name,
        lambda folder: kind(folder / name.lower()),
        lambda server: FaultyProxy(server.endpoint),
        s3_spec,
        s3_sight,
        mortals=[Mortal(name, kind.kill, kind.start)],
    )


SEAWEEDFS, MINIO = _s3_product(SeaweedServer), _s3_product(MinioServer)
AZURITE = ServedStore(
    "Azurite",
    lambda folder: AzuriteServer(folder / "azurite"),
    lambda server: FaultyProxy(f"http://127.0.0.1:{server.port}"),
    _azurite_spec,
    _azurite_sight,
    _limit_azure,
)
FAKE_GCS = ServedStore(
    "fake-gcs-server",
    lambda folder: FakeGcsServer(folder / "gcs"),
    lambda server: FaultyProxy(server.endpoint),
    _gcs_spec,
    _gcs_sight,
    _limit_gcs,
    rounds=150,
)
_NODES = [
    Mortal("HDFS name node", lambda server: server.name_node.kill(), Hdfs.restart_name_node),
    Mortal("HDFS data node", lambda server: server.data_node.kill(), Hdfs.restart_data_node),
]
WEBHDFS = ServedStore(
    "WebHDFS",
    lambda folder: Hdfs(folder / "hdfs"),
    WebHdfsProxy,
    _webhdfs_spec,
    _hdfs_sight,
    limits=[(webhdfs, "_ANSWER_S")],
    mortals=_NODES,
    rounds=20,
)
HDFS = ServedStore(
    "HDFS",
    lambda folder: Hdfs(folder / "hdfs", data_host=DATA_HOST),
    HadoopProxy,
    _hdfs_spec,
    _hdfs_sight,
    limits=[(hdfs_rpc, "_LIMIT_S")],
    mortals=_NODES,
    steady=False,  # it asks again and again whether a file is closed
    rounds=60,
)
STORES = (SEAWEEDFS, MINIO, AZURITE, FAKE_GCS, WEBHDFS, HDFS)
