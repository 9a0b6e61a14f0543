"""`wal-sink audit`: a WAL compared with its checkpoint and with a target. Reads only."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.checking.against_checkpoint import AgainstCheckpoint
from wal_sink.checking.against_target import AgainstTarget
from wal_sink.checking.verify import Check, Comparison
from wal_sink.cli import checks, options
from wal_sink.cli.opened import opened
from wal_sink.cli.targets import target
from wal_sink.stores.spec import StoreSpec

_NO_SEGMENTS = "the bytes of segments (--no-segments)"


@click.command(short_help="Compare a WAL with its checkpoint and a target.")
@click.argument("wal")
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Without it, no batch is compared with it.")
@click.option("--to", "to", metavar="URL|MODULE:OBJECT", help="The target of the sink --name: a backend's URL, or an "
              "object to import.")  # fmt: skip
@click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
@click.option("--segments/--no-segments", default=True, help="Read every segment, too; default: yes.")
@checks.range_options(short=False)
@options.storage_options
@options.checkpoint_options
@options.as_json
@checks.ends_at_ctrl_c("audit")
def audit(*, wal: str, checkpoint: str | None, to: str | None, name: str, segments: bool,
          as_json: bool, **more: Any) -> None:  # fmt: skip
    """Check a WAL as verify does, and compare it with the checkpoint and with the positions of a target. Writes
    nothing.

    Finds gaps (batches or rows that are missing), doubles and orphans (batches, records or positions that nothing
    explains), each with the next step. Comparisons that were not made are named. Exit code 1: at least one fault was
    found.

    \b
        wal-sink audit wal/orders --checkpoint checkpoint/orders
        wal-sink audit wal/orders --checkpoint checkpoint/orders \\
            --to 'sqlite:///orders.db?table=orders' --name orders
    """
    spec = options.wal_spec(wal, more["option"], more["storage_options_json"])
    store = checks.opened_wal(spec)
    comparisons: list[Comparison] = []
    left_out = [] if segments else [_NO_SEGMENTS]
    if checkpoint is None:
        left_out.append("the checkpoint (give its address with --checkpoint)")
    else:
        comparisons.append(AgainstCheckpoint(opened(_checkpoint_spec(checkpoint, spec, more))))
    if to is None:
        left_out.append("the positions of targets (give one with --to, and its sink with --name)")
    else:
        comparisons.append(AgainstTarget(target(to), name))
    batches = checks.range_of(more["first"], more["last"], more["resume_after"])
    checks.run(
        "audit",
        store,
        lambda on_batch: Check(
            store,
            batches,
            reads_segments=segments,
            comparisons=comparisons,
            left_out=left_out,
            on_batch=on_batch,
        ),
        as_json=as_json,
    )


def _checkpoint_spec(checkpoint: str, wal: StoreSpec, more: dict[str, Any]) -> StoreSpec:
    """The address of the checkpoint. Its storage options are those of the WAL unless it has some."""
    pairs, text = more["checkpoint_option"], more["checkpoint_options_json"]
    given = options.merged_options(pairs, text, "--checkpoint-option") if pairs or text else wal.options
    return StoreSpec(checkpoint, given)
