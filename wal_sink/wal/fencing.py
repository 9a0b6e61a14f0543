"""Fencing: a role is held by whoever created its highest numbered term. Terms are never deleted.

A holder looks at the next number alone. So the numbers of a role have no gap: a claim that must jump, since terms were
lost or a target knows a higher one, creates what is missing below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import FencedError
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import process_identity, process_name
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver, refuse_holder
from wal_sink.wal.log import Log
from wal_sink.wal.records import TermRecord

MARGIN = 8
"""How far a claim jumps beyond what is known where all terms of a role were lost: so often may its holder have been
replaced without a trace.
"""
MOST_FILLED = 256
"""How many missing numbers below a claim are created. Who held one that was replaced more often is held off by that of
the next one which is still there.
"""

_logger = logger_of(__name__)


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


def claim(log: Log, role: str, *, was_held: bool = False, take_over: TakeOver = TakeOver.ALWAYS) -> Term:
    """Claim the next term of a role; every earlier holder is fenced from then on. One listing and one create, and two
    reads where `take_over` asks who holds it: then raises `HeldError` before anything is created.

    `was_held`: whether the role may have been held before. Then a role without terms has lost them, or its first holder
    died before it claimed one; and the claim jumps, to fence a holder that may still live.
    """
    listed = log.numbers(paths.terms(role))
    if _has_gap(listed):
        listed = log.numbers(paths.terms(role))  # some stores' listings miss what is created meanwhile
    highest = max(listed, default=0)
    refuse_holder(log, role, highest, take_over)
    if _has_gap(listed):
        _logger.warning("%s", _terms_are_gone(log, role, f"the first that is left is {paths.term(role, listed[0])}"))
        return _claim_from(log, role, listed, highest + 1, take_over)
    return _claim_from(log, role, listed, highest + 1 + (MARGIN if was_held and not listed else 0), take_over)


def claim_above(log: Log, role: str, number: int) -> Term:
    """Claim a term above `number` and above all of the role; every holder of a lower one is fenced from then on.

    For who learns elsewhere than from the terms how far they had come: from a target, or from records of the WAL.
    """
    listed = log.numbers(paths.terms(role))
    return _claim_from(log, role, listed, max(number, *listed, 0) + 1)


def claim_above_seen(log: Log, term: Term, seen: int, where: str) -> Term:
    """The term to go on under, where something that `where` names tells that another run held the term `seen`. No
    request if that is lower than one's own, as it must be.

    Raises `FencedError` if it is a successor's. Otherwise terms were lost: those of others, which must be fenced.
    """
    if seen < term.number:
        return term
    term.check(log.store)
    _logger.warning("%s", _terms_are_gone(log, term.role, f"{where} names term {seen}"))
    return claim_above(log, term.role, seen + MARGIN)


def renew(log: Log, term: Term) -> Term:
    """Claim the next term of a role one holds, against what was sent out under the present one and may still be under
    way. Raises `FencedError` if a successor claimed it first.
    """
    following = Term(term.role, term.number + 1)
    if not log.create(paths.term(term.role, following.number), _record(log, term.role, following.number)):
        raise term.succeeded(log.store)
    return following


def _claim_from(log: Log, role: str, listed: Sequence[int], number: int, take_over: TakeOver = TakeOver.ALWAYS) -> Term:
    """Claim a term from `number` on. What is missing below comes first, so that nobody below it goes on meanwhile."""
    for missing in _missing(listed, number):
        log.create(paths.term(role, missing), _record(log, role, missing))
    while not log.create(paths.term(role, number), _record(log, role, number)):
        refuse_holder(log, role, number, take_over)  # somebody came in between
        number += 1
    return Term(role, number)


def _has_gap(listed: Sequence[int]) -> bool:
    return len(listed) < max(listed, default=0)


def _missing(listed: Sequence[int], number: int) -> list[int]:
    """The numbers to create below a claim: that after the highest one, and the nearest ones."""
    known = set(listed)
    wanted = {max(listed, default=0) + 1, *range(max(1, number - MOST_FILLED), number)}
    return sorted(wanted - known - {number})


def _terms_are_gone(log: Log, role: str, because: str) -> str:
    return (
        f"terms of {role!r} on {log.store.root} are gone: {because}. Likely causes: a life-cycle rule of the bucket, "
        "or a copy of a part of this WAL. A higher term is claimed, and the missing ones are created, so that earlier "
        "holders are fenced; but stop what deletes objects here, since other objects cannot be replaced"
    )


def _record(log: Log, role: str, number: int) -> TermRecord:
    return TermRecord(
        role=role, term=number, run_id=log.run_id, process=process_name(), holder=process_identity(), **log.stamp()
    )
