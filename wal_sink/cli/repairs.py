"""`wal-sink repairs`: changes that people made in a WAL, and which repairs are unfinished."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.output import print_json
from wal_sink.cli.repairing import log_of, why_option
from wal_sink.cli.tables import Listing, print_text
from wal_sink.cli.working import working
from wal_sink.recovery.location import refuse_copy
from wal_sink.repair.journal import Entry, command_of, give_up, read_journal
from wal_sink.repair.resend import retire_given_up
from wal_sink.reporting.counts import counted


@click.group("repairs", short_help="Changes that people made in a WAL: list, give up.")
def repairs() -> None:
    """The repairs of a WAL: who changed something, when and why.

    A repair that was interrupted is unfinished. The same command completes it.
    """


@repairs.command("list", short_help="Every repair, and whether it was completed.")
@click.argument("wal")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N of the newest, and every unfinished one.",
)
@options.storage_options
@options.as_json
def list_repairs(*, wal: str, last: int, as_json: bool, **more: Any) -> None:
    """The repairs of a WAL, oldest first. For each unfinished one, the command that completes it."""
    log = log_of(wal, more)
    with working("reading the repairs"):
        found = read_journal(log, last=last)
    if as_json:
        print_json([facts(entry) for entry in found])
        return
    shown = Listing(">repair", "state", "+when", "+who", "+why", "+command")
    for entry in found:
        begun = entry.begun
        shown.add(
            str(entry.number), entry.state, begun.created, begun.who, begun.why or "-", command_of(begun, why=False)
        )
    shown.print()
    click.echo(counted(len(found), "repair"))
    for entry in found:
        if entry.ended is None:
            print_text(f"repair {entry.number} is unfinished. The same command completes it: {command_of(entry.begun)}")


@repairs.command("give-up", short_help="Note that an unfinished repair will not be completed.")
@click.argument("wal")
@click.argument("number", type=click.IntRange(min=1))
@why_option
@options.storage_options
@options.as_json
def give_up_verb(*, wal: str, number: int, why: str, as_json: bool, **more: Any) -> None:
    """Give up an unfinished repair, so that it no longer excludes other repairs.

    The changes that it made so far stay. To complete it instead, repeat its command.
    """
    log = log_of(wal, more)
    with working(f"giving up repair {number}"):
        refuse_copy(log)
        entry = give_up(log, number, why=why)
        if entry.begun.verb == "replay":
            retire_given_up(log, entry)
    if as_json:
        print_json(facts(entry))
        return
    print_text(f"repair {number} is given up: {command_of(entry.begun)}")


def facts(entry: Entry) -> dict[str, object]:
    """A repair for `--json`."""
    begun, ended = entry.begun, entry.ended
    return {
        "number": entry.number,
        "state": entry.state,
        "verb": begun.verb,
        "arguments": begun.arguments,
        "command": command_of(begun),
        "who": begun.who,
        "when": begun.created,
        "why": begun.why,
        "plan": begun.plan,
        "ended": None if ended is None else ended.created,
        "ended_by": None if ended is None else ended.who,
        "given_up_because": ended.why if ended is not None and ended.why else None,
        "result": None if ended is None else ended.result,
    }
