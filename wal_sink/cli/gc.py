"""`wal-sink gc`: show and delete objects that nothing can name any more."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.cli import options
from wal_sink.cli.opened import checkpoint_of
from wal_sink.cli.output import print_json, size
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import Listing, print_text
from wal_sink.cli.working import working
from wal_sink.recovery.inventory import find_wal
from wal_sink.repair.gc import GcPlan, examples_of, gc, gc_order, plan_gc
from wal_sink.repair.journal import find_unfinished
from wal_sink.repair.need import SparkSide
from wal_sink.reporting.counts import counted
from wal_sink.wal.log import Log


@click.command("gc", short_help="Show or delete objects that nothing can name any more.")
@click.argument("wal")
@click.option("--delete", is_flag=True, help="Delete the debris. Without this option, the command only shows it.")
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@repair_options(why_required=False)
@options.storage_options
@options.checkpoint_options
@options.as_json
def gc_verb(*, wal: str, delete: bool, dry_run: bool, yes: bool, why: str, as_json: bool, **more: Any) -> None:
    """Find the debris of crashes and lost attempts, and delete it with --delete.

    Collection deletes most of it too, but only together with its batch. A query and a drain may run meanwhile: nothing
    that a process may still name is debris. Nothing of a damaged batch is deleted. The checkpoint is read only if the
    newest batch has an attempt without a manifest. If it cannot be read, that attempt stays.
    """
    log = log_of(wal, more)
    spark = _spark_of(log, wal, more)
    with working(f"looking for debris in {log.store.root}") as work:

        def found(objects: int) -> None:
            work.how_far = counted(objects, "object")

        order = gc_order(log, why=why)
        if delete:
            find_unfinished(log, order)  # refused before anything is shown
        plan = plan_gc(log, spark, on_group=found)
    if not as_json:
        _print(plan)
    if dry_run or not delete or (plan.objects == 0 and find_unfinished(log, order) is None):
        _end_of_a_look(plan, as_json=as_json)
        return
    confirm(f"Delete {counted(plan.objects, 'object')} ({size(plan.bytes)})?", yes=yes)
    with working("deleting debris") as work:
        done = gc(log, order, plan, spark, on_group=found)
    if as_json:
        print_json({"dry_run": False, "repair": done.repair, "deleted": done.objects, **_facts(plan)})
        return
    print_text(f"{counted(sum(done.objects.values()), 'object')} deleted")


def _spark_of(log: Log, wal: str, more: dict[str, Any]) -> SparkSide:
    """The checkpoint that was given, else the recorded one. It is opened only when a batch needs it."""
    spec = options.wal_spec(wal, more["option"], more["storage_options_json"])

    def files() -> CheckpointFiles:
        record = find_wal(log)
        return checkpoint_of(record.checkpoint if record else None, spec, more)

    return SparkSide(files)


def _print(plan: GcPlan) -> None:
    """The plan for people."""
    shown = Listing("kind", ">objects", ">size")
    for kind, count in plan.kinds.items():
        shown.add(kind, count.objects, size(count.bytes))
    if plan.kinds:
        shown.print()
    for path in examples_of(plan):
        print_text(f"  {path}")
    print_text(f"{counted(plan.objects, 'object')} of debris, {size(plan.bytes)}")
    for left in plan.left_alone:
        print_text(f"batch {left.batch_id} was left alone: {left.why}")
    if plan.damaged:
        are = "is damaged and was" if plan.damaged == 1 else "are damaged and were"
        print_text(f"{counted(plan.damaged, 'batch')} {are} left alone; see wal-sink verify")


def _end_of_a_look(plan: GcPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, **_facts(plan)})
    elif plan.objects:
        print_text("nothing was deleted. To delete it, add --delete")


def _facts(plan: GcPlan) -> dict[str, object]:
    return {
        "objects": plan.objects,
        "bytes": plan.bytes,
        "kinds": plan.kinds,
        "damaged_batches": plan.damaged,
        "left_alone": plan.left_alone,
    }
