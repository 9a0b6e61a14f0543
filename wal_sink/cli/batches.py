"""`wal-sink batches`: every batch a WAL still holds."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import opened, require_facts
from wal_sink.cli.output import print_json, size
from wal_sink.cli.tables import Listing
from wal_sink.cli.working import working
from wal_sink.operate.batches import BatchView, read_batches
from wal_sink.reporting.counts import counted
from wal_sink.wal.log import NOTHING


@click.command(short_help="Every batch a WAL still holds.")
@click.argument("wal")
@click.option("--after", type=int, default=NOTHING, metavar="BATCH", help="Only batches after this one.")
@options.storage_options
@options.as_json
def batches(*, wal: str, after: int, as_json: bool, **more: Any) -> None:
    """Every batch the WAL still holds, oldest first.

    Each line shows rows, segments and size, the number of staging attempts, whether the batch is released for delivery,
    and the sinks that have it.
    """
    store = opened(options.wal_spec(wal, more))
    facts = require_facts(store)
    sinks = {sink.name for sink in facts.sinks}
    with working(f"reading the batches of {store.root}") as work:
        found = read_batches(facts, after=after, on_batch=work.count)
    if as_json:
        print_json(found)
    else:
        print_batches(found, sinks)


def print_batches(found: list[BatchView], sinks: set[str]) -> None:
    """Print the batches as a table for people. `sinks`: the names of all sinks of the WAL."""
    shown = Listing(">batch", ">rows", ">segments", ">size", ">attempts", "released", "+delivered to")
    for view in found:
        released = "yes" if view.released else "no"
        numbers = (view.rows, view.segments, size(view.bytes), view.attempts)
        shown.add(str(view.batch_id), *numbers, released, _delivered(view, sinks))
    shown.print()
    click.echo(f"{counted(len(found), 'batch')}, {counted(sum(view.rows for view in found), 'row')}")


def _delivered(view: BatchView, sinks: set[str]) -> str:
    """The sinks that have a batch. If all of several sinks have it, their number tells as much as their names."""
    if len(sinks) > 1 and sinks <= set(view.delivered_to):
        return f"all {len(sinks)} sinks"
    return ", ".join(view.delivered_to) or "-"
