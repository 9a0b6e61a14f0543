"""A WAL that changes between any two requests of a check: staging, delivery, collection, crashes. No false finding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.house.log import Log, paths
from tests.house.operate import AgainstCheckpoint, AgainstTarget, Check, Finding
from tests.simulation.histories.coroutines import Coroutine, running
from tests.simulation.histories.lives import HistoryProcess
from tests.simulation.histories.plans import NAMES, SENDING, Deed, Fault
from tests.simulation.histories.playing import small_world
from tests.simulation.histories.stores import SimulatedStore
from tests.simulation.histories.targets import LedgerSink
from tests.simulation.world import World, dies
from wal_sink.errors import FencedError
from wal_sink.operate.look import Known, Look
from wal_sink.operate.verify import Comparison

BATCHES = ((2, 1), (3,), (1, 2), (2,), (4,), (1,), (2, 2), (3,))
PACES = (1, 0.3, 0.1, 2, 0.5, 0.2)
CRASHES = (dies("after create", "progress"), dies("before delete"))


def pause(_process: HistoryProcess, _what: str, _where: str) -> None:
    """Stand still at every point of the process."""
    coroutine = running()
    if coroutine is not None:
        coroutine.pause()


class Live:
    """Processes that go on by some points, in turn, whenever the check sends a request."""

    number = full_for = reconnections = 0
    in_job = False

    def __init__(self, world: World, steps: float, *lives: Sequence[Fault]) -> None:
        """`steps`: points at each request of the check. Less than 1: a point at some of the requests."""
        self.left: list[Coroutine] = []
        self.world = world
        self.steps = steps
        self.processes = [Coroutine(partial(self._live, faults)) for faults in lives]
        self.turns = 0
        self.due = 0.0

    @property
    def done(self) -> bool:
        return all(process.done for process in self.processes)

    def _live(self, faults: Sequence[Fault]) -> None:
        """Live and die, once for each fault, then live to the end."""
        for fault in faults:
            self.world.life(fault, hook=pause).live()
        self.world.life(hook=pause).live()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.turns += 1
            process = self.processes[self.turns % len(self.processes)]
            if not process.done:
                process.resume()

    # The check, as stores and sinks see it.

    def point(self, what: str, _where: str) -> None:
        if not what.startswith("after"):
            self.due += self.steps
            self.go(int(self.due))
            self.due -= int(self.due)

    def met(self, what: str) -> None:
        """Do nothing."""

    def take_time(self) -> None:
        """Do nothing."""

    def refuse_create(self, path: str) -> None:
        raise AssertionError(path)

    def will(self, deed: Deed) -> bool:
        return deed is None

    def check(self, *, kind: str = "") -> list[Finding]:
        """Check the WAL. It changes before each request. `kind`: of the sink whose target is compared."""
        process: Any = self  # stores and sinks need no more of a process
        log = Log(SimulatedStore(self.world.wal, process), self.world.runtime, "")
        comparisons: list[Comparison] = []
        if kind:
            comparisons.append(AgainstCheckpoint(SimulatedStore(self.world.checkpoint, process)))
        if kind == "transactional":
            target: Any = self.world.target
            comparisons.append(AgainstTarget(LedgerSink(process, target), NAMES[0]))
        return Check(log, comparisons=comparisons).run()

    def check_until_it_ends(self, *, kind: str = "") -> int:
        """Check again and again. Return the number of checks."""
        checks = 0
        while not self.done:
            found = self.check(kind=kind if self.is_registered else "")
            assert [(each.fault, each.where, each.what) for each in found] == []
            checks += 1
            self.go(1 + checks % 7)
        for process in self.processes:
            assert process.error is None or isinstance(process.error, FencedError), process.error
        assert self.check(kind=kind) == []
        assert self.world.wal.list(paths.LOW_WATER), "nothing was collected meanwhile"
        return checks

    @property
    def is_registered(self) -> bool:
        return paths.SINK_RECORD in self.world.wal.list(f"{paths.SINKS}/{NAMES[0]}")


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_wal_that_changes_between_any_two_requests_has_no_finding(kind: str, steps: int) -> None:
    with small_world():
        live = Live(World(kind, batches=BATCHES, retention=1), steps, CRASHES)
        assert live.check_until_it_ends(kind=kind) > 1


def check_from_many_points(kind: str, *, every: int = 5) -> Finding | None:
    """Check WALs that stood still at another point each, and then go on. Return the first finding."""
    with small_world():
        begin = 0
        while True:
            live = Live(World(kind, batches=BATCHES[:4], retention=1), PACES[begin % len(PACES)], ())
            live.go(begin)
            if live.done:
                return None
            if found := live.check(kind=kind if live.is_registered else ""):
                return found[0]
            begin += every


@pytest.mark.parametrize("kind", SENDING)
def test_a_check_that_begins_at_any_point_has_no_finding(kind: str) -> None:
    assert check_from_many_points(kind) is None


@pytest.mark.parametrize("kind", SENDING)
def test_listings_that_take_two_looks_and_come_in_any_order(kind: str) -> None:
    with small_world():
        live = Live(World(kind, batches=BATCHES, retention=1), 1, CRASHES)
        live.world.wal.two_looks = live.world.checkpoint.two_looks = True
        live.world.wal.disorder = live.world.checkpoint.disorder = 3
        assert live.check_until_it_ends(kind=kind) > 1


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("steps", [1, 3])
def test_two_processes_that_fence_each_other(kind: str, steps: int) -> None:
    with small_world():
        live = Live(World(kind, batches=BATCHES, retention=1, zombies=True), steps, CRASHES, CRASHES[:1], ())
        assert live.check_until_it_ends(kind=kind) > 1


def test_the_test_finds_a_check_that_does_not_read_low_water_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "is_collected", lambda self, batch_id: batch_id <= self.low_water)
    assert _finds_something()


def test_the_test_finds_a_check_that_does_not_read_new_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Look, "_read_new_terms", lambda *_: None)
    assert _finds_something()


def _finds_something() -> bool:
    for kind in SENDING:
        for steps in (1, 2, 3, 4, 5, *PACES):
            with small_world():
                live = Live(World(kind, batches=BATCHES, retention=1), steps, CRASHES)
                try:
                    live.check_until_it_ends()
                except AssertionError:
                    return True
    return False
