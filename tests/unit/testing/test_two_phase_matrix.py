"""Two-phase sinks in the crash matrix: whatever dies, fails or wakes up late, every row is shown once."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pytest

from tests.house.kit import LOSSES, Crash, Place, What, three_batches
from tests.house.log import paths
from tests.support.vault import Vault, VaultSink
from wal_sink.sinks import Transaction
from wal_sink.testing import crash_matrix
from wal_sink.testing.data.tables import partitioned
from wal_sink.testing.simulation.process import SINK_NAME, Process, bury

SHORT = [pa.table({"id": [1, 2, 3]}), pa.table({"id": [4]})]


@pytest.mark.parametrize("keep", [True, False])
def test_every_disturbance_shows_every_row_once(keep: bool) -> None:
    matrix = crash_matrix(lambda vault: VaultSink(vault, keep_segments=keep), lambda vault: vault.rows(), Vault).check()
    assert (matrix.lost, matrix.repeated, matrix.permitted) == (0, 0, 0)
    assert matrix.crashes > 100
    assert matrix.failures > 50
    assert matrix.takeovers > 30


@pytest.mark.parametrize("keep", [True, False])
def test_every_pair_of_deaths_shows_every_row_once(keep: bool) -> None:
    matrix = crash_matrix(
        lambda vault: VaultSink(vault, keep_segments=keep),
        lambda vault: vault.rows(),
        Vault,
        tables=SHORT,
        disturb=("dies",),
        every=7,
        each_line=False,
        double=True,
    ).check()
    assert matrix.crashes > 100


class _Forgetting(VaultSink):
    """Whose target drops what it holds whenever a process goes: the time-out that loses data elsewhere."""

    def __init__(self, vault: Vault) -> None:
        super().__init__(vault)
        vault.drop_held()


def test_a_target_that_drops_what_it_holds_loses_nothing_while_the_rows_are_kept() -> None:
    matrix = crash_matrix(_Forgetting, lambda vault: vault.rows(), Vault, every=2).check()
    assert matrix.repeated == 0


def test_what_a_death_leaves_in_the_target_is_aborted_by_a_later_start() -> None:
    undisturbed = _live(_place(Vault()))
    for number in range(1, len(undisturbed) + 1, 3):
        vault = Vault()
        place = _place(vault)
        _live(place, dies_at=number)
        _live(place)
        _live(place)  # a start aborts what is left of batches that were delivered before it
        assert vault.held == {}, undisturbed[number - 1]
        assert not set(vault.aborts) & set(vault.shown), undisturbed[number - 1]
        assert not place.wal.list(paths.begun_folder(SINK_NAME)), undisturbed[number - 1]


def _place(vault: Vault) -> Place:
    place = Place(lambda: VaultSink(vault))
    place.batches.update(enumerate(partitioned(three_batches())))
    return place


def _live(place: Place, *, dies_at: int = 0) -> list[str]:
    def hook(process: Process, name: str) -> None:
        if len(process.points) == dies_at:
            raise Crash(name)

    process = Process(place, hook=hook)
    try:
        process.live_to_end()
    except Crash as crash:
        bury(process, crash)
    return process.points


class _Early(VaultSink):
    """A sink that shows rows when they are prepared: what the kit is there to find."""

    def prepare(self) -> str:
        handle = super().prepare()
        assert self.transaction is not None
        self.vault.shown[self.transaction.id] = self.vault.held.pop(self.transaction.id)
        return handle


class _Forgetful(VaultSink):
    """A sink whose commit is not idempotent."""

    def commit(self, transaction: Transaction, handle: str) -> None:
        assert handle
        self.vault.shown[f"{transaction.id} {len(self.vault.shown)}"] = list(self.vault.held[transaction.id])


class _TakesBackASegment(VaultSink):
    """A sink that aborts by the numbers of a segment: a late abort of a lost attempt removes the rows of another."""

    numbers: ClassVar[dict[str, tuple[int, ...]]] = {}

    def begin(self, transaction: Transaction) -> str:
        self.numbers[transaction.id] = (transaction.batch_id, transaction.partition)
        return super().begin(transaction)

    def abort(self, transaction: Transaction, token: str) -> None:
        super().abort(transaction, token)
        wanted = self.numbers[transaction.id]
        self.vault.shown = {one: rows for one, rows in self.vault.shown.items() if self.numbers[one] != wanted}


def test_an_abort_in_a_later_process_is_disturbed_too() -> None:
    wrong = crash_matrix(_TakesBackASegment, lambda vault: vault.rows(), Vault, disturb=("stands still",))
    assert any("abort" in point.name for violation in wrong.violations for point in violation.at)
    right = crash_matrix(VaultSink, lambda vault: vault.rows(), Vault, disturb=("stands still",), every=99).check()
    assert right.crashes == 7


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("what", LOSSES)
def test_a_committed_transaction_that_is_gone_again_is_not_noticed_and_nothing_comes_twice(
    what: What, keep: bool
) -> None:
    matrix = crash_matrix(
        lambda vault: VaultSink(vault, keep_segments=keep), lambda vault: vault.rows(), Vault, disturb=(what,)
    ).check()
    assert matrix.losses > 50
    assert (matrix.verdict, matrix.repeated) == ("cannot be seen", 0)


@pytest.mark.parametrize("wrong", [_Early, _Forgetful])
def test_the_matrix_finds_a_two_phase_sink_that_is_none(wrong: type[VaultSink]) -> None:
    matrix = crash_matrix(wrong, lambda vault: vault.rows(), Vault, tables=SHORT, every=10)
    assert matrix.violations
    assert "two-phase" in str(matrix)
