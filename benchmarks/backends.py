"""Backends against the clients of their targets used directly: the same rows in the same transactions, without Spark.

The servers are those of the tests, started when they are first measured. Connecting is left out on both sides.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.clock import Stopwatch
from benchmarks.measure import Contestant
from benchmarks.ours import NAME
from benchmarks.workloads import table_of
from tests.databases import PASSWORD, PASSWORD_VARIABLE, USER, PostgresqlServer, program, servers_folder
from tests.fixtures_kafka import new_topic
from tests.jars import java
from tests.kafka_broker import KafkaBroker
from wal_sink import Chunk, Position, SinkContext, TransactionalSink
from wal_sink_backends.kafka import KafkaSink
from wal_sink_backends.sql import SqlSink

CHUNK_ROWS = 10_000
COPY = "psycopg's COPY, a transaction a chunk"
TRANSACTIONS = "confluent-kafka, a transaction a chunk"
PRODUCER = "confluent-kafka without transactions"
WAL_ID = "benchmark"


class Backends:
    """The contestants of both sides, and their servers. Close it at the end."""

    def __init__(self, rows: int) -> None:
        self._tables = [table_of(first, CHUNK_ROWS) for first in range(0, rows, CHUNK_ROWS)]
        self.has_postgresql = program("initdb") is not None
        self.has_kafka = java() != ""
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(servers_folder())

    def close(self) -> None:
        self._stack.close()

    def postgresql(self) -> Iterator[Contestant]:
        yield Contestant(NAME, lambda _: self._into_postgresql(self._by_sql_sink))
        yield Contestant(COPY, lambda _: self._into_postgresql(self._by_copy))

    def kafka(self) -> Iterator[Contestant]:
        yield Contestant(NAME, lambda _: self._into_kafka(self._by_kafka_sink))
        yield Contestant(TRANSACTIONS, lambda _: self._into_kafka(self._by_transactions))
        yield Contestant(PRODUCER, lambda _: self._into_kafka(self._by_producer))

    @property
    def _rows(self) -> int:
        return sum(table.num_rows for table in self._tables)

    # PostgreSQL.

    @cached_property
    def _server(self) -> PostgresqlServer:
        os.environ[PASSWORD_VARIABLE] = PASSWORD
        server = PostgresqlServer(self._folder / "postgresql")
        self._stack.callback(server.stop)
        return server

    def _into_postgresql(self, write: Callable[[str], float]) -> float:
        database = self._server.new_database()
        columns = "(id bigint, amount double precision, name text, digest text, at timestamptz)"
        self._server.query(database, f"CREATE TABLE orders {columns}")
        self._server.query(database, f"ALTER TABLE orders OWNER TO {USER}")
        seconds = write(database)
        ((count,),) = self._server.query(database, "SELECT count(*) FROM orders")
        _check(count, self._rows)
        return self._rows / seconds

    def _by_sql_sink(self, database: str) -> float:
        sink = SqlSink(self._server.url(database), "orders", password_env=PASSWORD_VARIABLE)
        return _written(sink, self._tables)

    def _by_copy(self, database: str) -> float:
        with psycopg.connect(
            host="127.0.0.1", port=self._server.port, user=USER, password=PASSWORD, dbname=database
        ) as connection:
            watch = Stopwatch()
            for table in self._tables:
                with connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:
                    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                        copy.write_row(row)
                connection.commit()
            return watch.seconds()

    # Kafka.

    @cached_property
    def _broker(self) -> KafkaBroker:
        broker = KafkaBroker(self._folder / "kafka")
        self._stack.callback(broker.kill)
        broker.start()
        return broker

    def _into_kafka(self, write: Callable[[str], float]) -> float:
        return self._rows / write(new_topic(self._broker.address))

    def _by_kafka_sink(self, topic: str) -> float:
        return _written(KafkaSink(self._broker.address, topic, key="id", ledger_topic=f"{topic}-ledger"), self._tables)

    def _by_transactions(self, topic: str) -> float:
        producer = self._producer({"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        watch = Stopwatch()
        for table in self._tables:
            producer.begin_transaction()
            _produce(producer, topic, table)
            producer.commit_transaction(30)
        return watch.seconds()

    def _by_producer(self, topic: str) -> float:
        producer = self._producer({"enable.idempotence": True})
        watch = Stopwatch()
        for table in self._tables:
            _produce(producer, topic, table)
            producer.flush(30)
        return watch.seconds()

    def _producer(self, conf: dict[str, Any]) -> Producer:
        return Producer({"bootstrap.servers": self._broker.address, "linger.ms": 5, **conf})


def _produce(producer: Producer, topic: str, table: pa.Table) -> None:
    failed: list[object] = []
    for row in table.to_pylist():
        producer.produce(
            topic, msgspec.json.encode(row), str(row["id"]), on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.poll(0)
    _check(producer.flush(30), 0)
    _check(len(failed), 0)


def _written(sink: TransactionalSink, tables: Sequence[pa.Table]) -> float:
    """Seconds that a connected sink takes for a segment of these chunks."""
    slot, segment = f"{WAL_ID}/default/0", uuid.uuid4().hex
    columns = tuple(tables[0].column_names)
    sink.open(SinkContext(wal_id=WAL_ID, sink="default", term=1, batch_id=0, columns=columns, on_executor=True))
    try:
        sink.last(slot)
        watch, rows = Stopwatch(), 0
        for table in tables:
            first, rows = rows, rows + table.num_rows
            position = Position(slot, 0, rows, segment)
            chunk = Chunk(table, 0, f"{segment}-{first}-{rows}", segment, range(first, rows), position, 1)
            if sink.write(chunk) is not None:
                raise RuntimeError(f"{sink.describe()} refused rows")
        return watch.seconds()
    finally:
        sink.close()


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"found {found}, expected {expected}")
