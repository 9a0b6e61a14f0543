"""`wal-sink batches`: every batch a WAL still holds."""

from __future__ import annotations

import click

from wal_sink.cli import options
from wal_sink.cli.opened import require_wal
from wal_sink.cli.output import console, print_json, size, table, text
from wal_sink.inspection import BatchView, read_batches
from wal_sink.stores.opening import open_store
from wal_sink.wal.log import NOTHING


@click.command(short_help="Every batch a WAL still holds.")
@click.argument("wal")
@click.option("--after", type=int, default=NOTHING, metavar="BATCH", help="Only batches after this one.")
@options.storage_options
@options.as_json
def batches(*, wal: str, after: int, option: tuple[str, ...], storage_options_json: str | None, as_json: bool) -> None:
    """Every batch the WAL still holds, oldest first.

    Each line shows rows, segments and size, the number of staging attempts, whether the batch is released for delivery,
    and the sinks that have it.
    """
    store = open_store(options.wal_spec(wal, option, storage_options_json))
    require_wal(store)
    found = read_batches(store, after=after)
    if as_json:
        print_json(found)
    else:
        print_batches(found)


def print_batches(found: list[BatchView]) -> None:
    """Print the batches as a table for people."""
    shown = table(">batch", ">rows", ">segments", ">size", ">attempts", "released", "delivered to")
    for view in found:
        delivered = ", ".join(view.delivered_to) or "-"
        released = "yes" if view.released else "no"
        numbers = (view.rows, view.segments, size(view.bytes), view.attempts)
        shown.add_row(str(view.batch_id), *map(text, numbers), released, delivered)
    console().print(shown)
    click.echo(f"{len(found)} batches, {sum(view.rows for view in found):,} rows")
