"""Transactions of one slot: messages and their ledger record together, or neither."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink.runtime import SYSTEM
from wal_sink_backends.kafka_client import (
    CLIENT_ERRORS,
    Cluster,
    Conf,
    KafkaAttemptError,
    KafkaFencedError,
    Topic,
    kafka_error,
)
from wal_sink_backends.kafka_messages import Message

_logger = logging.getLogger(__name__)
TRANSACTIONAL_IDS = "wal-sink/"
"""How every transactional id begins; the slot follows."""
_ABORT_S = 5.0
_FULL_WAIT_S = 0.1
_FLUSH_S = 0.2
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
_REFUSALS = _TOO_LARGE | {KafkaError.INVALID_RECORD}
"""What is wrong with one message, and will be wrong with it again."""
_BATCH_BYTES = 1_000_000
_BATCH_MARGIN_BYTES = 512
_LEAST_BYTES, _MOST_BYTES = 1_000, 1_000_000_000
"""What librdkafka takes as `message.max.bytes`."""


_Numbered: TypeAlias = tuple[int, Message]


class SlotProducer:
    """The producer of one slot.

    Once it is made, no other producer of the slot can commit any more, and whatever they had open is committed or
    aborted: only now the ledger tells the truth. The same holds for this one as soon as another is made.
    """

    def __init__(self, cluster: Cluster, slot: str, topic: Topic, conf: Conf) -> None:
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
            "partitioner": conf["partitioner"],
            **_sizes(topic, conf),
        }
        what = f"transactions of slot {slot!r}"
        with cluster.translated(what):
            self._producer = Producer(cluster.producer_conf(own))
            self._producer.init_transactions(cluster.timeout_s)

    def send(self, messages: Sequence[Message], what: str) -> dict[int, str]:
        """Begin a transaction and write the messages, all of which the brokers then have.

        Or end it at once: which of them are refused for good, and why, by number. `KafkaAttemptError` if they are
        refused together, though each of them is taken.
        """
        numbered = list(enumerate(messages))
        refused = self._try(numbered, what)
        if not refused:
            return {}
        self._abort(what)
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s
        guilty = self._guilty([pair for pair in numbered if pair[0] in refused], refused, what, deadline_s)
        if not guilty:  # nothing is left to be committed either: another attempt is to send them all
            reason = next(iter(refused.values()))
            raise KafkaAttemptError(
                f"{what}: the brokers refused a batch and then took each of its messages: {reason.str()} "
                f"({reason.name()})"
            )
        return {row: f"{error.str()} ({error.name()})" for row, error in guilty.items()}

    def _guilty(
        self, suspects: Sequence[_Numbered], refused: dict[int, KafkaError], what: str, deadline_s: float
    ) -> dict[int, KafkaError]:
        """Of messages refused as a batch those that are refused alone, by halves, in transactions that are aborted."""
        if len(suspects) == 1 or all(error.code() in _TOO_LARGE for error in refused.values()):
            return refused  # what is too large stands in a batch alone
        if SYSTEM.monotonic_s() > deadline_s:
            raise PermanentError(f"{what}: {next(iter(refused.values())).str()}; too many rows to name them")
        guilty: dict[int, KafkaError] = {}
        for half in (suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]):
            found = self._try(half, what)
            self._abort(what)
            if found:
                guilty |= self._guilty([pair for pair in half if pair[0] in found], found, what, deadline_s)
        return guilty

    def _try(self, messages: Sequence[_Numbered], what: str) -> dict[int, KafkaError]:
        """Begin a transaction and write; which messages were refused for good."""
        self._refused = {}
        with self._cluster.translated(what):
            self._producer.begin_transaction()
            self._produce_all(messages, what)
            left = self._flush()
        if left and not self._refused:
            raise KafkaAttemptError(f"{what}: {left} messages were not taken within {self._cluster.timeout_s:g} s")
        refused = {row: error for row, error in self._refused.items() if error.code() in _REFUSALS}
        if self._refused and not refused:
            raise self._cluster.translate(what, next(iter(self._refused.values())))
        return refused

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
            except CLIENT_ERRORS as error:
                problem = kafka_error(error)
                if problem.retriable() and SYSTEM.monotonic_s() < deadline_s:
                    continue  # takes up the same commit again
                raise self._commit_error(problem, what) from self._cluster.cause(error)

    def _abort(self, what: str) -> None:
        """End the transaction; nothing of it can be read."""
        with self._cluster.translated(what):
            self._producer.abort_transaction(self._cluster.timeout_s)

    def abandon(self) -> None:
        """Abort what may be open, if the brokers can be reached now: if not, the slot's next producer does."""
        try:
            self._producer.abort_transaction(_ABORT_S)
        except CLIENT_ERRORS as error:
            _logger.debug("abort: %s", self._cluster.scrub(str(error)))

    def _flush(self) -> int:
        """Wait until the brokers have all messages; how many they have not.

        Not after one is refused: librdkafka then holds others back until they time out.
        """
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s
        while (left := self._producer.flush(_FLUSH_S)) and not self._refused and SYSTEM.monotonic_s() < deadline_s:
            pass
        return left

    def _produce_all(self, messages: Sequence[_Numbered], what: str) -> None:
        produce, topic, report = self._producer.produce, self._topic, self._report
        for number, message in messages:
            if message.headers or message.partition is not None:
                self._produce(number, message, what)
                continue
            try:
                produce(topic, message.value, message.key, on_delivery=partial(report, number))
            except (BufferError, KafkaException):  # it was not taken
                self._produce(number, message, what)

    def _produce(self, number: int, message: Message, what: str) -> None:
        options: dict[str, Any] = {"headers": list(message.headers)} if message.headers else {}
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
                if kafka_error(error).code() not in _REFUSALS:
                    raise
                self._refused[number] = kafka_error(error)
                return None

    def _report(self, number: int, error: KafkaError | None, _: Report) -> None:
        if error is not None:
            self._refused[number] = error

    def _commit_error(self, error: KafkaError, what: str) -> Exception:
        problem = self._cluster.translate(what, error)
        if error.txn_requires_abort() or isinstance(problem, KafkaFencedError | PermanentError):
            return problem
        return OutcomeUnknownError(f"{problem}; the ledger will tell")


def most_bytes(topic: Topic, conf: Conf) -> int:
    """The largest message to be tried: what the topic takes, unless the user trusts in compression."""
    return min(max(int(conf.get("message.max.bytes", topic.most_bytes)), _LEAST_BYTES), _MOST_BYTES)


def _sizes(topic: Topic, conf: Conf) -> dict[str, int]:
    """Batches that the topic takes: one refused for its size is then a single message."""
    batch = min(int(conf.get("batch.size", _BATCH_BYTES)), max(topic.most_bytes - _BATCH_MARGIN_BYTES, 1))
    return {"message.max.bytes": most_bytes(topic, conf), "batch.size": batch}
