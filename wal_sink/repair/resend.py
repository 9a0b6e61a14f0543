"""`replay`: released batches are sent again on purpose, to a target of the user's choice, under their lasting keys.

For the time of a replay the WAL has one more sink, which gets only these batches, in order. Its folder holds progress,
markers and dead letters as that of any other sink. So a replay that was interrupted goes on where it stopped. While it
is registered, no collection deletes the batches that it still needs. At the end it is retired.

A live query and a drain beside it: they serve other sinks, whose terms, markers and progress a replay never touches. A
start warns of the sink while the replay is unfinished, as of every sink that it does not serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from wal_sink.dead_letters.files import count_rows
from wal_sink.delivery.batch import BatchDelivery
from wal_sink.delivery.local import LocalDispatcher
from wal_sink.delivery.serve import serve
from wal_sink.delivery.served_sink import ServedSink
from wal_sink.errors import ConfigError, HeldError
from wal_sink.recovery.inventory import Lost, newest_marked, require, require_wal
from wal_sink.recovery.location import refuse_copy
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.beyond import Asked, Beyond, rows_there, transactional
from wal_sink.repair.journal import Entry, Order, begin, finish
from wal_sink.reporting.counts import in_ranges
from wal_sink.reporting.texts import name_of
from wal_sink.runtime.rate_limit import RowRate
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, Lookup, Sink, SinkContext, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import SinkFailedError, failure_error
from wal_sink.sinks.guarantees import ability_of
from wal_sink.sinks.positions import slot_name
from wal_sink.sinks.session import SinkSession
from wal_sink.two_phase.abort import abort_abandoned
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term, claim, claim_above_seen, renew
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, Release, SinkRecord
from wal_sink.wal.sink_records import RetiredRecord

TOUCHES = "replays/"
"""Stands for the targets of replays in the journal: one replay at a time, since two could send the same rows."""


@dataclass(frozen=True, slots=True)
class ResendPlan:
    """The batches that will be sent, and to which target."""

    batches: tuple[int, ...]
    rows: int
    bytes: int
    target: str
    kind: str
    name: str
    """The name of the sink for the time of the replay. Empty: `replay-` and the number of the repair."""
    again: bool
    """Whether rows are sent although the target has them by its ledger."""
    dead_letter_rows: int
    """Rows of these batches that lie in dead letters of other sinks. They are sent too."""
    lacking: tuple[str, ...]
    """Sinks that have not got all of these batches yet, and will get them by themselves."""


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
    rejected: int
    """Rows that the target refused. They are dead letters of the sink `name`."""


def resend_order(log: Log, batches: Sequence[int], to: Sink | BatchSink, *, name: str, again: bool, why: str) -> Order:
    """The order to send batches again. Raises `ConfigError` if the WAL is a copy."""
    refuse_copy(log)
    arguments = {"batches": in_ranges(batches), "--to": name_of(to), "--name": name, "--again": again}
    return Order("replay", {key: value for key, value in arguments.items() if value}, (TOUCHES,), why)


def plan_resend(log: Log, batches: Sequence[int], to: Sink | BatchSink, *, name: str, again: bool) -> ResendPlan:
    """The batches that a replay would send. Creates nothing. Two reads for each batch.

    Raises `ConfigError` if the WAL does not hold one of the batches, if one was not released, if the target takes only
    whole batches, or if the name is taken.
    """
    if isinstance(to, BatchSink):
        raise ConfigError(f"{name_of(to)} writes whole batches with Spark. Replay to another target, such as a URL")
    names = read_names(log)
    if name and (name in names.leads_to or any(sink.folder == name for sink in names.sinks)):
        raise ConfigError(
            f"{log.store.root}: the name {name!r} is taken, and a replay never delivers as another sink. Choose a new "
            "name, or leave out --name"
        )
    if name:
        paths.check_sink_name(name)
    manifests = _manifests(log, batches)
    folders = [sink.folder for sink in names.sinks]
    unserved = {sink.name: newest_marked(log, sink.folder) for sink in names.sinks if not sink.is_retired}
    return ResendPlan(
        batches=tuple(batches),
        rows=sum(rows for rows, _ in manifests),
        bytes=sum(size for _, size in manifests),
        target=name_of(to),
        kind=ability_of(to).value,
        name=name,
        again=again,
        dead_letter_rows=sum(_dead_letter_rows(log, folder, batches) for folder in folders),
        lacking=tuple(each for each, through in unserved.items() if through < max(batches)),
    )


def planned_resend(entry: Entry) -> ResendPlan:
    """The plan of a replay that was begun."""
    plan = dict(entry.plan)
    return ResendPlan(**{**plan, "batches": tuple(plan["batches"]), "lacking": tuple(plan["lacking"])})


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
        sending = _Sending(log, name, term, plan=plan, to=to, delivery=delivery, is_resumed=is_resumed)
        for number, batch_id in enumerate(plan.batches):
            on_batch(number, len(plan.batches))
            sending.send(batch_id)
        sending.end()
    finally:
        note_end(log, role, (term if sending is None else sending.term).number)
    result = {"batches": len(plan.batches), **sending.counts()}
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
        self._others = [] if plan.again else _earlier_sinks(log, name)
        self._to = to
        self._sink = _wrapped(to)
        self._served = _served(log, name, self._sink, delivery)
        self._earlier = self._there = self._rejected = self._rows = 0

    def send(self, batch_id: int) -> None:
        """Send one batch, unless an earlier process of this replay did."""
        if self._log.find(Marker, paths.marker(self._name, batch_id)) is not None:
            self._earlier += 1
            return
        manifest = _released(self._log, batch_id)
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
            "rows_sent": self._rows - there - self._rejected,
            "rows_there": there,
            "rejected": self._rejected,
        }

    def _begin_after_what_is_there(self, sink: Beyond, manifest: Manifest) -> None:
        rows = self._ask(sink.inner, manifest) if self._others else [0] * len(manifest.segments)
        there = {}
        for ordinal, (segment, count) in enumerate(zip(manifest.segments, rows, strict=True)):
            if count:
                slot = slot_name(self._wal_id, self._name, ordinal)
                there[slot] = Position(slot, manifest.batch_id, count, segment.id)
        sink.begin_after(there)
        self._there += sum(rows)

    def _ask(self, target: TransactionalSink, manifest: Manifest) -> list[int]:
        """Ask a transactional target what it has of the batch. Raises `DeliveryError`."""
        limit_s, call = self._delivery.attempt_timeout_s, self._log.runtime.new_timed_call()
        session = SinkSession(target, call, self._context(manifest), timeout_s=limit_s)
        try:
            session.open()
            return rows_there(self._log, session, target, self._wal_id, manifest, others=self._others)
        except SinkFailedError as error:
            raise failure_error(error.failure, f"batch {manifest.batch_id}: {name_of(target)}") from error
        finally:
            session.close()

    def _context(self, manifest: Manifest) -> SinkContext:
        return SinkContext(
            wal_id=self._wal_id,
            sink=self._name,
            term=self.term.number,
            batch_id=manifest.batch_id,
            columns=manifest.columns,
            on_executor=False,
            spark_schema=manifest.spark_schema,
        )

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
    got the name meanwhile.
    """
    wanted = SinkRecord(
        name=name,
        sink_kind=plan.kind,
        first_batch=min(plan.batches),
        identity=f"{name_of(to)} (repair {entry.number}: a replay)",
        is_replay=True,
        **log.stamp(),
    )
    record, _ = log.create_or_find(paths.sink(name), wanted)
    if (record.identity, record.sink_kind) != (wanted.identity, wanted.sink_kind):
        raise HeldError(
            f"{log.store.root}: another sink was registered under the name {name!r} meanwhile. Give this repair up "
            f"(wal-sink repairs give-up WAL {entry.number}), then replay with another --name"
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


def _earlier_sinks(log: Log, own: str) -> list[str]:
    """The transactional sinks of the WAL, retired ones included: each may have delivered to the same target."""
    found = []
    for sink in read_names(log).sinks:
        if sink.folder != own:
            record = log.find(SinkRecord, paths.sink(sink.folder))
            if record is not None and transactional(record.sink_kind):
                found.append(sink.folder)
    return found


def _manifests(log: Log, batches: Sequence[int]) -> list[tuple[int, int]]:
    """Rows and bytes of each batch. Raises `ConfigError` if one cannot be sent."""
    low_water = log.low_water()
    if gone := [batch_id for batch_id in batches if batch_id <= low_water]:
        raise ConfigError(
            f"{log.store.root}: batch {gone[0]} was deleted, since every sink had it. The WAL holds batches from "
            f"{low_water + 1} on"
        )
    found = log.runtime.side_by_side(lambda batch_id: _released(log, batch_id), batches)
    return [(manifest.rows, manifest.bytes) for manifest in found]


def _released(log: Log, batch_id: int) -> Manifest:
    """The released manifest of a batch, whose rows the WAL keeps. Two reads."""
    path = paths.release(batch_id)
    release = log.find(Release, path)
    if release is None:
        raise ConfigError(
            f"batch {batch_id} of {log.store.root} was not released: Spark has not completed it, no sink was due to "
            "get it yet, or the WAL does not hold it. Only released batches can be sent again"
        )
    manifest = require(log, Manifest, paths.manifest(batch_id, release.term, release.attempt), Lost.MANIFEST, path)
    if any(not segment.kept for segment in manifest.segments):
        raise ConfigError(
            f"batch {batch_id} of {log.store.root}: the WAL did not keep its rows (keep_segments=False), so they "
            "cannot be sent again"
        )
    return manifest


def _dead_letter_rows(log: Log, folder: str, batches: Sequence[int]) -> int:
    wanted = set(batches) & set(log.numbers(paths.dead_letter_batches(folder)))
    return sum(sum(count_rows(log.store, folder, batch_id).values()) for batch_id in wanted)
