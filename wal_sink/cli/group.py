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
    """A group whose verbs may raise any `WalSinkError`. Help lists them in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which a user needs them, not in alphabetical order."""
        del ctx
        return list(self.commands)

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
