"""A WAL that changes between any two requests of a check: staging, delivery, collection, crashes. No false finding."""

from __future__ import annotations

import pytest

from tests.simulation.histories.coroutines import Coroutine, running
from tests.simulation.histories.lives import HistoryProcess
from tests.simulation.histories.plans import SENDING
from tests.simulation.histories.playing import small_world
from tests.simulation.world import World, dies
from wal_sink.checking.findings import Finding
from wal_sink.checking.verify import Check
from wal_sink.testing import FaultyStore

BATCHES = ((2, 1), (3,), (1, 2), (2,), (4,), (1,), (2, 2), (3,))


def pause(_process: HistoryProcess, _what: str, _where: str) -> None:
    """Stand still at every point of the process."""
    coroutine = running()
    if coroutine is not None:
        coroutine.pause()


class Live:
    """A process that goes on by some points whenever the check sends a request."""

    def __init__(self, world: World, steps: int) -> None:
        self.world = world
        self.steps = steps
        self.process = Coroutine(self._live)

    def _live(self) -> None:
        self.world.life(dies("after create", "progress"), hook=pause).live()
        self.world.life(dies("before delete"), hook=pause).live()
        self.world.life(hook=pause).live()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            if not self.process.done:
                self.process.resume()

    def check(self) -> list[Finding]:
        """Check the WAL. It changes before each request."""
        store = FaultyStore(self.world.wal, lambda what, _: self.go(self.steps) if what.startswith("before") else None)
        return list(Check(store).run())


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_wal_that_changes_between_any_two_requests_has_no_finding(kind: str, steps: int) -> None:
    checks = 0
    with small_world():
        live = Live(World(kind, batches=BATCHES, retention=1), steps)
        while not live.process.done:
            assert live.check() == []
            checks += 1
            live.go(1 + checks % 7)
        assert live.process.error is None
        assert live.check() == []
        assert live.world.wal.list("low-water"), "nothing was collected meanwhile"
    assert checks > 1
