"""The arguments of a sink by URL reach a server."""

from __future__ import annotations

from tests.support.chunks import CONTEXT, chunk, ids
from tests.support.servers.dynamodb_server import REGION, DynamoDbServer
from wal_sink_backends.dynamodb.urls import dynamodb_sink


def test_by_url(server: DynamoDbServer) -> None:
    table = server.new_table()
    sink = dynamodb_sink(f"dynamodb://{table}?mode=put&region={REGION}&endpoint_url={server.endpoint}&max_wait_s=5")
    assert repr(sink) == f"DynamoDbPutSink('{table}', '{server.endpoint}')"
    sink.open(CONTEXT)
    sink.write(chunk(ids(1)))
    sink.close()
    assert server.ids(table) == [1]
    assert repr(dynamodb_sink("dynamodb://Orders?region=x")) == "DynamoDbSink('Orders', 'x')"
