"""How often a start and a steady batch ask each store. docs/cost.md tells the counts, and they are exact."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.chaos.faulty_proxy import FaultyProxy
from tests.house.log import paths
from tests.house.stores import MemoryStore, StoreSpec, open_store
from tests.support.processes import CHECKOUT
from tests.support.small_run import Place, Recorder

if TYPE_CHECKING:
    from tests.support.servers.azurite import AzuriteServer
    from tests.support.servers.fake_gcs import FakeGcsServer
    from tests.support.servers.hdfs import Hdfs
    from tests.support.servers.minio import MinioServer
    from tests.support.servers.s3_server import S3Server
    from tests.support.servers.seaweedfs import SeaweedServer

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = pytest.mark.processes

Counting = Callable[[], AbstractContextManager[list[str]]]
BEFORE = 4
"""Batches before the counted one, which neither is the first of its run nor collects."""
LATE_S = 1.0
"""hdfs-native's own close comes half a second late."""
OF_A_CLOSE = re.compile(r"completeFile|recoverLease|open \S+\.tmp$")
"""Calls whose number depends on how soon the data node reports."""
OVER_HTTP = {"SeaweedFS": ("seaweedfs", "s3"), "MinIO": ("minio", "s3"), "Google": ("fake_gcs", "gs")}
_LISTING = re.compile(r"list-type|comp=list|/o/?\?.*prefix=")


@contextmanager
def seen_by(proxy: FaultyProxy) -> Iterator[list[str]]:
    before, asked = len(proxy.seen), list[str]()
    yield asked
    asked += [str(request) for request, _ in proxy.seen[before:]]


@contextmanager
def asked_of(hdfs: Hdfs) -> Iterator[list[str]]:
    with hdfs.counting() as asked:
        yield asked
        time.sleep(LATE_S)
    asked[:] = [call for call in asked if not OF_A_CLOSE.match(call)]


def kind_of(request: str) -> str:
    """The method of a request, or the call to a name node. A listing over HTTP is a LIST."""
    method = request.split(maxsplit=1)[0]
    return "LIST" if method == "GET" and _LISTING.search(request) else method


@pytest.fixture(
    params=[
        *(pytest.param(kind, marks=pytest.mark.s3) for kind in ("S3", "SeaweedFS", "MinIO")),
        *(pytest.param(kind, marks=pytest.mark.hdfs) for kind in ("HDFS", "WebHDFS")),
        *("Azure", "Google"),
    ]
)
def counted(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[tuple[str, StoreSpec, Counting]]:
    """Yield a store's name in the documents, its address, and what counts the requests that arrive at it."""
    name, folder = request.param, f"requests-{tmp_path.name}"
    if name == "S3":
        moto: S3Server = request.getfixturevalue("s3_server")
        yield name, StoreSpec(f"s3://{moto.bucket}/{folder}", moto.storage_options), moto.counting
    elif name in OVER_HTTP:
        fixture, scheme = OVER_HTTP[name]
        server: SeaweedServer | MinioServer | FakeGcsServer = request.getfixturevalue(fixture)
        with FaultyProxy(server.endpoint) as proxy:
            options = {**server.storage_options, "endpoint_url": proxy.url}
            yield name, StoreSpec(f"{scheme}://{server.bucket}/{folder}", options), lambda: seen_by(proxy)
    elif name == "Azure":
        azurite: AzuriteServer = request.getfixturevalue("azurite")
        with FaultyProxy(f"http://127.0.0.1:{azurite.port}") as proxy:
            spec = StoreSpec(f"abfs://{azurite.container}/{folder}", azurite.options_through(proxy.url))
            yield name, spec, lambda: seen_by(proxy)
    else:
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        url = hdfs.url if name == "HDFS" else hdfs.webhdfs_url
        yield name, StoreSpec(url + hdfs.new_folder()), lambda: asked_of(hdfs)


def test_the_requests_of_a_start_and_of_a_steady_batch_are_those_in_cost_md(
    counted: tuple[str, StoreSpec, Counting],
) -> None:
    name, spec, counting = counted
    place = Place(
        rows=lambda _: [1], wal=cast("MemoryStore", open_store(spec))
    )  # only other tests need a `MemoryStore`
    target = Recorder()
    first = place.open({"a": target})
    place.stream(first, BEFORE)
    first.end()
    with counting() as of_a_start:
        run = place.open({"a": target})
        run.deliver_all()
    place.stream(run, BEFORE + 1)
    with counting() as of_a_batch:
        place.stream(run, BEFORE + 2)

    assert int(place.wal.list(paths.markers("a"))[-1].removesuffix(".json")) == BEFORE + 2
    assert [told(of_a_batch), told(of_a_start)] == rows_of_page().get(name), f"{of_a_batch}\n{of_a_start}"


def told(requests: list[str]) -> str:
    counts = Counter(map(kind_of, requests))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def rows_of_page() -> dict[str, list[str]]:
    lines = (CHECKOUT / "docs" / "cost.md").read_text().splitlines()
    heading = lines.index("| store | a steady batch | a start |")
    rows = [line.strip("| ").split(" | ") for line in lines[heading + 2 :]]
    end = next((at for at, row in enumerate(rows) if len(row) != 3), len(rows))
    return {name: counts for name, *counts in rows[:end]}
