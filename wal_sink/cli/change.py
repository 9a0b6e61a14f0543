"""The verbs that change a WAL, its sinks or a target by a person's order: `skip`, `catch-up` and `settle`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal, target
from wal_sink.cli.printer import Answer, fields_of, size
from wal_sink.cli.sources import checkpoint_options
from wal_sink.cli.working import FOUND_SOMETHING, working
from wal_sink.log.holders import TakeOver
from wal_sink.operate.catch_up import CaughtUp, catch_up
from wal_sink.operate.catch_up_plan import CatchUpPlan, catch_up_order, find_unfinished, plan_catch_up, planned_catch_up
from wal_sink.operate.changes import find_same
from wal_sink.operate.settle import Settled, settle
from wal_sink.operate.skip import SkipPlan, plan_skip, planned, skip, skip_order
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.inventory import require_wal
from wal_sink.settings import Delivery
from wal_sink.sinks.base import CommitSink, TransactionalSink
from wal_sink.sinks.held import holding
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.texts import counted, in_ranges

_OUTCOMES = {
    "skipped": "sink {name!r} skips batch {batch}: its next delivery begins with batch {next}",
    "delivered": "batch {batch} was not skipped: another process delivered it to sink {name!r} meanwhile",
    "passed": "sink {name!r} already has or skipped batch {batch}. The record of this was deleted",
}


@options.verb("skip", "For one sink, skip a batch that can never be delivered.")
@options.batch
@options.name
@options.to("The target of a transactional sink: its ledger tells which rows it has.", required=False)
@options.asks
@options.why
@options.take_over
def skip_verb(*, wal: Wal, batch: int, name: str, to: str | None, why: str, take_over: TakeOver, **_: bool) -> Answer:
    """Let a sink pass over the next batch, because its rows can never be delivered or its objects are lost.

    The rest of its rows never reaches this sink. Other sinks are not concerned. Stop the process that serves the sink
    first. If the command is interrupted, repeat it.
    """
    log, there = wal.require_log(), target(to) if to else None
    with working(f"looking at batch {batch}"):
        order = skip_order(log, name, batch, why=why)
        begun = find_same(log, order)
        plan = planned(begun) if begun else plan_skip(log, name, batch, to=there)

    def act() -> Answer:
        with working(f"skipping batch {batch}"):
            done = skip(log, order, plan, take_over=take_over, to=there)
        said = _OUTCOMES[done.outcome].format(name=name, batch=batch, next=batch + 1)
        return Answer({"dry_run": False, "outcome": done.outcome, **fields_of(done.plan)}, [said])

    question = f"Skip batch {batch} for sink {name!r}?"
    return options.carry_out({"dry_run": True, **fields_of(plan)}, _of_skip(plan), question, act)


def _of_skip(plan: SkipPlan) -> Iterator[str]:
    rows = "an unknown number of rows: its manifest is lost" if plan.rows is None else counted(plan.rows, "row")
    yield f"batch {plan.batch_id} has {rows}"
    more = f", {plan.may_have}" if plan.may_have else ""
    source = "the records of the WAL" if plan.target_rows is None else "the ledger of the target"
    yield f"sink {plan.name!r} ({plan.kind}) has {counted(plan.sent_rows, 'row')} of it by {source}{more}"
    if plan.dead_letter_rows:
        yield f"{counted(plan.dead_letter_rows, 'row')} of it stay in dead letters; see wal-sink letters"


MOST_SHOWN = 20
"""Batches that are shown one a line. More are shown as ranges; `--json` has each."""
MOST_BATCHES = 1_000_000


class BatchRange(click.ParamType[range]):
    """A batch id, or a range such as `12-20`."""

    name = "batch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        first, dash, last = str(value).partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            self.fail(f"{value!r}: expected a batch id such as 12, or a range such as 12-20", param, ctx)
        found = range(int(first), int(last or first) + 1)
        if not 0 < len(found) <= MOST_BATCHES:
            self.fail(f"{value!r}: expected a range of 1 to {MOST_BATCHES:,} batches, the lower one first", param, ctx)
        return found


@options.verb("catch-up", "Send what a restored target lost since its backup.", delivers=True)
@options.name
@options.to("The restored target of this sink, with its positions.")
@click.option(
    "--leave-out",
    multiple=True,
    type=BatchRange(),
    metavar="BATCH",
    help="A batch, or a range such as 12-20, that cannot be sent again and may stay missing. May be repeated.",
)
@click.option("--empty", "is_empty", is_flag=True, help="The target has no row of this sink: its ledger may be empty.")
@options.asks
@options.why
@options.take_over
@options.delivery_policies("on_rejected", "order", "rows_per_s", "columns", "attempt_timeout_s")
def catch_up_verb(*, wal: Wal, name: str, to: str, leave_out: tuple[range, ...], is_empty: bool, **more: Any) -> Answer:
    """Send a target that was restored to an older state the batches that it lost since, each row once.

    The target's position, which was restored with its rows or tells that they were rolled back, shows where it stands.
    The rows go to it under the sink's own name, so the live stream goes on afterwards. Stop the process that serves the
    sink first. Transactional and commit targets only. If the command is interrupted, repeat it: it goes on where the
    target stands.
    """
    log, there = wal.require_log(), target(to)
    what: dict[str, Any] = {
        "is_empty": is_empty,
        "leave_out": sorted({number for each in leave_out for number in each}),
    }
    root = log.store.root
    with working(f"comparing {wal.spec.safe_url} with its target"), holding(there, f"a look at the target of {root}"):
        order = catch_up_order(log, name, there, why=more["why"], typed=to, **what)
        begun = find_unfinished(log, order)
        plan = planned_catch_up(begun) if begun else plan_catch_up(log, name, there, **what)

    def act() -> Answer:
        assert isinstance(there, (TransactionalSink, CommitSink))  # noqa: S101 - the plan refuses any other target
        made = Delivery(there, where="driver", **options.policies(more))
        with working(f"sending batches to {plan.target}") as work, holding(there, f"the catch-up of {root}"):
            whom = more["take_over"]
            done = catch_up(log, order, plan, there, delivery=made, take_over=whom, on_batch=work.count)
        return _answer(done, plan)

    is_needed = plan.batches or plan.is_behind or plan.lost_letters or begun
    again = f", and let {counted(plan.lost_letters, 'dead letter')} be due again" if plan.lost_letters else ""
    question = f"Send {counted(len(plan.batches), 'batch')} to {plan.target} as sink {name!r}{again}?"
    document = {"dry_run": more["dry_run"], **fields_of(plan)}
    return options.carry_out(document, _of_catch_up(plan), question if is_needed else "", act)


def _of_catch_up(plan: CatchUpPlan) -> Iterator[str]:
    """The plan for people."""
    yield f"sink {plan.name!r} has every batch up to {plan.through}; {plan.target} is at {plan.position}"
    if not plan.target_is_registered:
        yield f"the sink was registered for {plan.registered}: serve it with this target from now on"
    if not (plan.batches or plan.is_behind or plan.lost_letters):
        if plan.held_through is not None:
            yield "according to its position, the target lacks no batch"
        else:
            yield (
                "according to its ledger, the target lacks no batch. If rows are missing, restore ledger and rows from "
                "one backup"
            )
    elif not plan.batches:
        yield "the target lacks only what is left out" if plan.is_behind else "the target lacks no batch"
    if len(plan.batches) <= MOST_SHOWN:
        yield from (f"batch {batch_id}: {counted(rows, 'row')}" for batch_id, rows in plan.batches)
    if plan.batches:
        ids = ", ".join(in_ranges([batch_id for batch_id, _ in plan.batches]))
        amount = f"{counted(plan.rows, 'row')}, {size(plan.bytes)}"
        yield f"{counted(len(plan.batches), 'batch')} to send ({ids}): {amount}"
    if plan.skipped:
        yield f"skipped before, and not sent: batch {', '.join(plan.skipped)}"
    if plan.left_out:
        yield f"left out, so their rows stay missing: batch {', '.join(plan.left_out)}"
    yield from _letters(plan)
    if plan.others:
        yield f"other sinks with this target, which may lack batches too: {', '.join(plan.others)}"


def _letters(plan: CatchUpPlan) -> Iterator[str]:
    if plan.lost_letters:
        letters = f"{plan.lost_letters} ({counted(plan.rows_of_letters, 'row')})"
        yield f"dead letters that were sent again after the backup, and become due again: {letters}"
    if plan.replayed_letters:
        yield (
            "dead letters that were sent again, perhaps to another target, and that this target lacks: "
            f"{plan.replayed_letters}; see wal-sink letters list"
        )


def _answer(done: CaughtUp, plan: CatchUpPlan) -> Answer:
    document = {"dry_run": False, **fields_of(done), "target": plan.target, "left_out": plan.left_out}
    is_bad = done.rejected or done.letters_due or done.letters_unknown
    return Answer(document, _done(done, plan), FOUND_SOMETHING if is_bad else 0)


def _done(done: CaughtUp, plan: CatchUpPlan) -> Iterator[str]:
    """The rows that were sent, and those that the target still lacks."""
    has = "everything" if not (done.letters_due or done.letters_unknown) else "every batch"
    yield (
        f"{counted(done.batches, 'batch')} sent to {plan.target}: {counted(done.rows, 'row')}. It has {has} that "
        f"sink {done.name!r} delivered, up to batch {done.through}. Start the query or drain again"
    )
    if done.rows_in_letters:
        yield (
            f"not sent, since in dead letters: {counted(done.rows_in_letters, 'row')} of these batches; see "
            f"wal-sink letters list WAL --name {done.name}"
        )
    if done.letters_due:
        yield (
            f"it lacks {counted(done.rows_due, 'row')} of {counted(done.letters_due, 'dead letter')} that were sent "
            "again after the backup. These are due again: send them by wal-sink letters replay WAL --name "
            f"{done.name} --to TARGET"
        )
    if done.letters_unknown:
        yield (
            f"it may lack rows of {counted(done.letters_unknown, 'dead letter')} that were sent again, perhaps to "
            f"another target; see wal-sink letters list WAL --name {done.name}"
        )


@options.verb("settle", "Make a checkpoint for drains, if the query's checkpoint is lost.")
@click.argument("folder")
@options.checkpoint
@click.option(
    "--newest",
    type=click.Choice(["complete", "incomplete"]),
    help="Whether the newest batch is delivered, if nobody knows whether Spark completed it.",
)
@options.take_over
def settle_verb(*, wal: Wal, folder: str, checkpoint: str | None, newest: str | None, take_over: TakeOver) -> Answer:
    """Make a checkpoint in FOLDER, which is new or empty, from what WAL records. With it, wal-sink drain delivers every
    complete batch that WAL still holds. No query goes on from it.

    A WAL whose checkpoint is lost goes on with no other query: batch ids of another query mean other rows. The new
    query gets a new WAL. Stop the query and every drain first. WAL is not changed. If the command is interrupted,
    repeat it.

    \b
        wal-sink settle wal/orders checkpoint/rest
        wal-sink settle wal/orders checkpoint/rest --newest complete
    """
    log = wal.require_log()
    lost = Checkpoint(wal.checkpoint(require_wal(log, "the WAL").checkpoint, checkpoint))
    there = _folder(folder, wal)
    with working(f"writing {there.store.root}"):
        done = settle(log, lost, there.store, newest, take_over=take_over)
    through, offsets = (None, ()) if done is None else (done.through, done.offsets)
    document = {"wal": log.store.root, "folder": there.store.root, "through": through, "offsets": offsets}
    return Answer(document, _settled(log.store.root, there.store.root, done))


def _folder(folder: str, wal: Wal) -> Wal:
    """The store of the checkpoint. By default it has the options of the WAL, if it is on the same kind of store."""
    given, of_wal = checkpoint_options(), wal.spec.options
    return Wal(folder, given if given is not None else of_wal if StoreSpec(folder).scheme == wal.spec.scheme else {})


def _settled(wal: str, folder: str, done: Settled | None) -> Iterator[str]:
    if done is None:
        yield "no batch of this WAL is complete: there is nothing to settle. Begin with a new WAL"
        return
    yield (
        f"{folder} is a checkpoint for drains. With it, a drain delivers every batch up to {done.through}. For each "
        f"sink: wal-sink drain {wal} --checkpoint {folder} --name SINK --to TARGET"
    )
    yield f"the new query begins after batch {done.through}, with a new WAL and a new checkpoint:"
    yield from (f"  source {number}: {line}" for number, line in enumerate(done.offsets))
