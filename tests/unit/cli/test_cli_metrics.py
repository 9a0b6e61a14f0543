"""`wal-sink drain --metrics`: served while the drain runs, at the address that it tells."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import wal_sink.walsink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    assert list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 2)) == [0, 1]
    return str(tmp_path / "wal")


@pytest.mark.parametrize("address", ["9464", "127.0.0.1", "127.0.0.1:no"])
def test_an_address_that_is_none_is_wrong_usage(wal: str, address: str) -> None:
    result = CliRunner().invoke(
        main, ["drain", wal, "--to", "sqlite:///t.db?table=t", "--start-from", "earliest", "--metrics", address]
    )
    assert result.exit_code == 2
    assert "(--metrics): expected HOST:PORT" in result.stderr
    assert not Path("t.db").exists()
