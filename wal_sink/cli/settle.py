"""`wal-sink settle`: make a checkpoint from a WAL whose own checkpoint is lost."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.cli import options
from wal_sink.cli.opened import checkpoint_of, opened
from wal_sink.cli.output import print_json
from wal_sink.cli.repairing import log_of
from wal_sink.cli.tables import print_text
from wal_sink.cli.working import working
from wal_sink.operate.settle import settle
from wal_sink.recovery.inventory import require_wal
from wal_sink.stores.spec import StoreSpec


@click.command("settle", short_help="Make a checkpoint for drains, where the query's own one is lost.")
@click.argument("wal")
@click.argument("folder")
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint, if it moved; default: the recorded one.")
@click.option(
    "--newest",
    type=click.Choice(["complete", "incomplete"]),
    help="Whether the newest batch is delivered, if nobody knows whether Spark completed it.",
)
@options.take_over
@options.storage_options
@options.checkpoint_options
@options.as_json
def settle_verb(*, wal: str, folder: str, newest: str | None, as_json: bool, **more: Any) -> None:
    """Make a checkpoint in FOLDER, which is new or empty, from what WAL records. With it, wal-sink drain delivers every
    complete batch that WAL still holds. No query goes on from it.

    A WAL whose checkpoint is lost goes on with no other query: batch ids of another query mean other rows. The new
    query gets a new WAL. Stop the query and every drain first. WAL is not changed. If the command is interrupted,
    repeat it.

    \b
        wal-sink settle wal/orders checkpoint/rest
        wal-sink settle wal/orders checkpoint/rest --newest complete
    """
    spec = options.wal_spec(wal, more)
    log = log_of(wal, more)
    checkpoint = Checkpoint(checkpoint_of(require_wal(log, "the WAL").checkpoint, spec, more))
    there = opened(_spec_of(folder, spec, more))
    with working(f"writing {there.root}"):
        done = settle(log, checkpoint, there, newest, take_over=options.whom(take_over=more["take_over"]))
    if as_json:
        through, offsets = (None, []) if done is None else (done.through, list(done.offsets))
        print_json({"wal": log.store.root, "folder": there.root, "through": through, "offsets": offsets})
        return
    if done is None:
        print_text("no batch of this WAL counts: there is nothing to settle. Begin with a new WAL")
        return
    print_text(
        f"{there.root} is a checkpoint for drains. With it, a drain delivers every batch up to {done.through}. For "
        f"each sink: wal-sink drain {log.store.root} --checkpoint {there.root} --name SINK --to TARGET"
    )
    print_text(f"the new query begins behind batch {done.through}, with a new WAL and a new checkpoint:")
    for number, line in enumerate(done.offsets):
        print_text(f"  source {number}: {line}")


def _spec_of(folder: str, spec: StoreSpec, more: dict[str, Any]) -> StoreSpec:
    """The folder's address. By default it has the options of the WAL, if it is on the same kind of store."""
    own = more["checkpoint_options"]
    return StoreSpec(
        folder, own if own is not None else spec.options if StoreSpec(folder).scheme == spec.scheme else {}
    )
