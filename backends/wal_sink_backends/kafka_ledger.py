"""How far each slot is, kept in a compacted topic: a record keyed by the slot, written in the transaction of its rows.

    key   the slot, UTF-8
    value {"format":1,"term":…,"batch_id":…,"rows":…,"segment_id":…,"topic":…,"topic_id":…}

Committed offsets of a consumer group would not do: they expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from wal_sink.chunk import Chunk, Position
from wal_sink.errors import CorruptError, HistoryError, PermanentError
from wal_sink.ledger import LedgerEntry
from wal_sink.runtime import SYSTEM
from wal_sink_backends.kafka_client import Cluster, KafkaAttemptError, Topic

FORMAT = 1
_LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",  # only closed segments are compacted
    "delete.retention.ms": "3600000",  # transaction markers go after that time
}
_READER = {
    "group.id": "wal-sink-ledger",  # the client asks for one; nothing is committed to it
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 20,  # how late it learns that it reached the end
    "check.crcs": True,
}
_WINDOW = 2_000
"""Offsets that are read first, from the end: what a running query looks for is among the newest."""
_WIDER = 8
_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name; looked up when the module is imported
_ABORT_WAIT_S = 15.0
"""How long past its time-out a broker may leave a transaction of a dead process open."""


class LedgerRecord(msgspec.Struct, frozen=True):
    """What the ledger holds of a slot."""

    format: int
    term: int
    batch_id: int
    rows: int
    segment_id: str
    topic: str
    """Where the rows went."""
    topic_id: str

    @classmethod
    def of(cls, chunk: Chunk, topic: Topic) -> Self:
        """What to write with a chunk's rows."""
        at = chunk.position
        return cls(FORMAT, chunk.term, at.batch_id, at.rows, at.segment_id, topic.name, topic.id)

    def entry(self, slot: str) -> LedgerEntry:
        return LedgerEntry(self.term, Position(slot, self.batch_id, self.rows, self.segment_id))

    def check_topic(self, now: Topic, what: str) -> None:
        """Refuse a topic that was emptied by creating it again."""
        if self.topic != now.name or self.topic_id == now.id or "" in (self.topic_id, now.id):
            return
        raise HistoryError(
            f"{what}: the topic was deleted and created again since batch {self.batch_id}, row {self.rows}; what was "
            "delivered until then is gone. Nothing was sent. Restore the topic, or go on without those rows: "
            "recreated_topic='accept'"
        )


class Ledger:
    """Reads the ledger topic, and no more of it than it has to: from its end backwards, until the slot is found."""

    def __init__(self, cluster: Cluster, topic: str, replication: int) -> None:
        self._cluster = cluster
        self.topic = topic
        self._records: dict[bytes, LedgerRecord | PermanentError | CorruptError] = {}
        self._start = 0
        self._stop = 0
        """Offsets `start` to `stop` have been read."""
        self.epoch = -1
        """Of the leader from which they were read."""
        self._check(replication)
        self._consumer: Consumer = cluster.consumer(_READER)

    def close(self) -> None:
        self._consumer.close()

    def check_leader(self, epoch: int, what: str) -> None:
        """`KafkaAttemptError` if the ledger has another leader than in this epoch.

        To be asked when the brokers have a record that follows what was read in that epoch, and before it is committed.
        Both then stand in one log, where nobody can lose the earlier one without the later one.
        """
        if (now := self._cluster.log_end(self.topic).epoch) != epoch:
            raise KafkaAttemptError(
                f"{what}: the ledger topic {self.topic!r} has another leader (epoch {now}) than when the slot was read "
                f"(epoch {epoch}), which may lack what the one before had; nothing was committed, and it is read again"
            )

    def known(self, slot: str) -> LedgerRecord | None:
        """What was read of this slot before."""
        found = self._records.get(slot.encode())
        return found if isinstance(found, LedgerRecord) else None

    def newest(self, slot: str) -> LedgerRecord | None:
        """The committed record of this slot as of now; None if there is none.

        What a transaction under way hides is waited for, be it of another slot: a committed record may lie behind it.
        """
        return self.newest_of([slot])[slot]

    def newest_of(self, slots: Sequence[str]) -> dict[str, LedgerRecord | None]:
        """The same of several slots, in one reading of the ledger."""
        self._read_on()
        missing, width = {slot.encode() for slot in slots}.difference(self._records), _WINDOW
        first = self._cluster.log_start(self.topic) if missing and self._start else 0
        while missing and self._start > first:
            start = max(first, self._start - width)
            self._records = self._read(start, self._start) | self._records
            self._start, width = start, width * _WIDER
            missing.difference_update(self._records)
        return {slot: self._told(slot) for slot in slots}

    def _told(self, slot: str) -> LedgerRecord | None:
        found = self._records.get(slot.encode())
        if isinstance(found, Exception):
            raise found
        return found

    def _read_on(self) -> None:
        """Read what was added. All of it anew where there is another leader since: it may lack what the one before had,
        and what was read from that one is no longer true. Within its epoch, a leader's log only grows.
        """
        end = self._cluster.log_end(self.topic)
        if end.epoch != self.epoch or end.offset < self._stop or not self._stop:  # or another topic of the same name
            self._records, self._start = {}, max(0, end.offset - _WINDOW)
            self._stop = self._start
        self.epoch = end.epoch
        if end.offset > self._stop:
            self._records |= self._read(self._stop, end.offset)
            self._stop = end.offset

    def _read(self, start: int, end: int) -> dict[bytes, LedgerRecord | PermanentError | CorruptError]:
        return {
            message.key() or b"": self._decoded(message) for message in self._messages(start, end) if message.value()
        }

    def _messages(self, start: int, end: int) -> Iterator[Message]:
        """The committed messages of these offsets, many of which are compacted, aborted, or markers."""
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s + _ABORT_WAIT_S
        what = f"offsets {start} to {end} of the ledger topic {self.topic!r}"
        self._consumer.assign([TopicPartition(self.topic, 0, start)])
        while SYSTEM.monotonic_s() < deadline_s:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is not None:
                if error.code() == _END:
                    if offset >= end:
                        return
                elif isinstance(problem := self._cluster.translate(what, error), PermanentError):
                    raise problem
                continue
            if offset < end:
                yield message
            if offset >= end - 1:
                return
        raise KafkaAttemptError(
            f"{what}, {self._cluster!r}: could not be read to the end; a process that died or stands still holds a "
            "transaction open until its transaction_timeout_s has passed, or a broker is away"
        )

    def _decoded(self, message: Message) -> LedgerRecord | PermanentError | CorruptError:
        """What is wrong with a record is told to whom it concerns: several WALs share a ledger."""
        where = f"offset {message.offset()} of the ledger topic {self.topic!r}, key {message.key()!r}"
        try:
            record = msgspec.json.decode(message.value() or b"", type=LedgerRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return CorruptError(f"{where}: {error}; expected a record of wal-sink. Find out what else writes there")
        if record.format != FORMAT:
            return PermanentError(f"{where}: format {record.format}, expected {FORMAT}; a newer wal-sink wrote it")
        return record

    def _check(self, replication: int) -> None:
        """Create the topic if it is missing; refuse one that would forget."""
        name = self.topic
        found = self._cluster.topic(name, attempts=1)
        if found is None:
            self._cluster.create_topic(name, replication, _LEDGER_CONFIG)
            found = self._cluster.topic(name)
        if found is None:
            raise KafkaAttemptError(f"the ledger topic {name!r} was created and is not there yet, {self._cluster!r}")
        if (policy := found.config.get("cleanup.policy")) != "compact":
            raise PermanentError(
                f"ledger topic {name!r}, {self._cluster!r}: cleanup.policy is {policy!r}, expected 'compact', since "
                "the position of a slot must never expire; change it, or pass another ledger_topic"
            )
        if found.partitions != 1:
            raise PermanentError(
                f"ledger topic {name!r}, {self._cluster!r}: it has {found.partitions} partitions, expected 1, where "
                "every position is found whatever happens to the topic; pass another ledger_topic"
            )
