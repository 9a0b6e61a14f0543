# python examples/test_pipeline_with_moto.py     (or: pytest examples/test_pipeline_with_moto.py)
"""How to test a pipeline: its sink into DynamoDB, mocked by moto, fails in the middle, and no row is lost.

moto's `mock_aws` works in the test's own process, so the sink runs there too (`where="driver"`). On executors, it would
need moto's server, as in `s3_pipeline.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from pyspark.sql import SparkSession

from wal_sink import Chunk, Delivery, DeliveryError, Retry, Sink, SinkContext, WalSink
from wal_sink.spark import check_java, prepare_python

REGION = "eu-central-1"


class OrdersTable(Sink):
    """The sink under test: one item per row, under the row's own key, so that a repeat overwrites itself."""

    idempotent = True

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - not needed here
        self.table: Any = boto3.resource("dynamodb", region_name=REGION).Table("orders")

    def write(self, chunk: Chunk) -> None:
        with self.table.batch_writer() as batch:
            for key, row in zip(chunk.row_keys(), chunk.table.to_pylist(), strict=True):
                batch.put_item(Item={"key": key, **row})


class CrashingTable(OrdersTable):
    """The same sink, but it fails after half of its third chunk."""

    calls = 0

    def write(self, chunk: Chunk) -> None:
        self.calls += 1
        if self.calls == 3:
            super().write(chunk.without(range(chunk.num_rows // 2, chunk.num_rows)))
            raise ConnectionError("the table is unreachable")
        super().write(chunk)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    check_java()
    prepare_python()
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def orders() -> Iterator[Any]:
    with mock_aws():
        yield boto3.resource("dynamodb", region_name=REGION).create_table(
            TableName="orders",
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )


def test_a_failed_write_loses_nothing_and_doubles_nothing(spark: SparkSession, orders: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [{"id": row} for row in range(number * 10, number * 10 + 10)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))

    def run(table: OrdersTable) -> None:
        to = Delivery(table, where="driver", retry=Retry(attempts=1))
        with WalSink(to, wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint")) as sink:
            sink.run(stream.writeStream.trigger(availableNow=True))

    with pytest.raises(DeliveryError, match="the table is unreachable"):
        run(CrashingTable())
    run(OrdersTable())

    assert sorted(int(item["id"]) for item in orders.scan()["Items"]) == list(range(40))


if __name__ == "__main__":
    if pytest.main([__file__, "-q"]) != 0:
        raise SystemExit(1)
    print("ok: a crash in the middle, and every order is in the table once")
