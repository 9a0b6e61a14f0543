"""The sink to Kafka keeps the contract of a transactional one, against a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.contracts import FoldedContract
from tests.support.kafka_topics import new_topic, read
from tests.support.servers.kafka_broker import KafkaBroker
from wal_sink_backends.kafka.sink import KafkaSink

SECRET = "hunter2-from-the-environment"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_KAFKA_PASSWORD"


class TestKafka(FoldedContract):
    """A topic, read by a consumer of committed messages."""

    every = 41  # each run opens clients of a real broker again and again
    each_line = False
    law = "[Kafka](sinks/kafka.md)"

    @pytest.fixture(autouse=True)
    def password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, SECRET)

    @pytest.fixture
    def target(self, kafka: KafkaBroker) -> tuple[str, str]:
        return kafka.address, new_topic(kafka.address, max_message_bytes="2000000")

    def beside(self, target: tuple[str, str]) -> tuple[str, str]:
        return target[0], new_topic(target[0], max_message_bytes="2000000")

    def make_sink(self, target: tuple[str, str]) -> KafkaSink:
        address, topic = target
        # Nobody asks for this password without SASL.
        return KafkaSink(address, topic, ledger_topic=f"{topic}-ledger", conf_from_env={"sasl.password": VARIABLE})

    def rows_in(self, target: tuple[str, str]) -> list[Any]:
        return [json.loads(message.value()) for message in read(*target)]

    def secrets(self) -> list[str]:
        return [SECRET]
