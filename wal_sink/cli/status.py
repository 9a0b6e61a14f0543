"""`wal-sink status`: the state of a WAL and of its sinks, how far each is behind, and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from wal_sink.cli import options
from wal_sink.cli.exits import FOUND_SOMETHING
from wal_sink.cli.opened import Wal, no_wal
from wal_sink.cli.printer import Answer, age_text, batch_text, facts, fields_of, size, table
from wal_sink.cli.sinks import held_back, pending
from wal_sink.cli.working import working
from wal_sink.operate.health import LOOKED_AT, Health, SinkHealth, read_health
from wal_sink.operate.status import Status, status_of
from wal_sink.protocol.location import canonical
from wal_sink.support.texts import counted

MANY_TAKE_OVERS = 3
"""Take-overs among the newest that are worth a line."""


@options.verb("status", "The state of a WAL and of its sinks.")
@click.option(
    "--max-lag",
    type=options.duration,
    metavar="DURATION",
    help="Exit code 1 if a sink lacks a batch that is older than this (10m, 2h), or if its lag is unknown.",
)
@click.option(
    "--max-letters",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit code 1 if more than N dead letters of a sink were not sent again, or if there may be more.",
)
@options.checkpoint
def status(*, wal: Wal, max_lag: float | None, max_letters: int | None, checkpoint: str | None) -> Answer:
    """The state of a WAL and of its sinks: how far each is behind and since when, what is pending, who serves it, and
    what keeps batches from deletion.

    Ages compare the times in the WAL with the clock of this machine. Nothing is written. Exit code 1 if there is no
    WAL. With --max-lag also if a sink is later than that, if its lag is unknown, if no sink is registered, or if
    the checkpoint is older than the WAL. With --max-letters also if a sink has more dead letters than that.
    """
    record = wal.record()
    if record is None:
        found = wal.status()
        return Answer({"exists": False, **fields_of(found)}, [no_wal(found)], FOUND_SOMETHING)
    again = partial(wal.commit, record, checkpoint)
    spark = again()
    with working(f"reading the backlog of {wal.store.root}"):
        health, found = read_health(wal.facts, spark, again=again), status_of(wal.facts)
    told = [*_late(health, max_lag), *_refusing(health, max_letters)]
    both = zip(found.sinks, health.sinks, strict=True)
    sinks = [{**fields_of(sink), **fields_of(its)} for sink, its in both]
    document = {"exists": True, **fields_of(found), **fields_of(health), "sinks": sinks}
    is_bad = told or (max_lag is not None and health.checkpoint_fault)
    text = [*lines(found), *_of_health(health), *told]
    return Answer(document, text, FOUND_SOMETHING if is_bad else 0)


def lines(found: Status) -> Iterator[str]:
    """The WAL and its sinks, for people."""
    elsewhere = ["lies at=location"] if found.location not in {None, canonical(found.wal)} else []
    numbers = ("newest_batch", "deleted through=low_water", "runs that staged=stager_term")
    yield from facts(found, "WAL=wal", *elsewhere, "query=query_id", "checkpoint", *numbers)
    yield ""
    if not found.sinks:
        yield "no sink is registered: batches are staged here, but no process drains them yet"
        return
    columns = ("sink=name", "kind", "state", "delivered_through", ("pending", pending), "term")
    yield from table(found.sinks, *columns, "last held by=held_by", "target=identity")
    yield from held_back(found.sinks)


def _of_health(health: Health) -> Iterator[str]:
    if health.sinks:
        yield from _of_sinks(health)
    if health.checkpoint_fault:
        yield f"ERROR: {health.checkpoint_fault}"


def _of_sinks(health: Health) -> Iterator[str]:
    yield ""
    yield from table(
        [sink for sink in health.sinks if not sink.is_retired],
        "sink=name",
        ("lag", lambda sink: None if sink.is_holder else age_text(sink.lag_s)),
        ("last delivery", lambda sink: f"{age_text(sink.delivered_age_s)} ago" if sink.delivered_at else "none"),
        ("rows pending", lambda sink: _pending(sink, f"{sink.pending.rows:,}")),
        ("size", lambda sink: _pending(sink, size(sink.pending.bytes))),
        ("behind Spark", _behind),
        ("dead letters", lambda sink: f"{_least(sink)}{sink.dead_letters:,}"),
    )
    for sink in health.sinks:
        yield from _notes(sink)
    newest = health.spark.newest
    if newest is None:
        yield f"Spark's newest commit is unknown: {health.spark.unknown_because}"
    else:
        yield f"Spark completed batches through {batch_text(newest)}"


def _pending(sink: SinkHealth, amount: str) -> str | None:
    return None if sink.is_holder else amount if sink.pending.is_exact else f"at least {amount}"


def _behind(sink: SinkHealth) -> str | None:
    behind = "unknown" if sink.behind_spark is None else counted(sink.behind_spark, "batch")
    return None if sink.is_holder else behind


def _notes(sink: SinkHealth) -> Iterator[str]:
    """Sentences about faults of a sink, and about batches that it keeps from deletion."""
    name = f"sink {sink.name!r}"
    yield from _error_of(sink)
    if not sink.is_retired and (sink.letters.due or not sink.letters.is_exact):
        yield f"{_letters_of(sink)}. The target lacks them: wal-sink letters list WAL --name {sink.name}"
    if sink.take_overs >= MANY_TAKE_OVERS:
        yield (
            f"{name}: {sink.take_overs} of its last {LOOKED_AT - 1} take-overs came after a process that had not "
            "recorded its end, within an hour. Either it was killed (memory?), or two supervisors end each other. Let "
            "one supervisor run one process of each sink"
        )
    if sink.lag_note:
        yield f"{name}: {sink.lag_note}"
    if sink.keeps_back and sink.pending.oldest is not None:
        age = sink.pending_age_s
        staged = "staged at an unknown time" if age is None else f"staged {age_text(age)} ago"
        kept = counted(sink.keeps_back, "batch")
        yield f"{name} keeps {kept} from deletion; the oldest is {sink.pending.oldest}, {staged}"


def _error_of(sink: SinkHealth) -> Iterator[str]:
    """The last error of a sink, in a sentence."""
    error = sink.last_error
    if error is None or error.is_over:
        return
    if error.batch_id < 0:
        yield f"sink {sink.name!r}: its last error cannot be read: {error.text}"
        return
    since = f"since {age_text(error.age_s)} (at least {counted(error.attempts, 'attempt')})"
    yield f"sink {sink.name!r} fails at batch {error.batch_id} {since}: {error.error_class}: {error.text}"


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
    for sink in health.sinks:
        if max_letters is not None and sink.refuses_too_much(max_letters):
            yield f"REFUSED: {_letters_of(sink)}; allowed are {counted(max_letters, 'dead letter')}"
