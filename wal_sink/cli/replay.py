"""`wal-sink replay`: send released batches again, on purpose."""

from __future__ import annotations

import sys
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.batch_ranges import BatchRange
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.output import plain, print_json, size
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.termination import in_order
from wal_sink.cli.working import working
from wal_sink.repair.journal import find_unfinished
from wal_sink.repair.resend import Resent, resend
from wal_sink.repair.resend_plan import ResendPlan, plan_resend, planned_resend, resend_order
from wal_sink.reporting.counts import counted
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink
from wal_sink.sinks.held import holding


@click.command("replay", short_help="Send released batches again, on purpose.")
@click.argument("wal")
@click.argument("batches", nargs=-1, required=True, type=BatchRange(), metavar="BATCH...")
@click.option("--to", "to", required=True, metavar="URL|MODULE:OBJECT", help="A backend's URL, or an object to import.")
@click.option("--name", default="", metavar="NEW", help="A new sink name for the replay. Default: replay-NUMBER.")
@click.option(
    "--again", is_flag=True, help="Send rows although the ledger of a transactional target says that it has them."
)
@click.option(
    "--ledger-of",
    multiple=True,
    metavar="SINK",
    help="A sink that delivered to this table: of the ledger of a transactional target, only positions of such sinks "
    "count. May be repeated. Default: the sinks that were registered for this target.",
)
@repair_options(why_required=True)
@options.take_over
@options.delivery_policies
@options.storage_options
@options.as_json
@in_order()
def replay_verb(
    *, wal: str, batches: tuple[range, ...], to: str, name: str, again: bool, ledger_of: tuple[str, ...], **more: Any
) -> None:
    """Send released batches again, with the same keys, to a target of your choice.

    BATCH is a batch id, or a range such as 12-20. A transactional target gets only the rows that it lacks by its
    ledger. A target that remembers keys takes each chunk once. Any other target gets all rows again. No other sink of
    the WAL is concerned. If the command is interrupted, repeat it: it goes on where it stopped.
    """
    log = log_of(wal, more)
    there, wanted = target(to), sorted({number for each in batches for number in each})
    with working(f"looking at {counted(len(wanted), 'batch')}"):
        given: Any = {"name": name, "again": again, "ledger_of": ledger_of}
        order = resend_order(log, wanted, there, typed=to, why=more["why"], **given)
        entry = find_unfinished(log, order)
        plan = planned_resend(entry) if entry else plan_resend(log, wanted, there, **given)
    if not more["as_json"]:
        for line in _lines(plan):
            print_text(line)
    if more["dry_run"]:
        if more["as_json"]:
            print_json({"dry_run": True, **plain(plan)})
        return
    assert not isinstance(there, BatchSink)  # noqa: S101 - the plan refuses it
    confirm(f"Send {counted(len(plan.batches), 'batch')} again to {plan.target}?", yes=more["yes"])
    made = Delivery(there, where="driver", **options.policies(more))
    with working(f"sending batches to {plan.target}") as work, holding(there, f"the replay of {log.store.root}"):
        whom = options.whom(take_over=more["take_over"])
        done = resend(log, order, plan, there, delivery=made, take_over=whom, on_batch=work.count)
    _report(done, plan, as_json=more["as_json"])


def _lines(plan: ResendPlan) -> list[str]:
    """The plan for people."""
    which = str(plan.batches[0]) if len(plan.batches) == 1 else f"{plan.batches[0]} to {plan.batches[-1]}"
    amount = f"{counted(plan.rows, 'row')}, {size(plan.bytes)}"
    lines = [f"{counted(len(plan.batches), 'batch')} ({which}): {amount}, to {plan.target} ({plan.kind})"]
    if plan.dead_letter_rows:
        lines.append(f"{counted(plan.dead_letter_rows, 'row')} of them lie in dead letters; they are sent too")
    if plan.staying_rows:
        lines.append(
            f"{counted(plan.staying_rows, 'row')} of them stay in dead letters, since the target is behind them: "
            f"{_advice(plan)}"
        )
    if plan.lacking:
        lines.append(
            f"sinks that do not have all of these batches yet, and will get them by themselves: "
            f"{', '.join(plan.lacking)}. Do not replay to the target of such a sink"
        )
    return lines


def _advice(plan: ResendPlan) -> str:
    """The commands that send the rows in dead letters, which a ledger passes over."""
    return "send them with " + ", ".join(
        f"wal-sink dead-letters replay WAL --name {name} --to TARGET" for name in plan.staying_in
    )


def _report(done: Resent, plan: ResendPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": False, **plain(done), "target": plan.target})
    else:
        print_text(
            f"{counted(done.batches, 'batch')} replayed to {plan.target} as sink {done.name!r}: "
            f"{counted(done.rows_sent, 'row')} sent, {counted(done.rows_there, 'row')} were there"
        )
        if done.earlier_batches:
            print_text(f"{counted(done.earlier_batches, 'batch')} of these had been sent before this command")
        if done.rows_in_letters:
            print_text(f"{counted(done.rows_in_letters, 'row')} stay in dead letters: {_advice(plan)}")
        if done.rejected:
            print_text(
                f"{counted(done.rejected, 'row')} rejected: see wal-sink dead-letters list WAL --name {done.name}"
            )
    if done.rejected:
        sys.exit(FOUND_SOMETHING)
