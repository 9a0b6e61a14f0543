"""Messages and position in one Kafka transaction: exactly once for consumers that read only committed messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import Rejected, SinkContext
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import one_of
from wal_sink.support.texts import Finding, counted, fine
from wal_sink_backends.common.changes import Changes
from wal_sink_backends.common.sinks import IfRecreated, LedgerSink, name_of, reached
from wal_sink_backends.kafka.client import Cluster, ClusterSpec, Conf, KafkaAttemptError, KafkaFencedError, Topic
from wal_sink_backends.kafka.ledger import Ledger, LedgerRecord, Mark
from wal_sink_backends.kafka.messages import MessageFormat, Messages
from wal_sink_backends.kafka.producer import SlotProducer, most_bytes

LEDGER_TOPIC = "wal-sink-ledger"
Partitioner: TypeAlias = Literal[
    "murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random"
]
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_MOST_TIMEOUT_S = 900.0


class KafkaSink(LedgerSink):
    """A topic that is delivered to exactly once, as consumers with `isolation.level=read_committed` see it.

    Every chunk is one transaction: its messages, and the position of its slot as a record of the compacted topic
    `ledger_topic`, which is created with one partition and `ledger_replication` replicas (-1: the brokers' default) if
    it is missing. `topic` itself is never created. Idempotent producers, `acks=all`.

    - `value`: `json`, an object of all columns; `json:a,b` of these; `string:a` or `bytes:a`, a column as it is. NULL
      in it is refused row by row, unless `tombstones=True` makes it a message without value, which deletes its key.
      `maps="entries"` writes maps as `Chunk.to_json` does then.
    - `key`, `headers` (column names, or columns by name of the header): text and binary as they are, all else as JSON
      writes it. NULL is no key, or a header without value.
    - `partition`: a column of whole numbers. Where it is NULL, or not given, `partitioner` chooses by the key;
      `murmur2_random` agrees with Java's producers and Spark's. Rows of a segment keep their order in each partition.

    With `operation` (a column of Debezium's c, r, u, d) or `delete_when` (a boolean column), a row that deletes
    becomes a message without value, for compacted topics. That column is not in the value.

    `transaction_timeout_s`: after so many seconds (1 to 900, and at most the brokers' `transaction.max.timeout.ms`) the
    brokers end a transaction whose process sends nothing. Each step waits at most so long for the brokers.

    `conf`: properties of librdkafka, for instance for SASL and TLS. They travel to the executors with the sink, secrets
    included, but are never shown; `conf_from_env` names environment variables instead, read in `open`, where the sink
    runs. Raises `ConfigError` for arguments that cannot work, and for properties that the guarantee depends on.

    `recreated_topic="accept"`: go on if the topic was deleted and created again, without the rows delivered before.

        sink = KafkaSink("broker-1:9092,broker-2:9092", "flights", key="id")
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        value: str = "json",
        key: str | None = None,
        headers: Sequence[str] | Mapping[str, str] | None = None,
        partition: str | None = None,
        partitioner: Partitioner = "murmur2_random",
        tombstones: bool = False,
        maps: Maps = "object",
        ledger_topic: str = LEDGER_TOPIC,
        ledger_replication: int = -1,
        transaction_timeout_s: float = 45.0,
        recreated_topic: IfRecreated = "refuse",
        conf: Conf | None = None,
        conf_from_env: Mapping[str, str] | None = None,
        operation: str | None = None,
        delete_when: str | None = None,
    ) -> None:
        self._check_arguments(topic, ledger_topic, partitioner, ledger_replication, transaction_timeout_s)
        check_maps(maps)
        one_of("recreated_topic", recreated_topic, get_args(IfRecreated))
        named = {headers: headers} if isinstance(headers, str) else headers or {}
        by_name = dict(named) if isinstance(named, Mapping) else {name: name for name in named}
        if key is None and (operation is not None or delete_when is not None):
            raise ConfigError(
                "KafkaSink: operation and delete_when need key, since a delete is a message without value"
            )
        changes = Changes.of(
            f"KafkaSink({topic!r})",
            key=None if key is None else (key,),
            newer_by=None,
            operation=operation,
            delete_when=delete_when,
            on_delete="delete",
        )
        self._format = MessageFormat(value, key, by_name, partition, tombstones, maps, changes)
        self._spec = ClusterSpec(bootstrap_servers, dict(conf or {}), dict(conf_from_env or {}), transaction_timeout_s)
        self._topic = self.target_name = topic
        self._ledger_topic = ledger_topic
        self._ledger_replication = ledger_replication
        self._partitioner = partitioner
        self._recreated_topic = recreated_topic
        self._target: _Target | None = None

    def __repr__(self) -> str:
        shown = self._format
        options = {
            "value": shown.value,
            "key": shown.key,
            "partition": shown.partition,
            "ledger_topic": self._ledger_topic,
        }
        texts = (f"{name}={value!r}" for name, value in options.items() if value)
        return f"KafkaSink({self._spec.servers!r}, {self._topic!r}, {', '.join(texts)})"

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the slots are enough
        """Connect, check the topic, make the ledger if it is missing. Any error but `PermanentError` may pass."""
        self.close()
        cluster = self._spec.connect()
        topic = _found(cluster, self._topic, repr(self))
        ledger = Ledger(cluster, self._ledger_topic, self._ledger_replication)
        conf = {**self._spec.conf, "partitioner": self._partitioner}
        accept = self._recreated_topic == "accept"
        self._target = _Target(repr(self), cluster, topic, ledger, self._format, conf, recreated_is_fine=accept)

    def close(self) -> None:
        """Close the clients and forget the values from the environment."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Connect, and look at the topic and the ledger; a missing ledger is not made."""
        cluster = self._spec.connect()
        topic = _found(cluster, self._topic, repr(self))
        ledger = cluster.topic(self._ledger_topic, attempts=1)
        if schema is not None:
            rows = schema.empty_table()
            self._format.messages(rows, partitions=topic.partitions, most_bytes=topic.most_bytes)
        return [
            reached(self._spec.servers, has_ledger=ledger is not None),
            fine("target.topic", f"topic {topic.name!r} has {counted(topic.partitions, 'partition')}"),
        ]

    def positions_in_ledger(self, slots: Sequence[str]) -> Mapping[str, Position]:
        """The positions, from one reading of the ledger.

        The topic is checked again: rows that it had when this sink was opened may be gone since. An older process may
        still be writing: `write` fences it first and then reads again.
        """
        target = self.opened(self._target)
        target.look_again()
        found = target.newest(slots)
        return {slot: stored.entry(slot).position for slot, stored in found.items() if stored}

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the messages and move the ledger on, in one transaction; nothing if the ledger is there already.

        Rows that Kafka cannot take (too large, a partition that does not exist, a null value) are returned, with
        nothing committed. Raises `FencedError` for a lower term than the ledger's, `HistoryError` for other rows than
        it records, `PermanentError` for columns that do not fit and for missing rights, `OutcomeUnknownError` if the
        brokers did not answer a commit; anything else may be tried again. After any error the slot starts afresh.
        """
        target, what = self.opened(self._target), f"{name_of(chunk)}: {self!r}"
        with target.writing(chunk) as slot:
            stored = slot.stored.entry(slot.name) if slot.stored else None
            if LedgerEntry.is_known(stored, chunk, target.sink):
                return None
            messages, refused = target.messages(chunk, what)
            refused = refused or slot.producer.send(messages, what)
            if refused:
                target.check_unaltered(what)
                return Rejected(refused)
            record = LedgerRecord.of(chunk, target.topic)
            slot.producer.put_record(target.ledger.topic, slot.name.encode(), msgspec.json.encode(record), what)
            mark = target.appended(slot, record, what)
            slot.producer.commit(what)
            slot.stored, slot.mark = record, mark
        return None

    @staticmethod
    def _check_arguments(topic: str, ledger_topic: str, partitioner: str, replication: int, timeout_s: float) -> None:
        for name, value in (("topic", topic), ("ledger_topic", ledger_topic)):
            if not _TOPIC.fullmatch(value):
                raise ConfigError(f"{name}={value!r}: expected 1 to 249 letters, digits or any of ._-")
        if topic == ledger_topic:
            raise ConfigError(f"topic and ledger_topic are both {topic!r}: expected two different topics")
        one_of("partitioner", partitioner, get_args(Partitioner))
        if replication != -1 and replication < 1:
            raise ConfigError(f"ledger_replication={replication}: expected a number of brokers, or -1")
        if not 1 <= timeout_s <= _MOST_TIMEOUT_S:
            raise ConfigError(f"transaction_timeout_s={timeout_s}: expected 1 to {_MOST_TIMEOUT_S:g} seconds")


@dataclass(slots=True)
class _Slot:
    """The slot that is being written."""

    name: str
    producer: SlotProducer
    stored: LedgerRecord | None
    """The ledger's record, as it was read or as this producer wrote it: no other producer can write to the slot. The
    ledger may have lost it since, so `mark` is searched again before each commit.
    """
    mark: Mark | None
    """The message of that record; None if there is none."""
    since: int
    """The offset up to which the ledger had been read when the slot was read."""


@dataclass(slots=True)
class _Target:
    """The parts of an open sink."""

    sink: str
    cluster: Cluster
    topic: Topic
    ledger: Ledger
    format: MessageFormat
    producer_conf: Conf = field(repr=False)
    recreated_is_fine: bool
    slot: _Slot | None = None
    """The slot that was written last: a delivery task delivers one segment after the other."""

    def newest(self, slots: Sequence[str]) -> dict[str, LedgerRecord | None]:
        """The ledger's records of some slots as of now. `HistoryError` if one is about a topic that is gone."""
        found = self.ledger.newest_of(slots)
        for slot, stored in found.items():
            if stored is not None and not self.recreated_is_fine:
                stored.check_topic(self.topic, f"{self.sink}, slot {slot!r}")
        return found

    @contextmanager
    def writing(self, chunk: Chunk) -> Iterator[_Slot]:
        """The chunk's slot, whose transactional id no other producer can use.

        After an error inside, it is not used again.
        """
        name = chunk.position.slot
        self._check_term(self.ledger.known(name), chunk)  # a superseded process must not fence the newer one
        slot = self._take(name) or self._start(name)
        try:
            yield slot
        except KafkaFencedError:
            self._check_term(self.ledger.newest(name), chunk)
            raise
        except Exception:
            slot.producer.abandon()
            raise
        self.slot = slot

    def look_again(self) -> bool:
        """Describe the topic anew; whether it has changed. `PermanentError` if there is none."""
        before, self.topic = self.topic, _found(self.cluster, self.topic.name, self.sink)
        if before.what_counts == self.topic.what_counts:
            return False
        self.slot = None  # its producer was made for the former state
        return True

    def check_unaltered(self, what: str) -> None:
        """Raise `KafkaAttemptError` if rows were refused by the former state of an altered topic."""
        if self.look_again():
            raise KafkaAttemptError(
                f"{what}: rows were refused while the topic was altered (its limits, its partitions, or the whole "
                "topic). Nothing was committed. The next attempt uses the present state of the topic"
            )

    def appended(self, slot: _Slot, record: LedgerRecord, what: str) -> Mark:
        """The message just written, if the ledger still has the one that it follows."""
        return self.ledger.appended(slot.name.encode(), msgspec.json.encode(record), slot.mark, slot.since, what)

    def messages(self, chunk: Chunk, what: str) -> tuple[Messages, dict[int, str]]:
        """The chunk's messages, and the reasons of rows that cannot be sent."""
        topic, most = self.topic, most_bytes(self.topic, self.producer_conf)
        try:
            return self.format.messages(
                chunk.table, partitions=topic.partitions, most_bytes=most, needs_keys=topic.needs_keys
            )
        except PermanentError as error:
            raise PermanentError(f"{what}: {error}") from error

    def close(self) -> None:
        self.slot = None  # between two calls of write it has no open transaction
        self.ledger.close()

    def _check_term(self, stored: LedgerRecord | None, chunk: Chunk) -> None:
        if stored is not None:
            stored.entry(chunk.position.slot).check_term(chunk, self.sink)

    def _take(self, name: str) -> _Slot | None:
        """The slot of this name, if it was written last; another one is dropped, as it has no open transaction."""
        slot, self.slot = self.slot, None
        return slot if slot is not None and slot.name == name else None

    def _start(self, name: str) -> _Slot:
        """Fence first, then read: the ledger's record is then final, until this producer writes or is fenced itself, or
        the ledger loses the record.
        """
        producer = SlotProducer(self.cluster, name, self.topic, self.producer_conf)
        stored = self.newest([name])[name]
        return _Slot(name, producer, stored, self.ledger.mark(name), self.ledger.stop)


def _found(cluster: Cluster, name: str, sink: str) -> Topic:
    """The topic as it is now. `PermanentError` if there is none."""
    topic = cluster.topic(name)
    if topic is None:
        raise PermanentError(
            f"{sink}: the topic {name!r} does not exist. Create the topic with the partitions and the replication that "
            "you need, or correct the name"
        )
    return topic
