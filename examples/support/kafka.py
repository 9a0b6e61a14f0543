"""Shared parts of the Kafka examples: brokers, topics, Spark's Kafka connector, and a consumer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from support.processes import Child, kill, wait_at_most
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_connector import kafka_connector
from wal_sink.spark import check_java, prepare_python

__all__ = ["Child", "Topic", "brokers_at", "kill", "spark_with_kafka", "wait_at_most"]


@contextmanager
def brokers_at(given: str | None, folder: Path) -> Iterator[str]:
    """Yield the given brokers, `HOST:PORT`, or start one on this machine."""
    if given:
        yield given
        return
    broker = KafkaBroker(folder / "kafka")
    try:
        broker.start()
        yield broker.address
    finally:
        broker.kill()


def spark_with_kafka() -> SparkSession:
    """A session with Spark's Kafka connector on its class path; in your program, use `spark-submit --packages …`."""
    check_java()
    prepare_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    # Without this, Spark 4.3 refuses its own checkpoint if it was killed before it recorded its first batch.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    # The class path behind Spark's own jars: their shared archive of classes then stays valid.
    os.environ["SPARK_DIST_CLASSPATH"] = f"{kafka_connector()}/*"
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Topic:
    """A topic created for an example, with a consumer. Release the consumer with `close`."""

    PARTITIONS = 3

    def __init__(self, brokers: str, name: str) -> None:
        self.name = name
        admin = AdminClient({"bootstrap.servers": brokers})  # the variable keeps the client alive until it answered
        admin.create_topics([NewTopic(name, self.PARTITIONS)])[name].result(30)
        conf = {"bootstrap.servers": brokers, "group.id": "wal-sink-example", "enable.auto.commit": False}
        conf |= {"isolation.level": "read_committed", "enable.partition.eof": True}
        self._consumer: Any = Consumer(conf)

    def messages(self) -> int:
        """The number of messages in the topic, including those of open and aborted transactions."""
        partitions = [TopicPartition(self.name, number) for number in range(self.PARTITIONS)]
        return sum(self._end_of(partition) for partition in partitions)

    @retry(retry=retry_if_exception_type(KafkaException), wait=wait_fixed(0.2), stop=stop_after_delay(20))
    def _end_of(self, partition: TopicPartition) -> int:
        """The end offset of a partition. Retried, because the leader of a new partition is not ready at once."""
        return int(self._consumer.get_watermark_offsets(partition, timeout=20)[1])

    def read(self) -> Iterator[Any]:
        """The messages that a consumer of committed messages sees, as decoded JSON."""
        self._consumer.assign([TopicPartition(self.name, number, 0) for number in range(self.PARTITIONS)])
        ended = 0
        while ended < self.PARTITIONS:
            for message in self._consumer.consume(5_000, timeout=20):
                if message.error() is None:
                    yield json.loads(message.value())
                else:
                    ended += 1  # the end of a partition
        self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()
