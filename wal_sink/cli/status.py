"""`wal-sink status`: the state of a WAL and of its sinks, how far each is behind, and why."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from wal_sink.cli import options
from wal_sink.cli.durations import age_text, duration
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.opened import commit_of, no_wal, opened, status_of
from wal_sink.cli.output import batch_text, console, plain, print_json, size
from wal_sink.cli.sinks import held_back
from wal_sink.cli.tables import Listing, print_facts, print_text
from wal_sink.cli.working import working
from wal_sink.inspection import Health, SinkHealth, Status, older_checkpoint, read_health
from wal_sink.inspection.take_overs import LOOKED_AT
from wal_sink.recovery.location import canonical
from wal_sink.reporting.counts import counted
from wal_sink.stores.base import Store
from wal_sink.stores.spec import StoreSpec

MANY_TAKE_OVERS = 3
"""Take-overs among the newest that are worth a line."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A WAL at one moment. A WAL without its `wal.json` has no health."""

    status: Status
    health: Health | None

    def late(self, max_lag_s: float) -> list[SinkHealth]:
        """The sinks that are further behind than allowed, or whose lag is unknown."""
        return [sink for sink in self.health.sinks if sink.is_late(max_lag_s)] if self.health else []

    def refusing(self, max_letters: int) -> list[SinkHealth]:
        """The sinks with more dead letters than allowed, or where it cannot be excluded."""
        return [sink for sink in self.health.sinks if sink.refuses_too_much(max_letters)] if self.health else []

    @property
    def checkpoint_fault(self) -> str:
        """Why the checkpoint is older than the WAL; empty if it is not, or if that is unknown."""
        if self.health is None:
            return ""
        through = max((sink.delivered_through for sink in self.status.sinks), default=-1)
        return older_checkpoint(self.health.spark, newest_batch=self.status.newest_batch, delivered_through=through)

    def plain(self) -> dict[str, Any]:
        """The snapshot for JSON: each sink with its health."""
        if self.health is None:
            return {"exists": False, **plain(self.status)}
        sinks = [
            {**plain(sink), **plain(health)} for sink, health in zip(self.status.sinks, self.health.sinks, strict=True)
        ]
        more = {"looked_at": self.health.looked_at, "spark": plain(self.health.spark)}
        more["checkpoint_fault"] = self.checkpoint_fault or None
        return {"exists": True, **plain(self.status), **more, "sinks": sinks, "kept_back_by": self.health.kept_back_by}


@click.command(short_help="The state of a WAL and of its sinks.")
@click.argument("wal")
@click.option(
    "--max-lag",
    type=duration,
    metavar="DURATION",
    help="Exit code 1 if a sink lacks a batch that is older than this (10m, 2h), or if its lag is unknown.",
)
@click.option(
    "--max-letters",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit code 1 if more than N dead letters of a sink were not sent again, or if there may be more.",
)
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@options.storage_options
@options.checkpoint_options
@options.as_json
def status(
    *,
    wal: str,
    max_lag: float | None,
    max_letters: int | None,
    as_json: bool,
    **more: Any,
) -> None:
    """The state of a WAL and of its sinks: how far each is behind and since when, what is pending, who serves it, and
    what keeps batches from deletion.

    Ages compare the times in the WAL with the clock of this machine. Nothing is written. Exit code 1 if there is no
    WAL. With --max-lag also if a sink is later than that, if its lag is unknown, if no sink is registered, or if
    the checkpoint is older than the WAL. With --max-letters also if a sink has more dead letters than that.
    """
    spec = options.wal_spec(wal, more["option"], more["storage_options_json"])
    store = opened(spec)
    found = read_snapshot(store, spec, more)
    _show(found, console(), as_json=as_json)
    late = found.late(max_lag) if max_lag is not None else []
    if max_lag is not None and not as_json:
        _print_verdict(found, late, max_lag)
    has_none = max_lag is not None and not _active(found)
    refusing = found.refusing(max_letters) if max_letters is not None else []
    if not as_json:
        for sink in refusing:
            print_text(f"REFUSED: {_letters_of(sink)}; allowed are {counted(max_letters or 0, 'dead letter')}")
    if found.health is None or late or has_none or refusing:
        sys.exit(FOUND_SOMETHING)
    if max_lag is not None and found.checkpoint_fault:
        sys.exit(FOUND_SOMETHING)


def read_snapshot(store: Store, spec: StoreSpec, more: dict[str, Any]) -> Snapshot:
    """Read a WAL once. The checkpoint comes first: what Spark completed must be in the WAL that is read after it."""
    before = status_of(store)
    if before.wal_id is None:
        return Snapshot(before, None)
    spark = commit_of(before, spec, more)
    with working(f"reading the backlog of {store.root}"):
        return Snapshot(before, read_health(store, before, spark))


def _show(found: Snapshot, out: Console, *, as_json: bool) -> None:
    if as_json:
        print_json(found.plain())
    elif found.health is None:
        print_text(no_wal(found.status), out)
    else:
        print_status(found.status, out)
        _print_health(found.health, out)
        if found.checkpoint_fault:
            print_text(f"ERROR: {found.checkpoint_fault}", out)


def print_status(found: Status, out: Console | None = None) -> None:
    """Print the status for people."""
    out = out or console()
    print_facts(
        [
            ("WAL", found.wal),
            *([("lies at", found.location)] if found.location not in {None, canonical(found.wal)} else []),
            ("query", found.query_id),
            ("checkpoint", found.checkpoint),
            ("newest batch", batch_text(found.newest_batch)),
            ("deleted through", batch_text(found.low_water)),
            ("runs that staged", found.stager_term),
        ],
        out,
    )
    out.print()
    if not found.sinks:
        print_text("no sink is registered: batches are staged here, but no process drains them yet", out)
        return
    sinks = Listing("sink", "+kind", "state", ">delivered through", ">pending", "~term", "+last held by", "+target")
    for sink in found.sinks:
        through = batch_text(sink.delivered_through)
        pending = None if sink.state == "retired" or sink.is_holder else sink.pending_batches
        sinks.add(sink.name, sink.kind, sink.state, through, pending, sink.term, sink.held_by, sink.identity)
    sinks.print(out)
    for warning in held_back(found.sinks):
        print_text(warning, out)


def _print_health(health: Health, out: Console) -> None:
    if not health.sinks:
        return
    out.print()
    shown = Listing("sink", ">lag", ">last delivery", "~rows pending", "~size", "~behind Spark", "~dead letters")
    for sink in (each for each in health.sinks if not each.is_retired):
        last = "none" if sink.delivered_at is None else f"{age_text(sink.delivered_age_s)} ago"
        letters = f"{_least(sink)}{sink.dead_letters:,}"
        if sink.is_holder:
            shown.add(sink.name, "-", last, "-", "-", "-", letters)
            continue
        behind = "unknown" if sink.behind_spark is None else counted(sink.behind_spark, "batch")
        pending, least = sink.pending, "" if sink.pending.is_exact else "at least "
        rows, amount = f"{least}{pending.rows:,}", f"{least}{size(pending.bytes)}"
        shown.add(sink.name, age_text(sink.lag_s), last, rows, amount, behind, letters)
    shown.print(out)
    for line in _notes(health):
        print_text(line, out)


def _error_of(sink: SinkHealth) -> str:
    """The last error of a sink, in a sentence."""
    error = sink.last_error
    if error is None or error.is_over:
        return ""
    if error.batch_id < 0:
        return f"sink {sink.name!r}: its last error cannot be read: {error.text}"
    since = f"since {age_text(error.age_s)}"
    attempts = f"at least {counted(error.attempts, 'attempt')}"
    where = f"sink {sink.name!r} fails at batch {error.batch_id} {since} ({attempts})"
    return f"{where}: {error.error_class}: {error.text}"


def _letters_of(sink: SinkHealth) -> str:
    """The rows that a target refused, in a sentence."""
    letters, least = sink.letters, _least(sink)
    since = f" since {least}{age_text(sink.letters_age_s)} ago" if letters.due else ""
    sent = f" ({counted(letters.replayed, 'dead letter')} sent again)" if letters.replayed else ""
    rows, files = counted(letters.rows, "row"), counted(letters.due, "dead letter")
    note = f" ({letters.note})" if letters.note else ""
    return f"sink {sink.name!r}: {least}{rows} refused or in doubt, kept in {least}{files}{since}{sent}{note}"


def _least(sink: SinkHealth) -> str:
    return "" if sink.letters.is_exact else "at least "


def _staged(age_s: float | None) -> str:
    return "staged at an unknown time" if age_s is None else f"staged {age_text(age_s)} ago"


def _notes(health: Health) -> list[str]:
    told = [said for said in map(_error_of, health.sinks) if said]
    told += [
        f"{_letters_of(sink)}. The target lacks them: wal-sink dead-letters list WAL --name {sink.name}"
        for sink in health.sinks
        if not sink.is_retired and (sink.letters.due or not sink.letters.is_exact)
    ]
    told += [
        f"sink {sink.name!r}: {sink.take_overs} of its last {LOOKED_AT - 1} take-overs came after a process that "
        "had not recorded its end, within an hour. Either it was killed (memory?), or two supervisors end each other. "
        "Let one supervisor run one process of each sink"
        for sink in health.sinks
        if sink.take_overs >= MANY_TAKE_OVERS
    ]
    told += [f"sink {sink.name!r}: {sink.lag_note}" for sink in health.sinks if sink.lag_note]
    told += [
        f"sink {sink.name!r} keeps {counted(sink.keeps_back, 'batch')} from deletion; the oldest is "
        f"{sink.pending.oldest}, {_staged(sink.pending_age_s)}"
        for sink in health.sinks
        if sink.keeps_back and sink.pending.oldest is not None
    ]
    if health.spark.newest is None:
        told.append(f"Spark's newest commit is unknown: {health.spark.unknown_because}")
    else:
        told.append(f"Spark completed batches through {batch_text(health.spark.newest)}")
    return told


def _active(found: Snapshot) -> list[SinkHealth]:
    return [sink for sink in found.health.sinks if sink.has_lag] if found.health else []


def _print_verdict(found: Snapshot, late: list[SinkHealth], max_lag_s: float) -> None:
    if found.health is None:
        return
    for sink in late:
        lag = "an unknown lag" if sink.lag_s is None else f"a lag of {age_text(sink.lag_s)}"
        print_text(f"LATE: sink {sink.name!r} has {lag}; allowed are {age_text(max_lag_s)}")
    if not _active(found):
        print_text("LATE: no sink is registered, or all are retired: nothing is delivered")
