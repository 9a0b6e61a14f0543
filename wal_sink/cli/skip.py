"""`wal-sink skip`: one sink passes over a batch that can never be delivered to it."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.output import plain, print_json
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.working import working
from wal_sink.operate.changes import find_same
from wal_sink.operate.sinks import Skipped, SkipPlan, plan_skip, planned, skip, skip_order
from wal_sink.reporting.counts import counted

_OUTCOMES = {
    "skipped": "sink {name!r} passes over batch {batch}: its next delivery begins with batch {next}",
    "delivered": "batch {batch} was not skipped: another process delivered it to sink {name!r} meanwhile",
    "passed": "sink {name!r} is already behind batch {batch}. The record of how it got there was deleted since",
}


@click.command("skip", short_help="Let one sink pass over a batch that can never be delivered.")
@click.argument("wal")
@click.argument("batch", type=click.IntRange(min=0))
@click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
@click.option(
    "--to",
    "to",
    metavar="URL|MODULE:OBJECT",
    help="The target of a transactional sink: its ledger tells which rows it has.",
)
@repair_options
@options.take_over
@options.storage_options
@options.as_json
def skip_verb(
    *, wal: str, batch: int, name: str, dry_run: bool, yes: bool, why: str, take_over: bool, as_json: bool, **more: Any
) -> None:
    """Let a sink pass over the next batch, because its rows can never be delivered or its objects are lost.

    The rest of its rows never reaches this sink. Other sinks are not concerned. Stop the process that serves the sink
    first. If the command is interrupted, repeat it.
    """
    log, there = log_of(wal, more), target(more["to"]) if more["to"] else None
    with working(f"looking at batch {batch}"):
        order = skip_order(log, name, batch, why=why)
        begun = find_same(log, order)
        plan = planned(begun) if begun else plan_skip(log, name, batch, to=there)
    if not as_json:
        for line in _lines(plan):
            print_text(line)
    if dry_run:
        if as_json:
            print_json({"dry_run": True, **plain(plan)})
        return
    confirm(f"Skip batch {batch} for sink {name!r}?", yes=yes)
    with working(f"skipping batch {batch}"):
        done = skip(log, order, plan, take_over=options.whom(take_over=take_over), to=there)
    _report(done, as_json=as_json)


def _lines(plan: SkipPlan) -> list[str]:
    """The plan for people."""
    rows = "an unknown number of rows: its manifest is lost" if plan.rows is None else counted(plan.rows, "row")
    more = f", {plan.may_have}" if plan.may_have else ""
    source = "the records of the WAL" if plan.target_rows is None else "the ledger of the target"
    lines = [
        f"batch {plan.batch_id} has {rows}",
        f"sink {plan.name!r} ({plan.kind}) has {counted(plan.sent_rows, 'row')} of it by {source}{more}",
    ]
    if plan.dead_letter_rows:
        lines.append(f"{counted(plan.dead_letter_rows, 'row')} of it stay in dead letters; see wal-sink letters")
    return lines


def _report(done: Skipped, *, as_json: bool) -> None:
    plan = done.plan
    if as_json:
        print_json({"dry_run": False, "outcome": done.outcome, **plain(plan)})
        return
    print_text(_OUTCOMES[done.outcome].format(name=plan.name, batch=plan.batch_id, next=plan.batch_id + 1))
