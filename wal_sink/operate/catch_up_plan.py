"""The plan of a `catch-up`: the batches that a restored target lacks, by the sink's own positions in its ledger.

A ledger that was restored together with its rows is at a state that the target once had: the batch of its newest
position was under way or complete, and every batch before it was complete. So the newest position tells what is due.
A ledger that cannot be such a state is refused, as far as the log and its markers can tell.

A commit sink has one position in its target. If that is not shown, the target tells the newest batch that it shows.

Each dead letter that was sent again has a separate slot in a transactional target. So the ledger tells exactly which of
them the target lacks. If their record says that they were sent to this target, it is deleted: then they are due again,
and `letters replay` sends them. Of all others nobody knows whether their rows were ever there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wal_sink.errors import ConfigError, HeldError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest, Marker, Release, Replayed, RollRecord, SinkRecord, without_segments
from wal_sink.log.sink_records import ChangeRecord, RetiredRecord
from wal_sink.operate.changes import TARGET, Order, command_of, read_changes
from wal_sink.operate.ledgers import (
    Due,
    HasTable,
    Ledger,
    asked,
    deleted_through,
    find_due,
    is_for,
    owed_slots,
    position_in,
    positions_of,
    refuse_two_moments,
    released,
    told,
)
from wal_sink.operate.replay import letter_slot
from wal_sink.protocol.inventory import Lost, newest_marker, require, require_wal
from wal_sink.protocol.location import refuse_copy
from wal_sink.protocol.positions import digest_of, held_through
from wal_sink.protocol.sinks import KnownSink, read_names, refuse_retired
from wal_sink.sinks.base import BatchSink, CommitPosition, CommitSink, Sink, TransactionalSink
from wal_sink.sinks.calls import SinkSession
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.sinks.ledger import described, slot_name, stored_position
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import in_ranges, name_of

_ASKED_AT_ONCE = 500
"""Slots in one question to the target."""
VERB = "catch-up"
NOBODY_HOLDS = 1 << 62
"""A batch that no WAL reaches."""
_OTHERS = {
    Ability.IGNORE_KNOWN_KEYS: "It gets the batches after its backup by their ids, and ignores the keys that it knows",
    Ability.LOOK_UP: "It gets the batches after its backup by their ids, and only the chunks that it does not know",
}
_DOUBLES = "It gets the batches after its backup by their ids, and may then have some of their rows twice"


@dataclass(frozen=True, slots=True)
class LostLetters:
    """Dead letters that were sent again, and of which the target has no row."""

    due: tuple[str, ...] = ()
    """Paths of the records of those that were sent to this target."""
    rows: int = 0
    """Rows of these."""
    unknown: int = 0
    """How many others there are: nobody knows to which target they were sent."""


NO_LETTERS = LostLetters()


def find_lost_letters(log: Log, session: SinkSession, to: TransactionalSink, folder: str, wal_id: str) -> LostLetters:
    """The dead letters of a sink that the target lacks although they were sent again. Raises `SinkFailedError`.

    A listing for each batch that has dead letters, a question for many of those that were sent again, and a read of
    each record that the target lacks.
    """
    sent = [
        each
        for batch_id in log.numbers(paths.dead_letter_batches(folder))
        for each in _sent(log, folder, batch_id, wal_id)
    ]
    due: list[str] = []
    rows = unknown = 0
    for first in range(0, len(sent), _ASKED_AT_ONCE):
        asked_for = sent[first : first + _ASKED_AT_ONCE]
        found = session.call("positions of dead letters", to.positions, [slot for _, slot, _ in asked_for])
        for path, slot, is_there in asked_for:
            if stored_position(f"last({slot!r})", slot, found.get(slot)) is not None:
                continue
            record = log.find(Replayed, path)
            if record is None or record.rows == 0:
                continue  # it is due again already, or the target refused all of it
            if is_there and record.target == redacted(name_of(to)):
                due.append(path)
                rows += record.rows
            else:
                unknown += 1
    return LostLetters(tuple(due), rows, unknown)


def _sent(log: Log, folder: str, batch_id: int, wal_id: str) -> Iterator[tuple[str, str, bool]]:
    """For each dead letter that was sent again: its record, its slot, and whether the letter is still there."""
    root = paths.dead_letter_folder(folder, batch_id)
    names = frozenset(log.store.list(root))
    for name in sorted(names):
        file = f"{name.removesuffix(paths.REPLAYED)}.parquet"
        letter = paths.parse_dead_letter(file) if name.endswith(paths.REPLAYED) else None
        if letter is not None:
            slot = letter_slot(slot_name(wal_id, folder, letter.ordinal), batch_id, file)
            yield f"{root}/{name}", slot, file in names


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """The rows that the target of a sink lacks."""

    name: str
    folder: str
    """The sink's first name, under which its objects and its slots lie."""
    target: str
    registered: str
    """Description of the target for which the sink was registered."""
    through: int
    """The newest batch that the sink has by its marker; -1 if none."""
    position: str
    """The newest position of the sink in its target, in words."""
    batches: tuple[tuple[int, int], ...]
    """The batches that are sent, each with the number of rows that the target lacks."""
    rows: int
    bytes: int
    """Segment bytes of these batches."""
    left_out: tuple[str, ...]
    """Batches that the target will not get, as the user named them."""
    skipped: tuple[str, ...]
    """Batches that the sink skipped before any row of them was sent. They stay skipped."""
    is_behind: bool
    """Whether the target lacks a position that the sink's marker stands for."""
    is_empty: bool
    """Whether the user said that the target has nothing of this sink."""
    replayed_letters: int
    """Dead letters that were sent again and are not in this target. Nobody knows whether they ever were."""
    others: tuple[str, ...]
    """Other sinks that were registered for the same target. It may lack rows of theirs, too."""
    lost_letters: int = 0
    """Dead letters that were sent to this target again, and that it lacks now. They become due again."""
    rows_of_letters: int = 0
    """Rows of these."""
    held_through: int | None = None
    """Of a commit sink: the newest batch that the target showed; -1: none."""

    @property
    def target_is_registered(self) -> bool:
        """Whether the sink was registered for a target of this description."""
        return redacted(self.target) == self.registered


@dataclass(frozen=True, slots=True)
class _Of:
    """The sink whose target is caught up."""

    name: str
    record: SinkRecord
    wal_id: str
    first_batch: int
    marker: Marker | None

    @property
    def through(self) -> int:
        """The newest batch that the sink has by its marker; -1 if none."""
        return self.marker.batch_id if self.marker else NOTHING


def catch_up_order(
    log: Log, name: str, to: Sink | BatchSink, *, why: str, typed: str = "", is_empty: bool, leave_out: Sequence[int]
) -> Order:
    """The order to catch a target up. Raises `ConfigError` if there is no such sink, or if the WAL is a copy."""
    refuse_copy(log)
    target = name_of(to)
    arguments = {"--to": typed or target, "--empty": is_empty, "--leave-out": in_ranges(leave_out), TARGET: target}
    return Order(
        VERB,
        read_names(log).require(name, log.store.root),
        {key: value for key, value in arguments.items() if value},
        why,
    )


def holder_name(record: ChangeRecord) -> str:
    """The name of the sink that holds the batches of a catch-up back, for its time."""
    return f"{VERB}-{record.id[:12]}"


def find_unfinished(log: Log, order: Order) -> ChangeRecord | None:
    """The unfinished catch-up of the same command; None if there is none. One that held no batch yet does not count.

    Raises `HeldError` if another catch-up of the sink is unfinished.
    """
    begun = next((each for each in reversed(read_changes(log, order.folder)) if each.verb == VERB), None)
    if begun is None or (holder := unfinished_holder(log, begun)) is None:
        return None
    if order.is_same(begun):
        return begun
    name = next(sink.name for sink in read_names(log).sinks if sink.folder == order.folder)
    raise HeldError(
        f"sink {name!r} of {log.store.root} has an unfinished catch-up: {begun.who} began it at {begun.created}. "
        f"Complete it first with the same command: {command_of(begun, name)} (with --to {begun.arguments[TARGET]}). "
        f"Or end it: wal-sink sinks retire WAL {holder}"
    )


def unfinished_holder(log: Log, record: ChangeRecord) -> str | None:
    """The sink that holds the batches of an unfinished catch-up; None if it ended, or held none yet. Two reads."""
    name = holder_name(record)
    is_registered = log.find(SinkRecord, paths.sink(name)) is not None
    return name if is_registered and log.find(RetiredRecord, paths.retired(name)) is None else None


def plan_catch_up(
    log: Log,
    name: str,
    to: Sink | BatchSink,
    *,
    is_empty: bool = False,
    leave_out: Sequence[int] = (),
    held_from: int = NOBODY_HOLDS,
) -> CatchUpPlan:
    """The batches that the target lacks. Creates nothing in the WAL. Three reads for each batch, and a few calls of the
    target.

    `is_empty`: the target has no row of the sink, so its ledger may hold nothing. `leave_out`: batches that cannot be
    sent, and that the target need not get. `held_from`: from this batch on none is deleted that is there.

    Raises `ConfigError` if the target keeps no ledger, if its ledger holds nothing of the sink although it must, if a
    batch cannot be sent that is not left out, or if another sink sent rows to the target since. Raises `HistoryError`
    if the ledger is not that of an earlier moment of this sink, and `DeliveryError` if the target gives no answer.
    """
    of = _sink_of(log, name)
    target = _target_of(log, of, to)
    make = _plan_commits if isinstance(target, CommitSink) else _plan_ledger
    return make(log, of, target, is_empty=is_empty, leave_out=leave_out, held_from=held_from)


def _plan_ledger(
    log: Log, of: _Of, target: Any, *, is_empty: bool, leave_out: Sequence[int], held_from: int
) -> CatchUpPlan:
    owed = owed_slots(of.marker)
    if of.marker is None or not owed:
        return _plan(log, of, target, Due(), is_empty=is_empty, leave_out=leave_out)
    folder, newest = of.record.name, last_with_rows(of.marker)
    with asked(log, target, newest, wal_id=of.wal_id, sink=folder) as session:
        due = Due(slots=len(owed))
        ledger = Ledger((), owed)
        while due.slots > len(ledger.found):  # an older batch may have more segments than the marker names
            ledger = Ledger(tuple(positions_of(session, target, folder, of.wal_id, due.slots)), owed)
            due = find_due(log, folder, ledger, of.marker.batch_id, of.first_batch, held_from=held_from)
        _refuse_ahead(log, of, target, ledger.at, described(ledger.newest))
        _refuse_nothing(log, of, target, is_there=ledger.newest is not None, is_empty=is_empty)
        _refuse_without_table(session, target, ledger)
        refuse_two_moments(log, folder, ledger, first_batch=of.first_batch, left_out=leave_out, where=name_of(target))

        def newest_of(sink: str) -> int:
            found = positions_of(session, target, sink, of.wal_id, max(len(ledger.found), 1))
            return max((each.batch_id for each in found if each), default=NOTHING)

        _refuse_other_rows(log, of, target, due, newest_of)
        letters = find_lost_letters(log, session, target, folder, of.wal_id)
    _refuse_unsendable(log, of, due, leave_out, newest=newest.batch_id, held_from=held_from)
    return _plan(
        log,
        of,
        target,
        due,
        position=described(ledger.newest),
        is_behind=bool(ledger.behind),
        letters=letters,
        is_empty=is_empty,
        leave_out=leave_out,
    )


def _plan_commits(
    log: Log, of: _Of, target: Any, *, is_empty: bool, leave_out: Sequence[int], held_from: int
) -> CatchUpPlan:
    owed = of.marker.last_delivered_batch if of.marker else NOTHING

    def position(sink: str) -> CommitPosition | None:
        return position_in(log, target, sink, wal_id=of.wal_id, batch_id=of.through)

    found = position(of.record.name)
    if found is not None:
        _refuse_ahead(log, of, target, found.batch_id, told(found))
        _refuse_other_history(log, of, target, found)
    _refuse_nothing(log, of, target, is_there=found is not None, is_empty=is_empty or owed == NOTHING)
    held = held_through(found)
    first = max(of.first_batch, held + 1)
    due = find_due(log, of.record.name, Ledger((), ()), of.through, first, held_from=held_from)
    _refuse_other_rows(log, of, target, due, lambda sink: held_through(position(sink)))
    _refuse_unsendable(log, of, due, leave_out, newest=owed, held_from=held_from)
    return _plan(
        log,
        of,
        target,
        due,
        position=told(found),
        is_behind=held < owed,
        is_empty=is_empty,
        leave_out=leave_out,
        held=held,
    )


def planned_catch_up(record: ChangeRecord) -> CatchUpPlan:
    """The plan of a catch-up that was begun."""
    return msgspec.convert(record.plan, CatchUpPlan)


def _plan(
    log: Log,
    of: _Of,
    to: Sink,
    due: Due,
    *,
    is_empty: bool,
    leave_out: Sequence[int],
    position: str = "nothing",
    is_behind: bool = False,
    letters: LostLetters = NO_LETTERS,
    held: int | None = None,
) -> CatchUpPlan:
    sent = [each for each in due.batches if each.rows]
    return CatchUpPlan(
        name=of.name,
        folder=of.record.name,
        target=name_of(to),
        registered=redacted(of.record.identity),
        through=of.through,
        position=position,
        batches=tuple((each.batch_id, each.rows or 0) for each in sent),
        rows=sum(each.rows or 0 for each in sent),
        bytes=sum(each.bytes for each in sent),
        left_out=tuple(in_ranges(sorted(leave_out))),
        skipped=tuple(in_ranges([each.batch_id for each in due.batches if each.is_skipped])),
        is_behind=is_behind,
        is_empty=is_empty,
        replayed_letters=letters.unknown,
        others=tuple(known.name for known, _ in _others(log, of, to) if not known.is_retired),
        lost_letters=len(letters.due),
        rows_of_letters=letters.rows,
        held_through=held,
    )


def _others(log: Log, of: _Of, to: Sink) -> Iterator[tuple[KnownSink, SinkRecord]]:
    """The other sinks that were registered for this target."""
    for known in read_names(log).sinks:
        record = log.find(SinkRecord, paths.sink(known.folder))
        if record is not None and record.name != of.record.name and is_for(record.identity, to):
            yield known, record


def _sink_of(log: Log, name: str) -> _Of:
    folder = read_names(log).require(name, log.store.root)
    refuse_retired(log, folder, name)
    record = require(log, SinkRecord, paths.sink(folder), Lost.SINK, f"{paths.SINKS}/{folder}/")
    wal = require_wal(log, f"{paths.SINKS}/")
    return _Of(name, record, wal.wal_id, max(record.first_batch, wal.first_batch), newest_marker(log, folder))


def _target_of(log: Log, of: _Of, to: Sink | BatchSink) -> TransactionalSink | CommitSink:
    """The target, if it tells positions and the sink used them. Raises `ConfigError` with the way for other kinds."""
    if of.record.is_holder:
        raise ConfigError(
            f"{log.store.root}: {of.name!r} belongs to a catch-up. Complete it with its own command: wal-sink sinks "
            "list WAL"
        )
    ability = Ability(of.record.sink_kind)
    if ability not in {Ability.TRANSACTIONAL, Ability.COMMIT}:
        raise ConfigError(
            f"sink {of.name!r} of {log.store.root} is {ability.value}, not transactional: its target keeps no ledger "
            f"of rows. {_OTHERS.get(ability, _DOUBLES)}: serve the target under a new name from "
            "the first batch that it may lack (wal-sink drain --name NEW --start-from N), and retire this sink. "
            "wal-sink batches WAL shows when each batch was staged"
        )
    if not isinstance(to, (TransactionalSink, CommitSink)) or ability_of(to) is not ability:
        raise ConfigError(
            f"--to: {name_of(to)} is a {ability_of(to).value} target, but sink {of.name!r} is a {ability.value} one. "
            "Pass the target of this sink"
        )
    return to


def last_with_rows(marker: Marker) -> Manifest:
    """A manifest for questions: only its number matters, since no row is sent."""
    return without_segments(marker.last_delivered_batch)


def _most_ahead(log: Log, of: _Of) -> int:
    """The newest batch that the target may have: the one that was under way, or the last one of its roll."""
    due = max(of.through, of.first_batch - 1) + 1
    roll = log.find(RollRecord, paths.roll(of.record.name, due)) if of.record.is_rolled else None
    return due if roll is None else roll.through


def _refuse_ahead(log: Log, of: _Of, to: Sink, at: int, position: str) -> None:
    if at > _most_ahead(log, of):
        raise HistoryError(
            f"sink {of.name!r} of {log.store.root} has batch {of.through} according to its newest marker, but "
            f"{name_of(to)} is ahead, at {position}. The WAL was restored to an older state, or a "
            "copy of the WAL delivers too. Nothing was sent"
        )


def _refuse_other_history(log: Log, of: _Of, to: Sink, found: CommitPosition) -> None:
    """Compare the position with the batch, if the log still holds that. Two reads."""
    if log.find(Release, paths.release(found.batch_id)) is None:
        return
    if (due := digest_of(released(log, of.record.name, found.batch_id))) != found.digest:
        raise HistoryError(
            f"batch {found.batch_id}: {name_of(to)} holds it with digest {found.digest}, but the WAL delivers {due}. "
            "This is not the target of this sink, or it has another history. Nothing was sent"
        )


def _refuse_nothing(log: Log, of: _Of, to: Sink, *, is_there: bool, is_empty: bool) -> None:
    """An absent ledger is no empty target: its rows may have been restored without the ledger."""
    if not is_there and not is_empty:
        raise ConfigError(
            f"{name_of(to)} holds no position of sink {of.name!r} of {log.store.root}. Either --to does not name the "
            "target of this sink, or its ledger was not restored with its rows: restore both from one backup. Only if "
            "the target has no row of this sink, pass --empty: then it gets everything that the WAL holds"
        )


def _refuse_without_table(session: SinkSession, to: TransactionalSink, ledger: Ledger) -> None:
    if ledger.newest is not None and isinstance(to, HasTable) and not session.call("has_table()", to.has_table):
        raise ConfigError(
            f"{name_of(to)}: the ledger is at {described(ledger.newest)}, but the table does not exist. Restore table "
            "and ledger from one backup"
        )


def _refuse_other_rows(log: Log, of: _Of, to: Sink, due: Due, newest_of: Callable[[str], int]) -> None:
    """Refuse if another sink of this target has rows of these batches there. `newest_of`: its newest batch there."""
    since = min([*due.gone[:1], *(each.batch_id for each in due.batches)], default=NOBODY_HOLDS)
    for known, record in _others(log, of, to) if since < NOBODY_HOLDS else ():
        if newest_of(record.name) >= since:
            raise ConfigError(
                f"{log.store.root}: sink {known.name!r} ({redacted(record.identity)}) also delivered batch {since} or "
                f"a later one to {name_of(to)}, so rows could come twice. Restore the target again, and catch it up "
                "before another sink delivers to it"
            )


def _refuse_unsendable(log: Log, of: _Of, due: Due, leave_out: Sequence[int], *, newest: int, held_from: int) -> None:
    """Refuse batches that cannot be sent unless the user named them, and names of batches that can. `newest`: the
    newest batch with rows that the sink delivered, which must be sent if any is left out.
    """
    unknown = [each.batch_id for each in due.batches if each.rows is None]
    if sendable := sorted({each.batch_id for each in due.batches if each.rows is not None} & set(leave_out)):
        raise ConfigError(
            f"--leave-out: batch {sendable[0]} of {log.store.root} can be sent. Remove it from --leave-out: only "
            "batches that cannot be sent may be left out"
        )
    lacking = {*due.gone, *unknown} - set(leave_out)
    if not lacking:
        if leave_out and newest <= deleted_through(log, held_from=held_from):
            raise ConfigError(
                f"{log.store.root}: every batch with rows that sink {of.name!r} delivered was deleted from the log, so "
                "there is nothing to send. Begin again: retire the sink, and serve the target under a new name"
            )
        return
    reasons = []
    if gone := [each for each in due.gone if each in lacking]:
        was = "was" if len(gone) == 1 else "were"
        reasons.append(f"{_batches(gone)} {was} deleted from the log, because every sink had the rows")
    if open_ := [each for each in unknown if each in lacking]:
        reasons.append(f"{_batches(open_)}: skipped by this sink, and nobody knows which of the rows its target had")
    option = " ".join(f"--leave-out {each}" for each in in_ranges(sorted({*lacking, *leave_out})))
    raise ConfigError(
        f"{log.store.root}: the target of sink {of.name!r} lacks rows that cannot be sent again: "
        f"{'; '.join(reasons)}. Restore a newer backup of the target. If these rows may stay missing, add {option}"
    )


def _batches(numbers: Sequence[int]) -> str:
    return f"batch{'' if len(numbers) == 1 else 'es'} {', '.join(in_ranges(numbers))}"
