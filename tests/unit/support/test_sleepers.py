"""Committers that sleep at the worst moment, while a newer process delivers, collects, or the checkpoint is
restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import wal_sink.protocol.collect
from tests.house.log import paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk
from tests.simulation.histories.lives import lower_retention
from tests.support.small_run import Place, Recorder
from tests.support.two_phase import shown
from tests.support.vault import Vault, VaultSink
from tests.unit.protocol.test_groups import ignoring
from wal_sink import idempotent
from wal_sink.errors import FencedError, HistoryError
from wal_sink.sinks import Transaction

SLEPT_S = 60.0


@dataclass
class Sleepy(Place):
    """A process that is about to create a certain object falls asleep once, while something else happens."""

    before: str = ""
    meanwhile: Callable[[], None] | None = None

    def _note(self, what: str, where: str) -> None:
        super()._note(what, where)
        if what == "before create" and self.before in where and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()


@pytest.fixture(autouse=True)
def collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)


def superseded(place: Place, sleeper: Run, to: object, *, planned_anew: bool) -> Callable[[], None]:
    """Batch 0 runs again, by a newer process that delivers it and two more, and collects it."""

    def supersede() -> None:
        if planned_anew:
            place.query().roll_back(-1)
        else:
            place.checkpoint.delete(["commits/0"])
            sleeper.log.runtime.sleep_s(SLEPT_S)  # the same plan tells nothing, but time does
        place.stream(place.open({"a": to}, settings=lower_retention(1)), 2)
        assert place.wal.list(paths.batch(0)) == []

    return supersede


@pytest.mark.parametrize("planned_anew", [True, False])
def test_a_release_that_is_made_once_more_after_its_collection_releases_nothing(planned_anew: bool) -> None:
    """The sleeper checked its term before it. The newer process has delivered another attempt of the same batch
    since.
    """
    place, late, newer = Sleepy(before="release.json"), Recorder(), Recorder()
    sleeper = place.open({"a": late}, settings=lower_retention(1))
    next(place.query().batches(sleeper, 1))
    place.meanwhile = superseded(place, sleeper, newer, planned_anew=planned_anew)

    with pytest.raises(FencedError):
        sleeper.deliver_all()

    assert (late.batches, newer.batches) == ([], [0, 1, 2])


@pytest.mark.parametrize("planned_anew", [True, False])
def test_a_release_that_is_made_once_more_after_its_collection_commits_nothing_prepared(
    planned_anew: bool, vault: Vault
) -> None:
    """A two-phase sink reads no segment, so that it does not notice that it is gone."""
    place = Sleepy(before="release.json", rows=lambda _: [5])
    sleeper = place.open({"a": VaultSink(vault)}, settings=lower_retention(1))
    next(place.query().batches(sleeper, 1))
    place.meanwhile = superseded(place, sleeper, VaultSink(vault), planned_anew=planned_anew)

    with pytest.raises(FencedError):
        sleeper.deliver_all()

    assert shown(vault) == sorted([0, 1, 2, 3, 4] * 3)


def test_a_batch_that_a_sleeper_marked_with_a_later_one_and_its_successor_collected_is_done() -> None:
    """The newer process was sending the batch before it, and collects by the newest marker there is."""
    place, settings, sent = Place(), lower_retention(1), Recorder()
    sleeper = place.open({"a": ignoring(sent)}, settings=settings)
    for _ in place.query().batches(sleeper, 5):
        continue
    sleeper.gate.search()
    for _ in range(4):
        assert sleeper.advance(sleeper.committers[0])

    @idempotent
    def send(chunk: Chunk) -> None:
        sent(chunk)
        if chunk.batch_id == 1:
            sleeper.committers[0].mark_delivered()

    newer = place.open({"a": send}, settings=settings)
    newer.deliver_all()

    assert sent.batches == [0, 1, 2, 3, 0, 1, 4]
    assert newer.committers[0].marked_through == 4


def test_what_a_sleeper_released_of_a_history_that_spark_never_completed_is_delivered_by_nobody() -> None:
    place, sent = Place(), Recorder()
    sleeper, first = place.open({"a": sent}), place.query()
    first.start_batch(0, 7)
    first.stage(sleeper, 0)
    first.roll_back(-1)
    next(place.query().batches(place.open({}), 1, end_offset=lambda _: 8))
    with pytest.raises(HistoryError, match="under the same id"):
        sleeper.deliver_all()
    first.roll_back(-1)

    run = place.open({"a": sent})
    run.deliver_all()
    with pytest.raises(HistoryError, match="under the same id"):
        next(place.query().batches(run, 1, end_offset=lambda _: 8))

    assert sent.tries == 0


class SleepyVault(VaultSink):
    """It fails while a batch is staged. At delivery it begins a transaction, then sleeps while `meanwhile` happens."""

    meanwhile: Callable[[], None] | None = None

    def begin(self, transaction: Transaction) -> str:
        if self.meanwhile is None:
            raise ConnectionError("the target does not answer while it is staged")
        token = super().begin(transaction)
        self.meanwhile()
        return token


def test_rows_that_a_sleeper_prepared_at_delivery_are_not_committed(
    monkeypatch: pytest.MonkeyPatch, vault: Vault
) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    place, sink = Place(rows=lambda _: [5]), SleepyVault(vault)
    sleeper = place.open({"a": sink}, settings=lower_retention(1))
    next(place.query().batches(sleeper, 1))

    def deliver_and_collect() -> None:
        place.stream(place.open({"a": VaultSink(vault)}, settings=lower_retention(1)), 2)
        assert place.wal.list(paths.batch(0)) == []

    sink.meanwhile = deliver_and_collect
    with pytest.raises(FencedError):
        sleeper.deliver_all()
    assert shown(vault) == sorted([0, 1, 2, 3, 4] * 3)
