"""`wal-sink catch-up`: the target of a sink that was restored to an older state gets what it lost since."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.output import plain, print_json, size
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.termination import in_order
from wal_sink.cli.working import working
from wal_sink.repair.catch_up import CaughtUp, catch_up
from wal_sink.repair.catch_up_plan import (
    CatchUpPlan,
    catch_up_order,
    find_unfinished,
    plan_catch_up,
    planned_catch_up,
)
from wal_sink.reporting.counts import counted, in_ranges
from wal_sink.settings import Delivery
from wal_sink.sinks.base import TransactionalSink
from wal_sink.sinks.held import holding

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


@click.command("catch-up", short_help="Send what a restored target lost since its backup.")
@click.argument("wal")
@click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
@click.option(
    "--to", "to", required=True, metavar="URL|MODULE:OBJECT", help="The restored target of this sink, with its ledger."
)
@click.option(
    "--leave-out",
    multiple=True,
    type=BatchRange(),
    metavar="BATCH",
    help="A batch, or a range such as 12-20, that cannot be sent again, and whose rows the target need not get. May be "
    "repeated.",
)
@click.option(
    "--empty", "is_empty", is_flag=True, help="The target has no row of this sink: its ledger may hold nothing."
)
@repair_options
@options.take_over
@options.delivery_policies("on_rejected", "order", "rows_per_s", "attempt_timeout_s")
@options.storage_options
@options.as_json
@in_order()
def catch_up_verb(*, wal: str, name: str, to: str, leave_out: tuple[range, ...], is_empty: bool, **more: Any) -> None:
    """Send a target that was restored to an older state the batches that it lost since, each row once.

    The target's ledger, which was restored with its rows, tells where it stands. The rows go to it under the sink's own
    name, so the live stream goes on afterwards. Stop the process that serves the sink first. Transactional targets
    only. If the command is interrupted, repeat it: it goes on where the target stands.
    """
    log, there = log_of(wal, more), target(to)
    left_out = sorted({number for each in leave_out for number in each})
    with working(f"comparing {wal} with its target"), holding(there, f"a look at the target of {log.store.root}"):
        order = catch_up_order(log, name, there, why=more["why"], typed=to, is_empty=is_empty, leave_out=left_out)
        begun = find_unfinished(log, order)
        plan = (
            planned_catch_up(begun) if begun else plan_catch_up(log, name, there, is_empty=is_empty, leave_out=left_out)
        )
    if not more["as_json"]:
        for line in _lines(plan):
            print_text(line)
    if more["dry_run"] or not (plan.batches or plan.is_behind or plan.lost_letters or begun):
        if more["as_json"]:
            print_json({"dry_run": more["dry_run"], **plain(plan)})
        return
    assert isinstance(there, TransactionalSink)  # noqa: S101 - the plan refuses any other target
    again = f", and let {counted(plan.lost_letters, 'dead letter')} be due again" if plan.lost_letters else ""
    confirm(f"Send {counted(len(plan.batches), 'batch')} to {plan.target} as sink {name!r}{again}?", yes=more["yes"])
    made = Delivery(there, where="driver", **options.policies(more))
    with working(f"sending batches to {plan.target}") as work, holding(there, f"the catch-up of {log.store.root}"):
        whom = options.whom(take_over=more["take_over"])
        done = catch_up(log, order, plan, there, delivery=made, take_over=whom, on_batch=work.count)
    _report(done, plan, as_json=more["as_json"])


def _lines(plan: CatchUpPlan) -> list[str]:
    """The plan for people."""
    lines = [f"sink {plan.name!r} has every batch up to {plan.through}; {plan.target} is at {plan.position}"]
    if not plan.target_is_registered:
        lines.append(f"the sink was registered for {plan.registered}: serve it with this target from now on")
    if not (plan.batches or plan.is_behind or plan.lost_letters):
        lines.append(
            "the target lacks no batch, by its ledger. If rows are missing there, its ledger was not restored with "
            "them: restore both of one backup"
        )
    elif not plan.batches:
        lines.append("the target lacks only what is left out" if plan.is_behind else "the target lacks no batch")
    if len(plan.batches) <= MOST_SHOWN:
        lines += [f"batch {batch_id}: {counted(rows, 'row')}" for batch_id, rows in plan.batches]
    if plan.batches:
        ids = ", ".join(in_ranges([batch_id for batch_id, _ in plan.batches]))
        amount = f"{counted(plan.rows, 'row')}, {size(plan.bytes)}"
        lines.append(f"{counted(len(plan.batches), 'batch')} to send ({ids}): {amount}")
    if plan.skipped:
        lines.append(f"skipped before, and still: batch {', '.join(plan.skipped)}")
    if plan.left_out:
        lines.append(f"left out, so their rows are missing for good: batch {', '.join(plan.left_out)}")
    lines += _letter_lines(plan)
    if plan.others:
        lines.append(f"other sinks with this target, which may lack batches too: {', '.join(plan.others)}")
    return lines


def _letter_lines(plan: CatchUpPlan) -> Iterator[str]:
    if plan.lost_letters:
        rows = counted(plan.rows_of_letters, "row")
        yield (
            f"dead letters that were sent again after the backup, and become due again: {plan.lost_letters} ({rows})"
        )
    if plan.replayed_letters:
        yield (
            f"dead letters that were sent again, but nobody recorded to this target, which lacks them: "
            f"{plan.replayed_letters}; see wal-sink letters list"
        )


def _report(done: CaughtUp, plan: CatchUpPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": False, **plain(done), "target": plan.target, "left_out": list(plan.left_out)})
    else:
        has = "everything" if not (done.letters_due or done.letters_unknown) else "every batch"
        print_text(
            f"{counted(done.batches, 'batch')} sent to {plan.target}: {counted(done.rows, 'row')}. It has {has} that "
            f"sink {done.name!r} delivered, up to batch {done.through}. Start the query or drain again"
        )
        if done.rows_in_letters:
            print_text(
                f"not sent, since in dead letters: {counted(done.rows_in_letters, 'row')} of these batches; see "
                f"wal-sink letters list WAL --name {done.name}"
            )
        _print_letters(done)
    if done.rejected or done.letters_due or done.letters_unknown:
        sys.exit(FOUND_SOMETHING)


def _print_letters(done: CaughtUp) -> None:
    """The rows that the target still lacks, because they came to it by a replay of dead letters."""
    if done.letters_due:
        print_text(
            f"it lacks {counted(done.rows_due, 'row')} of {counted(done.letters_due, 'dead letter')} that were sent "
            "again after the backup. These are due again: send them by wal-sink letters replay WAL --name "
            f"{done.name} --to TARGET"
        )
    if done.letters_unknown:
        print_text(
            f"it may lack rows of {counted(done.letters_unknown, 'dead letter')} that were sent again: nobody recorded "
            f"whether to this target; see wal-sink letters list WAL --name {done.name}"
        )
