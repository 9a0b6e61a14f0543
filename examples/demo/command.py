"""The command: its options, and how its result is shown."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import msgspec
from rich.table import Table

from examples.demo.controller import Result, Wishes, run_demo, shortest
from examples.demo.job import TABLE
from examples.demo.printing import console, facts, print_json, table
from examples.demo.proof import Compared
from examples.demo.report import Reporter
from wal_sink import ConfigError, WalSinkError
from wal_sink.spark import check_java

LARGEST_SEED = 1_000_000
FAILED, BAD_USE = 1, 2
"""Exit codes, as those of `wal-sink`: the proof or a driver failed; the demo cannot run like this."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--s3", is_flag=True, help="Log and checkpoint on a local S3 server (moto's) that the demo starts.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="demo-out",
    show_default=True,
    help="The folder for all that the demo makes; one that an earlier demo made is emptied.",
)
@click.option(
    "--kills", type=click.IntRange(min=0), default=5, show_default=True, help="How often the driver is killed."
)
@click.option(
    "--batches", type=click.IntRange(min=1), default=20, show_default=True, help="Files that arrive, one a micro-batch."
)
@click.option("--rows", type=click.IntRange(min=1), help="Only the first so many flights; default: all 336,776.")
@click.option("--seed", type=int, help="Aims the kills; default: a new one, which is printed.")
@click.option("--progress/--no-progress", default=None, help="Progress bars; default: only on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout, and nothing else there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
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
    debug: bool,
) -> None:
    """Kill a real Spark query in mid-stream, again and again, and prove that nothing was lost or doubled.

    Real flights arrive as files; a query delivers them through one write-ahead log to a SQLite table, exactly once, and
    to a plain folder, at least once. Takes two to three minutes on two cores.

    Exit code 1 if the proof fails. Needs Java 17 or newer, and the packages that `make setup` installs.
    """
    chosen = secrets.randbelow(LARGEST_SEED) if seed is None else seed
    wishes = Wishes(out=out, s3=s3, kills=kills, seed=chosen, batches=batches, rows=rows)
    stream = sys.stderr if as_json else sys.stdout
    bars = stream.isatty() if progress is None else progress
    with _told_in_a_line(debug=debug), _interruptible():
        check_java()
        with Reporter(batches=batches, kills=kills, bars=bars, stream=stream) as reporter:
            result = run_demo(wishes, reporter)
    if as_json:
        print_json({"holds": result.holds, **msgspec.to_builtins(result)})
    else:
        _print_result(result, _again(wishes))
    if not result.holds:
        sys.exit(FAILED)


@contextlib.contextmanager
def _told_in_a_line(*, debug: bool) -> Iterator[None]:
    """Inside, an error of wal-sink or of the demo ends the process with one message on stderr."""
    try:
        yield
    except WalSinkError as error:
        if debug:
            raise
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(BAD_USE if isinstance(error, ConfigError) else FAILED)


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


def _print_result(result: Result, again: str) -> None:
    out, proof = console(), result.proof
    out.print()
    counts = table(
        "target", ">source\nrows", ">target\nrows", ">lost", ">altered", ">duplicated", ">duplicates\nallowed"
    )
    _add_target(counts, "SQLite, exactly once", proof.source_rows, proof.exact, 0)
    _add_target(counts, "plain, at least once", proof.source_rows, proof.plain, proof.window_rows)
    out.print(counts)
    out.print()
    out.print(facts(_facts(result, again)))
    out.print()
    out.print(_verdict(result))
    click.echo("\nLook for yourself:")
    for command in _commands(result):
        click.echo(f"  {command}")


def _add_target(counts: Table, name: str, source_rows: int, found: Compared, allowed: int) -> None:
    numbers = (source_rows, found.rows, found.lost, found.foreign, found.duplicated, allowed)
    counts.add_row(name, *(f"{number:,}" for number in numbers))


def _verdict(result: Result) -> str:
    if not result.holds:
        return f"[bold red]THE PROMISE WAS BROKEN[/] ({result.seconds:.0f} s)"
    plain = result.proof.plain
    repeated = f"the plain sink got {plain.duplicated:,} rows twice" if plain.duplicated else "nor in the plain sink"
    return f"[bold green]It holds: lost 0, duplicated 0[/]; {repeated} ({result.seconds:.0f} s)"


def _facts(result: Result, again: str) -> list[tuple[str, str]]:
    windows = " + ".join(f"{kill.window_rows:,}" for kill in result.kills) or "0"
    found = [
        ("counted", "row by row, all columns: the CSV files against the SQLite table and the plain sink's files"),
        ("batches", _batches(result)),
        ("drivers", f"{len(result.kills) + 1} started, {len(result.kills)} killed with SIGKILL"),
        (
            "allowed",
            f"{windows} rows: for each kill, one chunk of {result.chunk_rows:,} rows of each segment then in delivery",
        ),
        ("seed", f"{result.seed}; aim at the same points again: {again}"),
    ]
    return [(name, value) for name, value in found if result.kills or name != "allowed"]


def _batches(result: Result) -> str:
    words = f"{result.batches} from {result.files} files"
    if result.kills:
        words += f"; replayed by Spark after a kill: {_numbered(result.replayed)}"
    if result.restaged:
        words += f"; staged whole more than once: {_numbered(result.restaged)}"
    return words


def _numbered(batches: tuple[int, ...]) -> str:
    return f"{len(batches)} ({', '.join(map(str, batches))})" if batches else "0"


def _again(wishes: Wishes) -> str:
    """The command that repeats a run of the demo."""
    words = [_python(), "-m", "examples.demo", *(["--s3"] if wishes.s3 else [])]
    defaults = {parameter.name: parameter.default for parameter in demo.params}
    for name in ("out", "kills", "batches", "rows"):
        value = getattr(wishes, name)
        if value is not None and str(value) != str(defaults[name]):
            words += [f"--{name}", shlex.quote(str(value))]
    return " ".join([*words, "--seed", str(wishes.seed)])


def _commands(result: Result) -> list[str]:
    """Commands that show the log and the table. Each can be typed as it stands."""
    program, wal = _program(), shlex.quote(result.wal)
    shown = result.replayed[0] if result.replayed else 0
    count = f"SELECT delay_class, count(*) FROM {TABLE} GROUP BY 1 ORDER BY 2"  # noqa: S608 - text to copy
    query = f"import sqlite3; print(*sqlite3.connect({result.database!r}).execute({count!r}), sep=chr(10))"
    return [
        f"{program} status {wal}",
        f"{program} batches {wal}",
        f"{program} show {wal} {shown}",
        f"{_python()} -c {_quoted(query)}",
    ]


def _program() -> str:
    """The command line of wal-sink, as the user can type it here."""
    return _installed("wal-sink") or f"{_python()} -m wal_sink.cli"


def _python() -> str:
    """This interpreter, as the user can type it here."""
    return _installed("python") or shlex.quote(sys.executable)


def _installed(name: str) -> str | None:
    """A program beside this interpreter: its bare name where the shell finds that very one, else its path."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == here:
        return name
    return shlex.quote(shortest(str(here))) if here.exists() else None


def _quoted(text: str) -> str:
    """For a shell, in double quotes if that is enough: single ones inside single ones are hard to read."""
    return shlex.quote(text) if any(char in text for char in '"$`\\!') else f'"{text}"'
