"""Fencing: a role is held by whoever created its highest numbered term. Terms are never deleted."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink import paths
from wal_sink.errors import FencedError
from wal_sink.log import Log
from wal_sink.records import TermRecord
from wal_sink.runtime import process_name
from wal_sink.stores.base import ObjectMissing, Store


@dataclass(frozen=True, slots=True)
class Term:
    """A claimed term of a role. Picklable: delivery tasks check it themselves."""

    role: str
    number: int

    def check(self, store: Store) -> None:
        """Raise `FencedError` if a successor claimed the role. One read."""
        try:
            store.read(self._successor())
        except ObjectMissing:
            return
        raise self.succeeded(store)

    def succeeded(self, store: Store) -> FencedError:
        """The error of who finds that it was succeeded."""
        return FencedError(
            f"term {self.number} of {self.role!r} on {store.root} was succeeded (see "
            f"{store.url_of(self._successor())}): another process took over; stop this one"
        )

    def _successor(self) -> str:
        return paths.term(self.role, self.number + 1)


def claim(log: Log, role: str) -> Term:
    """Claim the next term of a role; every earlier holder is fenced from then on."""
    number = max(log.numbers(paths.terms(role)), default=0) + 1
    while not log.create(paths.term(role, number), _record(log, role, number)):
        number += 1
    return Term(role, number)


def claim_above(log: Log, role: str, number: int) -> Term:
    """Claim a term above `number`, whatever the WAL knows; every lower one is fenced from then on."""
    number += 1
    while not log.create(paths.term(role, number), _record(log, role, number)):
        number += 1
    return Term(role, number)


def renew(log: Log, term: Term) -> Term:
    """Claim the next term of a role one holds, against what was sent out under the present one and may still be under
    way. Raises `FencedError` if a successor claimed it first.
    """
    following = Term(term.role, term.number + 1)
    if not log.create(paths.term(term.role, following.number), _record(log, term.role, following.number)):
        raise term.succeeded(log.store)
    return following


def _record(log: Log, role: str, number: int) -> TermRecord:
    return TermRecord(role=role, term=number, run_id=log.run_id, process=process_name(), **log.stamp())
