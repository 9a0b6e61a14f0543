"""The console script `wal-sink`.

Exit codes: 0 success; 1 a check found a problem, or delivery failed; 2 wrong usage or configuration; 143 SIGTERM ended
a command that delivers; 130 Ctrl-C ended it.
"""

from __future__ import annotations

import click

import wal_sink
from wal_sink.cli.batches import batches
from wal_sink.cli.dead_letters import dead_letters
from wal_sink.cli.drain import drain
from wal_sink.cli.estimate import estimate_verb
from wal_sink.cli.group import DEBUG_VARIABLE, WalSinkGroup
from wal_sink.cli.show import show
from wal_sink.cli.sinks import sinks
from wal_sink.cli.status import status


def _show_version(context: click.Context, _option: click.Parameter, value: object) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"{context.find_root().info_name}, version {wal_sink.__version__}")
        context.exit()


@click.group(cls=WalSinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=f"Show tracebacks; the same as {DEBUG_VARIABLE}=1.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report on stderr what takes long.")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def main(*, debug: bool, quiet: bool) -> None:
    """A write-ahead-log sink for Spark Structured Streaming.

    WAL is the folder of a log: a local path, or any URL that fsspec knows, such as s3://lake/wal/orders. Pass the
    options of its store with --option or in the environment.

    Every command takes --json. A command that takes long says on stderr how far it is. Exit code 0: success; 1: a check
    found a problem, or delivery failed; 2: wrong usage or configuration.
    """


for verb in (status, batches, show, drain, sinks, dead_letters, estimate_verb):
    main.add_command(verb)
