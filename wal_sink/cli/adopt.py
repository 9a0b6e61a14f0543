"""`wal-sink adopt`: a WAL that does not belong to its place or its checkpoint any more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.cli import options
from wal_sink.cli.adopting import lines
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.opened import opened
from wal_sink.cli.output import plain, print_json
from wal_sink.cli.repairing import confirm, log_of, repair_options
from wal_sink.cli.tables import print_text
from wal_sink.cli.working import working
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.moving.adopt import (
    PlacePlan,
    SettlePlan,
    adopt_place,
    is_settled,
    is_whole,
    place_order,
    plan_place,
    plan_settle,
    settle,
    settle_order,
)
from wal_sink.moving.situation import Match, PlaceFound, QueryFound, look_at_place, look_at_query
from wal_sink.recovery.inventory import require_wal
from wal_sink.recovery.location import address_at, canonical, current_location, is_plain
from wal_sink.redaction import mask_url, redacted
from wal_sink.repair.journal import Entry, Order, find_unfinished
from wal_sink.reporting.texts import text_of
from wal_sink.stores.base import Store
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import WalRecord

_ANOTHER_KIND = "it is on another kind of store"


@dataclass(frozen=True, slots=True)
class _Looked:
    """Everything that was found."""

    log: Log
    wal: WalRecord
    recorded: Log | str
    """The log at the place that the WAL records, or the reason why nobody can look there."""
    place: PlaceFound | None
    query: QueryFound | None
    unknown_because: str = ""
    """Why the checkpoint could not be compared."""

    @property
    def fits(self) -> bool:
        return self.place is None and self.query is not None and self.query.match is Match.SAME


@dataclass(frozen=True, slots=True)
class _Asked:
    """How the command was called."""

    take_over: TakeOver
    dry_run: bool
    yes: bool
    as_json: bool
    newest: str | None


@click.command("adopt", short_help="Make a WAL and its place or checkpoint fit together again.")
@click.argument("wal")
@click.option("--checkpoint", metavar="URL", help="The checkpoint to compare; default: the one that the WAL records.")
@click.option(
    "--settle",
    "settle_in",
    metavar="FOLDER",
    help="Make a checkpoint in this new folder, with which wal-sink drain delivers what the WAL still holds.",
)
@click.option(
    "--newest",
    type=click.Choice(["complete", "incomplete"]),
    help="With --settle: whether the newest batch is delivered, if nobody knows whether Spark completed it.",
)
@repair_options(why_required=False)
@options.take_over
@options.storage_options
@options.checkpoint_options
@options.as_json
def adopt_verb(
    *,
    wal: str,
    settle_in: str | None,
    newest: str | None,
    dry_run: bool,
    yes: bool,
    why: str,
    as_json: bool,
    **more: Any,
) -> None:
    """Show what each sink would get twice or never, because WAL was moved by hand, because its checkpoint was deleted
    or restored from a backup, or because a new query has another checkpoint. Then make them fit, if you say so.

    A WAL at another place records this place. A WAL without its checkpoint goes on with no other query: --settle
    makes a checkpoint with which a drain delivers the rest. The new query gets a new WAL. Stop the query and every
    drain first. If the command is interrupted, repeat it. Exit code 1: something does not fit, and nothing was changed.

    \b
        wal-sink adopt wal/orders
        wal-sink adopt wal/orders --checkpoint checkpoint/new --settle checkpoint/rest
    """
    if newest is not None and settle_in is None:
        raise ConfigError("--newest belongs to --settle. Add --settle, or leave out --newest")
    spec = options.wal_spec(wal, more["option"], more["storage_options_json"])
    log = log_of(wal, more)
    asked = _Asked(options.whom(take_over=more["take_over"]), dry_run, yes, as_json, newest)
    folder = opened(_spec_of(settle_in, spec, more)) if settle_in is not None else None
    order = place_order(why) if folder is None else settle_order(folder, newest, why=why)
    begun = find_unfinished(log, order)
    with working(f"looking at {log.store.root}"):
        looked = _look(log, spec, more, begun)
    if not as_json:
        for line in lines(looked.place, looked.query, looked.unknown_because):
            print_text(line)
    if folder is not None:
        _settle(looked, order, begun, folder, asked)
    elif begun is not None:
        _adopt_place(looked, order, PlacePlan(**begun.plan), asked)
    elif looked.place is not None:
        _adopt_place(looked, order, plan_place(looked.place), asked)
    else:
        _report(looked, asked, "none")
        if not dry_run and not looked.fits:
            sys.exit(FOUND_SOMETHING)


def _adopt_place(looked: _Looked, order: Order, plan: PlacePlan, asked: _Asked) -> None:
    entry = None
    if not asked.dry_run:
        confirm(f"Record that the WAL lies at {plan.location} from now on?", yes=asked.yes)
        with working("recording the place"):
            entry = adopt_place(looked.log, order, plan, looked.recorded, take_over=asked.take_over)
    _report(looked, asked, "place", plan, entry)


def _settle(looked: _Looked, order: Order, begun: Entry | None, folder: Store, asked: _Asked) -> None:
    if looked.place is not None:
        raise ConfigError("--settle: first let the WAL record its place, by the same command without --settle")
    if begun is not None:
        _make_checkpoint(looked, order, SettlePlan(**begun.plan), folder, asked)
    elif looked.query is not None:
        if is_settled(looked.query):
            _report(looked, asked, "settled")
            return
        plan = plan_settle(looked.query, folder, asked.newest)
        if is_whole(looked.log, looked.wal, plan, folder):
            _report(looked, asked, "settle", plan)
        else:
            _make_checkpoint(looked, order, plan, folder, asked)


def _make_checkpoint(looked: _Looked, order: Order, plan: SettlePlan, folder: Store, asked: _Asked) -> None:
    entry = None
    if not asked.dry_run:
        confirm(f"Make a checkpoint in {folder.root} that delivers every batch up to {plan.through}?", yes=asked.yes)
        with working(f"writing {folder.root}"):
            entry = settle(looked.log, order, plan, folder, take_over=asked.take_over)
    _report(looked, asked, "settle", plan, entry)


def _look(log: Log, spec: StoreSpec, more: dict[str, Any], begun: Entry | None) -> _Looked:
    wal = require_wal(log, "the WAL")
    said = current_location(log, wal, moved=True)
    if begun is not None and "moved_from" in begun.plan:
        said = begun.plan["moved_from"]
    recorded = _recorded(log, spec, said)
    place = look_at_place(log, wal, recorded)
    try:
        query = look_at_query(log, wal, Checkpoint(opened(_checkpoint_spec(wal, spec, more))))
    except WalSinkError as error:
        if place is None and begun is None:
            raise
        return _Looked(log, wal, recorded, place, None, redacted(text_of(error)))
    return _Looked(log, wal, recorded, place, query)


def _recorded(log: Log, spec: StoreSpec, said: str) -> Log | str:
    """The log at the place that the WAL records, or the reason why it is not opened."""
    if not is_plain(said):
        return _ANOTHER_KIND
    try:
        there = address_at(canonical(said), spec)
        return _ANOTHER_KIND if there is None else Log(opened(there), log.runtime, log.run_id)
    except WalSinkError as error:
        return redacted(text_of(error))


def _checkpoint_spec(wal: WalRecord, spec: StoreSpec, more: dict[str, Any]) -> StoreSpec:
    given = more["checkpoint"]
    if given is None and not is_plain(wal.checkpoint):
        raise ConfigError(
            f"the WAL records the checkpoint {mask_url(wal.checkpoint)}. wal-sink opens an address of this kind only "
            "if you pass it yourself. Pass it with --checkpoint"
        )
    return _spec_of(given or wal.checkpoint, spec, more)


def _spec_of(url: str, spec: StoreSpec, more: dict[str, Any]) -> StoreSpec:
    """A checkpoint's address. Its storage options are those of the WAL, if it is on the same kind of store."""
    pairs, text = more["checkpoint_option"], more["checkpoint_options_json"]
    if pairs or text:
        return StoreSpec(url, options.merged_options(pairs, text, "--checkpoint-option"))
    found = StoreSpec(url)
    return StoreSpec(url, spec.options) if found.scheme == spec.scheme else found


def _report(
    looked: _Looked, asked: _Asked, action: str, plan: PlacePlan | SettlePlan | None = None, entry: Entry | None = None
) -> None:
    if asked.as_json:
        print_json(
            {
                "wal": looked.log.store.root,
                "dry_run": asked.dry_run,
                "fits": looked.fits,
                "place": plain(looked.place),
                "query": plain(looked.query),
                "unknown_because": looked.unknown_because,
                "action": action,
                "plan": plain(plan),
                "repair": entry.number if entry else None,
            }
        )
        return
    for line in _told(looked, asked, action, plan):
        print_text(line)


def _told(looked: _Looked, asked: _Asked, action: str, plan: PlacePlan | SettlePlan | None) -> Iterator[str]:
    if action == "settled":
        yield "every sink has every batch that counts: there is nothing to settle. Begin with a new WAL"
    elif asked.dry_run:
        yield "nothing was changed"
    elif isinstance(plan, PlacePlan):
        yield f"the WAL lies at {plan.location} from now on. Never open {plan.moved_from} again"
    elif isinstance(plan, SettlePlan):
        yield (
            f"{plan.folder} is a checkpoint for drains. For each sink: wal-sink drain {looked.log.store.root} "
            f"--checkpoint {plan.folder} --name SINK --to TARGET"
        )
    elif not looked.fits:
        yield "nothing was changed"
