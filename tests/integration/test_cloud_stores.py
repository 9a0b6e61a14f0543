"""WAL on stores with servers (HDFS by both ways, emulators of Azure's and Google's store): drivers that are killed.

A driver runs a query on each store that is there, and all are killed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.chaos.store_places import AZURITE, FAKE_GCS
from tests.support.killed_drivers import Served, kill_twice, lost_and_doubled

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = [pytest.mark.spark, pytest.mark.hdfs, pytest.mark.timeout(900)]

Place = Callable[[pytest.FixtureRequest, Path], Served]


def on_azure(request: pytest.FixtureRequest, root: Path) -> Served:
    azurite, name = request.getfixturevalue("azurite"), f"killed-{root.parent.name}"
    objects = AZURITE.sight(azurite, f"{name}/").names
    wal = f"abfs://{azurite.container}/{name}"
    return Served(root, wal, str(root / "checkpoint"), objects, azurite.storage_options)


def on_google(request: pytest.FixtureRequest, root: Path) -> Served:
    fake_gcs, name = request.getfixturevalue("fake_gcs"), f"killed-{root.parent.name}"
    objects = FAKE_GCS.sight(fake_gcs, f"{name}/").names
    return Served(root, f"gs://{fake_gcs.bucket}/{name}", str(root / "checkpoint"), objects, fake_gcs.storage_options)


def on_hdfs(request: pytest.FixtureRequest, root: Path, *, web: bool = False) -> Served:
    """With the checkpoint there, too."""
    hdfs = request.getfixturevalue("hdfs")
    folder = hdfs.new_folder()
    wal = f"{hdfs.webhdfs_url if web else hdfs.url}{folder}/wal"
    return Served(root, wal, f"{hdfs.url}{folder}/checkpoint", lambda: hdfs.files(f"{folder}/wal"), {})


STORES: Mapping[str, Place] = {
    "azurite": on_azure,
    "fake_gcs": on_google,
    "hdfs": on_hdfs,
    "webhdfs": lambda request, root: on_hdfs(request, root, web=True),
}


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Served]:
    """The query of each store whose server is there, after its drivers were killed and the last one finished."""
    folder, queries = tmp_path_factory.mktemp("killed"), dict[str, Served]()
    for name, place in STORES.items():
        (folder / name).mkdir()
        try:
            queries[name] = place(request, folder / name)
        except pytest.skip.Exception:
            continue  # the test of this store is skipped with the reason
    kill_twice(list(queries.values()), folder)
    return queries


@pytest.mark.parametrize("store", STORES)
def test_drivers_are_killed_and_every_row_arrives_once(
    store: str, finished: Mapping[str, Served], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(store.removeprefix("web"))  # skips the test where this server is not there
    query = finished[store]
    assert lost_and_doubled(query) == (set(), set())
    if store.endswith("hdfs"):
        hdfs = request.getfixturevalue("hdfs")
        folder = query.checkpoint.removeprefix(hdfs.url)
        assert any(name.startswith("commits/") for name in hdfs.files(folder))
