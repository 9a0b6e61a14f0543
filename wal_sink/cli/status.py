"""`wal-sink status`: the state of a WAL and of its sinks."""

from __future__ import annotations

import sys

import click

from wal_sink.cli import options
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.opened import no_wal, opened, status_of
from wal_sink.cli.output import batch_text, plain, print_json
from wal_sink.cli.sinks import held_back
from wal_sink.cli.tables import Listing, print_facts, print_text
from wal_sink.inspection import Status
from wal_sink.recovery.location import canonical


@click.command(short_help="The state of a WAL and of its sinks.")
@click.argument("wal")
@options.storage_options
@options.as_json
def status(*, wal: str, option: tuple[str, ...], storage_options_json: str | None, as_json: bool) -> None:
    """The state of a WAL and of its sinks: newest batches, pending batches, and the processes that serve the sinks.

    Exit code 1 if there is no WAL.
    """
    found = status_of(opened(options.wal_spec(wal, option, storage_options_json)))
    exists = found.wal_id is not None
    if as_json:
        print_json({"exists": exists, **plain(found)})
    elif exists:
        print_status(found)
    else:
        click.echo(no_wal(found))
    if not exists:
        sys.exit(FOUND_SOMETHING)


def print_status(found: Status) -> None:
    """Print the status for people."""
    print_facts(
        [
            ("WAL", found.wal),
            *([("lies at", found.location)] if found.location not in {None, canonical(found.wal)} else []),
            ("query", found.query_id),
            ("checkpoint", found.checkpoint),
            ("newest batch", batch_text(found.newest_batch)),
            ("deleted through", batch_text(found.low_water)),
            ("runs that staged", found.stager_term),
        ]
    )
    click.echo()
    if not found.sinks:
        print_text("no sink is registered: batches are staged here, but no process drains them yet")
        return
    sinks = Listing("sink", "+kind", "state", ">delivered through", ">pending", "~term", "+last held by", "+target")
    for sink in found.sinks:
        through = batch_text(sink.delivered_through)
        pending = None if sink.state == "retired" else sink.pending_batches
        sinks.add(sink.name, sink.kind, sink.state, through, pending, sink.term, sink.held_by, sink.identity)
    sinks.print()
    for warning in held_back(found.sinks):
        print_text(warning)
