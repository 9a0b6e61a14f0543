"""Commands whose store does not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery

BATCHES = 3
ROWS = 5
SECRET = "hush-hush-0123"  # noqa: S105 - a dummy


def rows_of(batch_id: int, _end: int) -> list[pa.Table]:
    return [pa.table({"id": [batch_id * 100 + row for row in range(ROWS)], "name": ["a", None, "[b]", "c", "d"]})]


@pytest.fixture(autouse=True)
def _no_spark_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is a separate process. Here it would find the session that another test made."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A WAL of three complete batches that nobody has drained."""
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings(chunk_rows=2))
    run.open()
    run.become_stager()
    assert list(FakeQuery(checkpoint, rows_of).batches(run, BATCHES)) == [0, 1, 2]
    return str(tmp_path / "wal")


def invoke(*args: str, exit_code: int = 0, env: dict[str, str] | None = None) -> Result:
    result = CliRunner(env=env).invoke(main, args)
    assert result.exit_code == exit_code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert SECRET not in result.output
    return result


def drained(wal: str, target: str, *more: str, exit_code: int = 0) -> Result:
    return invoke("drain", wal, "--to", target, "--start-from", "earliest", *more, exit_code=exit_code)


def test_secrets_of_options_are_never_shown(wal: str) -> None:
    env = {"WAL_SINK_STORAGE_OPTIONS": json.dumps({"secret": SECRET})}
    for args in (["status", wal], ["batches", wal], ["show", wal, "0"], ["status", wal, "--json"]):
        CliRunner(env=env).invoke(main, args)
        assert SECRET not in CliRunner(env=env).invoke(main, args).output
    options = [
        "--option",
        f"key={SECRET}",
        "--option",
        f"secret={SECRET}",
        "--option",
        "endpoint_url=http://127.0.0.1:9",
    ]
    timeouts = ["--option", "config_kwargs.retries.max_attempts=0", "--option", "config_kwargs.connect_timeout=1"]
    invoke("status", "s3://bucket/wal", *options, *timeouts, exit_code=1)
