"""`wal-sink letters`: list, show and resend rows that a target rejected or may have missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal, target
from wal_sink.cli.printer import INDENT, Answer, fields_of, pairs, table, value_text
from wal_sink.cli.working import FOUND_SOMETHING, Work, working
from wal_sink.errors import ConfigError
from wal_sink.log.holders import TakeOver
from wal_sink.operate.batches import plain_rows
from wal_sink.operate.letters import Chosen, DeletePlan, delete_letters, older_than, plan_delete
from wal_sink.operate.replay import DeadLetters, KeptLetter, ReplayResult
from wal_sink.support.texts import counted, name_of

_STAYED = (
    "rows of the same chunks were refused again after the plan was made. To see them and to delete them too, repeat "
    "the command"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A dead letter as the list tells it, without its rows."""

    sink: str
    file: str
    batch_id: int
    kept: str
    """Why: `rejected` or `unknown`."""
    rows: int
    key: str
    replayed: bool
    replay_of: str | None
    reasons: list[str]

    @classmethod
    def of(cls, sink: str, kept: KeptLetter) -> Listed:
        """Tell a dead letter of a sink."""
        letter, reasons = kept.letter, sorted(set(kept.reasons))
        of_chunk = (letter.chunk.batch_id, letter.kept, len(kept.own), letter.chunk.key)
        return cls(sink, letter.path, *of_chunk, kept.replayed, letter.replay_of, reasons)


def _choosing(verb: options.F) -> options.F:
    """Add the conditions of `Chosen` that both verbs have."""
    for option in (
        click.option("--reason", default="", metavar="TEXT", help="Only those with this text in every reason."),
        click.option("--file", default="", metavar="FILE", help="Only this file, named as in the list."),
        click.option("--batch", type=options.BATCH, help="Only those of this batch."),
    ):
        verb = option(verb)
    return verb


@click.group("letters", short_help="Rows that a target rejected: list, show, replay, delete.")
def letters() -> None:
    """Rows that a target rejected (on_rejected='dead_letter'), or that an at-most-once delivery may have lost.

    They stay in the WAL until you delete them. A replay does not delete them.
    """


@options.verb("list", "Every dead letter.")
@click.option("--name", help="Only those of this sink; default: of all sinks.")
def list_letters(*, wal: Wal, name: str | None) -> Answer:
    """Every dead letter of every sink, oldest batch first. A row that was rejected again is listed once, under its
    newest dead letter.
    """
    status = wal.require()
    with working("reading dead letters") as work:
        told = _telling(work)
        names = [sink.name for sink in status.sinks] if name is None else [name]
        found = [Listed.of(each, kept) for each in names for kept in filter(told, _of_sink(wal, each).all())]
    return Answer(found, _listed(found))


def _listed(found: list[Listed]) -> Iterator[str]:
    reason = ("first reason", lambda letter: letter.reasons[0])
    file = ("file", lambda letter: letter.file.rpartition("/")[2])
    yield from table(found, "sink", "batch=batch_id", "rows", "why=kept", "replayed", reason, file)
    yield f"{counted(len(found), 'dead letter')}, {counted(sum(letter.rows for letter in found), 'row')}"


@options.verb("show", "The rows of a batch's dead letters.")
@options.batch
@options.name
def show(*, wal: Wal, batch: int, name: str) -> Answer:
    """The dead letter rows of a batch, each with its key and the reason."""
    wal.require()
    kept_letters = _of_sink(wal, name)
    with working(f"reading the dead letters of batch {batch}") as work:
        found = list(filter(_telling(work), kept_letters.all(batch_id=batch)))
    columns = found[0].letter.chunk.table.column_names if found else []
    rows = [
        {"key": key, "reason": reason, "values": values}
        for kept in found
        for key, reason, values in zip(kept.chunk.row_keys(), kept.reasons, plain_rows(kept.chunk.table), strict=True)
    ]
    return Answer({"columns": columns, "rows": rows}, _shown(columns, rows))


def _shown(columns: list[str], rows: list[dict[str, Any]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"row {number}"
        values = zip(columns, map(value_text, row["values"]), strict=True)
        yield from pairs([("key", row["key"]), ("reason", row["reason"]), *values], INDENT)
    yield counted(len(rows), "row")


@options.verb("replay", "Send dead letters again.", delivers=True)
@options.to()
@options.dry_run
@_choosing
@click.option(
    "--unknown",
    is_flag=True,
    help="Also send letters of unknown outcome: the target may have the rows of these letters.",
)
@options.delivery_policies("columns")
@options.take_over
@options.name
def replay(
    *,
    wal: Wal,
    to: str,
    name: str,
    dry_run: bool,
    unknown: bool,
    columns: dict[str, Any] | None,
    take_over: TakeOver,
    **conditions: Any,
) -> Answer:
    """Send dead letters of delivered batches again. Their keys never change, so a target that remembers keys takes them
    once.

    Rows that the target rejects again become a new dead letter, and the exit code is 1. If you repeat the command, it
    sends only the rest.
    """
    wal.require()
    kept_letters, there = _of_sink(wal, name), target(to)
    chosen = _chosen(wal, **conditions)
    if dry_run:
        with working("reading dead letters") as work:
            due = list(kept_letters.due(unknown=unknown, only=_telling(work, chosen.holds)))
        done = ReplayResult(len(due), sum(len(kept.own) for kept in due), 0)
    else:
        with working(f"sending dead letters to {name_of(there)}") as work:
            only = _telling(work, chosen.holds)
            done = kept_letters.replay(there, unknown=unknown, only=only, columns=columns, take_over=take_over)
    what = "to send" if dry_run else "sent"
    text = [f"{counted(done.letters, 'dead letter')} {what} to {name_of(there)}: {counted(done.rows, 'row')}"]
    if done.rejected:
        text.append(f"rejected again: {counted(done.rejected, 'row')}; their reasons: wal-sink letters show")
    document = {"sink": name, "target": name_of(there), "dry_run": dry_run, **fields_of(done)}
    return Answer(document, text, FOUND_SOMETHING if done.rejected else 0)


@options.verb("delete", "Delete dead letters.")
@_choosing
@click.option(
    "--older-than", "older_than_s", type=options.duration, metavar="TIME", help="Only those kept before, such as 30d."
)
@click.option("--all", "every", is_flag=True, help="Delete every dead letter of the sink.")
@options.asks
@options.take_over
@options.name
def delete(*, wal: Wal, name: str, every: bool, dry_run: bool, yes: bool, take_over: TakeOver, **more: Any) -> Answer:
    """Delete dead letters that nobody needs any more: rows that were sent again, or that must be forgotten.

    Several conditions must all hold. All dead letters of a chunk are deleted together. Those of a batch that the sink
    does not have yet stay.
    """
    del dry_run, yes  # of `carry_out`
    log = wal.require_log()
    chosen = _chosen(wal, **more)
    if chosen.is_all and not every:
        raise ConfigError("name the dead letters: --batch, --file, --reason or --older-than; or --all for every one")
    with working("reading dead letters"):
        plan = plan_delete(log, name, chosen)
    told = {field: value for field, value in fields_of(plan).items() if field != "named"}

    def act() -> Answer:
        with working("deleting dead letters"):
            done = delete_letters(log, name, plan, take_over=take_over)
        if done.stayed:
            text = [f"{counted(done.files, 'file')} deleted", f"{counted(done.stayed, 'dead letter')} stay: {_STAYED}"]
        else:
            text = [f"{counted(plan.letters, 'dead letter')} deleted: {counted(plan.rows, 'row')}"]
        return Answer({"dry_run": False, "files": done.files, "stayed": done.stayed, **told}, text)

    question = f"Delete {counted(plan.letters, 'dead letter')} of sink {name!r} for ever?" if plan.chunks else ""
    return options.carry_out({"dry_run": True, **told}, _planned(plan), question, act)


def _planned(plan: DeletePlan) -> Iterator[str]:
    yield f"{counted(plan.letters, 'dead letter')} to delete: {counted(plan.rows, 'row')}"
    if plan.undelivered:
        yield f"{counted(plan.undelivered, 'dead letter')} stay: the sink does not have their batches yet"
    if plan.shared:
        yield (
            f"{counted(plan.shared, 'dead letter')} stay: other dead letters of the same chunk are not chosen. See "
            "wal-sink letters list"
        )
    if plan.more:
        yield "there are more: repeat the command for the rest"


for _verb in (list_letters, show, replay, delete):
    letters.add_command(_verb)


def _of_sink(wal: Wal, name: str) -> DeadLetters:
    return DeadLetters(wal.spec.url, name=name, storage_options=wal.spec.options)


def _chosen(wal: Wal, *, batch: int | None, file: str, reason: str, older_than_s: float | None = None) -> Chosen:
    return Chosen(batch, file, reason, older_than(wal.log, older_than_s))


def _telling(work: Work, holds: Callable[[KeptLetter], bool] = lambda _: True) -> Callable[[KeptLetter], bool]:
    """A condition that tells the work how many dead letters held before: they are done when the next one is taken."""
    count = rows = 0

    def condition(kept: KeptLetter) -> bool:
        nonlocal count, rows
        work.how_far = f"{counted(count, 'dead letter')}, {counted(rows, 'row')}"
        is_chosen = holds(kept)
        count, rows = count + is_chosen, rows + is_chosen * len(kept.own)
        return is_chosen

    return condition
