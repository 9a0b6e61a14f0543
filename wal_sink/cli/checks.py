"""Parts that `verify` and `audit` share: running a check, and its report."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from wal_sink.checking.findings import Finding
from wal_sink.checking.verify import Check, OnBatch, Range, holds_wal
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.log_format import say
from wal_sink.cli.opened import NoWal, opened
from wal_sink.cli.output import batch_text, plain, print_json, size
from wal_sink.cli.tables import print_text
from wal_sink.cli.working import working
from wal_sink.errors import WalSinkError
from wal_sink.reporting.counts import counted
from wal_sink.stores.base import Store
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.log import NOTHING

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130
"""The exit code that shells report for a process ended by Ctrl-C."""
MOST_SHOWN = 1000
"""Findings that are kept. More are counted, so that a WAL with a fault in every object needs no more memory."""
_INDENT = "    "
_BATCH = click.IntRange(min=0)


def range_options(*, short: bool) -> Callable[[F], F]:
    """Add the options that limit a check. The verb gets them as `first`, `last` and `resume_after`.

    `short`: also as --from and --to, which mean something else to other verbs.
    """
    options = (
        click.option(
            "--from-batch", *(("--from",) if short else ()), "first", type=_BATCH, default=0, metavar="BATCH",
            help="Only batches from this one on.",
        ),
        click.option(
            "--to-batch", *(("--to",) if short else ()), "last", type=_BATCH, metavar="BATCH",
            help="Only batches up to this one.",
        ),
        click.option(
            "--resume-after", type=_BATCH, metavar="BATCH", help="Go on after this batch, as a stopped check says."
        ),
    )  # fmt: skip

    def added(verb: F) -> F:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return added


def range_of(first: int, last: int | None, resume_after: int | None) -> Range:
    """The batches that these options name."""
    return Range(first, last, NOTHING if resume_after is None else resume_after)


def opened_wal(spec: StoreSpec) -> Store:
    """The store of a WAL, damaged or not. Raises `NoWal` if nothing there is a WAL's."""
    store = opened(spec)
    with working(f"looking at {store.root}"):
        if not holds_wal(store):
            raise NoWal(f"{store.root} holds nothing that wal-sink makes: this folder is not a WAL. Check the address")
    return store


@contextlib.contextmanager
def ends_at_ctrl_c(verb: str) -> Iterator[None]:
    """End with exit code 130 for Ctrl-C outside `run`, such as while a store that is opened does not answer."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped before the first batch was checked. Repeat the command: wal-sink {verb} …")
        sys.exit(INTERRUPTED)


@dataclass(slots=True)
class Report:
    """The findings of a check so far."""

    check: Check
    shown: list[Finding] = field(default_factory=list)
    faults: int = 0

    def note(self, finding: Finding) -> None:
        self.faults += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(finding)


def run(verb: str, store: Store, make: Callable[[OnBatch], Check], *, as_json: bool) -> None:
    """Run a check and print its report. The exit code is 1 if there is a fault, 130 after Ctrl-C."""
    with working(f"{verb} of {store.root}") as work:
        report = Report(make(work.count))
        try:
            for finding in report.check.run():
                report.note(finding)
        except KeyboardInterrupt:
            is_stopped = True
        except WalSinkError as error:
            say(_how_to_go_on(verb, store, report.check, f"stopped by an error ({type(error).__name__})"))
            raise
        else:
            is_stopped = False
    _print(store, report, as_json=as_json)
    if is_stopped:
        say(_how_to_go_on(verb, store, report.check, "stopped"))
        sys.exit(INTERRUPTED)
    if report.faults:
        sys.exit(FOUND_SOMETHING)


def _how_to_go_on(verb: str, store: Store, check: Check, why: str) -> str:
    again = f"wal-sink {verb} {store.root}"
    if check.through == NOTHING:
        return f"{why} before the first batch was checked. Repeat the command: {again} …"
    return f"{why} after batch {check.through}. To go on there: {again} … --resume-after {check.through}"


def _print(store: Store, report: Report, *, as_json: bool) -> None:
    check, elsewhere = report.check, _elsewhere(report.check)
    if as_json:
        print_json(
            {
                "wal": store.root,
                "recorded_location": elsewhere or None,
                "faults": [plain(finding) for finding in report.shown],
                "faults_left_off": report.faults - len(report.shown),
                "seen": plain(check.seen),
                "through": None if check.through == NOTHING else check.through,
                "complete": check.is_complete,
                "not_compared": check.left_out(),
            }
        )
        return
    for finding in report.shown:
        _print_finding(finding)
    if report.faults > len(report.shown):
        print_text(f"{counted(report.faults - len(report.shown), 'more fault')} of the same check are not shown")
    for line in _summary(store, check, elsewhere):
        print_text(line, hang=_INDENT)
    found = f"{counted(report.faults, 'fault')} found" if report.faults else "no fault found"
    found += " in what was compared" if check.left_out() and not report.faults else ""
    print_text(found if check.is_complete else f"{found} so far")


def _elsewhere(check: Check) -> str:
    with contextlib.suppress(WalSinkError):  # the check itself told of damaged records
        return check.elsewhere()
    return ""


def _print_finding(finding: Finding) -> None:
    batch = "" if finding.batch_id is None else f" (batch {finding.batch_id})"
    print_text(f"FAULT {finding.fault}: {finding.where}{batch}", hang=_INDENT)
    print_text(f"{_INDENT}{finding.what}", hang=_INDENT)
    print_text(f"{_INDENT}next: {finding.next_step}", hang=_INDENT)


def _summary(store: Store, check: Check, elsewhere: str) -> Iterator[str]:
    """Counts of everything that was looked at, and of normal states that may look strange."""
    seen = check.seen
    if check.known.wal is None:
        yield f"{store.root}: no batch was staged here yet, or wal.json is gone"
    yield (
        f"checked through batch {batch_text(check.through)}: {counted(seen.batches, 'batch')}, "
        f"{counted(seen.records, 'record')}, {counted(seen.segments, 'segment')} ({size(seen.bytes)}, "
        f"{counted(seen.rows, 'row')}), {counted(seen.dead_letters, 'dead letter')}"
    )
    if elsewhere:
        yield f"this WAL records another place: {elsewhere}. It is a copy, or it was moved"
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
    for line in check.left_out():
        yield f"not compared: {line}"
