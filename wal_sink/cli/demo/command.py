"""`wal-sink demo`: the verb, and how its result is shown."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
from rich.table import Table

from wal_sink.cli.demo.controller import Result, Wishes, run_demo
from wal_sink.cli.demo.job import TABLE
from wal_sink.cli.demo.proof import Compared
from wal_sink.cli.demo.report import Reporter
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.options import as_json as json_option
from wal_sink.cli.output import console, facts, plain, print_json, table
from wal_sink.spark.environment import check_java

LARGEST_SEED = 1_000_000


@click.command()
@click.option("--s3", is_flag=True, help="Log and checkpoint on a local S3 server (moto's) that the demo starts.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="demo-out", show_default=True)
@click.option("--kills", type=click.IntRange(min=0), default=5, show_default=True, help="How often the driver dies.")
@click.option("--batches", type=click.IntRange(min=1), default=20, show_default=True, help="Micro-batches.")
@click.option("--rows", type=click.IntRange(min=1), help="Only the first so many flights; default: all 336,776.")
@click.option("--seed", type=int, help="Repeat the kills of an earlier run; default: a new one, which is printed.")
@click.option("--progress/--no-progress", default=None, help="Progress bars; default: only on a terminal.")
@json_option
def demo(
    *,
    s3: bool,
    out: Path,
    kills: int,
    batches: int,
    rows: int | None,
    seed: int | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Kill a real Spark query in mid-stream, again and again, and prove that nothing was lost or doubled.

    Exit code 1 if the proof fails. Needs Java 17 and the extra `demo`; with --s3 also `s3` and moto[server].
    """
    check_java()
    chosen = secrets.randbelow(LARGEST_SEED) if seed is None else seed
    wishes = Wishes(out=out, s3=s3, kills=kills, seed=chosen, batches=batches, rows=rows)
    stream = sys.stderr if as_json else sys.stdout
    bars = stream.isatty() if progress is None else progress
    with _interruptible(), Reporter(batches=batches, kills=kills, bars=bars, stream=stream) as reporter:
        result = run_demo(wishes, reporter)
    if as_json:
        print_json({"holds": result.holds, **plain(result)})
    else:
        _print_result(result)
    if not result.holds:
        sys.exit(FOUND_SOMETHING)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside, SIGTERM too ends everything that was started."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _print_result(result: Result) -> None:
    out, proof = console(), result.proof
    out.print()
    counts = table("target", ">rows in the source", ">rows there", ">lost", ">duplicated", ">altered", "promised")
    _add_target(counts, "SQLite table, exactly once", proof.source_rows, proof.exact, "nothing lost, nothing twice")
    window = f"nothing lost, at most {proof.window_rows:,} twice"
    _add_target(counts, "plain folder, at least once", proof.source_rows, proof.plain, window)
    out.print(counts)
    out.print()
    out.print(facts(_facts(result)))
    out.print()
    verdict = "[green]lost 0, duplicated 0: it holds[/]" if result.holds else "[red]THE PROMISE WAS BROKEN[/]"
    out.print(f"[bold]{verdict}[/] ({result.seconds:.0f} s)")
    out.print("\nLook for yourself:")
    for command in _commands(result):
        click.echo(f"  {command}")


def _add_target(counts: Table, name: str, source_rows: int, found: Compared, promised: str) -> None:
    cells = [f"{number:,}" for number in (source_rows, found.rows, found.lost, found.duplicated, found.foreign)]
    counts.add_row(name, *cells, promised)


def _facts(result: Result) -> list[tuple[str, object]]:
    window = f"{result.chunk_rows:,} rows a chunk x {result.segments_per_batch} segments a batch x {len(result.kills)}"
    replayed = sum(kill.batch_to_replay is not None for kill in result.kills)
    return [
        ("batches", f"{result.batches}; {replayed} run again by Spark after a kill, {result.restaged} staged twice"),
        ("drivers", f"{result.runs} that got to start the query, {len(result.kills)} kills"),
        ("window", f"{window} kills = {result.proof.window_rows:,} rows may come twice to a target that only accepts"),
        ("checkpoint", result.checkpoint),
        ("seed", f"{result.seed} (wal-sink demo --seed {result.seed} kills at the same points again)"),
    ]


def _commands(result: Result) -> list[str]:
    wal, last = shlex.quote(result.wal), min(3, result.batches - 1)
    count = f"SELECT delay_class, count(*) FROM {TABLE} GROUP BY 1 ORDER BY 2"  # noqa: S608 - text to copy
    query = f"import sqlite3; print(*sqlite3.connect({result.database!r}).execute({count!r}), sep=chr(10))"
    return [
        f"wal-sink status {wal}",
        f"wal-sink batches {wal}",
        f"wal-sink show {wal} {last}",
        f"python -c {shlex.quote(query)}",
    ]
