"""`wal-sink sinks`: list the sinks of a WAL, rename one, retire one that is no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal
from wal_sink.cli.printer import Answer, batch_text, fields_of, table
from wal_sink.cli.working import working
from wal_sink.log.holders import TakeOver
from wal_sink.operate.sinks import Change, RetirePlan, changes_of, plan_retire, rename, retire
from wal_sink.operate.status import SinkStatus
from wal_sink.support.texts import counted


@click.group("sinks", short_help="The sinks of a WAL: list, retire, rename.")
def sinks() -> None:
    """The sinks that a WAL knows.

    A WAL keeps every batch until each sink has it, even if no process serves that sink.
    """


@options.verb("list", "Every sink, and whether it prevents deletion.")
def list_sinks(*, wal: Wal) -> Answer:
    """Every sink that the WAL knows, including retired ones: its newest delivered batch, and the process that serves
    it, if one is known. Then every skip, catch-up, retirement and renaming: who, when and why.
    """
    found = wal.require().sinks
    changes = {sink.name: changes_of(wal.log, sink.folder, sink.name) for sink in found}
    return Answer([{**fields_of(sink), "changes": changes[sink.name]} for sink in found], _lines(found, changes))


@options.verb("retire", "End a sink, so that it no longer prevents deletion.")
@click.argument("name")
@click.option(
    "--drop-pending",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Skip at most N batches that the sink has not delivered. Without this option, the command names them and "
    "fails.",
)
@options.dry_run
@options.optional_why
@options.take_over
def retire_verb(*, wal: Wal, name: str, drop_pending: int, take_over: TakeOver, dry_run: bool, why: str) -> Answer:
    """Retire a sink permanently: the WAL no longer keeps batches for it, and no process can serve it again.

    The command deletes nothing, neither in the WAL nor in the target. The name cannot be used again.
    """
    wal.require()
    if dry_run:
        plan = plan_retire(wal.log, name)
        return Answer({"dry_run": True, **fields_of(plan)}, _planned(plan, drop_pending))
    with working(f"retiring sink {name!r}"):
        done = retire(wal.log, name, drop_pending=drop_pending, take_over=take_over, why=why)
    many = counted(len(done.dropped), "batch")
    dropped = f"; this sink skips {many}, from {done.dropped[0]} on" if done.dropped else ""
    return Answer(done, [f"sink {name!r} is retired: it has every batch through {batch_text(done.through)}{dropped}"])


@options.verb("rename", "Give a sink another name.")
@click.argument("old")
@click.argument("new")
@options.optional_why
@options.take_over
def rename_verb(*, wal: Wal, old: str, new: str, take_over: TakeOver, why: str) -> Answer:
    """Rename a sink. Under the new name it continues where it is, and nothing is delivered twice.

    Its folder in the WAL, its terms and its positions in the target keep the first name.
    """
    wal.require()
    with working(f"renaming sink {old!r}"):
        rename(wal.log, old, new, take_over=take_over, why=why)
    said = f"sink {old!r} is called {new!r} from now on: use this name in WalSink and with --name"
    return Answer({"sink": new, "renamed_from": old}, [said])


for _verb in (list_sinks, retire_verb, rename_verb):
    sinks.add_command(_verb)


def _lines(found: Sequence[SinkStatus], changes: Mapping[str, Sequence[Change]]) -> Iterator[str]:
    first = ("first name", lambda sink: sink.folder if sink.folder != sink.name else None)
    held = ("last held by=held_by", "since=held_since")
    yield from table(found, "sink=name", "state", "delivered_through", ("pending", pending), *held, first,
                     "target=identity")  # fmt: skip
    told = sorted((each for of_sink in changes.values() for each in of_sink), key=lambda each: each.when)
    if told:
        yield from table(told, "when", "outcome", "who", ("why", lambda each: each.why or None), "command")
    for each in told:
        if each.outcome == "unfinished":
            yield f"not finished: {each.command}. The same command completes it"
    yield from held_back(found)


def _planned(plan: RetirePlan, drop_pending: int) -> Iterator[str]:
    yield f"sink {plan.name!r} would be retired: it has every batch through {batch_text(plan.through)}"
    if plan.pending:
        many = counted(len(plan.pending), "batch")
        missing = "" if len(plan.pending) <= drop_pending else f": add --drop-pending {len(plan.pending)}"
        yield f"it would never get {many}, from {plan.pending[0]} on{missing}"
    yield "nothing was changed"


def pending(sink: SinkStatus) -> int | None:
    """The batches that a sink still gets. None for one that gets no more."""
    return None if sink.state == "retired" or sink.is_holder else sink.pending_batches


def held_back(found: Sequence[SinkStatus]) -> Iterator[str]:
    """A warning for each sink that no known process serves and that lacks batches which other sinks have."""
    newest = max((sink.delivered_through for sink in found), default=-1)
    for sink in found:
        if sink.state not in {"retired", "running"} and sink.delivered_through < newest:
            after = f" after batch {sink.delivered_through}" if sink.delivered_through >= 0 else ""
            yield f"nothing{after} is deleted until {_way_on(sink)}"


def _way_on(sink: SinkStatus) -> str:
    if sink.is_holder:
        return (
            f"the catch-up that made sink {sink.name!r} is completed by the same command (wal-sink sinks list WAL), or "
            f"ended: wal-sink sinks retire WAL {sink.name}"
        )
    return (
        f"sink {sink.name!r} has it, but no running process is known to serve this sink (the last process: "
        f"{sink.state}). Serve or drain the sink, or see wal-sink sinks --help"
    )
