"""Transactions of one slot: messages and their ledger record together, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of
from wal_sink_backends.kafka.client import (
    CLIENT_ERRORS,
    Cluster,
    Conf,
    KafkaAttemptError,
    KafkaFencedError,
    Topic,
    kafka_error,
)
from wal_sink_backends.kafka.messages import Message, Messages

_logger = logger_of(__name__)
TRANSACTIONAL_IDS = "wal-sink/"
"""The prefix of every transactional id; the slot follows."""
_ABORT_S = 5.0
_CONNECT_S = 0.01
"""If transactions begin before librdkafka knows a broker, it often waits half a second (measured with 2.16)."""
_FULL_WAIT_S = 0.1
_FLUSH_S = 0.2
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
_REFUSALS = _TOO_LARGE | {KafkaError.INVALID_RECORD}
"""Errors about a single message, which it meets again in every attempt."""
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - their public names
"""Errors of messages that librdkafka dropped by itself. It empties its queues shortly after a transaction is aborted,
so it may still drop messages of the next transaction.
"""
_AFTER_PURGE = frozenset({KafkaError._STATE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER})  # noqa: SLF001 - as above
"""Errors that break a transaction whose messages were purged: librdkafka skips their sequence numbers, and then
takes no other messages.
"""
_BATCH_BYTES = 1_000_000
_BATCH_MARGIN_BYTES = 512
_LEAST_BYTES, _MOST_BYTES = 1_000, 1_000_000_000
"""The range that librdkafka takes for `message.max.bytes`."""


_Numbered: TypeAlias = tuple[int, Message]
_Report: TypeAlias = Callable[[KafkaError | None, Report | None], None]


class _Reports:
    """Delivery reports of messages that were not taken.

    Refers to no producer, so that a producer ends with its slot.
    """

    def __init__(self) -> None:
        self.problems: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, _: Report | None) -> None:
        if error is not None:
            self.problems.append(error)

    def numbered(
        self, problems: dict[int, KafkaError], number: int, error: KafkaError | None, _: Report | None
    ) -> None:
        """The report of a message that has a number."""
        if error is not None:
            self.problems.append(error)
            problems[number] = error

    def forget(self) -> None:
        self.problems.clear()


class SlotProducer:
    """The producer of one slot.

    Once it is made, no other producer of the slot can commit, and their open transactions are committed or aborted:
    from then on the ledger is final. The same happens to this producer as soon as another is made.
    """

    def __init__(self, cluster: Cluster, slot: str, topic: Topic, conf: Conf) -> None:
        self._cluster = cluster
        self._topic = topic.name
        self._reports = _Reports()
        timeout_ms = int(cluster.timeout_s * 1000)
        own = {
            "transactional.id": f"{TRANSACTIONAL_IDS}{slot}",
            "enable.idempotence": True,
            "acks": "all",
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "delivery.report.only.error": True,
            "on_delivery": self._reports,
            "partitioner": conf["partitioner"],
            **_sizes(topic, conf),
        }
        what = f"transactions of slot {slot!r}"
        with cluster.translated(what):
            self._producer = Producer(cluster.producer_conf(own))
            self._producer.poll(_CONNECT_S)
            self._producer.init_transactions(cluster.timeout_s)

    def send(self, messages: Messages, what: str) -> dict[int, str]:
        """Begin a transaction and write the messages. Returns an empty mapping if the brokers have all of them.

        Otherwise the transaction is aborted, and the mapping holds the reasons of the refused messages by number.
        `KafkaAttemptError` if the messages are refused together although each of them is taken alone.
        """
        if self._all_taken(messages, what):
            return {}
        self._abort(what)
        numbered = list(enumerate(messages))
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s
        refused = self._try(numbered, what, deadline_s)
        if not refused:
            return {}
        self._abort(what)
        guilty = self._guilty([pair for pair in numbered if pair[0] in refused], refused, what, deadline_s)
        if not guilty:  # the transaction was aborted: another attempt sends all messages
            reason = next(iter(refused.values()))
            raise KafkaAttemptError(
                f"{what}: the brokers refused a batch, and then accepted each message of this batch: {reason.str()} "
                f"({reason.name()})"
            )
        return {row: f"{error.str()} ({error.name()})" for row, error in guilty.items()}

    def _guilty(
        self, suspects: Sequence[_Numbered], refused: dict[int, KafkaError], what: str, deadline_s: float
    ) -> dict[int, KafkaError]:
        """The messages of a refused batch that are refused alone, found by halving, in aborted transactions."""
        if len(suspects) == 1 or all(error.code() in _TOO_LARGE for error in refused.values()):
            return refused  # a message that is too large has a batch for itself
        if SYSTEM.monotonic_s() > deadline_s:
            raise PermanentError(
                f"{what}: {next(iter(refused.values())).str()}. There are too many rows to find the refused rows in "
                "time. Stage smaller chunks"
            )
        guilty: dict[int, KafkaError] = {}
        for half in (suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]):
            found = self._try(half, what, deadline_s)
            self._abort(what)
            if found:
                guilty |= self._guilty([pair for pair in half if pair[0] in found], found, what, deadline_s)
        return guilty

    def _all_taken(self, messages: Messages, what: str) -> bool:
        """Begin a transaction and write; False if a message was refused for good.

        Only `_try` finds out which one: a callback for each message would double the cost of sending.
        """
        self._reports.forget()
        with self._in_transaction(what):
            self._producer.begin_transaction()
            if messages.are_plain:
                self._produce_plain(messages, what)
            else:
                for message in messages:
                    self._produce(message, self._reports, what)
            self._flush(what)
        return not self._refused(dict(enumerate(self._reports.problems)), what)

    def _try(self, messages: Sequence[_Numbered], what: str, deadline_s: float) -> dict[int, KafkaError]:
        """Begin a transaction and write; the messages that were refused for good.

        An aborted transaction came before, so messages may be purged. As long as that is the only error, this repeats.
        """
        while True:
            problems = self._problems(messages, what)
            purged = bool(problems) and all(error.code() in _PURGED for error in problems.values())
            if not purged or SYSTEM.monotonic_s() > deadline_s:
                return self._refused(problems, what)
            self._abort(what)

    def _problems(self, messages: Sequence[_Numbered], what: str) -> dict[int, KafkaError]:
        """Begin a transaction and write; the errors of the messages that were not taken."""
        self._reports.forget()
        problems: dict[int, KafkaError] = {}
        with self._in_transaction(what):
            self._producer.begin_transaction()
            for number, message in messages:
                self._produce(message, partial(self._reports.numbered, problems, number), what)
            self._flush(what)
        return problems

    def _refused(self, problems: Mapping[int, KafkaError], what: str) -> dict[int, KafkaError]:
        """The errors about single messages.

        If there are only other errors, raises the one that broke the transaction.
        """
        refused = {number: error for number, error in problems.items() if error.code() in _REFUSALS}
        if problems and not refused:
            raise self._cluster.translate(what, self._broken() or next(iter(problems.values())))
        return refused

    def _broken(self) -> KafkaError | None:
        """Why the transaction can only be aborted, such as a revoked right, where its messages report only "purged".

        None if it can go on. Beginning another transaction within this one is refused, and changes nothing.
        """
        try:
            self._producer.begin_transaction()
        except CLIENT_ERRORS as error:
            problem = kafka_error(error)
            return problem if problem.fatal() or problem.txn_requires_abort() else None
        return None

    @contextmanager
    def _in_transaction(self, what: str) -> Iterator[None]:
        """As `Cluster.translated`, with the error that broke the transaction: `produce` may only report "fatal error".

        No error if a message was refused meanwhile: librdkafka then takes no further messages, and the reports name the
        refused one. No error either if messages were only purged, and that alone broke it: no broker judged them.
        """
        try:
            yield
        except CLIENT_ERRORS as error:
            if self._has_refused():
                return
            problem = self._broken() or kafka_error(error)
            if problem.code() in _AFTER_PURGE and self._has_purged_alone():
                return
            raise self._cluster.translate(what, problem) from self._cluster.cause(error)

    def _has_purged_alone(self) -> bool:
        problems = self._reports.problems
        return bool(problems) and all(error.code() in _PURGED for error in problems)

    def _has_refused(self) -> bool:
        """Whether the brokers refused a message. Its report may come a little after the error that it causes."""
        deadline_s = SYSTEM.monotonic_s() + _ABORT_S
        while True:
            try:
                left = self._producer.flush(_FLUSH_S)
            except CLIENT_ERRORS:  # fatal: this producer sends no more reports, and `_broken` finds the reason
                return False
            if any(error.code() in _REFUSALS for error in self._reports.problems):
                return True
            if not left or SYSTEM.monotonic_s() > deadline_s:
                return False

    def put_record(self, ledger: str, key: bytes, value: bytes, what: str) -> None:
        """Add the ledger's record and wait until the brokers have it, uncommitted. Raises if they refuse it.

        It comes last: until the commit, no reader can read the ledger to its end.
        """
        self._reports.forget()
        what = f"{what}, record in the ledger topic {ledger!r}"
        with self._in_transaction(what):
            self._producer.produce(ledger, value, key)
            self._flush(what)
        if problems := self._reports.problems:
            raise self._cluster.translate(what, self._broken() or problems[0])

    def commit(self, what: str) -> None:
        """Commit. `OutcomeUnknownError` if the brokers did not report the outcome."""
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s
        while True:
            try:
                return self._producer.commit_transaction(max(0.1, deadline_s - SYSTEM.monotonic_s()))
            except CLIENT_ERRORS as error:
                problem = kafka_error(error)
                if problem.retriable() and SYSTEM.monotonic_s() < deadline_s:
                    continue  # the next call continues the same commit
                raise self._commit_error(problem, what) from self._cluster.cause(error)

    def _abort(self, what: str) -> None:
        """Abort the transaction; nothing of it can be read."""
        with self._cluster.translated(what):
            self._producer.abort_transaction(self._cluster.timeout_s)

    def abandon(self) -> None:
        """Abort an open transaction if the brokers can be reached now; else the slot's next producer aborts it."""
        try:
            self._producer.abort_transaction(_ABORT_S)
        except CLIENT_ERRORS as error:
            _logger.debug("the transaction could not be aborted: %s", self._cluster.scrub(str(error)))

    def _flush(self, what: str) -> None:
        """Wait until the brokers have all messages, or refused one.

        After a refusal it does not wait: librdkafka then keeps other messages until they time out.
        """
        deadline_s, problems = SYSTEM.monotonic_s() + self._cluster.timeout_s, self._reports.problems
        while (left := self._producer.flush(_FLUSH_S)) and not problems and SYSTEM.monotonic_s() < deadline_s:
            pass
        if left and not problems:
            raise KafkaAttemptError(
                f"{what}: the brokers did not accept {left} messages within {self._cluster.timeout_s:g} s"
            )

    def _produce_plain(self, messages: Messages, what: str) -> None:
        produce, topic = self._producer.produce, self._topic
        for value, key in zip(messages.values, messages.keys, strict=True):
            try:
                produce(topic, value, key)  # the producer's callback gets its report
            except (BufferError, KafkaException):  # it was not taken
                self._produce(Message(value, key, [], None), self._reports, what)

    def _produce(self, message: Message, report: _Report, what: str) -> None:
        options: dict[str, Any] = {"headers": list(message.headers)} if message.headers else {}
        if message.partition is not None:
            options["partition"] = message.partition
        deadline_s = 0.0
        while True:
            try:
                return self._producer.produce(self._topic, message.value, message.key, on_delivery=report, **options)
            except BufferError:
                deadline_s = deadline_s or SYSTEM.monotonic_s() + self._cluster.timeout_s
                if SYSTEM.monotonic_s() > deadline_s:
                    raise KafkaAttemptError(
                        f"{what}: librdkafka's queue stayed full for {self._cluster.timeout_s:g} s"
                    ) from None
                self._producer.poll(_FULL_WAIT_S)
            except KafkaException as error:
                if kafka_error(error).code() not in _REFUSALS:
                    raise
                return report(kafka_error(error), None)

    def _commit_error(self, error: KafkaError, what: str) -> Exception:
        problem = self._cluster.translate(what, error)
        if error.txn_requires_abort() or isinstance(problem, KafkaFencedError | PermanentError):
            return problem
        return OutcomeUnknownError(f"{problem}. wal-sink reads the outcome from the ledger at the next attempt")


def most_bytes(topic: Topic, conf: Conf) -> int:
    """The largest message that is tried: the topic's limit, unless `message.max.bytes` in conf sets another."""
    return min(max(int(conf.get("message.max.bytes", topic.most_bytes)), _LEAST_BYTES), _MOST_BYTES)


def _sizes(topic: Topic, conf: Conf) -> dict[str, int]:
    """Sizes of batches that the topic takes, so that a batch refused for its size is a single message."""
    batch = min(int(conf.get("batch.size", _BATCH_BYTES)), max(topic.most_bytes - _BATCH_MARGIN_BYTES, 1))
    return {"message.max.bytes": most_bytes(topic, conf), "batch.size": batch}
