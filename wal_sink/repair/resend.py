"""`replay`: released batches are sent again on purpose, to a target of the user's choice, under their lasting keys.

For the time of a replay the WAL has one more sink, which gets only these batches, in order. Its folder holds progress,
markers and dead letters as that of any other sink. So a replay that was interrupted goes on where it stopped. While it
is registered, no collection deletes the batches that it still needs. At the end it is retired.

A live query and a drain beside it: they serve other sinks, whose terms, markers and progress a replay never touches. A
start warns of the sink while the replay is unfinished, as of every sink that it does not serve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from wal_sink.delivery.batch import BatchDelivery
from wal_sink.delivery.local import LocalDispatcher
from wal_sink.delivery.serve import serve
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.errors import ConfigError, HeldError
from wal_sink.recovery.inventory import newest_marked, require_wal
from wal_sink.repair.beyond import Asked, Beyond
from wal_sink.repair.journal import Entry, Order, begin, finish
from wal_sink.repair.resend_plan import ResendPlan, planned_resend, released
from wal_sink.repair.there import There, asked, replay_identity, rows_there
from wal_sink.reporting.counts import in_ranges
from wal_sink.runtime.rate_limit import RowRate
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Lookup, Sink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.positions import slot_name
from wal_sink.two_phase.abort import abort_abandoned
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term, claim, claim_above_seen, renew
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, Release, SinkRecord
from wal_sink.wal.sink_records import RetiredRecord


@dataclass(frozen=True, slots=True)
class Resent:
    """The result of a replay."""

    repair: int
    name: str
    batches: int
    """Batches that the target has now."""
    earlier_batches: int
    """Of these, the ones that it had before the command was repeated."""
    rows_sent: int
    rows_there: int
    """Rows that were not sent, since the target has them by its ledger or by its own answer."""
    rows_in_letters: int
    """Rows that were not sent, since they lie in dead letters of the sink that delivered the others."""
    rejected: int
    """Rows that the target refused. They are dead letters of the sink `name`."""


def resend(
    log: Log,
    order: Order,
    plan: ResendPlan,
    to: Sink,
    *,
    delivery: Delivery,
    take_over: TakeOver,
    on_batch: Callable[[int, int], None] = lambda _done, _total: None,
) -> Resent:
    """Send the batches, or complete the replay of the same command that was interrupted.

    `delivery` holds the policies; its `to` is not read. Raises `DeliveryError` if the target refuses or stays
    unreachable: then repeat the command. Raises `HeldError` as `begin` and `claim` do, and `FencedError` if another
    process takes the replay over.
    """
    entry = begin(log, order, asdict(plan))
    plan = planned_resend(entry)
    name = plan.name or f"replay-{entry.number}"
    _register(log, entry, plan, name, to)
    role, is_resumed = paths.committer_role(name), entry.is_resumed
    term = claim(log, role, was_held=is_resumed, take_over=take_over)
    sending: _Sending | None = None
    try:
        _refuse_deleted(log, entry, plan, name)
        _refuse_retired(log, entry, plan, name)
        sending = _Sending(log, name, term, plan=plan, to=to, delivery=delivery, is_resumed=is_resumed)
        for number, batch_id in enumerate(plan.batches):
            on_batch(number, len(plan.batches))
            sending.send(batch_id)
        sending.end()
        result = {"batches": len(plan.batches), **sending.counts()}
    finally:
        note_end(log, role, (term if sending is None else sending.term).number)
    finish(log, entry, {"sink": name, **result})
    return Resent(repair=entry.number, name=name, **result)


class _Sending:
    """The batches of one replay, on their way to the target."""

    def __init__(
        self, log: Log, name: str, term: Term, *, plan: ResendPlan, to: Sink, delivery: Delivery, is_resumed: bool
    ) -> None:
        self._log = log
        self._name = name
        self._plan = plan
        self._delivery = delivery
        self.term = term
        self._is_resumed = is_resumed
        self._wal_id = require_wal(log, paths.sink(name)).wal_id
        self._rate = RowRate(delivery.rows_per_s, log.runtime)
        self._to = to
        self._sink = _wrapped(to)
        self._served = _served(log, name, self._sink, delivery)
        self._earlier = self._there = self._in_letters = self._rejected = self._rows = 0

    def send(self, batch_id: int) -> None:
        """Send one batch, unless an earlier process of this replay did."""
        if self._log.find(Marker, paths.marker(self._name, batch_id)) is not None:
            self._earlier += 1
            return
        manifest = released(self._log, batch_id)
        if isinstance(self._sink, Beyond):
            self._begin_after_what_is_there(self._sink, manifest)
        sent = BatchDelivery(
            self._served,
            self._log,
            self._log.runtime.sleep_s,
            manifest,
            self.term,
            wal_id=self._wal_id,
            before=None,
            taken_over=self._is_resumed,
            rate=self._rate,
        )
        if self._is_resumed:
            sent.take_over()
            self.term = claim_above_seen(self._log, self.term, sent.seen_term, f"progress of batch {batch_id}")
            sent.go_on_under(self.term)
        if not manifest.passed_over:
            sent.run(self._renew_term)
        kept = sent.kept_rows()
        self._mark(manifest, rejected=kept.get("rejected", 0), unknown=kept.get("unknown", 0))
        self._rejected += kept.get("rejected", 0)
        self._rows += manifest.rows

    def end(self) -> None:
        """Retire the sink of the replay: it holds nothing back any more."""
        self.term.check(self._log.store)
        through = max(self._plan.batches)
        if isinstance(self._to, TwoPhaseSink):
            limit_s = self._delivery.attempt_timeout_s
            to = self._to
            abort_abandoned(self._log, self._name, lambda: to, self.term.number, through=through, limit_s=limit_s)
        _retire(self._log, self._name, through)

    def counts(self) -> dict[str, int]:
        """The numbers of rows, for `Resent`."""
        there = self._there + (self._sink.rows_there if isinstance(self._sink, Asked) else 0)
        return {
            "earlier_batches": self._earlier,
            "rows_sent": self._rows - there - self._in_letters - self._rejected,
            "rows_there": there,
            "rows_in_letters": self._in_letters,
            "rejected": self._rejected,
        }

    def _begin_after_what_is_there(self, sink: Beyond, manifest: Manifest) -> None:
        found = self._ask(sink.inner, manifest) if self._plan.counted else [There()] * len(manifest.segments)
        there = {}
        for ordinal, (segment, each) in enumerate(zip(manifest.segments, found, strict=True)):
            if each.rows:
                slot = slot_name(self._wal_id, self._name, ordinal)
                there[slot] = Position(slot, manifest.batch_id, each.rows, segment.id)
        sink.begin_after(there)
        in_letters = sum(each.in_letters for each in found)
        self._there += sum(each.rows for each in found) - in_letters
        self._in_letters += in_letters

    def _ask(self, target: TransactionalSink, manifest: Manifest) -> list[There]:
        """Ask a transactional target what it has of the batch. Raises `DeliveryError`."""
        wal_id, term, limit_s = self._wal_id, self.term.number, self._delivery.attempt_timeout_s
        with asked(self._log, target, manifest, wal_id=wal_id, sink=self._name, term=term, limit_s=limit_s) as session:
            return rows_there(self._log, session, target, wal_id, manifest, others=self._plan.counted)

    def _renew_term(self, above: int) -> Term:
        """The next term, or one above the term that the target knows; see `Committer`."""
        if above > self.term.number:
            self.term = claim_above_seen(self._log, self.term, above, f"the target of sink {self._name!r}")
        else:
            self.term = renew(self._log, self.term)
        return self.term

    def _mark(self, manifest: Manifest, *, rejected: int, unknown: int) -> None:
        marker = Marker(
            batch_id=manifest.batch_id,
            term=self.term.number,
            run_id=self._log.run_id,
            rows=manifest.rows,
            rejected=rejected,
            unknown=unknown,
            last_delivered_batch=NOTHING,
            **self._log.stamp(),
        )
        if not self._log.create(paths.marker(self._name, manifest.batch_id), marker):
            self.term.check(self._log.store)


def _register(log: Log, entry: Entry, plan: ResendPlan, name: str, to: Sink) -> None:
    """Register the sink of the replay, which keeps the batches from being deleted. Raises `HeldError` if another sink
    has the name: one that was registered meanwhile, or that of an earlier replay whose journal was lost.
    """
    wanted = SinkRecord(
        name=name,
        sink_kind=plan.kind,
        first_batch=min(plan.batches),
        identity=replay_identity(to, entry.number),
        is_replay=True,
        repair=entry.begun.id,
        **log.stamp(),
    )
    record, _ = log.create_or_find(paths.sink(name), wanted)
    if (record.repair, record.sink_kind) != (wanted.repair, wanted.sink_kind):
        raise HeldError(
            f"{log.store.root}: another sink was registered under the name {name!r} meanwhile, or by an earlier replay "
            f"whose record in repairs/ is gone. Give this repair up (wal-sink repairs give-up WAL {entry.number}), "
            "then replay with another --name"
        )


def _refuse_retired(log: Log, entry: Entry, plan: ResendPlan, name: str) -> None:
    """End the replay if its sink was retired before it had every batch: the WAL may have deleted the others."""
    if log.find(RetiredRecord, paths.retired(name)) is None:
        return
    had = set(log.numbers(paths.markers(name)))
    if lacking := [batch_id for batch_id in plan.batches if batch_id not in had]:
        raise ConfigError(
            f"{log.store.root}: the sink {name!r} of this replay was retired, and it lacks {in_ranges(lacking)}. Give "
            f"this repair up (wal-sink repairs give-up WAL {entry.number}), then replay these batches"
        )


def _refuse_deleted(log: Log, entry: Entry, plan: ResendPlan, name: str) -> None:
    """End the replay if a batch was deleted before its sink was registered. Raises `ConfigError`."""
    low_water, done = log.low_water(), newest_marked(log, name)
    doubtful = [batch_id for batch_id in plan.batches if done < batch_id <= low_water]
    if gone := [batch_id for batch_id in doubtful if log.find(Release, paths.release(batch_id)) is None]:
        # Collection looked at the sinks before this one was registered.
        _retire(log, name, NOTHING)
        finish(log, entry, {"deleted_meanwhile": gone})
        raise ConfigError(
            f"{log.store.root}: batches {gone[0]} to {gone[-1]} were deleted meanwhile, since every sink has them. "
            "Replay the later batches"
        )


def _retire(log: Log, name: str, through: int) -> None:
    log.create(paths.retired(name), RetiredRecord(through=through, run_id=log.run_id, **log.stamp()))


def _wrapped(to: Sink) -> Sink:
    if isinstance(to, TransactionalSink):
        return Beyond(to)
    return Asked(to, to) if isinstance(to, Lookup) else to


def _served(log: Log, name: str, sink: Sink, delivery: Delivery) -> ServedSink:
    here = LocalDispatcher(lambda: sink, log, should_stop=lambda: False)
    return serve(name, sink, delivery, here, travels=None, here=lambda: sink)
