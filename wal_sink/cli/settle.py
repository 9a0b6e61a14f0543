"""`wal-sink settle`: make a checkpoint from a WAL whose own checkpoint is lost."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal
from wal_sink.cli.printer import Answer
from wal_sink.cli.sources import checkpoint_options
from wal_sink.cli.working import working
from wal_sink.log.holders import TakeOver
from wal_sink.operate.settle import Settled, settle
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.inventory import require_wal
from wal_sink.stores.spec import StoreSpec


@options.verb("settle", "Make a checkpoint for drains, where the query's own one is lost.")
@click.argument("folder")
@options.checkpoint
@click.option(
    "--newest",
    type=click.Choice(["complete", "incomplete"]),
    help="Whether the newest batch is delivered, if nobody knows whether Spark completed it.",
)
@options.take_over
def settle_verb(*, wal: Wal, folder: str, checkpoint: str | None, newest: str | None, take_over: TakeOver) -> Answer:
    """Make a checkpoint in FOLDER, which is new or empty, from what WAL records. With it, wal-sink drain delivers every
    complete batch that WAL still holds. No query goes on from it.

    A WAL whose checkpoint is lost goes on with no other query: batch ids of another query mean other rows. The new
    query gets a new WAL. Stop the query and every drain first. WAL is not changed. If the command is interrupted,
    repeat it.

    \b
        wal-sink settle wal/orders checkpoint/rest
        wal-sink settle wal/orders checkpoint/rest --newest complete
    """
    log = wal.require_log()
    lost = Checkpoint(wal.checkpoint(require_wal(log, "the WAL").checkpoint, checkpoint))
    there = _folder(folder, wal)
    with working(f"writing {there.store.root}"):
        done = settle(log, lost, there.store, newest, take_over=take_over)
    through, offsets = (None, ()) if done is None else (done.through, done.offsets)
    document = {"wal": log.store.root, "folder": there.store.root, "through": through, "offsets": offsets}
    return Answer(document, _lines(log.store.root, there.store.root, done))


def _folder(folder: str, wal: Wal) -> Wal:
    """The store of the checkpoint. By default it has the options of the WAL, if it is on the same kind of store."""
    given, of_wal = checkpoint_options(), wal.spec.options
    return Wal(folder, given if given is not None else of_wal if StoreSpec(folder).scheme == wal.spec.scheme else {})


def _lines(wal: str, folder: str, done: Settled | None) -> Iterator[str]:
    if done is None:
        yield "no batch of this WAL counts: there is nothing to settle. Begin with a new WAL"
        return
    yield (
        f"{folder} is a checkpoint for drains. With it, a drain delivers every batch up to {done.through}. For each "
        f"sink: wal-sink drain {wal} --checkpoint {folder} --name SINK --to TARGET"
    )
    yield f"the new query begins behind batch {done.through}, with a new WAL and a new checkpoint:"
    yield from (f"  source {number}: {line}" for number, line in enumerate(done.offsets))
