"""`wal-sink estimate`: the monthly cost of a query's log, calculated before anything runs."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.printer import Answer, facts, fields_of, size
from wal_sink.operate.estimate import KINDS, PRICES_OF, Estimate, Plan, Prices, Requests
from wal_sink.settings import MIN_RETENTION_BATCHES

_NUMBER = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0)
_S3 = Prices()
_NAMES = {kind.replace(" ", "-"): kind for kind in KINDS}
_OF_PLAN = {
    "rows_per_s": (_AMOUNT, "Input of the whole query."),
    "row_bytes": (_AMOUNT, "Size of a row in a segment."),
    "segments": (_NUMBER, "Segments of a batch: one for each partition; small partitions share one."),
    "chunk_rows": (_NUMBER, "As in Settings."),
    "retention_batches": (click.IntRange(min=MIN_RETENTION_BATCHES), "As in Settings."),
}
"""The fields of `Plan` that are options under their own name, each with its type and help."""


def _plan_options(verb: options.F) -> options.F:
    for field, (kind, told) in reversed(_OF_PLAN.items()):
        name = f"--{field.replace('_', '-').removesuffix('-s')}{'-second' if field.endswith('_s') else ''}"
        shown = {"type": kind, "default": getattr(Plan(), field), "show_default": True, "help": told}
        verb = click.option(name, field, **shown)(verb)
    return verb


@options.verb("estimate", "The monthly cost of a log, calculated.", wal="none")
@click.option(
    "--batch-interval", type=options.duration, default="10s", show_default=True, help="Time from batch to batch."
)
@_plan_options
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
    "--prices",
    type=(_AMOUNT, _AMOUNT, _AMOUNT),
    default=(_S3.per_1000_puts, _S3.per_1000_gets, _S3.gb_month),
    show_default=PRICES_OF,
    metavar="PUT GET GB",
    help="$ for 1,000 PUT or LIST, $ for 1,000 GET, $ for a GB and month.",
)
def estimate_verb(
    *, batch_interval: float, sinks: tuple[str, ...], prices: tuple[float, float, float], **given: Any
) -> Answer:
    """The requests of a batch, and the requests, the storage and the dollars of a month. No store is contacted.

    docs/cost.md shows the formula.

    \b
        wal-sink estimate --batch-interval 10s --segments 40 --sink transactional
        wal-sink estimate --rows-per-second 50000 --sink plain --sink idempotent --json
    """
    plan = Plan(batch_interval_s=batch_interval, sinks=tuple(_NAMES[name] for name in sinks), **given)
    found = Estimate(plan, Prices(*prices))
    month = found.requests.times(found.batches_a_month)
    document = {
        **fields_of(found),
        "rows": plan.rows,
        "chunks": plan.chunks,
        "requests_of_batch": found.requests,
        "requests_a_month": month,
        "stored_bytes": found.stored_bytes,
        "dollars_a_month": {"requests": found.request_dollars, "storage": found.storage_dollars},
    }
    dollars = f"{found.request_dollars:,.2f} requests, {found.storage_dollars:,.2f} storage"
    in_all = found.request_dollars + found.storage_dollars
    shown = facts(
        plan,
        ("batch", _batch),
        "sinks",
        ("requests a batch", lambda _: _counts(found.requests, digits=1)),
        ("a month", lambda _: _counts(month, digits=0)),
        ("stored", lambda _: size(round(found.stored_bytes))),
        ("$ a month", lambda _: f"{dollars}: {in_all:,.2f}"),
    )
    return Answer(document, shown)


def _batch(plan: Plan) -> str:
    amount = f"{plan.rows:,.0f} rows, {size(round(plan.rows * plan.row_bytes))}"
    return f"every {plan.batch_interval_s:g} s; {amount}, segments: {plan.segments:,}, chunks: {plan.chunks:,}"


def _counts(requests: Requests, *, digits: int) -> str:
    counts = {"PUT": requests.puts, "GET": requests.gets, "LIST": requests.lists, "DELETE": requests.deletes}
    return ", ".join(f"{count:,.{digits}f} {kind}" for kind, count in counts.items())
