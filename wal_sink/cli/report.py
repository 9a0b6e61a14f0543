"""`wal-sink report`: one self-contained page about the recent past of a WAL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, commit_of, no_wal, opened
from wal_sink.cli.output import print_json
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError
from wal_sink.operate.health import read_health
from wal_sink.operate.look import WalFacts
from wal_sink.operate.report import NEWEST, page_of, read_report
from wal_sink.operate.status import status_of
from wal_sink.reporting.counts import counted


@click.command(short_help="A page about the recent past of a WAL.")
@click.argument("wal")
@click.option("-o", "--output", metavar="FILE", help="The HTML file to write; - is stdout.")
@click.option(
    "--newest",
    type=click.IntRange(min=1, max=10_000),
    default=NEWEST,
    show_default=True,
    help="How many batches to read.",
)
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@options.storage_options
@options.checkpoint_options
@options.as_json
def report(*, wal: str, output: str | None, newest: int, as_json: bool, **more: Any) -> None:
    """Write one HTML page: lag over time, where the time of each batch went, rows, sizes of segments, retries, and
    dead letters.

    The page needs no network, and can be sent as it is. Nothing is written to the WAL. --json writes the data of the
    page instead.
    """
    if output is None and not as_json:
        raise click.UsageError("Missing option '-o' / '--output': the HTML file to write, or - for stdout")
    spec = options.wal_spec(wal, more)
    store = opened(spec)
    facts = WalFacts(store)
    if (record := facts.wal) is None:
        raise NoWal(no_wal(status_of(facts)))
    spark = commit_of(record, spec, more)
    with working(f"reading the newest batches of {store.root}") as work:
        data = read_report(facts, read_health(facts, spark), newest=newest, on_batch=work.count)
    if as_json or output is None:
        print_json(data)
        return
    page = page_of(data)
    if output == "-":
        sys.stdout.write(page)
        return
    _write(Path(output), page)
    click.echo(f"{output}: {counted(data['shown'], 'batch')} of {data['held']:,}, {len(page.encode()):,} bytes")


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
