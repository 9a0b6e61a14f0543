"""`verify` of a WAL on S3 (moto's server): text and JSON, a fault, requests, no secret anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.stores import StoreSpec, open_store
from tests.support.golden.wal_writer import written

if TYPE_CHECKING:
    from tests.support.servers.s3_server import S3Server

pytestmark = [pytest.mark.s3]

SECRET = "test-secret-key"  # noqa: S105 - the dummy of tests.support.servers.s3_server


@pytest.fixture
def place(s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a WAL and its checkpoint, with a sink of each kind."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    world = written("kinds")
    for name, objects in (("wal", world.wal), ("checkpoint", world.checkpoint)):
        store = open_store(StoreSpec(f"{s3_url}/{name}", s3_server.storage_options))
        for path in objects.list("", recursive=True):
            store.create(path, objects.read(path))
    return s3_url


def invoke(server: S3Server, *args: str, exit_code: int = 0) -> Result:
    env = {"WAL_SINK_STORAGE_OPTIONS": json.dumps(server.storage_options)}
    result = CliRunner(env=env).invoke(main, args)
    assert result.exit_code == exit_code, (result.output, result.exception)
    assert SECRET not in result.output
    return result


def test_a_healthy_wal_and_a_segment_that_is_gone(place: str, s3_server: S3Server) -> None:
    wal = f"{place}/wal"
    compared = ["--checkpoint", f"{place}/checkpoint"]
    with s3_server.counting() as requests:
        assert "no fault found" in invoke(s3_server, "verify", wal, *compared).stdout
    assert {request.split()[0] for request in requests} <= {"GET", "HEAD"}
    found: Any = json.loads(invoke(s3_server, "verify", wal, *compared, "--json").stdout)
    assert (found["faults"], found["through"], found["complete"]) == ([], 4, True)

    store = open_store(StoreSpec(wal, s3_server.storage_options))
    gone = next(path for path in store.list("batches", recursive=True) if path.endswith(".parquet"))
    store.delete([f"batches/{gone}"])
    (fault,) = json.loads(invoke(s3_server, "verify", wal, *compared, "--json", exit_code=1).stdout)["faults"]
    assert (fault["fault"], fault["where"]) == ("lost", f"batches/{gone}")
    assert f"FAULT lost: batches/{gone}" in invoke(s3_server, "verify", wal, *compared, exit_code=1).stdout
