"""`wal-sink sinks`: list the sinks of a WAL, rename one, retire one that is no longer needed."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import opened, require_wal
from wal_sink.cli.output import batch_text, plain, print_json
from wal_sink.cli.repairing import dry_run_option, optional_why
from wal_sink.cli.tables import Listing, print_text
from wal_sink.cli.working import working
from wal_sink.operate.sinks import rename_as_ordered, retire_as_ordered
from wal_sink.operate.status import SinkStatus
from wal_sink.recovery.sinks import RetirePlan, plan_retire
from wal_sink.repair.outcomes import Change, changes_of
from wal_sink.reporting.counts import counted
from wal_sink.runtime.clock import SYSTEM
from wal_sink.wal.log import Log


@click.group("sinks", short_help="The sinks of a WAL: list, retire, rename.")
def sinks() -> None:
    """The sinks that a WAL knows.

    A WAL keeps every batch until each sink has it, even if no process serves that sink.
    """


@sinks.command("list", short_help="Every sink, and whether it prevents deletion.")
@click.argument("wal")
@options.storage_options
@options.as_json
def list_sinks(*, wal: str, as_json: bool, **more: Any) -> None:
    """Every sink that the WAL knows, including retired ones: its newest delivered batch, and the process that serves
    it, if one is known. Then every skip, catch-up, retirement and renaming: who, when and why.
    """
    store = opened(options.wal_spec(wal, more))
    status, log = require_wal(store), Log(store, SYSTEM, SYSTEM.new_id())
    changes = {sink.name: changes_of(log, sink.folder, sink.name) for sink in status.sinks}
    if as_json:
        print_json([{**plain(sink), "changes": [plain(each) for each in changes[sink.name]]} for sink in status.sinks])
        return
    columns = ("sink", "state", ">delivered through", ">pending", "+last held by", "+since", "+first name", "+target")
    shown = Listing(*columns)
    for sink in status.sinks:
        first = sink.folder if sink.folder != sink.name else None
        pending = None if sink.state == "retired" or sink.is_holder else sink.pending_batches
        through = batch_text(sink.delivered_through)
        shown.add(sink.name, sink.state, through, pending, sink.held_by, sink.held_since, first, sink.identity)
    shown.print()
    _print_changes(sorted((each for found in changes.values() for each in found), key=lambda each: each.when))
    for warning in held_back(status.sinks):
        print_text(warning)


@sinks.command("retire", short_help="End a sink, so that it no longer prevents deletion.")
@click.argument("wal")
@click.argument("name")
@click.option(
    "--drop-pending",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Skip at most N batches that the sink has not delivered. Without this option, the command names them and "
    "fails.",
)
@dry_run_option
@optional_why
@options.take_over
@options.storage_options
@options.as_json
def retire_verb(
    *, wal: str, name: str, drop_pending: int, take_over: bool, as_json: bool, dry_run: bool, why: str, **more: Any
) -> None:
    """Retire a sink permanently: the WAL no longer keeps batches for it, and no process can serve it again.

    The command deletes nothing, neither in the WAL nor in the target. The name cannot be used again.
    """
    log = _log(wal, more)
    if dry_run:
        _show_retirement(plan_retire(log, name), as_json=as_json)
        return
    with working(f"retiring sink {name!r}"):
        whom = options.whom(take_over=take_over)
        done = retire_as_ordered(log, name, drop_pending=drop_pending, take_over=whom, why=why)
    if as_json:
        print_json(plain(done))
        return
    dropped = (
        f"; this sink skips {counted(len(done.dropped), 'batch')}, from {done.dropped[0]} on" if done.dropped else ""
    )
    print_text(f"sink {name!r} is retired: it has every batch through {batch_text(done.through)}{dropped}")


@sinks.command("rename", short_help="Give a sink another name.")
@click.argument("wal")
@click.argument("old")
@click.argument("new")
@optional_why
@options.take_over
@options.storage_options
@options.as_json
def rename_verb(*, wal: str, old: str, new: str, take_over: bool, as_json: bool, why: str, **more: Any) -> None:
    """Rename a sink. Under the new name it continues where it is, and nothing is delivered twice.

    Its folder in the WAL, its terms and its positions in the target keep the first name.
    """
    log = _log(wal, more)
    with working(f"renaming sink {old!r}"):
        rename_as_ordered(log, old, new, take_over=options.whom(take_over=take_over), why=why)
    if as_json:
        print_json({"sink": new, "renamed_from": old})
        return
    print_text(f"sink {old!r} is called {new!r} from now on: use this name in WalSink and with --name")


def _print_changes(changes: list[Change]) -> None:
    if not changes:
        return
    shown = Listing("when", "outcome", "+who", "+why", "+command")
    for each in changes:
        shown.add(each.when, each.outcome, each.who, each.why or None, each.command)
    shown.print()
    for each in changes:
        if each.outcome == "unfinished":
            print_text(f"not finished: {each.command}. The same command completes it")


def _show_retirement(plan: RetirePlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, **plain(plan)})
        return
    print_text(f"sink {plan.name!r} would be retired: it has every batch through {batch_text(plan.through)}")
    if plan.pending:
        many = counted(len(plan.pending), "batch")
        print_text(f"it would never get {many}, from {plan.pending[0]} on: add --drop-pending {len(plan.pending)}")
    print_text("nothing was changed")


def held_back(found: tuple[SinkStatus, ...]) -> list[str]:
    """A warning for each sink that no known process serves and that lacks batches which other sinks have."""
    newest = max((sink.delivered_through for sink in found), default=-1)
    lagging = [sink for sink in found if sink.state not in {"retired", "running"} and sink.delivered_through < newest]
    return [f"nothing{_after(sink.delivered_through)} is deleted until {_way_on(sink)}" for sink in lagging]


def _after(batch_id: int) -> str:
    return f" after batch {batch_id}" if batch_id >= 0 else ""


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


def _log(wal: str, more: dict[str, Any]) -> Log:
    store = opened(options.wal_spec(wal, more))
    require_wal(store)
    return Log(store, SYSTEM, SYSTEM.new_id())
