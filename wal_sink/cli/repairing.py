"""Options and questions that all repairs share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.log_format import say
from wal_sink.cli.opened import NoWal, opened
from wal_sink.cli.options import wal_spec
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError
from wal_sink.recovery.inventory import find_wal
from wal_sink.runtime.clock import SYSTEM
from wal_sink.wal.log import Log

F = TypeVar("F", bound=Callable[..., Any])


def act_options(verb: F) -> F:
    """Add `--dry-run` and `--yes`. The verb gets them as `dry_run` and `yes`."""
    return dry_run_option(click.option("--yes", is_flag=True, help="Do not ask before the command acts.")(verb))


def repair_options(verb: F) -> F:
    """Add `--dry-run`, `--yes` and `--why`. The verb gets them as `dry_run`, `yes` and `why`."""
    return act_options(_required_why(verb))


def _has_a_reason(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("is empty: expected the reason of the change, in words")
    return value


_WHY = "The reason. It is kept in the WAL; see wal-sink sinks list."
_required_why = click.option("--why", required=True, metavar="TEXT", callback=_has_a_reason, help=_WHY)
optional_why = click.option("--why", default="", metavar="TEXT", help=_WHY)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what the command would do. Changes nothing.")


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
        _changed_nothing()


def _changed_nothing() -> NoReturn:
    say("Nothing was changed")
    sys.exit(FOUND_SOMETHING)


def log_of(wal: str, more: dict[str, Any]) -> Log:
    """The log of a WAL that has its `wal.json`. Unlike `require_wal`, opens one that has lost batches: it is repaired.

    One read.
    """
    store = opened(wal_spec(wal, more))
    log = Log(store, SYSTEM, SYSTEM.new_id())
    with working(f"reading {store.root}"):
        if find_wal(log) is None:
            raise NoWal(f"{store.root} holds no wal.json: this folder is not a WAL, or no batch was staged so far")
    return log
