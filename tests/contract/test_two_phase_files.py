"""`TwoPhaseFilesSink` keeps the contract of its kind on a local file system and on S3, which hold files in two ways.

For other formats and other servers, only the checks that depend on them run.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_backends import READERS
from tests.house.stores import StoreSpec, open_store
from tests.support.contracts import DISTURBED, VALUES, FoldedContract, checks_of, faults
from tests.support.servers.s3_product import S3Product
from tests.support.servers.s3_server import S3Server
from wal_sink.testing.contract.base import LinesContract
from wal_sink.testing.contract.two_phase import TwoPhaseContract
from wal_sink_backends import TwoPhaseFilesSink

SECRET = "hunter2-from-the-environment"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_TOKEN"
_numbers = itertools.count()


class TwoPhaseFilesContract(FoldedContract):
    """A folder, read through a separate store and pyarrow: every visible file counts."""

    format: Any = "jsonl"
    law = "[`TwoPhaseFilesSink`](sinks/files.md)"

    def make_sink(self, target: StoreSpec) -> TwoPhaseFilesSink:
        return TwoPhaseFilesSink(
            target.url,
            format=self.format,
            storage_options=target.options,
            name_template="day={date}/{batch_id}/{partition}-{file_index}.{ext}",
            options_from_env=self.from_env(),
        )

    def from_env(self) -> dict[str, str]:
        return {}

    def rows_in(self, target: StoreSpec) -> list[Any]:
        store = open_store(target)
        return [row for name in store.list("", recursive=True) for row in READERS[self.format](store.read(name))]

    def another(self, target: StoreSpec) -> StoreSpec:
        """Another folder, since batch 0 of another query has the same file names."""
        return StoreSpec(f"{target.url}/{next(_numbers)}", target.options)


class TestOnALocalDisk(TwoPhaseFilesContract):
    every = 2

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


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_files_of_every_format_show_every_value_once_and_not_early(
    format: str,  # noqa: A002 - the sink's argument
    tmp_path: Path,
) -> None:
    contract = TwoPhaseFilesContract()
    contract.format = format
    contract.every, contract.each_line = 20, False  # type: ignore[misc]
    checks = (
        *VALUES,
        "an_undisturbed_run_brings_every_row_once",
        "a_process_may_die_at_any_point",
        "a_request_may_fail_at_any_point",
        "a_failure_inside_write_is_not_hidden",
        "nothing_shows_before_it_is_committed",
        "what_was_aborted_cannot_be_committed",
        "a_chunk_without_rows_adds_none",
    )
    assert faults(contract, StoreSpec(str(tmp_path / "out")), *checks) == {}


@pytest.mark.s3
class TestOnS3(TwoPhaseFilesContract):
    format = "json"
    every = 29
    each_line = False

    @pytest.fixture
    def target(self, s3_url: str, s3_server: S3Server) -> StoreSpec:
        return StoreSpec(s3_url, s3_server.storage_options)


@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.parametrize("server", ["seaweedfs", "minio"])
def test_servers_of_other_makers_commit_once_and_only_what_is_held(server: str, request: pytest.FixtureRequest) -> None:
    """Servers differ in their answers to a second commit, and to the commit of an upload that is gone."""
    product: S3Product = request.getfixturevalue(server)
    contract = TwoPhaseFilesContract()
    contract.format = "csv"
    contract.every, contract.each_line = 29, False  # type: ignore[misc]
    disturbed = [
        *DISTURBED,
        "every_row_is_there_when_write_returns",
        "a_very_long_text_is_taken_or_refused_for_good",
    ]
    rules = [check for check in checks_of(TwoPhaseContract) if check not in checks_of(LinesContract)]
    target = StoreSpec(f"s3://{product.bucket}/two-phase-{next(_numbers)}", product.storage_options)
    assert len(rules) == 9
    assert faults(contract, target, *rules, *disturbed) == {}
