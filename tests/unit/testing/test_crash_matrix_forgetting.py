"""`crash_matrix` where the target of a transactional sink loses its newest commits: who is found, and who is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import LOSSES, What
from tests.house.sinks import BatchSink, ForgottenError, LedgerEntry, ReleasedBatch
from wal_sink import Chunk, ConfigError, HistoryError, TransactionalSink
from wal_sink.sinks import Position
from wal_sink.testing import CrashMatrix, crash_matrix

SHORT = [pa.table({"id": [1, 2, 3, 4, 5, 6]}), pa.table({"id": [7]})]
Rows = list[dict[str, Any]]


@dataclass
class Bank:
    """Rows and positions, which are written in one step."""

    rows: Rows = field(default_factory=list)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)

    def store(self, chunk: Chunk) -> None:
        self.rows += chunk.table.to_pylist()
        self.ledger[chunk.position.slot] = LedgerEntry.of(chunk)


class Careful(TransactionalSink):
    def __init__(self, bank: Bank) -> None:
        self.bank = bank

    def write(self, chunk: Chunk) -> None:
        if not LedgerEntry.is_known(self.bank.ledger.get(chunk.position.slot), chunk, "the bank"):
            self.bank.store(chunk)

    def last(self, slot: str) -> Position | None:
        entry = self.bank.ledger.get(slot)
        return entry.position if entry else None


class Careless(Careful):
    """Takes a chunk for new wherever its slot is empty."""

    def write(self, chunk: Chunk) -> None:
        stored = self.bank.ledger.get(chunk.position.slot)
        if stored is None or not LedgerEntry.is_known(stored, chunk, "the bank"):
            self.bank.store(chunk)


class Remembering(Careful):
    """Asks the bank once."""

    def __init__(self, bank: Bank) -> None:
        super().__init__(bank)
        self.known: dict[str, Position] = {}

    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        self.known[chunk.position.slot] = chunk.position

    def last(self, slot: str) -> Position | None:
        return self.known.get(slot) or super().last(slot)


class Writer(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise NotImplementedError


def rows_of(bank: Bank) -> Rows:
    return bank.rows


def saved(bank: Bank) -> Bank:
    return Bank([*bank.rows], {**bank.ledger})


def brought_back(bank: Bank, state: Bank) -> None:
    bank.rows, bank.ledger = [*state.rows], {**state.ledger}


BROUGHT_BACK: dict[str, Any] = {"snapshot": saved, "restore": brought_back}
SHARED = Bank()


@pytest.mark.parametrize("how", [{}, BROUGHT_BACK], ids=["copies", "brought back"])
def test_a_target_that_forgets_at_any_point_is_found_out_by_a_careful_sink(how: dict[str, Any]) -> None:
    matrix = crash_matrix(Careful, rows_of, Bank, tables=SHORT, disturb=("forgets",), **how).check()

    assert matrix.losses > 20
    assert matrix.verdict == "detected"
    assert matrix.lost == matrix.repeated == matrix.crashes == 0
    assert f", {matrix.losses} targets that lost rows at " in str(matrix)


def test_targets_that_forget_need_not_be_new_ones() -> None:
    """A copy has other slots and keys than the target whose place it takes."""
    SHARED.rows.clear()
    matrix = crash_matrix(Careful, rows_of, lambda: SHARED, tables=SHORT, disturb=("forgets",)).check()

    assert matrix.losses > 20


@pytest.mark.parametrize("how", [{}, BROUGHT_BACK], ids=["copies", "brought back"])
def test_a_sink_that_takes_an_empty_slot_for_new_is_found(how: dict[str, Any]) -> None:
    matrix = crash_matrix(Careless, rows_of, Bank, tables=SHORT, disturb=("forgets",), **how)

    with pytest.raises(
        AssertionError, match=r"the target lost its newest commit after write of rows .*\n +\d lost: "
    ) as told:
        matrix.check()
    assert "let LedgerEntry.is_known(stored, chunk, where) decide" in str(told.value)
    assert "send no buffer later" not in str(told.value)


def test_a_sink_that_remembers_its_positions_is_found_where_the_target_itself_goes_back() -> None:
    """A copy is reached by a new connection, which remembers nothing."""
    matrix = crash_matrix(Remembering, rows_of, Bank, tables=SHORT, disturb=("forgets",), **BROUGHT_BACK)

    assert matrix.lost > 0
    crash_matrix(Remembering, rows_of, Bank, tables=SHORT, disturb=("forgets",)).check()


class GivesUp(Careful):
    """Once a chunk did not fit, it takes nothing more, though nothing that is marked was lost."""

    def write(self, chunk: Chunk) -> None:
        if self.bank.ledger.get("gave up"):
            raise HistoryError("it gave up")
        try:
            super().write(chunk)
        except ForgottenError:
            self.bank.ledger["gave up"] = LedgerEntry.of(chunk)
            raise


def test_an_error_without_a_loss_that_explains_it_is_told() -> None:
    matrix = crash_matrix(GivesUp, rows_of, Bank, tables=SHORT, disturb=("forgets",))

    assert any("it gave up" in violation.error for violation in matrix.violations)


class MakesUp(Careful):
    """Writes a chunk twice where the bank has fewer rows than positions."""

    def write(self, chunk: Chunk) -> None:
        super().write(chunk)
        if len(self.bank.rows) < sum(entry.position.rows for entry in self.bank.ledger.values()):
            self.bank.store(chunk)


class TakesTheRestForGone(Careful):
    """Moves only the position where no row is left."""

    def write(self, chunk: Chunk) -> None:
        if self.bank.rows or not self.bank.ledger:
            super().write(chunk)
        else:
            self.bank.ledger[chunk.position.slot] = LedgerEntry.of(chunk)


def test_rows_that_vanish_alone_are_never_seen_but_nothing_else_goes_wrong() -> None:
    def matrix(sink: type[Careful]) -> CrashMatrix:
        return crash_matrix(sink, rows_of, Bank, tables=SHORT, disturb=("loses rows",), **BROUGHT_BACK)

    lost = matrix(Careful).check()
    assert (lost.verdict, lost.lost, lost.repeated) == ("cannot be seen", 0, 0)
    assert lost.losses > 20
    with pytest.raises(AssertionError, match=r"lost the rows of its newest commit, but no position, (?s:.*)repeated"):
        matrix(MakesUp).check()
    with pytest.raises(AssertionError, match="lost: "):
        matrix(TakesTheRestForGone).check()


@pytest.mark.parametrize("what", LOSSES)
def test_a_sink_without_positions_cannot_tell_what_its_target_lost(what: What) -> None:
    def plain(rows: Rows) -> Any:
        return lambda chunk: rows.extend(chunk.table.to_pylist())

    assert crash_matrix(plain, list, list, tables=SHORT, disturb=(what,)).check().verdict == "cannot be seen"
    assert crash_matrix(plain, list, list, tables=SHORT, disturb=("fails", what)).losses == 0
    with pytest.raises(ConfigError, match=r"Writer gets whole batches or segments\. Only targets of sinks that get"):
        crash_matrix(lambda _: Writer(), list, list, disturb=(what,), data_frame=pa.Table.to_pylist)


def test_a_target_is_saved_and_restored_or_neither() -> None:
    with pytest.raises(ConfigError, match=r"snapshot and restore \(or roll_back\) belong together"):
        crash_matrix(Careful, rows_of, Bank, tables=SHORT, snapshot=saved)
