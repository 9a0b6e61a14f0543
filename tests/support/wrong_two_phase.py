"""Two-phase sinks for `test_kit.py`: a correct one, and others that break one rule each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tests.support.vault import Row, Vault, VaultSink
from tests.support.wrong_sinks import (
    DIES,
    FORGETS,
    GOES_WRONG,
    HIDDEN,
    LONG_TEXT,
    LOSES,
    NAMES,
    REQUEST_FAILS,
    RETURNS,
    SECRET,
    TYPE,
    WAKES,
    Contract,
    breaker,
)
from wal_sink import Chunk, HandleGoneError, Rejected
from wal_sink.sinks import Transaction

INVISIBLE = "nothing_shows_before_it_is_committed"
TEXT = "begin_and_prepare_return_text"
COPY = "a_copy_of_it_commits"
COMMITTED_AGAIN = "a_commit_that_comes_again_changes_nothing"
ABORTED = "what_was_aborted_cannot_be_committed"
NEVER_WAS = "what_never_was_cannot_be_committed"
TAKES_BACK = "an_abort_takes_back_nothing_that_was_committed"
ABORTS_NOTHING = "an_abort_of_nothing_is_harmless"
ATTEMPTS = "attempts_at_a_segment_do_not_touch_each_other"

VAULTS: dict[int, Vault] = {}
_numbers = itertools.count()


class Travelling(VaultSink):
    """A sink that finds its vault by number, so that a copy of it reaches the same vault."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.contexts = []
        self.transaction = None

    @property
    def vault(self) -> Vault:  # type: ignore[override]
        return VAULTS[self.number]


class TwoPhase(Contract):
    @contextmanager
    def new_target(self, folder: Path) -> Iterator[int]:  # noqa: ARG002 - these targets are in memory
        number = next(_numbers)
        VAULTS[number] = Vault()
        yield number

    def rows_in(self, target: int) -> list[Row]:
        return VAULTS[target].rows()


breaks = breaker(TwoPhase)


class TestTwoPhase(TwoPhase):
    kind = Travelling


@breaks()
class TwoPhaseWithATokenOfItsOwn(Travelling):
    token = "found again by"  # noqa: S105 - no secret


# Wrong sinks.


@breaks(INVISIBLE, COPY, ABORTED, ATTEMPTS, DIES, REQUEST_FAILS, WAKES)
class ShowsWhatItPrepares(Travelling):
    def prepare(self) -> str:
        assert self.transaction is not None
        self.vault.shown[self.transaction.id] = self.vault.held.pop(self.transaction.id)
        return super().prepare()


@breaks(INVISIBLE, COPY, DIES, REQUEST_FAILS, TAKES_BACK, WAKES)
class ShowsWhatIsWritten(Travelling):
    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        assert self.transaction is not None
        self.vault.shown[self.transaction.id] = list(self.vault.held[self.transaction.id])

    def abort(self, transaction: Transaction, token: str) -> None:
        if transaction.id in self.vault.held:
            self.vault.shown.pop(transaction.id, None)
        super().abort(transaction, token)


@breaks(*GOES_WRONG, FORGETS, LOSES, TEXT)
class ReturnsANumber(Travelling):
    def prepare(self) -> Any:
        return len(super().prepare())

    def commit(self, transaction: Transaction, handle: object) -> None:
        super().commit(transaction, f"handle {transaction.id}")
        assert handle == len(f"handle {transaction.id}")


@breaks(TEXT)
class PutsItsPasswordIntoTheHandle(Travelling):
    def prepare(self) -> str:
        return f"{super().prepare()} by hunter2"

    def commit(self, transaction: Transaction, handle: str) -> None:
        super().commit(transaction, handle.removesuffix(" by hunter2"))


@breaks(COPY, INVISIBLE, COMMITTED_AGAIN, TAKES_BACK, ATTEMPTS, NEVER_WAS, WAKES)
class RemembersInItsProcessWhatItPrepared(Travelling):
    def commit(self, transaction: Transaction, handle: str) -> None:
        if self.transaction is None and transaction.id not in self.vault.shown:
            raise HandleGoneError("not mine", never_committed=True)
        super().commit(transaction, handle)


@breaks(COMMITTED_AGAIN, TAKES_BACK, DIES, REQUEST_FAILS, WAKES)
class CommitsAgain(Travelling):
    def commit(self, transaction: Transaction, handle: str) -> None:
        rows = self.vault.shown.get(transaction.id, [])
        super().commit(transaction, handle)
        self.vault.shown[transaction.id] = self.vault.shown[transaction.id] + rows


@breaks(COMMITTED_AGAIN, TAKES_BACK, DIES, REQUEST_FAILS, WAKES)
class IsSurprisedByASecondCommit(Travelling):
    def commit(self, transaction: Transaction, handle: str) -> None:
        if transaction.id in self.vault.shown:
            raise RuntimeError("committed already")
        super().commit(transaction, handle)


@breaks(ABORTED, NEVER_WAS)
class CommitsNothingInstead(Travelling):
    def commit(self, transaction: Transaction, handle: str) -> None:
        if transaction.id in self.vault.held:
            super().commit(transaction, handle)


@breaks(ABORTED)
class KeepsWhatIsAborted(Travelling):
    def abort(self, transaction: Transaction, token: str) -> None:  # noqa: ARG002
        self.vault.aborts.append(transaction.id)


@breaks(TAKES_BACK)
class TakesBackWhatWasCommitted(Travelling):
    def abort(self, transaction: Transaction, token: str) -> None:
        super().abort(transaction, token)
        self.vault.shown.pop(transaction.id, None)


@breaks(ABORTS_NOTHING, TAKES_BACK)
class MissesWhatItAborts(Travelling):
    def abort(self, transaction: Transaction, token: str) -> None:  # noqa: ARG002
        del self.vault.held[transaction.id]


@breaks(ATTEMPTS)
class GoesByTheNumbersOfASegment(Travelling):
    begun: ClassVar[dict[str, Any]] = {}

    def begin(self, transaction: Transaction) -> str:
        self.begun[transaction.id] = (self.number, replace(transaction, id=""))
        return super().begin(transaction)

    def abort(self, transaction: Transaction, token: str) -> None:
        super().abort(transaction, token)
        for other in list(self.vault.held):
            if self.begun[other] == (self.number, replace(transaction, id="")):
                del self.vault.held[other]


@breaks(*GOES_WRONG, FORGETS, LOSES, RETURNS, TYPE, NAMES, LONG_TEXT)
class RefusesRows(Travelling):
    def write(self, chunk: Chunk) -> Any:
        super().write(chunk)
        return Rejected({0: "not today"})


@breaks(HIDDEN, REQUEST_FAILS)
class HidesWhatFailedInACommit(Travelling):
    def commit(self, transaction: Transaction, handle: str) -> None:
        try:
            super().commit(transaction, handle)
        except ConnectionError:
            return


@breaks(SECRET)
class ShowsThePasswordOfItsTarget(Travelling):
    def describe(self) -> str:
        return "kind(password='hunter2')"
