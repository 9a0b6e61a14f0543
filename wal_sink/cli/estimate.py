"""`wal-sink estimate`: costs and limits of a query's log, calculated before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import click

from wal_sink.cli import options
from wal_sink.cli.durations import duration
from wal_sink.cli.output import plain, print_json, size
from wal_sink.cli.tables import print_facts, print_numbers, print_text
from wal_sink.estimation.advice import advise
from wal_sink.estimation.estimate import Estimate, estimate
from wal_sink.estimation.plan import INLINE_BYTES, STORES, Plan, Prices, StoreModel
from wal_sink.settings import MIN_RETENTION_BATCHES, Settings, Where
from wal_sink.sinks.guarantees import Ability

EXECUTORS = (1, 10, 100, 1000, 10_000)
KINDS = {ability.value.partition(" ")[0]: ability for ability in Ability}
_NUMBER = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0)
_ABOVE_0 = click.FloatRange(min=0, min_open=True)
_DEFAULTS = Settings()


@click.command("estimate", short_help="Costs and limits of a log, calculated.")
@click.option(
    "--executors", type=_NUMBER, multiple=True, default=EXECUTORS, help="One row of the table; may be repeated."
)
@click.option("--cores-per-executor", type=_NUMBER, default=4, show_default=True, help="Task slots of an executor.")
@click.option("--batch-interval", type=duration, default="10s", show_default=True, help="Time from batch to batch.")
@click.option(
    "--segments",
    type=_NUMBER,
    help="Partitions with rows; default: one for each task slot. Small ones share a segment.",
)
@click.option(
    "--own-segments",
    is_flag=True,
    help="No partitions share a segment: format('wal_sink'), Spark Connect, keep_segments=False.",
)
@click.option(
    "--rows-per-second", type=_ABOVE_0, default=1000, show_default=True, help="Input rows per second and executor."
)
@click.option("--row-bytes", type=_ABOVE_0, default=200, show_default=True, help="Size of a row in memory.")
@click.option(
    "--compression", type=_ABOVE_0, default=3, show_default=True, help="How many times smaller a row is in a segment."
)
@click.option("--columns", type=_NUMBER, default=10, show_default=True, help="Columns; the manifest lists them.")
@click.option("--chunk-rows", type=_NUMBER, default=_DEFAULTS.chunk_rows, show_default=True, help="As in Settings.")
@click.option("--chunk-mib", type=_NUMBER, default=32, show_default=True, help="chunk_bytes, in MiB.")
@click.option("--segment-mib", type=_NUMBER, default=64, show_default=True, help="segment_bytes, in MiB.")
@click.option(
    "--retention-batches",
    type=click.IntRange(min=MIN_RETENTION_BATCHES),
    default=_DEFAULTS.retention_batches,
    show_default=True,
    help="Number of delivered batches to keep, as in Settings.",
)
@click.option("--retention-age", type=duration, help="Time for which older batches are kept, as in Settings.")
@click.option("--retention-gib", type=click.FloatRange(0, 1e9, min_open=True), help="retention_bytes, in GiB.")
@click.option(
    "--max-delivery-tasks",
    type=_NUMBER,
    help="As in Settings. Default: all task slots but one; a delivery of 5 s at most gets all.",
)
@click.option("--threads-per-task", type=_NUMBER, default=1, show_default=True, help="As in Delivery.")
@click.option("--sinks", type=_NUMBER, default=1, show_default=True, help="Sinks of the WAL, all of one kind.")
@click.option("--sink-kind", type=click.Choice(sorted(KINDS)), default="plain", show_default=True, help="Kind of sink.")
@click.option("--at-most-once", is_flag=True, help="A chunk may be lost, but is never repeated.")
@click.option("--where", type=click.Choice(get_args(Where)), default="auto", show_default=True, help="As in Delivery.")
@click.option("--sink-call", type=duration, default="50ms", show_default=True, help="Time the sink takes for a chunk.")
@click.option(
    "--pending-batches",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Undelivered batches at a restart.",
)
@click.option("--store", type=click.Choice(sorted(STORES)), default="s3", show_default=True, help="The WAL's store.")
@click.option(
    "--latency",
    type=duration,
    help="Time of one request to the store. Default: s3 100ms, other 20ms, local 5ms and 0.5ms.",
)
@click.option("--bandwidth", type=_NUMBER, help="MB/s of one connection. Default: s3 85, other 100, local 200.")
@click.option("--put-price", type=_AMOUNT, help="$ for 1,000 PUT or LIST. s3: 0.005.")
@click.option("--get-price", type=_AMOUNT, help="$ for 1,000 GET. s3: 0.0004.")
@click.option("--delete-price", type=_AMOUNT, help="$ for 1,000 DELETE. s3: 0.")
@click.option("--storage-price", type=_AMOUNT, help="$ for a GB stored for a month. s3: 0.023.")
@click.option("--write-limit", type=_NUMBER, help="Maximum writes per second under one prefix. s3: 3,500.")
@click.option("--read-limit", type=_NUMBER, help="Maximum reads per second under one prefix. s3: 5,500.")
@options.as_json
def estimate_verb(*, executors: tuple[int, ...], as_json: bool, **given: Any) -> None:
    """The monthly cost of a query's log, its nearest limit, the rows a crash may repeat, the time of a restart.

    All figures are calculated, for clusters of several sizes. No store is contacted. docs/SCALE.md explains each
    column.

    \b
        wal-sink estimate --batch-interval 10s --segments 500 --chunk-rows 50000 --store s3
        wal-sink estimate --executors 20 --rows-per-second 5000 --sink-kind idempotent --json
    """
    store = _store(given)
    found = [estimate(_plan(count, given), store) for count in executors]
    if as_json:
        print_json({"store": store, "estimates": [_plain(each) for each in found]})
    else:
        print_estimates(found)


def print_estimates(found: Sequence[Estimate]) -> None:
    """Print the estimates for people: assumptions, a table, and advice."""
    print_facts(_assumptions(found[0]))
    click.echo()
    headings = (
        "executors",
        "segments\na batch",
        "chunks\na batch",
        "requests\na batch",
        "requests,\n$ a month",
        "storage,\n$ a month",
        "of the\nlimit",
        "manifest",
        f"rows that may\n{_may(found[0].plan)}",
        "delivery\na batch",
        "restart,\nat most",
    )
    print_numbers(headings, [_cells(each) for each in found])
    click.echo("\nThe limit reached first")
    for each in found:
        count = each.plan.executors
        print_text(f"  {count:,} {'executor' if count == 1 else 'executors'}: {advise(each)}", hang="    ")


def _cells(found: Estimate) -> list[str]:
    shape, dollars, share = found.shape, found.dollars, found.busiest.share
    counts = (found.plan.executors, shape.segments, shape.chunks, found.requests.total + found.checkpoint_gets)
    return [
        *(f"{count:,.0f}" for count in counts),
        *(f"{amount:,.2f}" for amount in ((dollars.requests, dollars.storage) if dollars else ())),
        *([] if dollars else ["-", "-"]),
        "-" if share is None else f"{share:.1%}",
        size(found.manifest_bytes),
        f"{found.repeated_rows:,}",
        f"{found.delivery_s:,.1f} s",
        f"{found.restart_s:,.1f} s",
    ]


def _assumptions(found: Estimate) -> list[tuple[str, object]]:
    plan, store, prices = found.plan, found.store, found.store.prices
    once = ", at most once" if plan.at_most_once else ""
    limits = "no limit per prefix is known"
    if store.writes_per_s and store.reads_per_s:
        limits = f"{store.writes_per_s:,.0f} writes and {store.reads_per_s:,.0f} reads a second per prefix"
    costs = "no prices are known: give them with --put-price and the other price options"
    if prices is not None:
        costs = (
            f"${prices.per_1000_puts:g} for 1,000 PUT or LIST, ${prices.per_1000_gets:g} for 1,000 GET, "
            f"${prices.gb_month:g} per GB and month ({prices.as_of})"
        )
    arriving = f"{plan.rows_per_s:,g} rows per second and executor"
    of_row = f"{plan.row_bytes:g} bytes a row, {plan.compression:g} times smaller in a segment"
    sinks = f"{plan.sinks} {'sink' if plan.sinks == 1 else 'sinks'}, {plan.ability.value}{once}"
    chunks = f"chunks of {plan.settings.chunk_rows:,} rows, {plan.sink_call_s * 1000:g} ms in the sink for each"
    return [
        ("query", f"a batch every {plan.batch_interval_s:g} s; {arriving}, {of_row}"),
        ("delivery", f"{sinks}; {chunks}"),
        ("store", f"{store.name}: {_latency(store)}, {store.bandwidth / 1e6:g} MB/s; {limits}"),
        ("prices", costs),
    ]


def _latency(store: StoreModel) -> str:
    if store.write_s == store.read_s:
        return f"{store.read_s * 1000:g} ms a request"
    return f"{store.write_s * 1000:g} ms a write, {store.read_s * 1000:g} ms a read"


def _may(plan: Plan) -> str:
    return "be missing" if plan.at_most_once else "repeat"


def _plan(executors: int, given: dict[str, Any]) -> Plan:
    settings = Settings(
        chunk_rows=given["chunk_rows"],
        chunk_bytes=given["chunk_mib"] << 20,
        segment_bytes=given["segment_mib"] << 20,
        max_delivery_tasks=given["max_delivery_tasks"],
        retention_batches=given["retention_batches"],
        retention_age_s=given["retention_age"],
        retention_bytes=None if given["retention_gib"] is None else math.ceil(given["retention_gib"] * 2**30),
    )
    return Plan(
        executors=executors,
        segments=given["segments"],
        inline_bytes=0 if given["own_segments"] else INLINE_BYTES,
        batch_interval_s=given["batch_interval"],
        cores_per_executor=given["cores_per_executor"],
        rows_per_s=given["rows_per_second"],
        row_bytes=given["row_bytes"],
        compression=given["compression"],
        columns=given["columns"],
        settings=settings,
        sinks=given["sinks"],
        ability=KINDS[given["sink_kind"]],
        at_most_once=given["at_most_once"],
        where=given["where"],
        threads_per_task=given["threads_per_task"],
        sink_call_s=given["sink_call"],
        pending_batches=given["pending_batches"],
    )


def _store(given: dict[str, Any]) -> StoreModel:
    store = STORES[given["store"]]
    bandwidth = given["bandwidth"]
    return replace(
        store,
        write_s=given["latency"] or store.write_s,
        read_s=given["latency"] or store.read_s,
        bandwidth=store.bandwidth if bandwidth is None else bandwidth * 1e6,
        writes_per_s=given["write_limit"] or store.writes_per_s,
        reads_per_s=given["read_limit"] or store.reads_per_s,
        prices=_prices(store.prices, given),
    )


def _prices(known: Prices | None, given: dict[str, Any]) -> Prices | None:
    """The given prices, completed by the known ones; None if there are neither."""
    names = {
        "per_1000_puts": "put_price",
        "per_1000_gets": "get_price",
        "per_1000_deletes": "delete_price",
        "gb_month": "storage_price",
    }
    own = {field: given[option] for field, option in names.items() if given[option] is not None}
    if not own:
        return known
    base = known or Prices(0.0, 0.0, 0.0, 0.0, as_of="")
    all_given = known is None or len(own) == len(names)
    return replace(base, **own, as_of="as given" if all_given else f"{base.as_of}; some as given")


def _plain(found: Estimate) -> dict[str, Any]:
    """The results for JSON, with the assumptions they were calculated from."""
    shown = plain(found)
    del shown["store"]
    advice = advise(found)
    return {
        **shown,
        "shape": {
            **shown["shape"],
            "segments": found.shape.segments,
            "chunks": found.shape.chunks,
            "rows": found.shape.rows,
            "bytes": found.shape.bytes,
        },
        "busy": found.busy,
        "advice": {**plain(advice), "text": str(advice)},
    }
