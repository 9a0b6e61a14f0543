"""`wal-sink show`: one batch with its manifest, release, timeline, segments, sinks and first rows."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, opened, require_facts
from wal_sink.cli.output import cell, clean, plain, print_json, size
from wal_sink.cli.tables import Listing, print_facts, print_rows
from wal_sink.cli.working import working
from wal_sink.operate.batches import BatchDetail, SinkTimeline, StagedRows, Timeline, read_batch, read_rows
from wal_sink.operate.status import status_of
from wal_sink.reporting.counts import counted
from wal_sink.stores.base import Store
from wal_sink.wal.records import StagingTiming

LONGEST_CELL = 40
NOT_RECORDED = "not recorded"


@click.command(short_help="One batch, with its first rows.")
@click.argument("wal")
@click.argument("batch", type=click.IntRange(min=0))
@click.option("--rows", type=click.IntRange(min=0), default=5, show_default=True, help="How many rows to show.")
@options.storage_options
@options.as_json
def show(*, wal: str, batch: int, rows: int, as_json: bool, **more: Any) -> None:
    """One batch: manifest, release and segments, where its time went, the sinks that have it, and its first rows."""
    store = opened(options.wal_spec(wal, more))
    detail = _require_batch(store, batch)
    with working(f"reading rows of batch {batch}"):
        staged = read_rows(store, detail.manifest, rows)
    if as_json:
        print_json({**plain(detail), "rows": plain(staged)})
        return
    _print_records(detail)
    _print_timeline(detail.timeline)
    _print_segments(detail)
    _print_sinks(detail)
    if rows:
        _print_rows(staged)


def _require_batch(store: Store, batch: int) -> BatchDetail:
    facts = require_facts(store)
    with working(f"reading batch {batch} of {store.root}"):
        detail = read_batch(facts, batch)
    if detail is None:
        status = status_of(facts)
        held = f"the WAL holds batches {max(status.low_water + 1, status.first_batch or 0)} to {status.newest_batch}"
        raise NoWal(f"{status.wal} holds no manifest of batch {batch}; {held}")
    return detail


def _print_records(detail: BatchDetail) -> None:
    manifest, release = detail.manifest, detail.release
    released = f"{release.created} by run {release.run_id}" if release else "no"
    print_facts(
        [
            ("batch", str(manifest.batch_id)),
            ("rows", manifest.rows),
            ("size", size(manifest.bytes)),
            ("staged", f"{manifest.created}, term {manifest.term}, attempt {manifest.attempt}"),
            ("attempts", detail.attempts),
            ("released", released),
            ("rows per chunk", manifest.chunk_rows),
            ("fingerprint", manifest.fingerprint),
            ("offsets", "\n".join(manifest.offsets.splitlines()[2:])),
        ]
    )
    click.echo()


def _print_timeline(timeline: Timeline) -> None:
    """Print where the time went: a line for staging, and one for each sink."""
    released = "not released yet" if timeline.released_at is None else f"{seconds_text(timeline.release_s)} after it"
    print_facts(
        [("staging", f"{seconds_text(timeline.staging_s)}{_slowest_task(timeline.tasks)}"), ("release", released)]
    )
    click.echo()
    columns = (
        ">queue",
        ">checkpoint",
        ">delivery",
        "~fetch",
        "~send",
        ">retries",
        "~marker",
        "+slowest segment",
    )
    shown = Listing("sink", *columns)
    for each in timeline.sinks:
        times = (each.queue_s, each.checkpoint_s, each.delivery_s, each.fetch_s, each.send_s)
        told = [seconds_text(seconds) for seconds in times]
        retries = NOT_RECORDED if each.retries is None else each.retries
        shown.add(each.sink, *told, retries, seconds_text(each.marker_s), _slowest_segment(each))
    shown.print()
    click.echo()


def seconds_text(seconds: float | None) -> str:
    """Seconds for people; a time that no record holds is told as such."""
    return NOT_RECORDED if seconds is None else f"{seconds:.3f} s"


def _slowest_task(tasks: StagingTiming | None) -> str:
    if tasks is None or tasks.slowest is None:
        return ""
    slowest, count = tasks.slowest, counted(tasks.tasks, "task")
    host = f" on {slowest.host}" if slowest.host else ""
    return f" with {count}; the slowest: partition {slowest.partition}{host}, {seconds_text(slowest.seconds)}"


def _slowest_segment(each: SinkTimeline) -> str:
    if each.slowest is None:
        return ""
    slowest, host = each.slowest, f" on {each.slowest.host}" if each.slowest.host else ""
    fetch, send = seconds_text(slowest.fetch_seconds), seconds_text(slowest.send_seconds)
    return f"{slowest.ordinal}{host}: fetch {fetch}, send {send}"


def _print_segments(detail: BatchDetail) -> None:
    shown = Listing(">rows", ">size", "CRC-32", "+segment")
    for segment in detail.manifest.segments:
        shown.add(segment.rows, size(segment.bytes), f"{segment.crc32:08x}", segment.path)
    shown.print()
    click.echo()


def _print_sinks(detail: BatchDetail) -> None:
    shown = Listing("sink", "has it", ">rows", ">progress records")
    for sink in detail.delivered:
        all_or_part = "all of it" if sink.complete else "a part" if sink.rows else "no"
        state = "skipped" if sink.skipped else all_or_part
        shown.add(sink.sink, state, sink.rows, sink.chunks)
    shown.print()
    click.echo()


def _print_rows(staged: StagedRows) -> None:
    """Print a line per column and a table column per row: most rows are too wide for one line."""
    rows = [[cell(value, longest=LONGEST_CELL) for value in row] for row in staged.rows]
    print_rows("row", list(map(clean, staged.columns)), rows, upright=True)
