"""The click group that turns errors of wal-sink into one clear message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.reporting.texts import told

DEBUG_VARIABLE = "WAL_SINK_DEBUG"
FOUND_SOMETHING = 1
"""The check found something, or delivery failed."""
BAD_USE = 2
"""What was asked for cannot work: `ConfigError`, and click's own usage errors."""


class WalSinkGroup(click.Group):
    """A group whose verbs may raise any `WalSinkError`; they are listed in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs as a reader meets them, not by the alphabet."""
        del ctx
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; errors of wal-sink end the process with one message on stderr."""
        try:
            return super().invoke(ctx)
        except WalSinkError as error:
            if ctx.params.get("debug") or os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}:
                raise
            fail(error)


def fail(error: WalSinkError) -> NoReturn:
    """Say what went wrong, on stderr, and end with the exit code that belongs to it."""
    click.echo(told(error), err=True)
    sys.exit(BAD_USE if isinstance(error, ConfigError) else FOUND_SOMETHING)
