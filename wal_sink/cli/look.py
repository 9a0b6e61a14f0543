"""The verbs that look: `wal-sink status`, `batches`, `show` and `report`. They write nothing to a WAL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, Wal, no_wal
from wal_sink.cli.printer import (
    INDENT,
    Answer,
    age_text,
    batch_text,
    facts,
    fields_of,
    pairs,
    seconds_text,
    size,
    table,
    value_text,
)
from wal_sink.cli.sinks import held_back, pending
from wal_sink.cli.working import FOUND_SOMETHING, working
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.log.log import NOTHING
from wal_sink.operate.batches import (
    BatchDetail,
    BatchView,
    Delivered,
    SinkTimeline,
    StagedRows,
    read_batch,
    read_batches,
    read_rows,
)
from wal_sink.operate.health import LOOKED_AT, Health, SinkHealth, read_health
from wal_sink.operate.report import NEWEST, page_of, read_report
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
    text = [*lines_of_status(found), *_of_health(health), *told]
    return Answer(document, text, FOUND_SOMETHING if is_bad else 0)


def lines_of_status(found: Status) -> Iterator[str]:
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
            f"{name}: within an hour, {sink.take_overs} of its last {LOOKED_AT - 1} takeovers came after a process "
            "that had not recorded its end. Either these processes were killed (out of memory?), or two supervisors "
            "end each other's processes. Let one supervisor run one process of each sink"
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


@options.verb("batches", "Every batch a WAL still holds.")
@click.option("--after", type=int, default=NOTHING, metavar="BATCH", help="Only batches after this one.")
def batches(*, wal: Wal, after: int) -> Answer:
    """Every batch the WAL still holds, oldest first.

    Each line shows rows, segments and size, the number of staging attempts, whether the batch is released for delivery,
    and the sinks that have it.
    """
    sinks = {sink.name for sink in wal.require().sinks}
    with working(f"reading the batches of {wal.store.root}") as work:
        found = read_batches(wal.facts, after=after, on_batch=work.count)
    return Answer(found, lines_of_batches(found, sinks))


def lines_of_batches(found: Sequence[BatchView], sinks: set[str]) -> Iterator[str]:
    """The batches for people. `sinks`: the names of all sinks. If all of several have a batch, their number is told."""

    def delivered(view: BatchView) -> object:
        has_all = len(sinks) > 1 and sinks <= set(view.delivered_to)
        return f"all {len(sinks)} sinks" if has_all else view.delivered_to

    numbers = ("batch=batch_id", "rows", "segments", "size=bytes", "attempts")
    yield from table(found, *numbers, "released", ("delivered to", delivered))
    yield f"{counted(len(found), 'batch')}, {counted(sum(view.rows for view in found), 'row')}"


LONGEST_VALUE = 40


@options.verb("show", "One batch, with its first rows.")
@options.batch
@click.option("--rows", type=click.IntRange(min=0), default=5, show_default=True, help="How many rows to show.")
def show(*, wal: Wal, batch: int, rows: int) -> Answer:
    """One batch: manifest, release and segments, where its time went, the sinks that have it, and its first rows."""
    status = wal.require()
    with working(f"reading batch {batch} of {wal.store.root}"):
        detail = read_batch(wal.facts, batch)
    if detail is None:
        held = f"the WAL holds batches {max(status.low_water + 1, status.first_batch or 0)} to {status.newest_batch}"
        raise NoWal(f"{status.wal} holds no manifest of batch {batch}; {held}")
    with working(f"reading rows of batch {batch}"):
        try:
            staged = read_rows(wal.store, detail.manifest, rows)
        except CorruptError as error:
            raise CorruptError(f"{error}. The same command with --rows 0 shows all but the rows") from error
    return Answer({**fields_of(detail), "rows": staged}, _of_batch(detail, staged))


def _of_batch(detail: BatchDetail, staged: StagedRows) -> Iterator[str]:
    manifest, timeline, release = detail.manifest, detail.timeline, detail.release
    yield from facts(
        detail,
        "batch=manifest.batch_id",
        "rows=manifest.rows",
        "size=manifest.bytes",
        ("staged", lambda _: f"{manifest.created}, term {manifest.term}, attempt {manifest.attempt}"),
        "attempts",
        ("released", lambda _: f"{release.created} by run {release.run_id}" if release else "no"),
        "rows per chunk=manifest.chunk_rows",
        "fingerprint=manifest.fingerprint",
        ("offsets", lambda _: "\n".join(manifest.offsets.splitlines()[2:])),
    )
    yield ""
    yield f"staging took {seconds_text(timeline.staging_s)}{_slowest_task(detail)}"
    if release is not None:
        yield f"the release came {seconds_text(timeline.release_s)} after it"
    yield ""
    times = ("queue=queue_s", "checkpoint=checkpoint_s", "delivery=delivery_s", "fetch=fetch_s", "send=send_s")
    more = ("retries", "marker=marker_s", ("slowest segment", _slowest_segment))
    yield from table(timeline.sinks, "sink", *times, *more)
    yield ""
    checksum = ("CRC-32", lambda segment: f"{segment.crc32:08x}")
    yield from table(manifest.segments, "rows", "size=bytes", checksum, "segment=path")
    yield ""
    yield from table(detail.delivered, "sink", ("has it", _has_it), "rows", "progress records=chunks")
    if staged.rows:
        yield ""
    for number, row in enumerate(staged.rows):
        yield f"row {number}"
        values = (value_text(value, longest=LONGEST_VALUE) for value in row)
        yield from pairs(zip(staged.columns, values, strict=True), INDENT)


def _slowest_task(detail: BatchDetail) -> str:
    tasks = detail.timeline.tasks
    if tasks is None or tasks.slowest is None:
        return ""
    slowest, host = tasks.slowest, f" on {tasks.slowest.host}" if tasks.slowest.host else ""
    told = f"partition {slowest.partition}{host}, {seconds_text(slowest.seconds)}"
    return f"; tasks: {tasks.tasks:,}; the slowest: {told}"


def _slowest_segment(each: SinkTimeline) -> str:
    if each.slowest is None:
        return ""
    slowest, host = each.slowest, f" on {each.slowest.host}" if each.slowest.host else ""
    fetch, send = seconds_text(slowest.fetch_seconds), seconds_text(slowest.send_seconds)
    return f"{slowest.ordinal}{host}: fetch {fetch}, send {send}"


def _has_it(sink: Delivered) -> str:
    if sink.skipped:
        return "skipped"
    return "all of it" if sink.complete else "a part" if sink.rows else "no"


_NEWEST = click.IntRange(min=1, max=10_000)


@options.verb("report", "A page about the recent past of a WAL.")
@click.option("-o", "--output", metavar="FILE", help="The HTML file to write; - is stdout.")
@click.option("--newest", type=_NEWEST, default=NEWEST, show_default=True, help="How many batches to read.")
@options.checkpoint
def report(*, wal: Wal, output: str | None, newest: int, checkpoint: str | None) -> Answer:
    """Write one HTML page: lag over time, where the time of each batch went, rows, sizes of segments, retries, and
    dead letters.

    The page needs no network, and can be sent as it is. Nothing is written to the WAL. --json writes the data of the
    page instead.
    """
    as_json = options.is_json()
    if output is None and not as_json:
        raise click.UsageError("Missing option '-o' / '--output': the HTML file to write, or - for stdout")
    spark = wal.commit(wal.require_record(), checkpoint)
    with working(f"reading the newest batches of {wal.store.root}") as work:
        data = read_report(wal.facts, read_health(wal.facts, spark), newest=newest, on_batch=work.count)
    if as_json or output is None:
        return Answer(data)
    page = page_of(data)
    if output == "-":
        click.echo(page, nl=False)
        return Answer(data)
    _write(Path(output), page)
    shown = f"{counted(data['shown'], 'batch')} of {data['held']:,}, {len(page.encode()):,} bytes"
    return Answer(data, [f"{output}: {shown}"])


def _write(path: Path, page: str) -> None:
    """Write the file whole or not at all: a page that is open in a browser is never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        why = error.strerror or error
        raise ConfigError(f"--output {path}: cannot be written: {why}. Choose another file") from error
