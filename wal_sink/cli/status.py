"""`wal-sink status`: the state of a WAL and of its sinks, how far each is behind, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.durations import age_text, duration
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.opened import commit_of, no_wal, opened
from wal_sink.cli.output import batch_text, plain, print_json, size
from wal_sink.cli.sinks import held_back
from wal_sink.cli.tables import Listing, print_facts, print_text
from wal_sink.cli.working import working
from wal_sink.operate.health import LOOKED_AT, Health, SinkHealth, read_health
from wal_sink.operate.look import WalFacts
from wal_sink.operate.status import Status, status_of
from wal_sink.recovery.location import canonical
from wal_sink.reporting.counts import counted

MANY_TAKE_OVERS = 3
"""Take-overs among the newest that are worth a line."""


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
def status(*, wal: str, max_lag: float | None, max_letters: int | None, as_json: bool, **more: Any) -> None:
    """The state of a WAL and of its sinks: how far each is behind and since when, what is pending, who serves it, and
    what keeps batches from deletion.

    Ages compare the times in the WAL with the clock of this machine. Nothing is written. Exit code 1 if there is no
    WAL. With --max-lag also if a sink is later than that, if its lag is unknown, if no sink is registered, or if
    the checkpoint is older than the WAL. With --max-letters also if a sink has more dead letters than that.
    """
    spec = options.wal_spec(wal, more)
    store = opened(spec)
    facts = WalFacts(store)
    with working(f"reading the state of {store.root}"):
        record = facts.wal
    if record is None:
        before = status_of(facts)
        print_json({"exists": False, **plain(before)}) if as_json else print_text(no_wal(before))
        sys.exit(FOUND_SOMETHING)
    again = partial(commit_of, record, spec, more)
    spark = again()  # first: what Spark completed must be in the WAL that is read after it
    with working(f"reading the backlog of {store.root}"):
        health, before = read_health(facts, spark, again=again), status_of(facts)
    told = [*_late(health, max_lag), *_refusing(health, max_letters)]
    if as_json:
        sinks = [{**plain(sink), **plain(its)} for sink, its in zip(before.sinks, health.sinks, strict=True)]
        print_json({"exists": True, **plain(before), **plain(health), "sinks": sinks})
    else:
        print_status(before)
        _print_health(health)
        for line in ([f"ERROR: {health.checkpoint_fault}"] if health.checkpoint_fault else []) + told:
            print_text(line)
    if told or (max_lag is not None and health.checkpoint_fault):
        sys.exit(FOUND_SOMETHING)


def print_status(found: Status) -> None:
    """Print the status for people."""
    print_facts(
        [
            ("WAL", found.wal),
            *([("lies at", found.location)] if found.location not in {None, canonical(found.wal)} else []),
            ("query", found.query_id),
            ("checkpoint", found.checkpoint),
            ("newest batch", batch_text(found.newest_batch)),
            ("deleted through", batch_text(found.low_water)),
            ("runs that staged", found.stager_term),
        ]
    )
    click.echo()
    if not found.sinks:
        print_text("no sink is registered: batches are staged here, but no process drains them yet")
        return
    sinks = Listing("sink", "+kind", "state", ">delivered through", ">pending", "~term", "+last held by", "+target")
    for sink in found.sinks:
        through = batch_text(sink.delivered_through)
        pending = None if sink.state == "retired" or sink.is_holder else sink.pending_batches
        sinks.add(sink.name, sink.kind, sink.state, through, pending, sink.term, sink.held_by, sink.identity)
    sinks.print()
    for warning in held_back(found.sinks):
        print_text(warning)


def _print_health(health: Health) -> None:
    if not health.sinks:
        return
    click.echo()
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
    shown.print()
    for line in _notes(health):
        print_text(line)


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
        f"{_letters_of(sink)}. The target lacks them: wal-sink letters list WAL --name {sink.name}"
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


def _late(health: Health, max_lag_s: float | None) -> Iterator[str]:
    """A line for each sink that is later than allowed, or whose lag is unknown; and one if no sink has a lag."""
    if max_lag_s is None:
        return
    for sink in health.sinks:
        if sink.is_late(max_lag_s):
            lag = "an unknown lag" if sink.lag_s is None else f"a lag of {age_text(sink.lag_s)}"
            yield f"LATE: sink {sink.name!r} has {lag}; allowed are {age_text(max_lag_s)}"
    if not any(sink.has_lag for sink in health.sinks):
        yield "LATE: no sink is registered, or all are retired: nothing is delivered"


def _refusing(health: Health, max_letters: int | None) -> Iterator[str]:
    """A line for each sink with more dead letters than allowed, or where it cannot be excluded."""
    for sink in health.sinks if max_letters is not None else ():
        if sink.refuses_too_much(max_letters or 0):
            yield f"REFUSED: {_letters_of(sink)}; allowed are {counted(max_letters or 0, 'dead letter')}"
