"""`wal-sink show`: one batch with its manifest, release, timeline, segments, sinks and first rows."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, Wal
from wal_sink.cli.printer import INDENT, Answer, facts, fields_of, pairs, seconds_text, table, value_text
from wal_sink.cli.working import working
from wal_sink.operate.batches import BatchDetail, Delivered, SinkTimeline, StagedRows, read_batch, read_rows

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
        staged = read_rows(wal.store, detail.manifest, rows)
    return Answer({**fields_of(detail), "rows": staged}, _lines(detail, staged))


def _lines(detail: BatchDetail, staged: StagedRows) -> Iterator[str]:
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
    yield from table(detail.delivered, "sink", ("has it", _state), "rows", "progress records=chunks")
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


def _state(sink: Delivered) -> str:
    if sink.skipped:
        return "skipped"
    return "all of it" if sink.complete else "a part" if sink.rows else "no"
