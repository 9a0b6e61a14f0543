"""`wal-sink batches`: every batch a WAL still holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal
from wal_sink.cli.printer import Answer, table
from wal_sink.cli.working import working
from wal_sink.log.log import NOTHING
from wal_sink.operate.batches import BatchView, read_batches
from wal_sink.support.texts import counted


@options.verb("batches", "Every batch a WAL still holds.")
@click.option("--after", type=int, default=NOTHING, metavar="BATCH", help="Only batches after this one.")
def batches(*, wal: Wal, after: int) -> Answer:
    """Every batch the WAL still holds, oldest first.

    Each line shows rows, segments and size, the number of staging attempts, whether the batch is released for delivery,
    and the sinks that have it.
    """
    sinks = {sink.name for sink in wal.require().sinks}
    with working(f"reading the batches of {wal.store.root}") as work:
        found = read_batches(wal.facts, after=after, on_batch=work.count)
    return Answer(found, lines(found, sinks))


def lines(found: Sequence[BatchView], sinks: set[str]) -> Iterator[str]:
    """The batches for people. `sinks`: the names of all sinks. If all of several have a batch, their number is told."""

    def delivered(view: BatchView) -> object:
        has_all = len(sinks) > 1 and sinks <= set(view.delivered_to)
        return f"all {len(sinks)} sinks" if has_all else view.delivered_to

    numbers = ("batch=batch_id", "rows", "segments", "size=bytes", "attempts")
    yield from table(found, *numbers, "released", ("delivered to", delivered))
    yield f"{counted(len(found), 'batch')}, {counted(sum(view.rows for view in found), 'row')}"
