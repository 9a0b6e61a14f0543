"""`wal-sink report`: one self-contained page about the recent past of a WAL."""

from __future__ import annotations

import os
from pathlib import Path

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal
from wal_sink.cli.printer import Answer
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError
from wal_sink.operate.health import read_health
from wal_sink.operate.report import NEWEST, page_of, read_report
from wal_sink.support.texts import counted

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
