"""The console script `wal-sink`: its verbs in groups, and errors of wal-sink as one message and an exit code.

Exit codes: 0 success; 1 a check found a problem, or delivery failed; 2 wrong usage or configuration; 130 Ctrl-C ended
a check or a command that delivers; 143 SIGTERM ended a command that delivers.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, get_args

import click

import wal_sink
from wal_sink.cli.change import catch_up_verb, settle_verb, skip_verb
from wal_sink.cli.doctor import doctor
from wal_sink.cli.drain import drain
from wal_sink.cli.estimate import estimate_verb
from wal_sink.cli.letters import letters
from wal_sink.cli.look import batches, report, show, status
from wal_sink.cli.sinks import sinks
from wal_sink.cli.verify import verify
from wal_sink.cli.working import BAD_USE, FOUND_SOMETHING, LogFormat, begin_logging, say
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.support.texts import told

DEBUG_VARIABLE = "WAL_SINK_DEBUG"
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Look": (status, batches, show, report),
    "Deliver": (drain, sinks, letters),
    "Check": (verify, doctor, estimate_verb),
    "Change": (skip_verb, catch_up_verb, settle_verb),
}
"""The verbs, in the order in which a user needs them."""


class WalSinkGroup(click.Group):
    """A group whose verbs may raise any `WalSinkError`. Help lists them by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which they were added, not in alphabetical order."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its verbs. Their summaries begin in one column."""
        del ctx
        width = max(map(len, self.commands))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb.name:<{width}}", verb.get_short_help_str(200)) for verb in verbs])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. An error of wal-sink ends the process with one message on stderr."""
        try:
            return super().invoke(ctx)
        except WalSinkError as error:
            if ctx.params.get("debug") or os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}:
                raise
            say(told(error), logging.ERROR)
            sys.exit(BAD_USE if isinstance(error, ConfigError) else FOUND_SOMETHING)


def _show_version(context: click.Context, _option: click.Parameter, value: object) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"{context.find_root().info_name}, version {wal_sink.__version__}")
        context.exit()


@click.group(cls=WalSinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=f"Show tracebacks; the same as {DEBUG_VARIABLE}=1.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress on stderr.")
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    show_default=True,
    callback=begin_logging,
    help="json: log records, reports and errors on stderr are one JSON object a line.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def main(*, debug: bool, quiet: bool, log_format: str) -> None:
    """A write-ahead-log sink for Spark Structured Streaming.

    WAL is the folder of a log: a local path, or any URL that fsspec knows, such as s3://lake/wal/orders. Pass the
    options of its store with --storage-options or in the environment (WAL_SINK_STORAGE_OPTIONS), and those of the
    checkpoint's store, if they are others, in WAL_SINK_CHECKPOINT_OPTIONS.

    Every command takes --json. A command that takes long says on stderr how far it is. Exit code 0: success; 1: a check
    found a problem, or delivery failed; 2: wrong usage or configuration.
    """


for _verbs in SECTIONS.values():
    for _verb in _verbs:
        main.add_command(_verb)
