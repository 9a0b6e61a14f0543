"""`wal-sink copy`: copy a whole WAL to another folder, on the same store or on another one."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import opened
from wal_sink.cli.output import print_json, size
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import print_text
from wal_sink.cli.working import Work, working
from wal_sink.moving.copy import Copied, CopyPlan, TargetState, copy_wal, plan_copy
from wal_sink.recovery.location import canonical
from wal_sink.reporting.counts import counted
from wal_sink.runtime.clock import SYSTEM
from wal_sink.wal.log import Log


@click.command("copy", short_help="Copy a whole WAL to another place.")
@click.argument("wal")
@click.argument("new")
@repair_options(why_required=False)
@click.option(
    "--move",
    is_flag=True,
    help="Go on at NEW: WAL is refused from then on, and a process that still serves it is fenced.",
)
@options.take_over
@options.storage_options
@options.copy_options
@options.as_json
def copy_verb(
    *, wal: str, new: str, move: bool, dry_run: bool, yes: bool, why: str, as_json: bool, **more: Any
) -> None:
    """Copy the whole WAL to NEW, an empty folder on the same store or on another one.

    Every object is checked, written, and read back. If the command is interrupted, repeat it: it copies what is left.
    Until the copy is complete, no process takes it for a WAL. End the query and every drain first: a WAL that changes
    is not copied. The checkpoint stays where it is. Without --move, the command changes nothing in the WAL itself.

    \b
        wal-sink copy wal/orders s3://lake/wal/orders --move
        wal-sink copy s3://lake/wal/orders /backup/orders --yes
    """
    source = log_of(wal, more)
    spec = options.wal_spec(wal, more["option"], more["storage_options_json"])
    there = options.copy_spec(new, spec, more["to_option"], more["to_options_json"])
    target = Log(opened(there), SYSTEM, source.run_id)
    take_over = options.whom(take_over=more["take_over"])
    with working(f"looking at {source.store.root}"):
        plan = plan_copy(source, target, take_over=take_over)
    done = None
    if not dry_run:
        if plan.state is not TargetState.COMPLETE:
            confirm(f"{_intent(plan, source, target, move=move)}. Go on?", yes=yes)
        with working(f"copying to {target.store.root}") as work:
            progress, whom = partial(_note, work, plan), take_over if move else None
            done = copy_wal(source, target, plan, move=whom, why=why, on_progress=progress)
    if as_json:
        print_json(_facts(plan, source, target, done, move=move))
        return
    intent = _intent(plan, source, target, move=move)
    print_text(f"{intent}; nothing was copied" if done is None else _told(plan, target, done))
    print_text(_way_on(plan, source, target, move=move))


def _note(work: Work, plan: CopyPlan, objects: int, copied: int) -> None:
    work.how_far = f"{objects:,} of {counted(plan.objects, 'object')}, {size(copied)}"


def _intent(plan: CopyPlan, source: Log, target: Log, *, move: bool) -> str:
    what = f"{counted(plan.objects, 'object')} of {counted(plan.found.batches, 'batch')}"
    into = {
        TargetState.EMPTY: "which is empty",
        TargetState.UNFINISHED: "which holds a part of them, from a copy that was interrupted",
        TargetState.COMPLETE: "which holds all of them already",
    }
    verb = "move" if move else "copy"
    return f"{verb} {source.store.root} ({what}) to {target.store.root}, {into[plan.state]}"


def _told(plan: CopyPlan, target: Log, done: Copied) -> str:
    if plan.state is TargetState.COMPLETE:
        return f"{target.store.root} is a complete copy already: {counted(plan.objects, 'object')}. Nothing was copied"
    damaged = (
        f". Damaged in the WAL, and copied as they are: {counted(len(done.damaged), 'object')} ({done.damaged[0]}) of "
        "batches that every sink has or passed over"
        if done.damaged
        else ""
    )
    return (
        f"{target.store.root} is a complete copy: {counted(done.objects, 'object')}, {size(done.bytes)}, each read "
        f"back and equal{damaged}"
    )


def _way_on(plan: CopyPlan, source: Log, target: Log, *, move: bool) -> str:
    """The way to use the copy, by the place that the WAL records."""
    here, said = target.store.root, plan.location
    if move:
        return (
            f"From a move on, {here} is the WAL and opens as it is, with the same checkpoint. {source.store.root} is "
            "refused. Delete it once the query has run at the new place"
        )
    if said == canonical(here):
        return (
            f"The WAL records that it lies at {said}. So the copy opens there as it is. Do not open "
            f"{source.store.root} any more, otherwise all batches are delivered from both"
        )
    if not said:
        return (
            "An early version made this WAL, which recorded no place. So nothing tells the copy from the WAL, and "
            "both open. Open only one of the two, otherwise all batches are delivered from both"
        )
    return (
        f"The copy is a backup: {said} remains the WAL. To go on with the copy instead, never open {said} again, and "
        f"pass its address for one start: WalSink(…, wal={here!r}, moved_from={said!r}), or wal-sink drain {here} … "
        f"--moved-from {said}"
    )


def _facts(plan: CopyPlan, source: Log, target: Log, done: Copied | None, *, move: bool) -> dict[str, object]:
    here, said = canonical(target.store.root), plan.location
    return {
        "wal": source.store.root,
        "copy": target.store.root,
        "wal_id": plan.wal.wal_id,
        "dry_run": done is None,
        "move": move,
        "found": plan.state,
        "objects": plan.objects,
        "batches": plan.found.batches,
        "copied_objects": done.objects if done else 0,
        "copied_bytes": done.bytes if done else 0,
        "damaged": list(done.damaged) if done else [],
        "moved_from": None if move or said in {"", here} else said,
    }
