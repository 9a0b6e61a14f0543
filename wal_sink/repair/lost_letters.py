"""Dead letters that were sent again, and whose rows a restored target lost.

In a transactional target, every dead letter that was sent again has a separate slot. So the ledger tells exactly which
of them the target lacks. If their record says that they were sent to this target, it is deleted: then they are due
again, and `letters replay` sends them. Of all others nobody knows whether their rows were ever there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wal_sink.redaction import redacted
from wal_sink.replay import letter_slot
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import TransactionalSink
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Replayed

_ASKED_AT_ONCE = 500
"""Slots in one question to the target."""


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


@dataclass(frozen=True, slots=True)
class _SentAgain:
    record: str
    slot: str
    is_there: bool
    """Whether the dead letter is still there."""


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
        for each in _lacking(session, to, sent[first : first + _ASKED_AT_ONCE]):
            record = log.find(Replayed, each.record)
            if record is None or record.rows == 0:
                continue  # it is due again already, or the target refused all of it
            if each.is_there and record.target == redacted(name_of(to)):
                due.append(each.record)
                rows += record.rows
            else:
                unknown += 1
    return LostLetters(tuple(due), rows, unknown)


def _sent(log: Log, folder: str, batch_id: int, wal_id: str) -> Iterator[_SentAgain]:
    root = paths.dead_letter_folder(folder, batch_id)
    names = frozenset(log.store.list(root))
    for name in sorted(names):
        file = f"{name.removesuffix(paths.REPLAYED)}.parquet"
        letter = paths.parse_dead_letter(file) if name.endswith(paths.REPLAYED) else None
        if letter is not None:
            slot = letter_slot(slot_name(wal_id, folder, letter.ordinal), batch_id, file)
            yield _SentAgain(f"{root}/{name}", slot, file in names)


def _lacking(session: SinkSession, to: TransactionalSink, sent: Sequence[_SentAgain]) -> Iterator[_SentAgain]:
    found: Mapping[str, object] = session.call("positions of dead letters", to.positions, [each.slot for each in sent])
    for each in sent:
        if stored_position(f"last({each.slot!r})", each.slot, found.get(each.slot)) is None:
            yield each
