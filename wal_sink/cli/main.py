"""The console script `wal-sink`.

Exit codes: 0 success; 1 a check found a problem, or delivery failed; 2 wrong usage or configuration; 130 Ctrl-C ended
a check or a command that delivers; 143 SIGTERM ended a command that delivers.
"""

from __future__ import annotations

from typing import get_args

import click

import wal_sink
from wal_sink.cli.batches import batches
from wal_sink.cli.catch_up import catch_up_verb
from wal_sink.cli.doctor import doctor
from wal_sink.cli.drain import drain
from wal_sink.cli.estimate import estimate_verb
from wal_sink.cli.group import DEBUG_VARIABLE, WalSinkGroup
from wal_sink.cli.letters import letters
from wal_sink.cli.log_format import LogFormat, begin_logging
from wal_sink.cli.report import report
from wal_sink.cli.settle import settle_verb
from wal_sink.cli.show import show
from wal_sink.cli.sinks import sinks
from wal_sink.cli.skip import skip_verb
from wal_sink.cli.status import status
from wal_sink.cli.verify import verify


def _show_version(context: click.Context, _option: click.Parameter, value: object) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"{context.find_root().info_name}, version {wal_sink.__version__}")
        context.exit()


@click.group(cls=WalSinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=f"Show tracebacks; the same as {DEBUG_VARIABLE}=1.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report on stderr what takes long.")
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
    options of its store with --storage-options or in the environment.

    Every command takes --json. A command that takes long says on stderr how far it is. Exit code 0: success; 1: a check
    found a problem, or delivery failed; 2: wrong usage or configuration.
    """


main.add_section("Look", status, batches, show, report)
main.add_section("Deliver", drain, sinks, letters)
main.add_section("Check", verify, doctor, estimate_verb)
main.add_section("Change", skip_verb, catch_up_verb, settle_verb)
