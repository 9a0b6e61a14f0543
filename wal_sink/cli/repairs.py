"""`wal-sink repairs`: changes that people made in a WAL, and which repairs are unfinished."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.output import print_json
from wal_sink.cli.repairing import log_of, why_option
from wal_sink.cli.tables import Listing, print_text
from wal_sink.cli.targets import target
from wal_sink.cli.working import working
from wal_sink.recovery.location import refuse_copy
from wal_sink.repair.giving_up import give_up
from wal_sink.repair.journal import Entry, command_of, read_journal
from wal_sink.reporting.counts import counted
from wal_sink.reporting.texts import name_of


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
        if entry.damage:
            print_text(f"the record of repair {entry.number} cannot be read: {entry.damage}")
        if entry.ended is None:
            print_text(f"repair {entry.number} is unfinished. {_way_out(entry)}")


@repairs.command("give-up", short_help="Note that an unfinished repair will not be completed.")
@click.argument("wal")
@click.argument("number", type=click.IntRange(min=1))
@click.option(
    "--to",
    "to",
    metavar="URL|MODULE:OBJECT",
    help="The two-phase target of a replay: the transactions that the replay left open there are aborted.",
)
@why_option
@options.storage_options
@options.as_json
def give_up_verb(*, wal: str, number: int, to: str | None, why: str, as_json: bool, **more: Any) -> None:
    """Give up an unfinished repair, so that it no longer excludes other repairs.

    The changes that it made so far stay. The sink of a replay is retired. To complete it instead, repeat its command.
    """
    log, there = log_of(wal, more), target(to) if to else None
    with working(f"giving up repair {number}"):
        refuse_copy(log)
        entry = give_up(log, number, why=why, to=there)
    if as_json:
        print_json(facts(entry))
        return
    print_text(f"repair {number} is given up: {command_of(entry.begun)}")
    if there is not None and (aborted := entry.result.get("aborted")):
        print_text(f"{counted(aborted, 'transaction')} aborted in {name_of(there)}")


def _way_out(entry: Entry) -> str:
    if entry.damage:
        return f"Restore its record, or give it up: wal-sink repairs give-up WAL {entry.number} --why TEXT"
    return f"The same command completes it: {command_of(entry.begun)}"


def facts(entry: Entry) -> dict[str, object]:
    """A repair for `--json`."""
    begun, ended = entry.begun, entry.ended
    return {
        "number": entry.number,
        "state": entry.state,
        "verb": begun.verb,
        "arguments": begun.arguments,
        "command": None if entry.damage else command_of(begun),
        "damage": entry.damage or None,
        "who": begun.who,
        "when": begun.created,
        "why": begun.why,
        "plan": begun.plan,
        "ended": None if ended is None else ended.created,
        "ended_by": None if ended is None else ended.who,
        "given_up_because": ended.why if ended is not None and ended.why else None,
        "result": None if ended is None else ended.result,
    }
