"""Writers and servers of DynamoDB that are killed."""

from __future__ import annotations

import contextlib
import random
import textwrap
import time
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from tests.support.chunks import CONTEXT, chunk, ids
from tests.support.processes import CHECKOUT, Child
from tests.support.servers.dynamodb_server import REGION, DynamoDbServer, create_table, dynamodb_client
from wal_sink_backends.dynamodb.sink import DynamoDbSink

WRITER = textwrap.dedent(
    """
    import sys
    import pyarrow as pa
    from wal_sink.sinks.chunk import Position
    from wal_sink.sinks.base import SinkContext
    from wal_sink.testing.contract.calls import chunks_of, following, slot
    from wal_sink_backends.dynamodb.urls import dynamodb_sink

    sink = dynamodb_sink(sys.argv[1])
    sink.open(SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=True))
    last = sink.last(slot())
    pa.table({"id": [1]})
    print("ready", flush=True)
    for batch in range(last.batch_id if last else 0, 10**6):
        table = pa.table({"id": range(batch * 20, batch * 20 + 20)})
        for chunk in following(sink, chunks_of(table, batch_id=batch, chunk_rows=5)):
            sink.write(chunk)
    """
)


def at_one_moment(server: DynamoDbServer, table: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return ledger and rows. The last request of a killed writer may be carried out between two looks."""
    while True:
        ledger = server.items(f"{table}-ledger")
        found = server.ids(table)
        if server.items(f"{table}-ledger") == ledger:
            return ledger, found


def test_a_writer_killed_at_any_moment_leaves_rows_and_ledger_equal(server: DynamoDbServer, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    table = server.new_table(at="S")
    url = f"dynamodb://{table}?region={REGION}&endpoint_url={server.endpoint}&row_key=at&ledger_table={table}-ledger"
    counts = []
    for number in range(3):
        with Child.python(WRITER, url, log=tmp_path / f"{number}.log") as writer:
            writer.wait_for_output("ready")
            time.sleep(moments.uniform(0.05, 0.5))
            if number == 2:  # on a busy machine the others may have been killed before they wrote
                writer.wait_until(lambda: bool(server.ids(table)), "it wrote")
            assert writer.running, writer.output
            writer.kill()
        ledger, found = at_one_moment(server, table)
        known = sum(int(one["batch_id"]["N"]) * 20 + int(one["rows"]["N"]) for one in ledger)
        assert found == list(range(known)), f"seed {seed}"
        counts.append(known)
    assert counts == sorted(counts)
    assert counts[-1] > 0


@pytest.mark.usefixtures("no_waiting", "server")
def test_a_server_killed_in_mid_batch_loses_nothing_silently(tmp_path: Path) -> None:
    """moto keeps all in memory: after a kill its tables are gone, and the sink says so."""
    program = CHECKOUT / "tests" / "support" / "servers" / "dynamodb_server.py"
    with Child.python(program, log=tmp_path / "server.log") as child:
        child.wait_for_output("serving")
        endpoint = child.output.split("serving ")[1].split()[0]
        with contextlib.closing(dynamodb_client(endpoint)) as client:
            create_table(client, "orders", {"id": "N"})
        sink = DynamoDbSink("orders", region=REGION, endpoint_url=endpoint)
        sink.open(CONTEXT)
        sink.write(chunk(ids(1)))
        child.kill()
        with pytest.raises(botocore.exceptions.BotoCoreError):
            sink.write(chunk(ids(2), first=1))
        sink.close()
