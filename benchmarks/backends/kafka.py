"""Kafka: `KafkaSink` compared with confluent-kafka, with transactions and without."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.backends.backend import Backend, Tables, Way, expect, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from tests.support.kafka_topics import delete_topic, new_topic, read
from tests.support.servers.kafka_broker import KafkaBroker, kafka_jars
from wal_sink_backends.kafka import KafkaSink

TRANSACTIONS = "confluent-kafka, a transaction a chunk"
PRODUCER = "confluent-kafka without transactions"


class Kafka(Backend[str]):
    """One topic of three partitions per measurement, on the tests' broker."""

    key = "kafka"
    title = "Chunks to a Kafka topic"

    def require(self) -> None:
        kafka_jars()

    def ways(self) -> Mapping[str, Way[str]]:
        return {NAME: self._by_sink, TRANSACTIONS: self._by_transactions, PRODUCER: self._by_producer}

    @cached_property
    def _broker(self) -> KafkaBroker:
        return self._stack.enter_context(KafkaBroker(self._folder / self.key))

    def empty(self, folder: Path) -> str:  # noqa: ARG002 - it is in the broker's
        return new_topic(self._broker.address)

    def count(self, target: str) -> int:
        """The number of messages that a consumer of committed messages reads."""
        return len(read(self._broker.address, target))

    def remove(self, target: str) -> None:
        delete_topic(self._broker.address, target)

    def _by_sink(self, topic: str, tables: Tables) -> float:
        ledger = f"{topic}-ledger"
        seconds = written(KafkaSink(self._broker.address, topic, key="id", ledger_topic=ledger), tables)
        delete_topic(self._broker.address, ledger)
        return seconds

    def _by_transactions(self, topic: str, tables: Tables) -> float:
        watch = Stopwatch()  # the sink, too, makes its producer and claims its transactional id with the first chunk
        producer = self._producer({"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        for table in tables:
            producer.begin_transaction()
            _produce(producer, topic, table)
            producer.commit_transaction(30)
        return watch.seconds()

    def _by_producer(self, topic: str, tables: Tables) -> float:
        producer = self._producer({"enable.idempotence": True})
        watch = Stopwatch()
        for table in tables:
            _produce(producer, topic, table)
        return watch.seconds()

    def _producer(self, conf: dict[str, Any]) -> Producer:
        return Producer({"bootstrap.servers": self._broker.address, "linger.ms": 5, **conf})


def _produce(producer: Producer, topic: str, table: pa.Table) -> None:
    """Send a chunk and wait until the broker has it."""
    failed: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for row in table.to_pylist():
        producer.produce(topic, msgspec.json.encode(row), str(row["id"]), on_delivery=note)
        producer.poll(0)
    expect(producer.flush(30), 0)
    expect(len(failed), 0)
