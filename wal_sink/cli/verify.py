"""`wal-sink verify`: a WAL checked against itself, and compared with its checkpoint and with a target. Reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.log_format import say
from wal_sink.cli.opened import NoWal, checkpoint_of, opened
from wal_sink.cli.output import batch_text, print_json, size
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.working import Work, working
from wal_sink.errors import WalSinkError
from wal_sink.operate.against import AgainstCheckpoint, AgainstTarget
from wal_sink.operate.findings import Finding, Findings
from wal_sink.operate.verify import Check, Comparison, holds_wal
from wal_sink.reporting.counts import counted
from wal_sink.stores.base import Store
from wal_sink.stores.spec import StoreSpec

INTERRUPTED = 130
"""The exit code that shells report for a process ended by Ctrl-C."""
_INDENT = "    "
_BATCH = click.IntRange(min=0)


@click.command(short_help="Check a WAL; compare it with checkpoint and target.")
@click.argument("wal")
@click.option("--checkpoint", metavar="URL", help="Compare the WAL with this checkpoint.")
@click.option("--to", "to", metavar="URL|MODULE:OBJECT", help="Compare it with the target of the sink --name: a "
              "backend's URL, or an object to import.")  # fmt: skip
@click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
@click.option("--segments/--no-segments", default=True, help="Read every segment, too; default: yes.")
@click.option("--from-batch", "first", type=_BATCH, default=0, metavar="BATCH", help="Only batches from this one on.")
@options.storage_options
@options.checkpoint_options
@options.as_json
def verify(*, wal: str, as_json: bool, **more: Any) -> None:
    """Read every object of a WAL, and compare checksums, sizes, row counts and references. Writes nothing.

    With --checkpoint and --to, find what these two and the WAL do not agree about: gaps (batches or rows that are
    missing), doubles and orphans (batches, records or positions that nothing explains). The output names each
    comparison that was not made.

    A query, a drain and a collection may run meanwhile. The command reads every segment, so it takes as long as a
    download of the WAL. If it is stopped, it says how to go on. Exit code 1: at least one fault was found.

    \b
        wal-sink verify wal/orders --checkpoint checkpoint/orders
        wal-sink verify wal/orders --to 'sqlite:///orders.db?table=orders' --name orders
    """
    spec = options.wal_spec(wal, more)
    found: Findings | None = None
    try:
        store = _opened_wal(spec)
        with working(f"verify of {store.root}") as work:
            check = _check(store, spec, work, more)
            found = check.found
            check.run()
    except KeyboardInterrupt:
        pass  # what was found so far is printed
    except WalSinkError as error:
        if found is not None:
            say(_how_to_go_on(found, f"stopped by an error ({type(error).__name__})"))
        raise
    if found is not None:
        print_json(found) if as_json else _print(found)
    if found is None or not found.complete:
        say(_how_to_go_on(found, "stopped"))
        sys.exit(INTERRUPTED)
    if found.faults:
        sys.exit(FOUND_SOMETHING)


def _opened_wal(spec: StoreSpec) -> Store:
    """The store of a WAL, damaged or not. Raises `NoWal` if nothing there is a WAL's."""
    store = opened(spec)
    with working(f"looking at {store.root}"):
        if not holds_wal(store):
            raise NoWal(f"{store.root} holds nothing that wal-sink makes: this folder is not a WAL. Check the address")
    return store


def _check(store: Store, spec: StoreSpec, work: Work, more: dict[str, Any]) -> Check:
    """The check that the options describe, with what they leave out."""
    comparisons: list[Comparison] = []
    left_out = [] if more["segments"] else ["the bytes of segments (--no-segments)"]
    if more["checkpoint"] is None:
        left_out.append("the checkpoint (give its address with --checkpoint)")
    else:
        comparisons.append(AgainstCheckpoint(checkpoint_of(None, spec, more)))
    if more["to"] is None:
        left_out.append("the positions of targets (give one with --to, and its sink with --name)")
    else:
        comparisons.append(AgainstTarget(target(more["to"]), more["name"]))
    return Check(store, range(more["first"], sys.maxsize), reads_segments=more["segments"],
                 comparisons=comparisons, left_out=left_out, on_batch=work.count)  # fmt: skip


def _how_to_go_on(found: Findings | None, why: str) -> str:
    if found is None or found.through is None:
        return f"{why} before the first batch was checked. Repeat the command: wal-sink verify …"
    again = f"wal-sink verify {found.wal} … --from-batch {found.through + 1}"
    return f"{why} after batch {found.through}. To go on there: {again}"


def _print(found: Findings) -> None:
    for finding in found.faults:
        _print_finding(finding)
    if found.faults_left_off:
        print_text(f"{counted(found.faults_left_off, 'more fault')} of the same check are not shown")
    for line in _summary(found):
        print_text(line, hang=_INDENT)
    faults = len(found.faults) + found.faults_left_off
    told = f"{counted(faults, 'fault')} found" if faults else "no fault found"
    told += " in what was compared" if found.not_compared and not faults else ""
    print_text(told if found.complete else f"{told} so far")


def _print_finding(finding: Finding) -> None:
    batch = "" if finding.batch_id is None else f" (batch {finding.batch_id})"
    print_text(f"FAULT {finding.fault}: {finding.where}{batch}", hang=_INDENT)
    print_text(f"{_INDENT}{finding.what}", hang=_INDENT)
    print_text(f"{_INDENT}next: {finding.next_step}", hang=_INDENT)


def _summary(found: Findings) -> Iterator[str]:
    """Counts of everything that was looked at, and of normal states that may look strange."""
    seen = found.seen
    if not found.exists:
        yield f"{found.wal}: no batch was staged here yet, or wal.json is gone"
    yield (
        f"checked through batch {batch_text(found.through)}: {counted(seen.batches, 'batch')}, "
        f"{counted(seen.records, 'record')}, {counted(seen.segments, 'segment')} ({size(seen.bytes)}, "
        f"{counted(seen.rows, 'row')}), {counted(seen.dead_letters, 'dead letter')}"
    )
    if found.recorded_location:
        yield f"this WAL records another place: {found.recorded_location}. It is a copy, or it was moved"
    normal = [
        (seen.unreleased_batches, "batch", "staged and not released yet"),
        (seen.superseded_attempts, "attempt", "superseded by a later one"),
        (seen.unfinished_attempts, "attempt", "under way, or left by a process that ended"),
        (seen.debris_objects, "object", "of such attempts and failed tasks; they go with their batch"),
        (seen.skipped_batches, "batch", "skipped on purpose by a sink"),
        (seen.leftovers, "batch", "delivered everywhere and being deleted"),
    ]
    told = [f"{counted(count, what)} {state}" for count, what, state in normal if count]
    if told:
        yield f"normal: {'; '.join(told)}"
    for line in found.not_compared:
        yield f"not compared: {line}"
