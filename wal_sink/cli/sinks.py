"""`wal-sink sinks`: list the sinks of a WAL, rename one, retire one that is no longer needed."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import opened, require_wal
from wal_sink.cli.output import batch_text, plain, print_json
from wal_sink.cli.tables import Listing, print_text
from wal_sink.cli.working import working
from wal_sink.inspection import SinkStatus
from wal_sink.recovery.sink_changes import rename, retire
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
    it, if one is known.
    """
    status = require_wal(opened(options.wal_spec(wal, more["option"], more["storage_options_json"])))
    if as_json:
        print_json([plain(sink) for sink in status.sinks])
        return
    columns = ("sink", "state", ">delivered through", ">pending", "+last held by", "+since", "+first name", "+target")
    shown = Listing(*columns)
    for sink in status.sinks:
        first = sink.folder if sink.folder != sink.name else None
        pending = None if sink.state == "retired" else sink.pending_batches
        through = batch_text(sink.delivered_through)
        shown.add(sink.name, sink.state, through, pending, sink.held_by, sink.held_since, first, sink.identity)
    shown.print()
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
@options.take_over
@options.storage_options
@options.as_json
def retire_verb(*, wal: str, name: str, drop_pending: int, take_over: bool, as_json: bool, **more: Any) -> None:
    """Retire a sink permanently: the WAL no longer keeps batches for it, and no process can serve it again.

    The command deletes nothing, neither in the WAL nor in the target. The name cannot be used again.
    """
    log = _log(wal, more)
    with working(f"retiring sink {name!r}"):
        done = retire(log, name, drop_pending=drop_pending, take_over=options.whom(take_over=take_over))
    if as_json:
        print_json(plain(done))
        return
    dropped = (
        f"; this sink skips {counted(len(done.dropped), 'batch')}, from {done.dropped[0]} on" if done.dropped else ""
    )
    click.echo(f"sink {name!r} is retired: it has every batch through {batch_text(done.through)}{dropped}")


@sinks.command("rename", short_help="Give a sink another name.")
@click.argument("wal")
@click.argument("old")
@click.argument("new")
@options.take_over
@options.storage_options
@options.as_json
def rename_verb(*, wal: str, old: str, new: str, take_over: bool, as_json: bool, **more: Any) -> None:
    """Rename a sink. Under the new name it continues where it is, and nothing is delivered twice.

    Its folder in the WAL, its terms and its positions in the target keep the first name.
    """
    log = _log(wal, more)
    with working(f"renaming sink {old!r}"):
        rename(log, old, new, take_over=options.whom(take_over=take_over))
    if as_json:
        print_json({"sink": new, "renamed_from": old})
        return
    click.echo(f"sink {old!r} is called {new!r} from now on: use this name in WalSink and with --name")


def held_back(found: tuple[SinkStatus, ...]) -> list[str]:
    """A warning for each sink that no known process serves and that lacks batches which other sinks have."""
    newest = max((sink.delivered_through for sink in found), default=-1)
    return [
        f"nothing after batch {batch_text(sink.delivered_through)} is deleted until sink {sink.name!r} has it, but no "
        f"running process is known to serve this sink (the last process: {sink.state}). Serve or drain the sink, or "
        "see wal-sink sinks --help"
        for sink in found
        if sink.state not in {"retired", "running"} and sink.delivered_through < newest
    ]


def _log(wal: str, more: dict[str, Any]) -> Log:
    store = opened(options.wal_spec(wal, more["option"], more["storage_options_json"]))
    require_wal(store)
    return Log(store, SYSTEM, SYSTEM.new_id())
