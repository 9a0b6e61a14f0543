"""Transactions of one slot: messages and their ledger record together, or neither."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink.runtime import SYSTEM
from wal_sink_backends.kafka_client import Cluster, KafkaAttemptError, KafkaFencedError, Topic, code_of
from wal_sink_backends.kafka_messages import Message

_logger = logging.getLogger(__name__)
TRANSACTIONAL_IDS = "wal-sink/"
"""How every transactional id begins; the slot follows."""
_ABORT_S = 5.0
_FULL_WAIT_S = 0.1
_REFUSALS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG_SIZE})
"""What is wrong with one message, and will be wrong with it again."""
_DEFAULT_BATCH_BYTES = 1_000_000
_BATCH_MARGIN_BYTES = 512
_LEAST_BYTES, _MOST_BYTES = 1_000, 1_000_000_000
"""What librdkafka takes as `message.max.bytes`."""


class SlotProducer:
    """The producer of one slot.

    Once it is made, no other producer of the slot can commit any more, and whatever they had open is committed or
    aborted: only now the ledger tells the truth. The same holds for this one as soon as another is made.
    """

    def __init__(self, cluster: Cluster, slot: str, topic: Topic, *, partitioner: str, conf: dict[str, Any]) -> None:
        self._cluster = cluster
        self._topic = topic.name
        self._refused: dict[int, KafkaError] = {}
        timeout_ms = int(cluster.timeout_s * 1000)
        own = {
            "transactional.id": f"{TRANSACTIONAL_IDS}{slot}",
            "enable.idempotence": True,
            "acks": "all",
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "delivery.report.only.error": True,
            "partitioner": partitioner,
            **_sizes(most_bytes(topic, conf), conf),
        }
        what = f"transactions of slot {slot!r}"
        with cluster.translated(what):
            self._producer = Producer(cluster.producer_conf(own))
            self._producer.init_transactions(cluster.timeout_s)

    def send(self, messages: Sequence[Message], what: str) -> dict[int, str]:
        """Begin a transaction and write the messages; which of them were refused for good, and why, by number.

        Of a transaction with a refused message nothing can be committed.
        """
        self._refused = {}
        with self._cluster.translated(what):
            self._producer.begin_transaction()
            for number, message in enumerate(messages):
                self._produce(number, message, what)
            left = self._producer.flush(self._cluster.timeout_s)
        if left:
            raise KafkaAttemptError(f"{what}: {left} messages were not taken within {self._cluster.timeout_s:g} s")
        refused = {row: error for row, error in self._refused.items() if error.code() in _REFUSALS}
        if self._refused and not refused:
            raise self._cluster.translate(what, next(iter(self._refused.values())))
        return {row: f"{error.str()} ({error.name()})" for row, error in refused.items()}

    def commit(self, ledger: str, key: bytes, value: bytes, what: str) -> None:
        """Add the ledger's record and commit. `OutcomeUnknownError` if the brokers did not say what became of it.

        The record comes last: while it waits for the commit, nobody can read the ledger to its end.
        """
        with self._cluster.translated(what):
            self._producer.produce(ledger, value, key)
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s
        while True:
            try:
                return self._producer.commit_transaction(max(0.1, deadline_s - SYSTEM.monotonic_s()))
            except KafkaException as error:
                if error.args[0].retriable() and SYSTEM.monotonic_s() < deadline_s:
                    continue  # takes up the same commit again
                raise self._commit_error(error.args[0], what) from self._cluster.cause(error)

    def abort(self, what: str) -> None:
        """End the transaction; nothing of it can be read."""
        with self._cluster.translated(what):
            self._producer.abort_transaction(self._cluster.timeout_s)

    def abandon(self) -> None:
        """Abort what may be open, if the brokers can be reached now: if not, the slot's next producer does."""
        try:
            self._producer.abort_transaction(_ABORT_S)
        except KafkaException as error:
            _logger.debug("abort: %s", self._cluster.scrub(str(error)))

    def _produce(self, number: int, message: Message, what: str) -> None:
        options: dict[str, Any] = {"headers": message.headers} if message.headers else {}
        if message.partition is not None:
            options["partition"] = message.partition
        deadline_s = 0.0
        while True:
            try:
                return self._producer.produce(
                    self._topic, message.value, message.key, on_delivery=partial(self._report, number), **options
                )
            except BufferError:
                deadline_s = deadline_s or SYSTEM.monotonic_s() + self._cluster.timeout_s
                if SYSTEM.monotonic_s() > deadline_s:
                    raise KafkaAttemptError(f"{what}: librdkafka's queue stayed full") from None
                self._producer.poll(_FULL_WAIT_S)
            except KafkaException as error:
                if code_of(error) not in _REFUSALS:
                    raise
                self._refused[number] = error.args[0]
                return None

    def _report(self, number: int, error: KafkaError | None, _: Report) -> None:
        if error is not None:
            self._refused[number] = error

    def _commit_error(self, error: KafkaError, what: str) -> Exception:
        problem = self._cluster.translate(what, error)
        if error.txn_requires_abort() or isinstance(problem, KafkaFencedError | PermanentError):
            return problem
        return OutcomeUnknownError(f"{problem}; the ledger will tell")


def most_bytes(topic: Topic, conf: dict[str, Any]) -> int:
    """The largest message to be tried: what the topic takes, unless the user trusts in compression."""
    wanted = conf.get("message.max.bytes", topic.config.get("max.message.bytes", _DEFAULT_BATCH_BYTES))
    return min(max(int(wanted), _LEAST_BYTES), _MOST_BYTES)


def _sizes(most: int, conf: dict[str, Any]) -> dict[str, int]:
    """Batches that every topic takes: one refused for its size is then a single message."""
    batch = min(int(conf.get("batch.size", _DEFAULT_BATCH_BYTES)), max(most - _BATCH_MARGIN_BYTES, 1))
    return {"message.max.bytes": most, "batch.size": batch}
