"""Drains that share a sink by a lease: a holder that sleeps past its lease, at any point, delivers nothing that counts.

A take-over from a process that only slept is judged by the same laws as any other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.simulation.histories.coroutines import Coroutine
from tests.simulation.histories.lives import lower_retention
from tests.simulation.histories.plans import NAMES, At, Deed, Fault
from tests.simulation.scenarios import SHORT
from tests.simulation.world import Life as PlainLife
from tests.simulation.world import World, finish
from wal_sink.errors import FencedError, HeldError
from wal_sink.lifecycle.run import Run
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.lease import Lease
from wal_sink.wal.log import Log
from wal_sink.wal.standby import Watch

ROLE = paths.committer_role(NAMES[0])
LEASE = Lease(15.0)
LEAST_POINTS = 80


class Life(PlainLife):
    """A process that takes the sink only from a holder whose lease ran out, and renews its lease whenever it is due."""

    def __init__(self, world: World, ran_out: int, *faults: Fault) -> None:
        self._lease = Lease(LEASE.duration_s, {ROLE: ran_out})
        self._run: Run | None = None
        self._is_renewing = False
        self.renewed = 0
        super().__init__(world, world.life(*faults).plan, None)

    def _open(self) -> Run:
        plan = self.plan
        run = Run(
            self._wal,
            self._checkpoint,
            lower_retention(plan.retention, chunk_rows=plan.chunk_rows),
            runtime=self.world.runtime,
            lease=self._lease,
        )
        self._run = run
        run.open([self._served_sink(run, NAMES[0])], take_over=TakeOver.IF_GONE)
        return run

    def point(self, what: str, where: str) -> None:
        super().point(what, where)
        if self._run is None or self._is_renewing or self.died:
            return
        self._is_renewing = True
        try:
            self._run.renew_leases()  # by another thread, in a real process
            self.renewed += 1
        except FencedError:
            pass  # the thread of the delivery may not have heard of it yet: the terms must do
        finally:
            self._is_renewing = False


def standing_still(world: World, number: int) -> tuple[Life, Coroutine]:
    life = Life(world, 0, Fault(Deed.PAUSE, At(number)))
    coroutine = Coroutine(life.live)
    coroutine.resume()
    if coroutine.error is not None:
        raise coroutine.error
    return life, coroutine


def waited(world: World) -> tuple[int, float]:
    """Stand by until the sink is free: the newest term then, and the seconds that it took."""
    watch = Watch(Log(world.wal, world.runtime, "standby"), ROLE, LEASE)
    waited_s = 0.0
    while (free := watch.look()) is None:
        world.pass_s(LEASE.look_every_s)
        waited_s += LEASE.look_every_s
        assert waited_s < 10 * LEASE.duration_s
    return free, waited_s


def sleepers(kind: str) -> Iterator[tuple[World, Exception | None]]:
    """One history for each point of a holder: it sleeps there, a standby takes over and finishes, the holder wakes."""
    for number in count(1):
        world = World(kind, batches=SHORT, zombies=True)
        _, old = standing_still(world, number)
        if old.done:
            return
        free, waited_s = waited(world)
        assert (free == 0) == (waited_s == 0.0), "a holder that had claimed its term was given its lease"
        assert Life(world, free).live()
        error: Exception | None = None
        try:
            error = finish(old)
        except HeldError as held:  # it had not claimed its term yet
            error = held
        world.check_end(crashes=1)
        yield world, error


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["plain", "transactional", "at_most_once", "lookup"])
def test_a_holder_that_sleeps_past_its_lease_at_any_point_sends_at_most_what_it_held(kind: str) -> None:
    endings = [error for _, error in sleepers(kind)]

    assert len(endings) >= LEAST_POINTS
    assert any(isinstance(error, FencedError) for error in endings)
    assert any(isinstance(error, HeldError) for error in endings)


def test_without_a_lease_that_ran_out_a_second_process_changes_nothing() -> None:
    world = World("plain", batches=SHORT, zombies=True)
    life, old = standing_still(world, 60)
    assert not old.done
    assert life.renewed

    with pytest.raises(HeldError):
        Life(world, 0).live()

    assert finish(old) is None
    world.check_end(crashes=0)
    assert len(world.rows) == sum(map(sum, SHORT)), "nothing was sent twice"


def test_a_process_that_renewed_while_it_delivered_has_renewed_by_time_alone() -> None:
    """The time of a simulation passes with calls of the target, not with batches."""
    world = World("plain", batches=SHORT)
    life = Life(world, 0)
    began_s = world.runtime.monotonic_s()
    assert life.live()

    spent_s = world.runtime.monotonic_s() - began_s
    renewals = [point for point in life.points if point.startswith("before create leases/")]
    assert 1 <= len(renewals) <= 1 + spent_s / LEASE.renew_every_s
    assert life.renewed > 10 * len(renewals)
