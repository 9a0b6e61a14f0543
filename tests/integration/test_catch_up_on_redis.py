"""A Redis that went back to an earlier moment, rows and ledger together, gets each entry of its stream once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import note_end, paths
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"
STREAM = "restored-orders"


def test_a_redis_that_was_restored_gets_what_it_lost(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    monkeypatch.setenv(VARIABLE, PASSWORD)
    wal, checkpoint = str(tmp_path / "wal"), str(tmp_path / "checkpoint")
    to = f"{redis_server.url}?key={STREAM}&kind=stream&password_env={VARIABLE}"

    def deliver(batches: int) -> None:
        run = Run(open_store(StoreSpec(wal)), open_store(StoreSpec(checkpoint)), Settings(chunk_rows=2))
        run.open()
        run.become_stager()
        rows = lambda batch, _end: [pa.table({"id": [batch * 5 + row for row in range(5)]})]  # noqa: E731 - one line
        list(FakeQuery(open_store(StoreSpec(checkpoint)), rows).batches(run, batches))
        run.end()
        for number in run.log.numbers(paths.terms(paths.STAGER_ROLE)):
            note_end(run.log, paths.STAGER_ROLE, number)
        invoke("drain", wal, "--to", to, "--start-from", "earliest", "--checkpoint", checkpoint)

    def invoke(*args: str) -> Result:
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    with redis_server.client(decode_responses=False) as client:
        client.flushdb()
        deliver(3)
        backup = {key: client.dump(key) for key in client.scan_iter()}
        deliver(6)
        client.flushdb()
        for key, value in backup.items():
            client.restore(key, 0, value)
        assert client.xlen(STREAM) == 15

        done = json.loads(invoke("catch-up", wal, "--to", to, "--why", "an older snapshot", "--yes", "--json").stdout)

        assert (done["batches"], done["rows"]) == (3, 15)
        deliver(7)
        found = [int(entry[b"id"]) for _, entry in client.xrange(STREAM)]
        client.flushdb()
    assert found == list(range(35))
