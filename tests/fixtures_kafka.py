"""Kafka for any test: `kafka` once per session, `topic` a new one on it, `read` what its consumers see."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as _admin
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tests.kafka_broker import KafkaBroker

_numbers = itertools.count()
_ADMIN: Any = _admin
_ATTEMPTS = 10


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    """A new topic of three partitions."""
    return new_topic(kafka.address)


def new_name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}-{next(_numbers)}"


def new_topic(address: str, name: str = "", *, partitions: int = 3, **config: str) -> str:
    """Create a topic; `max_message_bytes="2000"` sets `max.message.bytes`."""
    name = name or new_name()
    settings = {key.replace("_", "."): value for key, value in config.items()}
    wanted = _ADMIN.NewTopic(name, partitions, 1, config=settings)
    client = admin(address)
    client.create_topics([wanted])[name].result(timeout=20)
    return name


def delete_topic(address: str, name: str) -> None:
    client = admin(address)
    client.delete_topics([name])[name].result(timeout=20)


def admin(address: str) -> Any:
    """A client to hold on to until its answers are there: they end with it."""
    return _ADMIN.AdminClient({"bootstrap.servers": address})


@retry(
    retry=retry_if_exception(
        lambda error: isinstance(error, KafkaException) and error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
    ),
    stop=stop_after_delay(20),
    wait=wait_fixed(0.1),
    reraise=True,
)
def _ends(address: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """By partition, the offset behind the last message, decided or not.

    A broker that is busy may have told of a new topic's leader before that leader knows.
    """
    consumer = Consumer({"bootstrap.servers": address, "group.id": "tests", "isolation.level": "read_uncommitted"})
    try:
        return {number: _end(consumer, TopicPartition(topic, number)) for number in partitions}
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    for attempt in range(_ATTEMPTS):
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=20)[1])
        except KafkaException as error:  # a topic that was just created may have no leader yet
            if not error.args[0].retriable() or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.2)
    raise AssertionError


def read(address: str, topic: str, *, isolation: str = "read_committed", patience_s: float = 5) -> list[Any]:
    """Every message of a topic, partition by partition, as far as it is decided within `patience_s` seconds.

    A commit is answered before every partition knows of it, so that the ledger may show what its rows do not show yet.
    """
    conf: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": "tests",
        "enable.auto.commit": False,
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(conf)
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ends = _ends(address, topic, partitions)
        until_s = time.monotonic() + patience_s
        found: list[Any] = []
        ended: dict[int, int] = {}
        while len(ended) < len(ends) or (time.monotonic() < until_s and any(ended[at] < ends[at] for at in ends)):
            message = consumer.poll(20 if len(ended) < len(ends) else 0.05)
            if message is None:
                assert len(ended) == len(ends), "no answer within 20 s"
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended[message.partition() or 0] = message.offset() or 0
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()
