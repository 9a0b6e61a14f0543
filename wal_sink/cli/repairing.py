"""The way of every verb that repairs: it shows a plan, asks the user, and changes something only then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from wal_sink.cli.exits import FOUND_SOMETHING
from wal_sink.cli.options import is_json
from wal_sink.cli.printer import Answer, print_lines
from wal_sink.cli.working import say
from wal_sink.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that a command makes once its user agrees."""

    document: Mapping[str, object]
    """The document that `--json` prints if nothing is changed."""
    text: Iterable[str]
    question: str
    """Empty: there is nothing to do."""
    act: Callable[[], Answer]


def carry_out(planned: Planned, *, dry_run: bool, yes: bool) -> Answer:
    """Show a plan to people, ask, and act. With `dry_run`, or if there is nothing to do, nothing is changed."""
    if not is_json():
        print_lines(planned.text)
    if dry_run or not planned.question:
        return Answer(planned.document)
    confirm(planned.question, yes=yes)
    return planned.act()


def _has_a_reason(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("is empty: expected the reason of the change, in words")
    return value


_WHY = "The reason. It is kept in the WAL; see wal-sink sinks list."
why = click.option("--why", required=True, metavar="TEXT", callback=_has_a_reason, help=_WHY)
optional_why = click.option("--why", default="", metavar="TEXT", help=_WHY)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what the command would do. Changes nothing.")


def asks(function: F) -> F:
    """Add `--dry-run` and `--yes`, the arguments of `carry_out`."""
    return dry_run_option(click.option("--yes", is_flag=True, help="Do not ask before the command acts.")(function))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a repair acts, unless `yes`. Ends the command with exit code 1 if the answer is no.

    Raises `ConfigError` where nobody can answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{question} This command asks before it acts, and there is no terminal. Add --yes to go on without the "
            "question, or --dry-run to see only what it would do. Nothing was changed"
        )
    if not click.confirm(question, err=True):
        say("Nothing was changed")
        sys.exit(FOUND_SOMETHING)
