"""Fencing: the process that created the highest term of a role holds the role. Terms are never deleted.

A holder checks only the next number. So the numbers of a role must have no gap. If terms were lost, or a target knows a
higher term, a claim jumps ahead and creates the missing terms below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import CorruptError, FencedError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, refuse_holder
from wal_sink.log.log import Log
from wal_sink.log.records import TermRecord, decode
from wal_sink.stores.base import ObjectMissing, Store
from wal_sink.support.clock import ProcessIdentity, process_identity, process_name
from wal_sink.support.logs import logger_of

MARGIN = 8
"""Number of terms that a claim skips if all terms of a role were lost. So many newer processes may have held the role
without a trace.
"""
MOST_FILLED = 256
"""Maximum number of missing terms that are created below a claim. An older process whose next term is further below
still finds that term if it was not lost.
"""

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Term:
    """A claimed term of a role. It can be pickled: delivery tasks check it themselves."""

    role: str
    number: int

    def check(self, store: Store) -> None:
        """Raise `FencedError` if a newer process claimed the role. One read."""
        try:
            store.read(self._next_path())
        except ObjectMissing:
            return
        raise self.superseded(store)

    def superseded(self, store: Store) -> FencedError:
        """The error for a process that was superseded. One read."""
        newer = self._next_path()
        return FencedError(
            f"term {self.number} of {self.role!r} on {store.root} was superseded (see {store.url_of(newer)}): a newer "
            f"process took over{_holder_in(store, newer)}. Stop this process"
            + (_ONE_DRAIN if self.role.startswith(paths.committer_role("")) else "")
        )

    def _next_path(self) -> str:
        return paths.term(self.role, self.number + 1)


_ONE_DRAIN = (
    ". If a supervisor starts it again, the two processes end each other in turn. Let one supervisor run one process "
    "of each sink"
)


def _holder_in(store: Store, path: str) -> str:
    """Which process claimed a term, and when; empty if its record cannot be read, since its name alone counts."""
    try:
        record = decode(TermRecord, store.read(path), path)
    except WalSinkError:
        return ""
    return f": {record.process}, at {record.created}"


def is_superseded_by_siblings(log: Log, term: Term) -> bool:
    """Whether every newer term was claimed by a process that the parent of this one started too. False if there is no
    newer term, and if that is not known of one. One listing, and a read for each newer term.

    Workers of one Spark driver are such siblings. Spark runs one query on a checkpoint at a time there.
    """
    here = process_identity()
    newer = [number for number in log.numbers(paths.terms(term.role)) if number > term.number]
    return bool(newer) and all(_is_sibling(log, term.role, number, here) for number in newer)


def _is_sibling(log: Log, role: str, number: int, here: ProcessIdentity) -> bool:
    try:
        record = log.require(TermRecord, paths.term(role, number))
    except CorruptError:
        return False
    return record.holder.is_sibling_of(here)


def claim(
    log: Log,
    role: str,
    *,
    was_held: bool = False,
    take_over: TakeOver = TakeOver.ALWAYS,
    listed: Sequence[int] | None = None,
) -> Term:
    """Claim the next term of a role. Every earlier holder is fenced from then on. One create, and a listing unless
    `listed` has the role's terms, ascending, as they once were. Every one that was claimed since costs a create.

    If `take_over` requires a check of the holder, two reads more. `HeldError` is then raised before anything is
    created.

    `was_held`: True if the role may have been held before. Then a role without terms has lost them, or its first holder
    died before it claimed one. In this case the claim jumps ahead, to fence a holder that may still live.
    """
    listed = listed or log.numbers(paths.terms(role))
    if _has_gap(listed):
        listed = log.numbers(paths.terms(role))  # listings of some stores miss objects that are created meanwhile
    highest = max(listed, default=0)
    refuse_holder(log, role, highest, take_over)
    if _has_gap(listed):
        _logger.warning("%s", _terms_are_gone(log, role, f"the first remaining one is {paths.term(role, listed[0])}"))
        return _claim_from(log, role, listed, highest + 1, take_over)
    return _claim_from(log, role, listed, highest + 1 + (MARGIN if was_held and not listed else 0), take_over)


def claim_above(log: Log, role: str, number: int) -> Term:
    """Claim a term above `number` and above all terms of the role. Every holder of a lower one is fenced from then on.

    For callers that learn of a higher term elsewhere: from a target, or from records of the WAL.
    """
    listed = log.numbers(paths.terms(role))
    return _claim_from(log, role, listed, max(number, *listed, 0) + 1)


def claim_above_seen(log: Log, term: Term, seen: int, where: str) -> Term:
    """Return the term to continue with, after `where` (a record or a target) showed that another run held the term
    `seen`.

    Sends no request if `seen` is lower than `term`, as it must be. Otherwise raises `FencedError` if a newer process
    has claimed the role. If none has, terms were lost, and their holders must be fenced: claims a higher term.
    """
    if seen < term.number:
        return term
    term.check(log.store)
    _logger.warning("%s", _terms_are_gone(log, term.role, f"{where} names term {seen}"))
    return claim_above(log, term.role, seen + MARGIN)


def renew(log: Log, term: Term) -> Term:
    """Claim the next term of a role that this process holds, to fence requests that were sent under the present term
    and may still be in flight. Raises `FencedError` if a newer process claimed it first.
    """
    following = Term(term.role, term.number + 1)
    if not log.create(paths.term(term.role, following.number), _record(log, term.role, following.number)):
        raise term.superseded(log.store)
    return following


def _claim_from(log: Log, role: str, listed: Sequence[int], number: int, take_over: TakeOver = TakeOver.ALWAYS) -> Term:
    """Claim the first free term from `number` on. Missing terms below are created first, so that no holder of a lower
    one continues meanwhile.
    """
    for missing in _missing(listed, number):
        log.create(paths.term(role, missing), _record(log, role, missing))
    while not log.create(paths.term(role, number), _record(log, role, number)):
        refuse_holder(log, role, number, take_over)  # another process claimed it first
        number += 1
    return Term(role, number)


def _has_gap(listed: Sequence[int]) -> bool:
    return len(listed) < max(listed, default=0)


def _missing(listed: Sequence[int], number: int) -> list[int]:
    """The numbers to create below a claim: the one after the highest listed, and those nearest to the claim."""
    known = set(listed)
    wanted = {max(listed, default=0) + 1, *range(max(1, number - MOST_FILLED), number)}
    return sorted(wanted - known - {number})


def _terms_are_gone(log: Log, role: str, because: str) -> str:
    return (
        f"terms of {role!r} on {log.store.root} are gone: {because}. Likely causes: a life-cycle rule of the "
        "bucket, or a partial copy of this WAL. A higher term is claimed and the missing terms are created, so that "
        "older processes are fenced. Stop the deletion of objects here, because other objects cannot be replaced"
    )


def _record(log: Log, role: str, number: int) -> TermRecord:
    return TermRecord(
        role=role,
        term=number,
        run_id=log.run_id,
        process=process_name(),
        holder=process_identity(),
        **log.stamp(),
    )
