"""The positions of slots in a compacted topic: a record per slot, written in the transaction of its rows.

    key   the slot, UTF-8
    value {"format":1,"term":…,"batch_id":…,"rows":…,"segment_id":…,"topic":…,"topic_id":…}

Committed offsets of a consumer group would not do, because they expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from wal_sink.errors import CorruptError, HistoryError, PermanentError
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.clock import SYSTEM
from wal_sink_backends.kafka.client import Cluster, KafkaAttemptError, Topic

FORMAT = 1
_LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",  # only closed segments are compacted
    "delete.retention.ms": "3600000",  # transaction markers go after that time
}
_READER = {
    "group.id": "wal-sink-ledger",  # the client requires one; nothing is committed to it
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 20,  # the delay with which it learns that it reached the end
    "check.crcs": True,
}
_WINDOW = 2_000
"""Offsets that are read first, from the end: the records of a running query are among the newest."""
_WIDER = 8
_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name; looked up when the module is imported
_GONE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the topic does not have, or no longer has, the offset
_ABORT_WAIT_S = 15.0
"""Seconds after its time-out for which a broker may leave a transaction of a dead process open."""


class _OffsetGoneError(KafkaAttemptError):
    """An offset that is needed lies before the topic's beginning or behind its end."""


class LedgerRecord(msgspec.Struct, frozen=True):
    """The ledger's record of a slot."""

    format: int
    term: int
    batch_id: int
    rows: int
    segment_id: str
    topic: str
    """The topic that has the rows."""
    topic_id: str

    @classmethod
    def of(cls, chunk: Chunk, topic: Topic) -> Self:
        """The record to write with a chunk's rows."""
        at = chunk.position
        return cls(FORMAT, chunk.term, at.batch_id, at.rows, at.segment_id, topic.name, topic.id)

    def entry(self, slot: str) -> LedgerEntry:
        return LedgerEntry(self.term, Position(slot, self.batch_id, self.rows, self.segment_id))

    def check_topic(self, now: Topic, what: str) -> None:
        """Raise `HistoryError` if the rows are in another topic, or if the topic was deleted and created again."""
        if self.topic == now.name and (self.topic_id == now.id or "" in (self.topic_id, now.id)):
            return
        other = f"is {now.name!r}, but {self.topic!r} has the rows up to" if self.topic != now.name else ""
        raise HistoryError(
            f"{what}: the topic {other or 'was deleted and created again after'} batch {self.batch_id}, row "
            f"{self.rows}. The rows delivered before that are not in it. Nothing was sent. Restore the topic, or give "
            "the sink a new name. Or pass recreated_topic='accept' to continue without those rows"
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies one message of the ledger. A log that has it also has all messages before it."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(message.offset() or 0, message.timestamp()[1], message.key() or b"", message.value() or b"")


class Ledger:
    """Reads the ledger topic from its end backwards, until the slot is found."""

    def __init__(self, cluster: Cluster, topic: str, replication: int) -> None:
        self._cluster = cluster
        self.topic = topic
        self._marks: dict[bytes, Mark] = {}
        self._newest: Mark | None = None
        self._start = 0
        self.stop = 0
        """Offsets `start` to `stop` have been read."""
        self._check(replication)
        self._committed = cluster.consumer(_READER)
        self._uncommitted: Consumer | None = None

    def close(self) -> None:
        self._committed.close()
        if self._uncommitted is not None:
            self._uncommitted.close()

    def known(self, slot: str) -> LedgerRecord | None:
        """The record of this slot that was read last; None if none was read."""
        mark = self.mark(slot)
        return self._decoded(mark) if mark else None

    def mark(self, slot: str) -> Mark | None:
        """The message of that record."""
        return self._marks.get(slot.encode())

    def newest(self, slot: str) -> LedgerRecord | None:
        """The committed record of this slot as of now; None if there is none.

        Waits for open transactions, those of other slots too: a committed record may lie behind them.
        """
        return self.newest_of([slot])[slot]

    def newest_of(self, slots: Sequence[str]) -> dict[str, LedgerRecord | None]:
        """The committed records of several slots, from one reading of the ledger."""
        self._read_on()
        missing, width = {slot.encode() for slot in slots}.difference(self._marks), _WINDOW
        first = self._cluster.first_offset(self.topic) if missing and self._start else 0
        while missing and self._start > first:
            start = max(first, self._start - width)
            self._marks = _by_key(self._read(start, self._start)) | self._marks
            self._start, width = start, width * _WIDER
            missing.difference_update(self._marks)
        return {slot: self.known(slot) for slot in slots}

    def appended(self, key: bytes, value: bytes, after: Mark | None, since: int, what: str) -> Mark:
        """The message that an uncommitted transaction has added for a slot.

        `after` is the message with the slot's position; None if there was none when the ledger was read up to `since`.
        `KafkaAttemptError` if the log no longer has `after`, so that the new message follows a gap: a new leader may
        lack messages of the former one, and so may a broker that lost power. If the log has both messages, it cannot
        lose the earlier one without the later one.
        """
        start, end = after.offset if after else since, self._cluster.high_watermark(self.topic)
        found = self._read(start, end, committed=False) if start < end else []
        mine = [mark for mark in found if (mark.key, mark.value) == (key, value)]
        if not mine or (after is not None and found[0] != after):
            raise KafkaAttemptError(
                f"{what}: the ledger topic {self.topic!r} lost the message at offset {start}, or a later one, after "
                "this sink read its position. Nothing was committed. wal-sink reads the ledger again at the next "
                "attempt; no action is needed"
            )
        return mine[-1]  # an aborted attempt may have added the same message

    def _read_on(self) -> None:
        """Read on from the newest known message; if that is gone, read the ledger anew."""
        end = self._cluster.high_watermark(self.topic)
        if self._newest is not None and self._newest.offset < end:
            with suppress(_OffsetGoneError):
                added = self._read(self._newest.offset, end)
                if added[:1] == [self._newest]:
                    self._marks |= _by_key(added)
                    self._newest, self.stop = added[-1], end
                    return
        self._start, found = self._last_window(end)
        self._marks, self._newest, self.stop = _by_key(found), found[-1] if found else None, end

    def _last_window(self, end: int) -> tuple[int, list[Mark]]:
        """The newest messages and the offset where they begin.

        The topic may begin later than that, if its cleanup policy deleted messages once.
        """
        start = max(0, end - _WINDOW)
        try:
            return start, self._read(start, end) if end else []
        except _OffsetGoneError:
            first = self._cluster.first_offset(self.topic)
            return first, self._read(first, end) if first < end else []

    def _read(self, start: int, end: int, *, committed: bool = True) -> list[Mark]:
        if not committed and self._uncommitted is None:
            self._uncommitted = self._cluster.consumer({**_READER, "isolation.level": "read_uncommitted"})
        consumer = self._committed if committed or self._uncommitted is None else self._uncommitted
        return [Mark.of(message) for message in self._messages(consumer, start, end) if message.value()]

    def _messages(self, consumer: Consumer, start: int, end: int) -> Iterator[Message]:
        """The messages at these offsets, many of which are compacted, aborted, or transaction markers."""
        deadline_s = SYSTEM.monotonic_s() + self._cluster.timeout_s + _ABORT_WAIT_S
        what = f"offsets {start} to {end} of the ledger topic {self.topic!r}"
        consumer.assign([TopicPartition(self.topic, 0, start)])
        while SYSTEM.monotonic_s() < deadline_s:
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is not None:
                if error.code() == _END:
                    if offset >= end:
                        return
                elif error.code() == _GONE:
                    raise _OffsetGoneError(f"{what}, {self._cluster!r}: {error.str()}")
                elif isinstance(problem := self._cluster.translate(what, error), PermanentError):
                    raise problem
                continue
            if offset < end:
                yield message
            if offset >= end - 1:
                return
        raise KafkaAttemptError(
            f"{what}, {self._cluster!r}: the ledger could not be read to the end. Possible causes: a process that died "
            "or is frozen keeps a transaction open until its transaction_timeout_s has passed, or a broker is "
            "unreachable"
        )

    def _decoded(self, mark: Mark) -> LedgerRecord:
        """The record of a message. It is decoded only for its own slot, because several WALs share a ledger."""
        where = f"offset {mark.offset} of the ledger topic {self.topic!r}, key {mark.key!r}"
        try:
            record = msgspec.json.decode(mark.value, type=LedgerRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptError(
                f"{where}: {error}; expected a record of wal-sink. Find the program that wrote this message, and stop "
                "it"
            ) from error
        if record.format != FORMAT:
            raise PermanentError(
                f"{where}: format {record.format}, expected {FORMAT}; a newer version of wal-sink wrote this record. "
                "Use that version"
            )
        return record

    def _check(self, replication: int) -> None:
        """Create the topic if it is missing; refuse one that would forget records."""
        name = self.topic
        found = self._cluster.topic(name, attempts=1)
        if found is None:
            self._cluster.create_topic(name, replication, _LEDGER_CONFIG)
            found = self._cluster.topic(name)
        if found is None:
            raise KafkaAttemptError(f"the ledger topic {name!r} was created, but is not visible yet, {self._cluster!r}")
        if (policy := found.config.get("cleanup.policy")) != "compact":
            raise PermanentError(
                f"ledger topic {name!r}, {self._cluster!r}: cleanup.policy is {policy!r}, expected 'compact', because "
                "the position of a slot must never expire. Change this setting of the topic, or pass another "
                "ledger_topic"
            )
        if found.partitions != 1:
            raise PermanentError(
                f"ledger topic {name!r}, {self._cluster!r}: the topic has {found.partitions} partitions, expected 1, "
                "because a slot could move to another partition if their number changes. Pass another ledger_topic"
            )


def _by_key(marks: Iterable[Mark]) -> dict[bytes, Mark]:
    """The newest mark of each slot."""
    return {mark.key: mark for mark in marks}
