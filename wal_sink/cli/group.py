"""The click group that turns errors of wal-sink into one clear message and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, NoReturn

import click

from wal_sink.cli.log_format import say
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.reporting.texts import told

DEBUG_VARIABLE = "WAL_SINK_DEBUG"
FOUND_SOMETHING = 1
"""A check found a problem, or delivery failed."""
BAD_USE = 2
"""Wrong usage or configuration: `ConfigError`, and click's own usage errors."""


class WalSinkGroup(click.Group):
    """A group whose verbs may raise any `WalSinkError`. Help lists them by section, in the order in which a user needs
    them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections: dict[str, tuple[click.Command, ...]] = {}

    def add_section(self, title: str, *verbs: click.Command) -> None:
        """Add verbs below this title."""
        for verb in verbs:
            self.add_command(verb)
        self._sections[title] = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which they were added, not in alphabetical order."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its verbs. Their summaries begin in one column."""
        del ctx
        width = max(map(len, self.commands))
        for title, verbs in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb.name:<{width}}", verb.get_short_help_str(200)) for verb in verbs])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. An error of wal-sink ends the process with one message on stderr."""
        try:
            return super().invoke(ctx)
        except WalSinkError as error:
            if ctx.params.get("debug") or os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}:
                raise
            fail(error)


def fail(error: WalSinkError) -> NoReturn:
    """Print the error to stderr and end the process with the exit code that belongs to it."""
    say(told(error), logging.ERROR)
    sys.exit(BAD_USE if isinstance(error, ConfigError) else FOUND_SOMETHING)
