"""Writers and servers of DynamoDB that are killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import botocore.exceptions
import pytest

from tests.support.chunks import CONTEXT, chunk, ids
from tests.support.processes import CHECKOUT, Child
from tests.support.programs.url_writers import BATCH_ROWS, killed_at_any_moment
from tests.support.servers.dynamodb_server import ACCESS, REGION, DynamoDbServer, create_table, dynamodb_client
from wal_sink_backends.dynamodb.sink import DynamoDbSink


def test_a_writer_killed_at_any_moment_leaves_rows_and_ledger_equal(server: DynamoDbServer, tmp_path: Path) -> None:
    table = server.new_table(at="S")
    url = f"dynamodb://{table}?region={REGION}&endpoint_url={server.endpoint}&row_key=at&ledger_table={table}-ledger"

    def held() -> tuple[list[int], int]:
        """The last request of a killed writer may be carried out between two looks."""
        while True:
            ledger = server.items(f"{table}-ledger")
            found = server.ids(table)
            if server.items(f"{table}-ledger") == ledger:
                return found, sum(int(one["batch_id"]["N"]) * BATCH_ROWS + int(one["rows"]["N"]) for one in ledger)

    killed_at_any_moment(url, tmp_path, held, env={name.upper(): value for name, value in ACCESS.items()})


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
