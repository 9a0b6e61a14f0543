"""`wal-sink estimate`: the monthly cost of a query's log, calculated before anything runs."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.durations import duration
from wal_sink.cli.output import plain, print_json, size
from wal_sink.cli.tables import print_facts
from wal_sink.operate.estimate import KINDS, PRICES_OF, Estimate, Plan, Prices, Requests
from wal_sink.settings import MIN_RETENTION_BATCHES

_NUMBER = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0)
_DEFAULTS = Plan()
_S3 = Prices()
_NAMES = {kind.replace(" ", "-"): kind for kind in KINDS}


@click.command("estimate", short_help="The monthly cost of a log, calculated.")
@click.option("--batch-interval", type=duration, default="10s", show_default=True, help="Time from batch to batch.")
@click.option(
    "--rows-per-second", type=_AMOUNT, default=_DEFAULTS.rows_per_s, show_default=True, help="Input of the whole query."
)
@click.option(
    "--row-bytes", type=_AMOUNT, default=_DEFAULTS.row_bytes, show_default=True, help="Size of a row in a segment."
)
@click.option(
    "--segments",
    type=_NUMBER,
    default=_DEFAULTS.segments,
    show_default=True,
    help="Segments of a batch: one for each partition; small partitions share one.",
)
@click.option("--chunk-rows", type=_NUMBER, default=_DEFAULTS.chunk_rows, show_default=True, help="As in Settings.")
@click.option(
    "--sink",
    "sinks",
    type=click.Choice(sorted(_NAMES)),
    multiple=True,
    default=("plain",),
    show_default=True,
    help="The kind of a sink; may be repeated.",
)
@click.option(
    "--retention-batches",
    type=click.IntRange(min=MIN_RETENTION_BATCHES),
    default=_DEFAULTS.retention_batches,
    show_default=True,
    help="As in Settings.",
)
@click.option(
    "--prices",
    type=(_AMOUNT, _AMOUNT, _AMOUNT),
    default=(_S3.per_1000_puts, _S3.per_1000_gets, _S3.gb_month),
    show_default=PRICES_OF,
    metavar="PUT GET GB",
    help="$ for 1,000 PUT or LIST, $ for 1,000 GET, $ for a GB and month.",
)
@options.as_json
def estimate_verb(*, as_json: bool, **given: Any) -> None:
    """The requests of a batch, and the requests, the storage and the dollars of a month. No store is contacted.

    docs/cost.md shows the formula.

    \b
        wal-sink estimate --batch-interval 10s --segments 40 --sink transactional
        wal-sink estimate --rows-per-second 50000 --sink plain --sink idempotent --json
    """
    plan = Plan(
        batch_interval_s=given["batch_interval"],
        rows_per_s=given["rows_per_second"],
        row_bytes=given["row_bytes"],
        segments=given["segments"],
        chunk_rows=given["chunk_rows"],
        sinks=tuple(_NAMES[name] for name in given["sinks"]),
        retention_batches=given["retention_batches"],
    )
    found = Estimate(plan, Prices(*given["prices"]))
    if as_json:
        print_json(_plain(found))
    else:
        print_facts(_facts(found))


def _facts(found: Estimate) -> list[tuple[str, object]]:
    plan, month = found.plan, found.requests.times(found.batches_a_month)
    in_all = found.request_dollars + found.storage_dollars
    batch = f"{plan.rows:,.0f} rows, {size(round(plan.rows * plan.row_bytes))}, segments: {plan.segments:,}"
    return [
        ("batch", f"every {plan.batch_interval_s:g} s; {batch}, chunks: {plan.chunks:,}"),
        ("sinks", ", ".join(plan.sinks)),
        ("requests a batch", _counts(found.requests, digits=1)),
        ("a month", _counts(month, digits=0)),
        ("stored", size(round(found.stored_bytes))),
        ("$ a month", f"{found.request_dollars:,.2f} requests, {found.storage_dollars:,.2f} storage: {in_all:,.2f}"),
    ]


def _counts(requests: Requests, *, digits: int) -> str:
    counts = {"PUT": requests.puts, "GET": requests.gets, "LIST": requests.lists, "DELETE": requests.deletes}
    return ", ".join(f"{count:,.{digits}f} {kind}" for kind, count in counts.items())


def _plain(found: Estimate) -> dict[str, Any]:
    dollars = {"requests": found.request_dollars, "storage": found.storage_dollars}
    return {
        **plain(found),
        "rows": found.plan.rows,
        "chunks": found.plan.chunks,
        "requests_of_batch": plain(found.requests),
        "requests_a_month": plain(found.requests.times(found.batches_a_month)),
        "stored_bytes": found.stored_bytes,
        "dollars_a_month": dollars,
    }
