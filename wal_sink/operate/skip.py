"""`skip`: a sink passes over the batch that it would get next, because this batch can never be delivered to it. Either
the target refuses the rows for ever, or objects of the batch are lost. The repair claims the term of the sink's
committer, which fences the process that served it, and creates the marker of the batch. So a later start goes on with
the next batch, as after any takeover. The positions that a transactional target must hold stay those of the marker
before: the target has these at least, and the next batch has a higher number than anything in its slots.

A live query and a drain beside a skip: the term fences the committer of the sink. Without the marker, a start delivers
the batch as usual. With it, a start goes on behind it. Other sinks and the stager are not concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end, refuse_held
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Marker, Release, RollRecord, SinkRecord, SkippedBatch
from wal_sink.log.sink_records import ChangeRecord
from wal_sink.log.terms import Term, claim, claim_above_seen
from wal_sink.operate.changes import Order, find_same, write_down
from wal_sink.operate.ledgers import have_ended, rows_in_ledger
from wal_sink.operate.look import find_staged
from wal_sink.protocol.inventory import Lost, newest_marker, require, require_wal
from wal_sink.protocol.letters import count_rows
from wal_sink.protocol.location import refuse_copy
from wal_sink.protocol.progress import first_due, keep_each_last_recorded, recorded_rows
from wal_sink.protocol.sinks import (
    read_names,
    refuse_retired,
)
from wal_sink.sinks.base import TransactionalSink
from wal_sink.sinks.guarantees import Ability
from wal_sink.support.logs import logger_of

_logger = logger_of(__name__)
_SENT = {
    Ability.ACCEPT: "and up to one more chunk of each segment",
    Ability.LOOK_UP: "and up to one more chunk of each segment",
    Ability.IGNORE_KNOWN_KEYS: "and the rows of about one more second",
    Ability.TRANSACTIONAL: "but only the ledger of a transactional target knows how many: pass --to to read it",
    Ability.COMMIT: "or all of them, in one commit",
    Ability.SEGMENT_WRITER: "and up to one more segment",
    Ability.BATCH_WRITER: "but a batch writer leaves no records, so it may have all of them",
}
"""Rows that a target may have beyond the rows that the WAL records, by the kind of its sink."""
_AT_MOST_ONCE = "some of which it may have lost"
_IN_FLIGHT = "and up to one more chunk of each segment, since nobody knows whether every earlier process ended"
_NO_PROOF = "but its ledger holds nothing of this sink yet, so nobody knows whether it is the right target"


@dataclass(frozen=True, slots=True)
class SkipPlan:
    """The batch that a sink will pass over, and how much of it the sink may have."""

    name: str
    folder: str
    """The sink's first name, under which its objects lie."""
    kind: str
    batch_id: int
    rows: int | None
    """Rows of the batch. None: its manifest is lost or damaged, so nobody knows."""
    sent_rows: int
    """Rows that the WAL records as sent."""
    may_have: str
    """Rows that the target may have beyond these, in words; empty if it has no other."""
    dead_letter_rows: int
    """Rows of the batch that lie in dead letters."""
    is_empty: bool
    """Whether the WAL holds no object of the batch any more."""
    target_rows: tuple[int, ...] | None = None
    """Rows of each segment that a transactional target has by its ledger. None: nobody asked it, or they may be more.
    """


@dataclass(frozen=True, slots=True)
class Skipped:
    """The result of a skip."""

    outcome: str
    """`skipped`; `delivered`: another process delivered the batch meanwhile; `passed`: the sink is further by now, and
    the marker that tells how it got there was collected.
    """
    plan: SkipPlan


def skip_order(log: Log, name: str, batch_id: int, *, why: str) -> Order:
    """The order to skip a batch. Raises `ConfigError` if there is no such sink, or if the WAL is a copy."""
    refuse_copy(log)
    folder = read_names(log).require(name, log.store.root)
    return Order("skip", folder, {"batch": batch_id}, why)


def plan_skip(log: Log, name: str, batch_id: int, *, to: object = None) -> SkipPlan:
    """The plan of a skip. Creates nothing. `to`: the target of a transactional sink, which tells what it has.

    Raises `ConfigError` if the batch is not the one that the sink would get next, if it was not released and can still
    be delivered, or if the sink is a two-phase or retired one.
    """
    folder = read_names(log).require(name, log.store.root)
    refuse_retired(log, folder, name)
    sink = require(log, SinkRecord, paths.sink(folder), Lost.SINK, f"{paths.SINKS}/{folder}/")
    _refuse_two_phase(log, name, sink)
    due = _due(log, folder, sink)
    if batch_id != due:
        raise ConfigError(
            f"batch {batch_id} of {log.store.root}: sink {name!r} would get batch {due} next. A sink gets batches in "
            f"order, so only that batch can be skipped. The sink has or skipped the batches before {due}"
        )
    roll = log.find(RollRecord, paths.roll(folder, batch_id)) if sink.is_rolled else None
    if roll is not None and roll.through > batch_id:
        raise ConfigError(
            f"batches {batch_id} to {roll.through} of {log.store.root} are one roll of sink {name!r}, which its target "
            "may hold already. Repair the target, then drain. Or retire the sink, and serve the target under a new "
            "name from the first batch that it lacks (start_from)"
        )
    manifest, names = _left_of(log, batch_id)
    if manifest is None:
        _refuse_incomplete(log, batch_id, names)
    plan = _plan(log, name, sink, batch_id, manifest, is_empty=not names)
    return plan if to is None else _with_ledger(log, plan, manifest, to, newest_marker(log, folder))


def skip(log: Log, order: Order, plan: SkipPlan, *, take_over: TakeOver, to: object = None) -> Skipped:
    """Skip a batch as planned, or complete the skip of the same command that was interrupted. `to` as in `plan_skip`:
    its ledger is read again once nobody else may deliver, and the marker holds that.

    Raises `HeldError` if a process serves the sink, or may serve it, that `take_over` does not allow to fence. Raises
    `FencedError` if a process began to serve the sink meanwhile: then repeat the command.
    """
    role = paths.committer_role(plan.folder)
    refuse_held(log, role, take_over=take_over)
    plan = planned(find_same(log, order) or write_down(log, order, asdict(plan)))
    if to is None:  # the begun command may have read the ledger, before a process that ran meanwhile sent more
        plan = replace(plan, target_rows=None)
    term = claim(log, role, was_held=True, take_over=take_over)
    try:
        refuse_copy(log)  # again: it may have been moved before the claim
        outcome, plan = _pass_over(log, plan, term, to)
    finally:
        note_end(log, role, term.number)
    return Skipped(outcome, plan)


def planned(record: ChangeRecord) -> SkipPlan:
    """The plan of a skip that was begun."""
    rows = record.plan["target_rows"]
    return SkipPlan(**{**record.plan, "target_rows": None if rows is None else tuple(rows)})


def _with_ledger(log: Log, plan: SkipPlan, manifest: Manifest | None, to: object, before: Marker | None) -> SkipPlan:
    """The plan with what the target has by its ledger. One call of the target."""
    if not isinstance(to, TransactionalSink) or plan.kind != Ability.TRANSACTIONAL.value:
        raise ConfigError(
            f"--to: sink {plan.name!r} is a {plan.kind} sink. Only a transactional target can tell which rows it has. "
            "Leave out --to"
        )
    if manifest is None:
        return plan  # without the manifest nobody knows the segments
    wal_id = require_wal(log, f"{paths.SINKS}/").wal_id
    rows = rows_in_ledger(log, to, plan.folder, manifest, wal_id=wal_id, before=before)
    if rows is None:
        return replace(plan, target_rows=None, sent_rows=0, may_have=_NO_PROOF)
    return replace(plan, target_rows=rows, sent_rows=sum(rows), may_have="")


def _pass_over(log: Log, plan: SkipPlan, term: Term, to: object) -> tuple[str, SkipPlan]:
    """Create the marker, unless the sink has one for the batch or a later one by now."""
    before = newest_marker(log, plan.folder)
    path = paths.marker(plan.folder, plan.batch_id)
    if before is not None:
        term = claim_above_seen(log, term, before.term, paths.marker(plan.folder, before.batch_id))
        if before.batch_id >= plan.batch_id:
            return _outcome(log.find(Marker, path)), plan
    if to is not None:
        is_final = have_ended(log, term, since=before.term if before is not None else 1)  # looked up before the ledger
        plan = _with_ledger(log, plan, _left_of(log, plan.batch_id)[0], to, before)
        if plan.target_rows is not None and not is_final:
            plan = replace(plan, target_rows=None, may_have=_IN_FLIGHT)
    if plan.is_empty:
        skipped = SkippedBatch(batch_id=plan.batch_id, sink=plan.folder, run_id=log.run_id, **log.stamp())
        log.create(paths.skipped(plan.batch_id), skipped)
    keep_in_flight(log, plan.folder, plan.batch_id, term)
    marker, _ = log.create_or_find(path, _marker(log, plan, term, before))
    term.check(log.store)  # raises if a process began meanwhile: it may not have seen the marker
    return _outcome(marker), plan


def keep_in_flight(log: Log, folder: str, batch_id: int, term: Term) -> None:
    """Keep the chunks that may be missing as dead letters, of a batch that an at-most-once sink gets no more.

    An ended process recorded them before it sent them. The next start would keep them, but this batch has none.
    Repeating this is harmless. A segment that is lost is told in the log: nothing is left to keep.
    """
    sink = require(log, SinkRecord, paths.sink(folder), Lost.SINK, f"{paths.SINKS}/{folder}/")
    if not sink.at_most_once:
        return  # its records follow what was sent, and the rest counts as not delivered
    try:
        release = log.find(Release, paths.release(batch_id))
        if release is None:
            return  # nothing is sent before it
        path = paths.manifest(batch_id, release.term, release.attempt)
        manifest = require(log, Manifest, path, Lost.MANIFEST, paths.release(batch_id))
        wal_id = require_wal(log, f"{paths.SINKS}/").wal_id
        keep_each_last_recorded(log, wal_id, folder, manifest, term)
    except CorruptError as error:
        _logger.warning("sink %s: rows that batch %s may lack are not kept: %s", folder, batch_id, error)


def _outcome(marker: Marker | None) -> str:
    if marker is None:
        return "passed"
    return "skipped" if marker.skipped else "delivered"


def _marker(log: Log, plan: SkipPlan, term: Term, before: Marker | None) -> Marker:
    kept = count_rows(log.store, plan.folder, plan.batch_id)
    return Marker(
        batch_id=plan.batch_id,
        term=term.number,
        run_id=log.run_id,
        rows=plan.sent_rows,
        rejected=kept.get("rejected", 0),
        unknown=kept.get("unknown", 0),
        last_delivered_batch=before.last_delivered_batch if before else NOTHING,
        last_delivered_rows=before.last_delivered_rows if before else (),
        last_delivered_older=before.last_delivered_older if before else (),
        skipped=True,
        skipped_rows=plan.target_rows,
        **log.stamp(),
    )


def _due(log: Log, folder: str, sink: SinkRecord) -> int:
    """The batch that the sink would get next, as its committer finds it."""
    wal = require_wal(log, f"{paths.SINKS}/")
    marker = newest_marker(log, folder)
    first = first_due(log, sink) if marker is None else marker.batch_id + 1
    return max(first, wal.first_batch)


def _left_of(log: Log, batch_id: int) -> tuple[Manifest | None, Sequence[str]]:
    """The manifest that would be delivered, if it can be read, and the names of all objects of the batch.

    Raises `ConfigError` if the batch is whole but was not released: nobody tried to deliver it yet.
    """
    staged = find_staged(log, batch_id)
    if isinstance(staged.error, ConfigError):
        raise staged.error
    names = [name for name in staged.names if not name.endswith("/")]
    if staged.manifest is not None and staged.release is None:
        raise ConfigError(
            f"batch {batch_id} of {log.store.root} was not released: no process has tried to deliver it yet, or Spark "
            "has not completed it. Drain the sink first (wal-sink drain). Skip the batch if its delivery fails"
        )
    return staged.manifest, names


def _refuse_incomplete(log: Log, batch_id: int, names: Sequence[str]) -> None:
    """Refuse a lost batch that Spark may not have completed: it would run it again, and the rows would come back."""
    if "release.json" in names or log.numbers(paths.BATCHES, after=batch_id):
        return  # it was released after Spark had completed it, or Spark ran a later batch
    raise ConfigError(
        f"batch {batch_id} of {log.store.root} has no readable manifest and no release, and the WAL holds no later "
        "batch. So Spark may run this batch again. Start the query first: it stages the batch, or names the next step"
    )


def _refuse_two_phase(log: Log, name: str, sink: SinkRecord) -> None:
    if sink.sink_kind == Ability.TWO_PHASE.value:
        raise ConfigError(
            f"sink {name!r} of {log.store.root} is a two-phase sink: the target holds prepared transactions of the "
            "batch, which only a delivery commits or aborts. A skip would leave them open in the target for ever. "
            "Repair the target, then drain. If transactions are lost in the target, drain with --on-gone prepare_again"
        )


def _plan(
    log: Log, name: str, sink: SinkRecord, batch_id: int, manifest: Manifest | None, *, is_empty: bool
) -> SkipPlan:
    folder, ability = sink.name, Ability(sink.sink_kind)
    recorded = {} if manifest is None else recorded_rows(log.store, folder, manifest)
    may_have = _AT_MOST_ONCE if sink.at_most_once else _SENT[ability]
    sent = sum(recorded.values())
    is_known = manifest is not None and sent == manifest.rows and ability not in {Ability.BATCH_WRITER, Ability.COMMIT}
    return SkipPlan(
        name=name,
        folder=folder,
        kind=sink.sink_kind,
        batch_id=batch_id,
        rows=None if manifest is None else manifest.rows,
        sent_rows=sent,
        may_have="" if is_known and not sink.at_most_once else may_have,
        dead_letter_rows=sum(count_rows(log.store, folder, batch_id).values()),
        is_empty=is_empty,
    )
