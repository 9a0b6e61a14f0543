"""`wal-sink letters`: list, show and resend rows that a target rejected or may have missed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from wal_sink.cli import options
from wal_sink.cli.durations import duration
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.opened import opened, require_wal
from wal_sink.cli.output import cell, clean, plain, print_json
from wal_sink.cli.repairing import act_options, confirm, log_of
from wal_sink.cli.tables import Listing, print_rows, print_text
from wal_sink.cli.targets import target
from wal_sink.cli.termination import in_order
from wal_sink.cli.working import Work, working
from wal_sink.errors import ConfigError
from wal_sink.operate.batches import plain_rows
from wal_sink.repair.letters import (
    Chosen,
    DeletePlan,
    delete_letters,
    older_than,
    plan_delete,
)
from wal_sink.replay import DeadLetters, KeptLetter
from wal_sink.reporting.counts import counted
from wal_sink.reporting.texts import name_of
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.log import Log

F = TypeVar("F", bound=Callable[..., Any])


def _choosing(verb: F) -> F:
    """Add the conditions of `Chosen`."""
    for option in reversed(
        (
            click.option("--batch", type=click.IntRange(min=0), help="Only those of this batch."),
            click.option("--file", default="", metavar="FILE", help="Only this one, as the list names its file."),
            click.option("--reason", default="", metavar="TEXT", help="Only those whose every reason contains this."),
            click.option("--older-than", type=duration, metavar="TIME", help="Only those kept before, such as 30d."),
        )
    ):
        verb = option(verb)
    return verb


_name = click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")


@click.group("letters", short_help="Rows that a target rejected: list, show, replay, delete.")
def letters() -> None:
    """Rows that a target rejected (on_rejected='dead_letter'), or that an at-most-once delivery may have lost.

    They stay in the WAL until you delete them. A replay does not delete them.
    """


@letters.command("list", short_help="Every dead letter.")
@click.argument("wal")
@click.option("--name", help="Only those of this sink; default: of all sinks.")
@options.storage_options
@options.as_json
def list_letters(*, wal: str, name: str | None, as_json: bool, **more: Any) -> None:
    """Every dead letter of every sink, oldest batch first. A row that was rejected again is listed once, under its
    newest dead letter.
    """
    spec = options.wal_spec(wal, more)
    status = require_wal(opened(spec))
    names = [sink.name for sink in status.sinks] if name is None else [name]
    with working("reading dead letters") as work:
        found = [(each, kept) for each in names for kept in _counted(_dead_letters(spec, each).all(), work)]
    if as_json:
        print_json([{"sink": each, **_facts(kept)} for each, kept in found])
        return
    shown = Listing("sink", ">batch", ">rows", "why", "replayed", "+first reason", "+file")
    for each, kept in found:
        why, done = kept.letter.kept, "yes" if kept.replayed else "no"
        shown.add(each, str(kept.letter.chunk.batch_id), len(kept.own), why, done, kept.reasons[0], _file(kept))
    shown.print()
    click.echo(f"{counted(len(found), 'dead letter')}, {counted(sum(len(kept.own) for _, kept in found), 'row')}")


@letters.command(short_help="The rows of a batch's dead letters.")
@click.argument("wal")
@click.argument("batch", type=click.IntRange(min=0))
@_name
@options.storage_options
@options.as_json
def show(*, wal: str, batch: int, name: str, as_json: bool, **more: Any) -> None:
    """The dead letter rows of a batch, each with its key and the reason."""
    letters = _letters(wal, name, more)
    with working(f"reading the dead letters of batch {batch}") as work:
        found = list(_counted(letters.all(batch_id=batch), work))
    columns = found[0].letter.chunk.table.column_names if found else []
    rows = [row for kept in found for row in _rows(kept)]
    if as_json:
        named = [{"key": key, "reason": reason, "values": list(values)} for key, reason, values in rows]
        print_json({"columns": columns, "rows": named})
        return
    names = ["key", "reason", *map(clean, columns)]
    print_rows("row", names, [[clean(key), clean(reason), *map(cell, values)] for key, reason, values in rows])
    click.echo(counted(len(rows), "row"))


@letters.command(short_help="Send dead letters again.")
@click.argument("wal")
@click.option("--to", "to", required=True, metavar="URL|MODULE:OBJECT", help="A backend's URL, or an object to import.")
@click.option("--dry-run", is_flag=True, help="Only print the number of letters and rows that would be sent.")
@_choosing
@click.option(
    "--unknown",
    is_flag=True,
    help="Also send letters of unknown outcome: the target may have the rows of these letters.",
)
@options.take_over
@_name
@options.storage_options
@options.as_json
@in_order()
def replay(
    *, wal: str, to: str, name: str, dry_run: bool, unknown: bool, take_over: bool, as_json: bool, **more: Any
) -> None:
    """Send dead letters of delivered batches again. Their keys never change, so a target that remembers keys takes them
    once.

    Rows that the target rejects again become a new dead letter, and the exit code is 1. If you repeat the command, it
    sends only the rest.
    """
    letters = _letters(wal, name, more)
    there, log = target(to), log_of(wal, more)
    chosen, whom = _chosen(log, more), options.whom(take_over=take_over)
    if dry_run:
        with working("reading dead letters") as work:
            due = list(_counted(letters.due(unknown=unknown, only=chosen.holds), work))
        count, rows, rejected = len(due), sum(len(kept.own) for kept in due), 0
    else:
        with working(f"sending dead letters to {name_of(there)}") as letters.work:
            done = letters.replay(there, unknown=unknown, only=chosen.holds, take_over=whom)
        count, rows, rejected = done.letters, done.rows, done.rejected
    if as_json:
        result = {"dry_run": dry_run, "letters": count, "rows": rows, "rejected": rejected}
        print_json({"sink": name, "target": name_of(there), **result})
    else:
        what = "to send" if dry_run else "sent"
        click.echo(f"{counted(count, 'dead letter')} {what} to {name_of(there)}: {counted(rows, 'row')}")
        if rejected:
            click.echo(f"rejected again: {counted(rejected, 'row')}; see wal-sink letters list")
    if rejected:
        sys.exit(FOUND_SOMETHING)


@letters.command(short_help="Delete dead letters.")
@click.argument("wal")
@_choosing
@click.option("--all", "every", is_flag=True, help="Delete every dead letter of the sink.")
@act_options
@options.take_over
@_name
@options.storage_options
@options.as_json
def delete(
    *, wal: str, name: str, every: bool, dry_run: bool, yes: bool, take_over: bool, as_json: bool, **more: Any
) -> None:
    """Delete dead letters that nobody needs any more: rows that were sent again, or that must be forgotten.

    Several conditions must all hold. All dead letters of a chunk are deleted together. Those of a batch that the sink
    does not have yet stay.
    """
    log = log_of(wal, more)
    chosen = _chosen(log, more)
    if chosen.is_all and not every:
        raise ConfigError("name the dead letters: --batch, --file, --reason or --older-than; or --all for every one")
    with working("reading dead letters"):
        plan = plan_delete(log, name, chosen)
    if not as_json:
        _print_plan(plan)
    if dry_run or not plan.chunks:
        if as_json:
            print_json({"dry_run": True, **_plan_facts(plan)})
        return
    confirm(f"Delete {counted(plan.letters, 'dead letter')} of sink {name!r} for ever?", yes=yes)
    with working("deleting dead letters"):
        done = delete_letters(log, name, plan, take_over=options.whom(take_over=take_over))
    if as_json:
        print_json({"dry_run": False, "files": done.files, "stayed": done.stayed, **_plan_facts(plan)})
        return
    if done.stayed:
        click.echo(f"{counted(done.files, 'file')} deleted")
        print_text(
            f"{counted(done.stayed, 'dead letter')} stay: rows of the same chunks were refused again after the plan "
            "was made. To see them and to delete them too, repeat the command"
        )
        return
    click.echo(f"{counted(plan.letters, 'dead letter')} deleted: {counted(plan.rows, 'row')}")


def _plan_facts(plan: DeletePlan) -> dict[str, object]:
    """The plan for `--json`, without the names of all files."""
    return {name: value for name, value in plain(plan).items() if name != "named"}


def _print_plan(plan: DeletePlan) -> None:
    click.echo(f"{counted(plan.letters, 'dead letter')} to delete: {counted(plan.rows, 'row')}")
    if plan.undelivered:
        print_text(f"{counted(plan.undelivered, 'dead letter')} stay: the sink does not have their batches yet")
    if plan.shared:
        print_text(
            f"{counted(plan.shared, 'dead letter')} stay: other dead letters of the same chunk are not chosen. See "
            "wal-sink letters list"
        )
    if plan.more:
        print_text("there are more: repeat the command for the rest")


class _Letters(DeadLetters):
    """Dead letters whose replay is counted: a letter was sent when the next one is taken."""

    work: Work | None = None

    def due(self, *, unknown: bool = False, only: Callable[[KeptLetter], bool] | None = None) -> Iterator[KeptLetter]:
        letters = super().due(unknown=unknown, only=only)
        return letters if self.work is None else _counted(letters, self.work)


def _counted(letters: Iterator[KeptLetter], work: Work) -> Iterator[KeptLetter]:
    """The letters. The work tells how many of them were handled."""
    count = rows = 0
    for kept in letters:
        yield kept
        count, rows = count + 1, rows + len(kept.own)
        work.how_far = f"{counted(count, 'dead letter')}, {counted(rows, 'row')}"


def _letters(wal: str, name: str, more: dict[str, Any]) -> _Letters:
    spec = options.wal_spec(wal, more)
    require_wal(opened(spec))
    return _dead_letters(spec, name)


def _dead_letters(spec: StoreSpec, name: str) -> _Letters:
    return _Letters(spec.url, name=name, storage_options=spec.options)


def _chosen(log: Log, more: dict[str, Any]) -> Chosen:
    return Chosen(more["batch"], more["file"], more["reason"], older_than(log, more["older_than"]))


def _facts(kept: KeptLetter) -> dict[str, object]:
    letter = kept.letter
    return {
        "file": letter.path,
        "batch_id": letter.chunk.batch_id,
        "kept": letter.kept,
        "rows": len(kept.own),
        "key": letter.chunk.key,
        "replayed": kept.replayed,
        "replay_of": letter.replay_of,
        "reasons": sorted(set(kept.reasons)),
    }


def _rows(kept: KeptLetter) -> list[tuple[str, str, tuple[Any, ...]]]:
    chunk = kept.chunk
    return list(zip(chunk.row_keys(), kept.reasons, plain_rows(chunk.table), strict=True))


def _file(kept: KeptLetter) -> str:
    return kept.letter.path.rpartition("/")[2]
