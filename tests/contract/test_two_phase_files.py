"""`TwoPhaseFilesSink` keeps the contract of its kind on a local file system and on S3."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_backends import READERS
from tests.support.servers.s3_product import S3Product
from tests.support.servers.s3_server import S3Server
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import SinkContract
from wal_sink_backends import TwoPhaseFilesSink

SECRET = "hunter2-from-the-environment"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_TOKEN"
_numbers = itertools.count()


class TwoPhaseFilesContract(SinkContract):
    """A folder, read through a separate store and pyarrow: every visible file counts."""

    format: Any = "jsonl"

    def make_sink(self, target: StoreSpec) -> TwoPhaseFilesSink:
        return TwoPhaseFilesSink(
            target.url,
            format=self.format,
            storage_options=target.options,
            name_template="day={date}/{batch_id}/{partition}-{roll}.{ext}",
            options_from_env=self.from_env(),
        )

    def from_env(self) -> dict[str, str]:
        return {}

    def rows_in(self, target: StoreSpec) -> list[Any]:
        store = open_store(target)
        return [row for name in store.list("", recursive=True) for row in READERS[self.format](store.read(name))]

    def another(self, target: StoreSpec) -> StoreSpec:
        """Names are lasting: batch 0 of another query would have the same ones."""
        return StoreSpec(f"{target.url}/{next(_numbers)}", target.options)


class OnALocalDisk(TwoPhaseFilesContract):
    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, SECRET)

    @pytest.fixture
    def target(self, tmp_path: Path) -> StoreSpec:
        return StoreSpec(str(tmp_path / "out"))

    def from_env(self) -> dict[str, str]:
        return {"wal_sink_unused": VARIABLE}

    def secrets(self) -> list[str]:
        return [SECRET]


class TestJsonLinesOnALocalDisk(OnALocalDisk):
    every = 2


class TestCsvOnALocalDisk(OnALocalDisk):
    format = "csv"
    every = 7
    each_line = False


class TestParquetOnALocalDisk(OnALocalDisk):
    format = "parquet"
    every = 7
    each_line = False


@pytest.mark.s3
class TestJsonOnS3(TwoPhaseFilesContract):
    format = "json"
    every = 17
    each_line = False

    @pytest.fixture
    def target(self, s3_url: str, s3_server: S3Server) -> StoreSpec:
        return StoreSpec(s3_url, s3_server.storage_options)


@pytest.mark.s3
class TestParquetOnS3(TestJsonOnS3):
    format = "parquet"
    every = 29


@pytest.mark.s3
class TestCsvOnServersOfOtherMakers(TwoPhaseFilesContract):
    format = "csv"
    every = 29
    each_line = False

    @pytest.fixture(params=["seaweedfs", "minio"])
    def target(self, request: pytest.FixtureRequest) -> StoreSpec:
        server: S3Product = request.getfixturevalue(request.param)
        return StoreSpec(f"s3://{server.bucket}/two-phase-{next(_numbers)}", server.storage_options)
