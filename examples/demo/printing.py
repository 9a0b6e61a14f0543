"""Tables, names with values, and JSON, as the demo prints them: the same on a terminal and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 160
"""Columns of a line where there is no terminal."""


def console(stream: IO[str] | None = None) -> Console:
    """A console on `stream`, by default stdout. In a pipe it cuts no line of fewer than `PIPE_WIDTH` characters."""
    file = stream or sys.stdout
    return Console(file=file, width=None if file.isatty() else PIPE_WIDTH, highlight=False)


def table(*headings: str) -> Table:
    """An empty table of the given columns. A heading that starts with `>` is of a column of numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(heading.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return made


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values, without headings."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, escape(value))
    return made


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
