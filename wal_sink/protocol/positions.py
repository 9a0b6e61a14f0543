"""The positions that a target itself stores: in the slots of a transactional sink, and the one of a commit sink.

Only the target knows which rows it has. A slot is read when an attempt begins a segment, and all slots of a batch are
read before its marker is created. Between two reads a target may have lost rows that it acknowledged (a fail-over to a
standby that lagged behind, a restart without the newest writes). The same code runs on executors and in the driver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from wal_sink.errors import HistoryError
from wal_sink.log.log import NOTHING
from wal_sink.log.records import Manifest, SegmentRef
from wal_sink.protocol.messages import DeliveryContext, SegmentResult, SegmentTask
from wal_sink.sinks.base import CommitPosition, CommitSink, TransactionalSink
from wal_sink.sinks.calls import SinkSession
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import Failure, FailureKind, SinkFailedError
from wal_sink.sinks.ledger import described, slot_name, stored_position


class Positions:
    """The slots of one delivery context, as the target of an opened session has them."""

    def __init__(self, delivery_context: DeliveryContext, session: SinkSession, sink: TransactionalSink) -> None:
        self._given = delivery_context
        self._session = session
        self._sink = sink
        # None: no batch with rows was marked yet, so the target owes nothing.
        self._owed = delivery_context.last_delivered.slots if delivery_context.last_delivered else ()

    def begin(self, task: SegmentTask) -> tuple[Position | None, int]:
        """The position in a segment's slot before its first chunk is sent, and the segment's rows that the target has.

        Raises `HistoryError` if the target lacks rows that the last marker stands for, or holds rows that this WAL did
        not deliver.

        The segments of a batch divide the slots of the last delivered rows among them, each with its own slot first.
        """
        owed = list(range(task.ordinal, len(self._owed), self._given.segments))
        if len(owed) > 1:
            found = self._all([self._slot(number) for number in owed])
            stored = found[self._slot(task.ordinal)]
        else:
            stored = self._last(task.ordinal)
            found = {self._slot(task.ordinal): stored}
        for number in owed:
            self._check_last_delivered(number, found[self._slot(number)])
        return stored, self._rows_of(task.ordinal, task.segment, stored)

    def confirm(self, segments: Sequence[SegmentRef]) -> list[SegmentResult]:
        """Ask the target in one call for the rows of each segment of the batch, and for those delivered last. One
        result per segment: a failure where rows are missing.

        Raises `SinkFailedError` if it gives no answer, `HistoryError` as `begin` does.
        """
        slots = [self._slot(number) for number in range(max(len(segments), len(self._owed)))]
        if not slots:
            return []
        found = self._all(slots)
        for number in range(len(self._owed)):
            self._check_last_delivered(number, found[slots[number]])
        rows = [self._rows_of(number, segment, found[slots[number]]) for number, segment in enumerate(segments)]
        return [_result(number, segment, rows[number]) for number, segment in enumerate(segments)]

    def _rows_of(self, ordinal: int, segment: SegmentRef, stored: Position | None) -> int:
        """Rows of a segment that the target has, given what its slot holds."""
        given = self._given
        if stored is None or stored.batch_id < given.batch_id:
            return 0
        if stored.batch_id > given.batch_id or stored.segment_id != segment.id:
            raise HistoryError(
                f"the target already holds batch {stored.batch_id}, "
                f"segment {stored.segment_id}, in slot {self._slot(ordinal)!r}, where segment {segment.id} is due. "
                "Either the WAL was restored to an older state, or a copy of the WAL delivers too. End the copy, "
                "restore the newer WAL, or start a new WAL"
            )
        if stored.rows > segment.rows:
            raise HistoryError(
                f"the target holds {stored.rows} rows of segment "
                f"{segment.id}, but this segment has {segment.rows} rows, in slot {self._slot(ordinal)!r}. Find out "
                "which program wrote to this slot before you continue"
            )
        return stored.rows

    def _check_last_delivered(self, number: int, found: Position | None) -> None:
        batch_id, rows = self._owed[number]
        if found and (found.batch_id, found.rows) >= (batch_id, rows):
            return
        raise HistoryError(
            f"batch {batch_id} was delivered and marked, but the target holds {described(found)} in slot "
            f"{self._slot(number)!r}. The target was restored to an older state, lost rows that it acknowledged, or "
            "is another database than before (then correct its address first). Nothing was sent to that slot. Restore "
            "the newer target. Or send again what it lost: wal-sink catch-up WAL --name SINK --to TARGET --why TEXT"
        )

    def _last(self, ordinal: int) -> Position | None:
        slot = self._slot(ordinal)
        what = f"last({slot!r})"
        return stored_position(what, slot, self._session.call(what, self._sink.last, slot, nothing_sent=True))

    def _all(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        what = f"positions of {len(slots)} slots from {slots[0]!r}"
        found: object = self._session.call(what, self._sink.positions, slots, nothing_sent=True)
        if not isinstance(found, Mapping) or any(slot not in found for slot in slots):
            text = f"{what}: expected a mapping with every slot, and None for an empty slot"
            raise SinkFailedError(FailureKind.PERMANENT, text)
        return {slot: stored_position(what, slot, found[slot]) for slot in slots}

    def _slot(self, ordinal: int) -> str:
        return slot_name(self._given.wal_id, self._given.sink, ordinal)


def _result(ordinal: int, segment: SegmentRef, rows: int) -> SegmentResult:
    if rows >= segment.rows:
        return SegmentResult(ordinal, segment.rows)
    text = (
        f"segment {ordinal} ({segment.id}): the target has {rows} of {segment.rows} rows, but it acknowledged all "
        "of them. Find out whether it failed over to a standby that lagged, or restarted without its newest writes"
    )
    return SegmentResult(ordinal, rows, failure=Failure(FailureKind.FORGOTTEN, text))


def digest_of(manifest: Manifest) -> str:
    """15 hexadecimal digits (60 bits, which fit into any integer of 64) that stand for the released batch."""
    return hashlib.blake2b(manifest.id.encode(), digest_size=8).hexdigest()[:15]


def commit_position(given: DeliveryContext, session: SinkSession, sink: CommitSink) -> CommitPosition | None:
    """The position of a commit sink in its target, if the target still has what the newest marker stands for. Batches
    that were rolled back before they were marked are delivered again.

    Raises `HistoryError` if it does not, and `SinkFailedError`.
    """
    found = position_of(session, sink, f"batch {given.batch_id}: position")
    owed = given.last_delivered.slots[0][0] if given.last_delivered else NOTHING
    if held_through(found) >= owed:
        return found
    at = NOTHING if found is None else found.batch_id
    has = "no position" if found is None else f"batch {at}" + ("" if found.is_shown else ", which it does not show")
    raise HistoryError(
        f"batch {max(owed, at)} was delivered, but the target has {has}. The target was restored to an older state, "
        "rolled back, or made anew. Nothing was committed. Restore the newer target. Or send again what it lost: "
        "wal-sink catch-up WAL --name SINK --to TARGET --why TEXT"
    )


def position_of(session: SinkSession, sink: CommitSink, what: str) -> CommitPosition | None:
    """The answer of a commit sink, not compared with anything yet. Raises `SinkFailedError`."""
    found: object = session.call(what, sink.position, nothing_sent=True)
    if found is None or isinstance(found, CommitPosition):
        return found
    text = f"{what}: expected a CommitPosition or None, found a {type(found).__name__}"
    raise SinkFailedError(FailureKind.PERMANENT, text)


def held_through(position: CommitPosition | None) -> int:
    """The newest batch of this sink that the target shows."""
    if position is None:
        return NOTHING
    return position.batch_id if position.is_shown else position.held_through


def is_committed(position: CommitPosition | None, manifest: Manifest, *, marked_through: int) -> bool:
    """Whether the target has the batch that is due. Raises `HistoryError` if it has a later one, or another history.

    A batch between the newest marked one and this one is no earlier one: both are of the roll that is due.
    """
    if position is None or held_through(position) <= marked_through:
        return False
    if (position.batch_id, position.digest) == (manifest.batch_id, digest_of(manifest)):
        return True
    raise HistoryError(
        f"the target already holds batch {position.batch_id} with digest {position.digest}, where batch "
        f"{manifest.batch_id} with digest {digest_of(manifest)} is due. Either the WAL was restored to an older state, "
        "or a copy of the WAL delivers too. End the copy, restore the newer WAL, or start a new WAL"
    )
