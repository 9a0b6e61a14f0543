"""Rows of a batch that a transactional target has, by the positions of other sinks of the same WAL.

Every sink, retired ones and replays included, may have delivered to this target before. But one ledger serves all
tables of a database: a position says that rows were committed, and not to which table. So only the sinks count that
were registered for this target, by its description, or that the user names. If another sink has a position that would
matter, nobody knows whether its rows are here: the replay is refused. A position without its table proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wal_sink.errors import ConfigError
from wal_sink.recovery.sink_names import read_names
from wal_sink.redaction import redacted
from wal_sink.repair.ledgers import ASK_S
from wal_sink.replay import DeadLetters
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Sink, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import SinkFailedError, failure_error
from wal_sink.sinks.guarantees import Ability
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker, SinkRecord

_OF_A_REPLAY = re.compile(r" \(repair \d+: a replay\)$")


@runtime_checkable
class HasTable(Protocol):
    """A transactional target that can tell whether the place for its rows exists."""

    def has_table(self) -> bool:
        """Whether the table exists. A ledger may outlive it."""
        ...


@dataclass(frozen=True, slots=True)
class Earlier:
    """A transactional sink of the WAL: retired or not, of a replay or not."""

    folder: str
    name: str
    identity: str
    """Description of its target, as it was registered."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The sinks whose positions count, by folder, and those of them that have a position at or behind the batches."""

    folders: tuple[str, ...] = ()
    there: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class There:
    """Rows of a segment that a sink is done with."""

    rows: int = 0
    in_letters: int = 0
    """Rows of these that the target does not have: they are dead letters of the sink that were not sent again."""


def replay_identity(to: Sink, number: int) -> str:
    """The description with which the sink of a replay is registered, without secrets."""
    return f"{redacted(name_of(to))} (repair {number}: a replay)"


def choose_sinks(
    log: Log, to: TransactionalSink, widest: Manifest, *, wal_id: str, since: int, ledger_of: Sequence[str]
) -> Counted:
    """The sinks whose positions count for a replay of batches from `since` on. Asks the target once for each sink.

    `widest`: of these batches, one with the most segments. Raises `ConfigError` if it cannot be known whether the rows
    of a sink are in this target, and `DeliveryError` if the target gives no answer.
    """
    known = _earlier_sinks(log)
    own = _named(log, known, ledger_of) if ledger_of else [each for each in known if is_for(each.identity, to)]
    if not known or not widest.segments:
        return Counted(tuple(each.folder for each in own))
    with asked(log, to, widest, wal_id=wal_id, sink=known[0].folder) as session:
        count = len(widest.segments)
        found = [each for each in known if _is_behind(positions_of(session, to, each.folder, wal_id, count), since)]
        doubtful = [each for each in found if each not in own]
        if doubtful and not ledger_of:
            raise _doubtful(log, to, doubtful, own)
        if any(each in own for each in found):
            refuse_without_table(session, to, "")
    return Counted(tuple(each.folder for each in own), tuple(each.folder for each in found if each in own))


def rows_there(
    log: Log, session: SinkSession, sink: TransactionalSink, wal_id: str, manifest: Manifest, *, others: Sequence[str]
) -> list[There]:
    """For each segment of a batch, the rows that the target has by the slots of these sinks.

    A position behind the batch stands for it only if the sink has the batch. A position within the batch counts always.
    Raises `ConfigError` if a sink skipped the batch and nobody knows how many of its rows the target has, or if the
    table is gone. Raises `SinkFailedError` if the target gives no answer.
    """
    most = [There()] * len(manifest.segments)
    for name in others if manifest.segments else ():
        marker = log.find(Marker, paths.marker(name, manifest.batch_id))
        positions = positions_of(session, sink, name, wal_id, len(most))
        rows = [_rows(manifest, ordinal, position, marker, name) for ordinal, position in enumerate(positions)]
        found = _without_letters(log, name, manifest.batch_id, marker, rows)
        most = [max(pair, key=lambda each: (each.rows, -each.in_letters)) for pair in zip(most, found, strict=True)]
    if any(each.rows for each in most):
        refuse_without_table(session, sink, ". Before that, give this repair up (wal-sink repairs give-up)")
    return most


def refuse_without_table(session: SinkSession, to: TransactionalSink, before: str) -> None:
    """Raise `ConfigError` if the target knows that it has no table: then its ledger says nothing about rows."""
    if isinstance(to, HasTable) and not session.call("has_table()", to.has_table):
        raise ConfigError(
            f"{name_of(to)}: its ledger says that it has rows of these batches, but the table does not exist. Restore "
            "the table. Or, to send all rows into a new table, repeat the command with again=True (--again)" + before
        )


@contextmanager
def asked(
    log: Log,
    to: TransactionalSink,
    manifest: Manifest,
    *,
    wal_id: str,
    sink: str,
    term: int = 0,
    limit_s: float = ASK_S,
) -> Iterator[SinkSession]:
    """An open session for questions. Raises `DeliveryError` if the target gives no answer."""
    context = SinkContext(
        wal_id=wal_id,
        sink=sink,
        term=term,
        batch_id=manifest.batch_id,
        columns=manifest.columns,
        on_executor=False,
        spark_schema=manifest.spark_schema,
    )
    session = SinkSession(to, log.runtime.new_timed_call(), context, timeout_s=limit_s)
    try:
        session.open()
        yield session
    except SinkFailedError as error:
        raise failure_error(error.failure, f"batch {manifest.batch_id}: {name_of(to)}") from error
    finally:
        session.close()


def _earlier_sinks(log: Log) -> list[Earlier]:
    found = []
    for sink in read_names(log).sinks:
        record = log.find(SinkRecord, paths.sink(sink.folder))
        if record is not None and record.sink_kind == Ability.TRANSACTIONAL.value:
            found.append(Earlier(sink.folder, sink.name, _OF_A_REPLAY.sub("", record.identity)))
    return found


def _named(log: Log, known: Sequence[Earlier], names: Sequence[str]) -> list[Earlier]:
    if unknown := set(names) - {each.name for each in known}:
        has = ", ".join(repr(each.name) for each in known) or "none"
        raise ConfigError(
            f"--ledger-of: {log.store.root} has no transactional sink {min(unknown)!r}; it has {has}, retired ones "
            "included"
        )
    return [each for each in known if each.name in names]


def is_for(identity: str, to: TransactionalSink) -> bool:
    """Whether a sink with this description was registered for this target. Older versions kept secrets in it."""
    name = name_of(to)
    return not {identity, redacted(identity)}.isdisjoint({name, redacted(name)})


def _doubtful(log: Log, to: TransactionalSink, doubtful: Sequence[Earlier], own: Sequence[Earlier]) -> ConfigError:
    told = ", ".join(f"{each.name!r} ({redacted(each.identity)})" for each in doubtful)
    names = [each.name for each in own] or ["SINK"]
    return ConfigError(
        f"{log.store.root}: the ledger of {redacted(name_of(to))} has positions of sinks that were registered for "
        f"another target: {told}. It does not tell whether their rows lie in this table or in another one of the same "
        "database. If no sink delivered these batches to this table, send all rows: --again. Otherwise name each sink "
        f"that did, and only its positions count: {' '.join(f'--ledger-of {name}' for name in names)}"
    )


def positions_of(
    session: SinkSession, sink: TransactionalSink, name: str, wal_id: str, count: int
) -> list[Position | None]:
    """The positions of a sink's first slots, in order. One call. Raises `SinkFailedError`."""
    slots = [slot_name(wal_id, name, ordinal) for ordinal in range(count)]
    found: Mapping[str, object] = session.call(f"positions of sink {name!r}", sink.positions, slots)
    return [stored_position(f"last({slot!r})", slot, found.get(slot)) for slot in slots]


def _is_behind(positions: Sequence[Position | None], since: int) -> bool:
    return any(position is not None and position.batch_id >= since for position in positions)


def _rows(manifest: Manifest, ordinal: int, position: Position | None, marker: Marker | None, name: str) -> int:
    segment = manifest.segments[ordinal]
    if position is None or position.batch_id < manifest.batch_id:
        return 0
    if position.batch_id == manifest.batch_id:
        return position.rows if position.segment_id == segment.id else 0
    if marker is None:
        return 0  # the sink does not have this batch, so a later position of it proves nothing
    if not marker.skipped:
        return segment.rows
    if marker.skipped_rows is None:
        raise ConfigError(
            f"batch {manifest.batch_id}: sink {name!r} skipped this batch, and its target may have some of the rows, "
            "but nobody recorded how many. Look into the target. To send all rows of the batch, whether they are there "
            "or not, give this repair up (wal-sink repairs give-up), then repeat the command with --again"
        )
    return marker.skipped_rows[ordinal] if ordinal < len(marker.skipped_rows) else 0


def _without_letters(log: Log, folder: str, batch_id: int, marker: Marker | None, rows: Sequence[int]) -> list[There]:
    """The same rows, with the number of those that lie in dead letters. Reads nothing if the sink refused no row."""
    kept = [0] * len(rows)
    if any(rows) and (marker is None or marker.rejected):
        name = next(sink.name for sink in read_names(log).sinks if sink.folder == folder)
        for letter in DeadLetters(log, name=name).all(batch_id=batch_id):
            if not letter.replayed:
                ordinal = letter.name.ordinal
                kept[ordinal] += sum(1 for row in letter.chunk.rows if row < rows[ordinal])
    return [There(*pair) for pair in zip(rows, kept, strict=True)]
