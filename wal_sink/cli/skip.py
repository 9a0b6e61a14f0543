"""`wal-sink skip`: one sink passes over a batch that can never be delivered to it."""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink.cli import options, repairing
from wal_sink.cli.opened import Wal, target
from wal_sink.cli.printer import Answer, fields_of
from wal_sink.cli.working import working
from wal_sink.log.holders import TakeOver
from wal_sink.operate.changes import find_same
from wal_sink.operate.skip import SkipPlan, plan_skip, planned, skip, skip_order
from wal_sink.support.texts import counted

_OUTCOMES = {
    "skipped": "sink {name!r} passes over batch {batch}: its next delivery begins with batch {next}",
    "delivered": "batch {batch} was not skipped: another process delivered it to sink {name!r} meanwhile",
    "passed": "sink {name!r} is already behind batch {batch}. The record of how it got there was deleted since",
}


@options.verb("skip", "Let one sink pass over a batch that can never be delivered.")
@options.batch
@options.name
@options.to("The target of a transactional sink: its ledger tells which rows it has.", required=False)
@repairing.asks
@repairing.why
@options.take_over
def skip_verb(
    *, wal: Wal, batch: int, name: str, to: str | None, dry_run: bool, yes: bool, why: str, take_over: TakeOver
) -> Answer:
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
    shown = repairing.Planned({"dry_run": True, **fields_of(plan)}, _lines(plan), question, act)
    return repairing.carry_out(shown, dry_run=dry_run, yes=yes)


def _lines(plan: SkipPlan) -> Iterator[str]:
    rows = "an unknown number of rows: its manifest is lost" if plan.rows is None else counted(plan.rows, "row")
    yield f"batch {plan.batch_id} has {rows}"
    more = f", {plan.may_have}" if plan.may_have else ""
    source = "the records of the WAL" if plan.target_rows is None else "the ledger of the target"
    yield f"sink {plan.name!r} ({plan.kind}) has {counted(plan.sent_rows, 'row')} of it by {source}{more}"
    if plan.dead_letter_rows:
        yield f"{counted(plan.dead_letter_rows, 'row')} of it stay in dead letters; see wal-sink letters"
