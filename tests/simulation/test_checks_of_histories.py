"""WALs that random histories left behind: crashes, takeovers, failures, collections. No finding, unless the checkpoint
of the history was restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.house.log import Log, read_parquet
from tests.house.operate import AgainstCheckpoint, Check, Fault, Finding
from tests.simulation.histories.drawing import draw
from tests.simulation.histories.losing import drawn_losses
from tests.simulation.histories.plans import Loss, Plan
from tests.simulation.histories.playing import Playing, small_world
from tests.simulation.histories.segments import read_numbered
from tests.simulation.histories.world import HistoryWorld

pytestmark = pytest.mark.no_cover

HISTORIES = 2000
OF_A_CHECKPOINT = {Fault.ROLLED_BACK, Fault.DIVERGED}


def is_tampered(plan: Plan) -> bool:
    """Whether the checkpoint of a history is restored or loses an entry."""
    lives = (life for act in (*plan.acts, (plan.last,)) for life in act)
    return any(life.before is not None or life.restart is not None for life in lives)


def audited(world: HistoryWorld) -> list[Finding]:
    log = Log(world.wal, world.runtime, "", read_parquet if world.plan.parquet else read_numbered)
    return Check(log, comparisons=[AgainstCheckpoint(world.checkpoint)]).run()


def findings_of(plan: Plan) -> Iterator[Finding]:
    """Play a history, and check its WAL after each act and at its end."""
    playing = Playing(HistoryWorld(plan))
    world, close = playing.world, playing.world.close
    for act in plan.acts:
        playing.act(act)
        yield from audited(world)
    world.close = lambda: None  # type: ignore[method-assign]
    playing.end()
    yield from audited(world)
    close()


def test_no_history_leaves_a_wal_with_a_finding(tell: Callable[[str], None]) -> None:
    found: dict[int, str] = {}
    restored = 0
    with small_world():
        for seed in range(HISTORIES):
            plan = draw(seed)
            faults = {finding.fault: finding for finding in findings_of(plan)}
            restored += bool(faults.keys() & OF_A_CHECKPOINT)
            unexplained = faults.keys() - (OF_A_CHECKPOINT if is_tampered(plan) else set())
            if unexplained:
                finding = faults[min(unexplained)]
                found[seed] = f"{finding.fault}: {finding.where}: {finding.what}"
    tell(f"{HISTORIES} histories audited; in {restored}, a checkpoint that was restored is told")
    assert found == {}
    assert restored > HISTORIES // 100


def test_what_vanishes_is_told_in_most_histories(tell: Callable[[str], None]) -> None:
    """Objects are lost by a life-cycle rule, or a copy lacks a part. Some losses leave no evidence."""
    told: list[bool] = []
    with small_world():
        for plan in drawn_losses(600):
            playing = Playing(HistoryWorld(plan))
            world = playing.world
            world.lose = partial(_lose_and_audit, world, world.lose, told)  # type: ignore[method-assign]
            for act in plan.acts:
                playing.act(act)
            world.close()
    tell(f"objects vanished {len(told)} times, and a check right after that told it {sum(told)} times")
    assert len(told) > 30
    assert sum(told) > len(told) * 2 // 3


def _lose_and_audit(world: HistoryWorld, lose: Callable[[Loss], object], told: list[bool], loss: Loss) -> None:
    before = len(world.wal.objects)
    lose(loss)
    if len(world.wal.objects) < before:
        told.append(bool(audited(world)))
