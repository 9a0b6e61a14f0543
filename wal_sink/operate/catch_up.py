"""`catch-up`: the target of a sink was restored to an older state, and gets the batches that it lost since.

The rows go under the sink's own name, into its own slots: the ledger that was restored with the rows tells what is
there, and moves forward with each chunk. So the target itself is the record of progress, and a catch-up that was killed
anywhere goes on exactly where the target stands. At the end the target holds what the newest marker of the sink stands
for, and a live query or a drain goes on behind it as if nothing had been.

A live query and a drain beside it: the term of the sink's committer is claimed, which fences the process that served
it. One that starts meanwhile claims the next term, which ends the catch-up, and then refuses to deliver, since the
target lacks what is marked. Other sinks and the stager are not concerned. For its time the WAL has one more sink, which
gets nothing: it only keeps the batches from being deleted. It is retired at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import msgspec

from wal_sink.errors import ConfigError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end, refuse_held
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Marker, SinkRecord
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.log.sink_records import RetiredRecord
from wal_sink.log.terms import Term, claim, claim_above_seen
from wal_sink.operate.catch_up_plan import (
    NO_LETTERS,
    CatchUpPlan,
    LostLetters,
    find_lost_letters,
    find_unfinished,
    holder_name,
    last_with_rows,
    plan_catch_up,
    planned_catch_up,
)
from wal_sink.operate.changes import Order, write_down
from wal_sink.operate.ledgers import asked, deleted_through, owed_slots, positions_of, released
from wal_sink.protocol.batch_delivery import BatchDelivery
from wal_sink.protocol.dispatch import LocalDispatcher, ServedSink, serve
from wal_sink.protocol.inventory import newest_marker, require_wal
from wal_sink.protocol.letters import count_rows
from wal_sink.protocol.location import refuse_copy
from wal_sink.settings import Delivery
from wal_sink.sinks.base import CommitSink, Rejected, SinkContext, TransactionalSink
from wal_sink.sinks.calls import check_returned
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.guarantees import ability_of, promise
from wal_sink.sinks.ledger import slot_name
from wal_sink.sinks.renaming import Renaming
from wal_sink.support.limits import RowRate
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import name_of

Target: TypeAlias = TransactionalSink | CommitSink
"""A target that tells its positions."""
_LEFT_OUT = "left-out"
"""Segment id of a position that stands for rows which a user left out, in a slot that has none of the batch."""


class Within(TransactionalSink):
    """A transactional sink that takes each segment of one batch up to a row. At that row the segment counts as whole.

    The rows end where a chunk ends, since they come from the ledger of the same target.
    """

    def __init__(
        self, inner: TransactionalSink, manifest: Manifest, slots: Sequence[str], limits: Sequence[int]
    ) -> None:
        """`slots` and `limits`: for each segment, its slot and the rows that are taken."""
        self._inner = inner
        self._limits = dict(zip(slots, limits, strict=True))
        self._whole = {
            slot: Position(slot, manifest.batch_id, segment.rows, segment.id)
            for slot, segment in zip(slots, manifest.segments, strict=True)
        }

    def open(self, context: SinkContext) -> None:
        self._inner.open(context)

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return name_of(self._inner)

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write the chunk if the target had it."""
        if chunk.position.rows > self._limits[chunk.position.slot]:
            return None
        return self._inner.write(chunk)

    def last(self, slot: str) -> Position | None:
        return self._seen(slot, self._inner.last(slot))

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        found = self._inner.positions(slots)
        return {slot: self._seen(slot, found.get(slot)) for slot in slots}

    def _seen(self, slot: str, found: Position | None) -> Position | None:
        """The position that counts. `found`: the one in the ledger of the target."""
        whole, limit = self._whole[slot], self._limits[slot]
        reached = found is not None and (found.batch_id, found.rows) >= (whole.batch_id, limit)
        return whole if reached or limit == 0 else found


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The result of a catch-up."""

    name: str
    through: int
    """The newest batch that the target has now."""
    batches: int
    """Batches that were sent by this call. Earlier calls of an interrupted command may have sent others."""
    rows: int
    """Rows of these that the target lacked. It has them now, but for those in dead letters."""
    rows_in_letters: int
    """Rows of these batches that lie in dead letters of the sink, and were not sent."""
    rejected: int
    """Of these, rows that the target refused this time."""
    letters_due: int = 0
    """Dead letters that were sent to this target again before, and that it lost. They are due again."""
    rows_due: int = 0
    """Rows of these, which the target still lacks."""
    letters_unknown: int = 0
    """Other dead letters that were sent again and are not in this target. Nobody knows whether they ever were."""


def catch_up(
    log: Log,
    order: Order,
    plan: CatchUpPlan,
    to: Target,
    *,
    delivery: Delivery,
    take_over: TakeOver,
    on_batch: Callable[[int, int], None] = lambda _done, _total: None,
) -> CaughtUp:
    """Send the batches, or complete the catch-up of the same command that was interrupted.

    `delivery` holds the policies; its `to` is not read. Raises `HeldError` if another catch-up of the sink is
    unfinished, or if a process serves the sink, or may serve it, that `take_over` does not allow to fence. Raises
    `FencedError` if one began meanwhile, and `DeliveryError` if the target refuses or stays unreachable: then repeat
    the command. Raises what `plan_catch_up` raises if the ledger changed meanwhile, and `ConfigError` for a policy that
    the target does not support.
    """
    promise(to, delivery, plan.name)
    role = paths.committer_role(plan.folder)
    refuse_held(log, role, take_over=take_over)
    begun = find_unfinished(log, order)
    record = begun or write_down(log, order, asdict(plan))
    plan, holder = planned_catch_up(record), holder_name(record)
    _hold(log, holder, plan, to)
    holding = claim(log, paths.committer_role(holder), was_held=begun is not None)
    try:
        if begun is None:
            _refuse_deleted(log, holder, plan)
        term = claim(log, role, was_held=True, take_over=take_over)
        refuse_copy(log)  # again: it may have been moved before the claim
        sending: _Sending | None = None
        try:
            kind = _SendingCommits if isinstance(to, CommitSink) else _SendingChunks
            sending = kind(log, term, plan, to, delivery, holder=holder)
            done = sending.send_all(holding, on_batch)
        finally:
            note_end(log, role, (term if sending is None else sending.term).number)
        _retire(log, holder)
    finally:
        note_end(log, holding.role, holding.number)
    return CaughtUp(name=plan.name, **done)


class _Sending(ABC):
    """The batches of one catch-up, on their way to the target."""

    def __init__(self, log: Log, term: Term, plan: CatchUpPlan, to: Target, delivery: Delivery, *, holder: str) -> None:
        self._log = log
        self._holder = holder
        self._plan = plan
        self._to = to
        self._wal_id = require_wal(log, paths.sink(plan.folder)).wal_id
        self._rate = RowRate(delivery.rows_per_s, log.runtime)
        self._policies = delivery
        self._served = self._serve(to)
        self._in_letters = self._rejected = 0
        self.term = term

    def send_all(self, holding: Term, on_batch: Callable[[int, int], None]) -> dict[str, int]:
        """Send what the target lacks at this moment, then make sure that it lacks nothing. Returns the numbers.

        `holding`: the term under which batches are kept from being deleted. Retiring that sink claims the next one.
        """
        log, plan = self._log, self._plan
        marker = newest_marker(log, plan.folder)
        if marker is not None:
            path = paths.marker(plan.folder, marker.batch_id)
            self.term = claim_above_seen(log, self.term, marker.term, path)
        leave_out = _numbers(plan.left_out)
        held_from = _first_held(plan)
        now = plan_catch_up(log, plan.name, self._to, is_empty=plan.is_empty, leave_out=leave_out, held_from=held_from)
        self._refuse_older(now)
        letters = NO_LETTERS
        if marker is not None:  # else nothing was delivered
            for number, (batch_id, _) in enumerate(now.batches):
                on_batch(number, len(now.batches))
                holding.check(log.store)
                self._send(batch_id, now, marker)
            self._settle(marker)
            self._confirm(marker)
            letters = self._make_due(marker)
        return {
            "through": now.through,
            "batches": len(now.batches),
            "rows": now.rows,
            "rows_in_letters": self._in_letters,
            "rejected": self._rejected,
            "letters_due": max(plan.lost_letters, len(letters.due)),  # an earlier call may have made some due
            "rows_due": max(plan.rows_of_letters, letters.rows),
            "letters_unknown": letters.unknown,
        }

    def _refuse_older(self, now: CatchUpPlan) -> None:
        """Refuse to go on if the target was restored once more: the earlier batches were not held."""
        if now.batches and (not self._plan.batches or now.batches[0][0] < self._plan.batches[0][0]):
            raise ConfigError(
                f"{self._log.store.root}: the target of sink {self._plan.name!r} was restored again to an older "
                f"state: it is at {now.position}, and it was at {self._plan.position} when this catch-up began. End "
                f"this catch-up: wal-sink sinks retire WAL {self._holder}. Then repeat the command"
            )

    @abstractmethod
    def _send(self, batch_id: int, now: CatchUpPlan, marker: Marker) -> None:
        """Send a batch of the plan that was made last. `marker`: the newest one of the sink."""

    def _settle(self, marker: Marker) -> None:
        """Bring the positions up to the marker if batches were left out."""

    def _make_due(self, marker: Marker) -> LostLetters:  # noqa: ARG002
        """Let dead letters that the target lost be due again."""
        return NO_LETTERS

    def _confirm(self, marker: Marker) -> None:
        """Make sure that the target holds what the newest marker stands for. Raises `HistoryError`."""
        nothing = msgspec.structs.replace(last_with_rows(marker), batch_id=marker.batch_id)
        self._delivery(self._served, nothing, marker, taken_over=False).ask()

    def _serve(self, to: Target) -> ServedSink:
        here = LocalDispatcher(lambda: to, self._log, should_stop=lambda: False)
        return serve(self._plan.folder, to, self._policies, here, self._log, travels=None, here=lambda: to)

    def _delivery(
        self, served: ServedSink, manifest: Manifest, before: Marker | None, *, taken_over: bool
    ) -> BatchDelivery:
        return BatchDelivery(
            served,
            self._log,
            self._log.runtime.sleep_s,
            manifest,
            self.term,
            wal_id=self._wal_id,
            before=before,
            taken_over=taken_over,
            rate=self._rate,
            ignores_repeats=False,
        )

    def _renew_term(self, above: int) -> Term:
        """A term above the one that the target knows; see `Committer`. No task of this process is left behind."""
        self.term = claim_above_seen(self._log, self.term, above, f"the target of sink {self._plan.folder!r}")
        return self.term


class _SendingChunks(_Sending):
    """To a target with a ledger."""

    def __init__(self, log: Log, term: Term, plan: CatchUpPlan, to: Any, delivery: Delivery, *, holder: str) -> None:
        super().__init__(log, term, plan, to, delivery, holder=holder)
        self._to: TransactionalSink = to
        self._lettered = frozenset(log.numbers(paths.dead_letter_batches(plan.folder)))

    def _send(self, batch_id: int, now: CatchUpPlan, marker: Marker) -> None:  # noqa: ARG002
        folder = self._plan.folder
        manifest = released(self._log, folder, batch_id)
        has_letters = batch_id in self._lettered
        kept = _kept(self._log, folder, batch_id) if has_letters else 0
        was_skipped = batch_id in _numbers(now.skipped)
        served = self._serve(self._within(manifest)) if was_skipped else self._served
        sent = self._delivery(served, manifest, None, taken_over=has_letters)
        if has_letters:
            sent.take_over()  # rows that lie in dead letters are not sent again
        sent.run(self._renew_term)
        now_kept = sum(sent.kept_rows().values())
        self._in_letters += now_kept
        self._rejected += max(0, now_kept - kept)

    def _settle(self, marker: Marker) -> None:
        """Move the slots forward that only batches which were left out would have moved: a chunk without rows."""
        owed, left_out = owed_slots(marker), set(_numbers(self._plan.left_out))
        if not left_out.intersection(batch_id for batch_id, _ in owed):
            return
        manifest = released(self._log, self._plan.folder, marker.last_delivered_batch)
        folder, wal_id, number = self._plan.folder, self._wal_id, self.term.number
        with asked(
            self._log,
            self._to,
            manifest,
            wal_id=wal_id,
            sink=folder,
            term=number,
            limit_s=self._policies.retry.attempt_timeout_s,
            renaming=Renaming.of(self._policies.columns),
        ) as session:
            found = positions_of(session, self._to, folder, wal_id, len(owed))
            for ordinal, (position, due) in enumerate(zip(found, owed, strict=True)):
                if due[0] in left_out and (position is None or (position.batch_id, position.rows) < due):
                    self.term.check(self._log.store)
                    within = position if position and position.batch_id == due[0] else None
                    segment_id = within.segment_id if within else _LEFT_OUT  # a batch has one segment in each slot
                    at = Position(slot_name(wal_id, folder, ordinal), *due, segment_id)
                    what = f"batch {at.batch_id}, slot {ordinal}: a chunk without rows"
                    chunk = self._without_rows(manifest, at, position)
                    check_returned(what, session.write(what, chunk))

    def _without_rows(self, manifest: Manifest, at: Position, follows: Position | None) -> Chunk:
        """A chunk of no row, with the columns of the newest batch. It goes on within a batch where the slot stands."""
        start = follows.rows if follows is not None and follows.batch_id == at.batch_id else 0
        segment, store = manifest.segments[0], self._log.store
        tables = read_chunks(
            load_segment(store, segment),
            segment,
            chunk_rows=manifest.chunk_rows,
            columns=manifest.columns,
            where=store.url_of(segment.path),
            reader=self._log.segment_reader,
        )
        _, _, table = next(tables)
        return Chunk(
            table=table.slice(0, 0),
            batch_id=at.batch_id,
            key=f"{_LEFT_OUT}-{at.batch_id}-{at.rows}",
            segment_id=at.segment_id,
            rows=range(0),
            position=at,
            term=self.term.number,
            start=start,
            follows=follows,
        )

    def _make_due(self, marker: Marker) -> LostLetters:
        """Let dead letters that the target lost be due again. One that is sent twice meanwhile is known by its slot."""
        folder, wal_id = self._plan.folder, self._wal_id
        with asked(self._log, self._to, last_with_rows(marker), wal_id=wal_id, sink=folder) as session:
            lost = find_lost_letters(self._log, session, self._to, folder, wal_id)
        if lost.due:
            self._log.store.delete(lost.due)
        return lost

    def _within(self, manifest: Manifest) -> Within:
        """The target. It gets no more of a skipped batch than it had when that was skipped."""
        folder, path = self._plan.folder, paths.marker(self._plan.folder, manifest.batch_id)
        slots = [slot_name(self._wal_id, folder, number) for number in range(len(manifest.segments))]
        return Within(self._to, manifest, slots, self._log.require(Marker, path).skipped_rows or ())


class _SendingCommits(_Sending):
    """To a target with one position."""

    _sent: int | None = None
    """The newest batch that this process sent."""

    def _send(self, batch_id: int, now: CatchUpPlan, marker: Marker) -> None:
        """Send the batch, unless the target shows less than what came before: it may be restored at any time."""
        held = now.held_through if self._sent is None else self._sent
        before = None
        if held is not None and held > NOTHING:
            before = msgspec.structs.replace(
                marker, batch_id=held, last_delivered_batch=held, last_delivered_rows=(0,), last_delivered_older=()
            )
        manifest = released(self._log, self._plan.folder, batch_id)
        self._delivery(self._served, manifest, before, taken_over=False).run(self._renew_term)
        self._sent = batch_id


def _first_held(plan: CatchUpPlan) -> int:
    """The first batch that is kept from being deleted."""
    return min((batch_id for batch_id, _ in plan.batches), default=max(plan.through, 0))


def _hold(log: Log, name: str, plan: CatchUpPlan, to: Target) -> None:
    """Keep the batches from being deleted, by a sink that gets nothing."""
    holder = SinkRecord(
        name=name,
        sink_kind=ability_of(to).value,
        first_batch=_first_held(plan),
        identity=f"{redacted(name_of(to))} (a catch-up of sink {plan.name!r})",
        is_holder=True,
        **log.stamp(),
    )
    log.create(paths.sink(name), holder)


def _refuse_deleted(log: Log, holder: str, plan: CatchUpPlan) -> None:
    """End the catch-up if batches were deleted before its sink was registered. Raises `ConfigError`."""
    through = deleted_through(log, held_from=_first_held(plan))
    if gone := [batch_id for batch_id, _ in plan.batches if batch_id <= through]:
        _retire(log, holder, gone)
        raise ConfigError(
            f"{log.store.root}: batches {gone[0]} to {gone[-1]} were deleted in the meantime, because every sink had "
            "them. Repeat the command: it names what the target will lack"
        )


def _retire(log: Log, holder: str, gone: Sequence[int] = ()) -> None:
    """End the sink that held the batches. `gone`: those that it did not hold, if the catch-up ends without effect."""
    record = RetiredRecord(through=NOTHING, dropped=tuple(gone), run_id=log.run_id, **log.stamp())
    log.create(paths.retired(holder), record)


def _kept(log: Log, folder: str, batch_id: int) -> int:
    return sum(count_rows(log.store, folder, batch_id).values())


def _numbers(ranges: tuple[str, ...]) -> list[int]:
    """Batch ids from `in_ranges`."""
    found: list[int] = []
    for each in ranges:
        first, _, last = each.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
