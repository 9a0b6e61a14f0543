"""WAL on Azure and on Google's store (emulators of both): drivers that are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.store_places import AZURITE, FAKE_GCS
from tests.support.killed_drivers import kill_twice
from tests.support.servers.azurite import AzuriteServer
from tests.support.servers.fake_gcs import FakeGcsServer

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = pytest.mark.spark


def test_drivers_with_a_wal_on_azure_are_killed_and_every_row_arrives_once(
    azurite: AzuriteServer, tmp_path: Path
) -> None:
    wal, sight = f"abfs://{azurite.container}/{tmp_path.name}", AZURITE.sight(azurite, f"{tmp_path.name}/")
    kill_twice(tmp_path, wal, str(tmp_path / "checkpoint"), azurite.storage_options, objects=sight.names)


def test_drivers_with_a_wal_on_google_are_killed_and_every_row_arrives_once(
    fake_gcs: FakeGcsServer, tmp_path: Path
) -> None:
    wal, sight = f"gs://{fake_gcs.bucket}/{tmp_path.name}", FAKE_GCS.sight(fake_gcs, f"{tmp_path.name}/")
    kill_twice(tmp_path, wal, str(tmp_path / "checkpoint"), fake_gcs.storage_options, objects=sight.names)
