"""`wal-sink verify`: a WAL checked against itself, and compared with its checkpoint and with a target. Reads only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, Wal, target
from wal_sink.cli.printer import INDENT, Answer, batch_text, size
from wal_sink.cli.working import ENDED_BY_CTRL_C, FOUND_SOMETHING, Work, say, working
from wal_sink.errors import WalSinkError
from wal_sink.operate.against import AgainstCheckpoint, AgainstTarget
from wal_sink.operate.findings import Finding, Findings
from wal_sink.operate.verify import Check, Comparison, holds_wal
from wal_sink.support.texts import counted


@options.verb("verify", "Check a WAL; compare it with checkpoint and target.")
@click.option("--checkpoint", metavar="URL", help="Compare the WAL with this checkpoint.")
@options.to("Compare it with the target of the sink --name: a backend's URL, or an object to import.", required=False)
@options.name
@click.option("--segments/--no-segments", default=True, help="Read every segment, too; default: yes.")
@click.option(
    "--from-batch", "first", type=options.BATCH, default=0, metavar="BATCH", help="Only batches from this one on."
)
def verify(*, wal: Wal, **more: Any) -> Answer:
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
    found: Findings | None = None
    try:
        require_any(wal)
        with working(f"verify of {wal.store.root}") as work:
            check = _check(wal, work, more)
            found = check.found
            check.run()
    except KeyboardInterrupt:
        pass  # what was found so far is printed
    except WalSinkError as error:
        if found is not None:
            say(_how_to_go_on(found, f"stopped by an error ({type(error).__name__})"))
        raise
    if found is None or not found.complete:
        say(_how_to_go_on(found, "stopped"))
    if found is None:
        sys.exit(ENDED_BY_CTRL_C)
    code = FOUND_SOMETHING if found.faults else 0
    return Answer(found, _lines(found), code if found.complete else ENDED_BY_CTRL_C)


def require_any(wal: Wal) -> None:
    """Raise `NoWal` if nothing at the address is a WAL's. The WAL may be damaged."""
    with working(f"looking at {wal.store.root}"):
        if not holds_wal(wal.store):
            root = wal.store.root
            raise NoWal(f"{root} holds nothing that wal-sink makes: this folder is not a WAL. Check the address")


def _check(wal: Wal, work: Work, more: dict[str, Any]) -> Check:
    """The check that the options describe, with what they leave out."""
    comparisons: list[Comparison] = []
    left_out = [] if more["segments"] else ["the bytes of segments (--no-segments)"]
    if more["checkpoint"] is None:
        left_out.append("the checkpoint (give its address with --checkpoint)")
    else:
        comparisons.append(AgainstCheckpoint(wal.checkpoint(None, more["checkpoint"])))
    if more["to"] is None:
        left_out.append("the positions of targets (give one with --to, and its sink with --name)")
    else:
        comparisons.append(AgainstTarget(target(more["to"]), more["name"]))
    return Check(
        wal.store,
        range(more["first"], sys.maxsize),
        reads_segments=more["segments"],
        comparisons=comparisons,
        left_out=left_out,
        on_batch=work.count,
    )


def _how_to_go_on(found: Findings | None, why: str) -> str:
    if found is None or found.through is None:
        return f"{why} before the first batch was checked. Repeat the command: wal-sink verify …"
    again = f"wal-sink verify {found.wal} … --from-batch {found.through + 1}"
    return f"{why} after batch {found.through}. To go on there: {again}"


def _lines(found: Findings) -> Iterator[str]:
    for finding in found.faults:
        yield from _of_fault(finding)
    if found.faults_left_off:
        yield f"{counted(found.faults_left_off, 'more fault')} of the same check are not shown"
    yield from _summary(found)
    faults = len(found.faults) + found.faults_left_off
    told = f"{counted(faults, 'fault')} found" if faults else "no fault found"
    told += " in what was compared" if found.not_compared and not faults else ""
    yield told if found.complete else f"{told} so far"


def _of_fault(finding: Finding) -> Iterator[str]:
    batch = "" if finding.batch_id is None else f" (batch {finding.batch_id})"
    yield f"FAULT {finding.fault}: {finding.where}{batch}"
    yield f"{INDENT}{finding.what}"
    yield f"{INDENT}next: {finding.next_step}"


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
        (seen.debris_objects, "object", "of such attempts and failed tasks; deleted with their batch"),
        (seen.skipped_batches, "batch", "skipped on purpose by a sink"),
        (seen.leftovers, "batch", "delivered everywhere and being deleted"),
    ]
    told = [f"{counted(count, what)} {state}" for count, what, state in normal if count]
    if told:
        yield f"normal: {'; '.join(told)}"
    yield from (f"not compared: {line}" for line in found.not_compared)
