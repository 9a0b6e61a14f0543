"""The thread that renews leases: from the first claim to the end of the run, and what it does when it is superseded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from tests.support.small_run import Place, Recorder, served_sink
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import FencedError, PermanentError
from wal_sink.lifecycle.committer_pool import CommitterPool
from wal_sink.lifecycle.lease_keeper import LeaseKeeper
from wal_sink.lifecycle.run import LOOKS_PER_RENEWAL, Run
from wal_sink.metrics.prometheus import events_of
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Delivery, Settings
from wal_sink.stores.base import Store
from wal_sink.telemetry.events import Event, GaveUp
from wal_sink.testing import FaultyStore
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import Holding, holder_of
from wal_sink.wal.lease import Lease, LeaseRecord
from wal_sink.wal.log import Log
from wal_sink.wal.standby import Watch

SHORT = Lease(1.0)


def a_run(place: Place, store: Store | None = None, lease: Lease | None = SHORT) -> Run:
    return Run(store or place.wal, place.checkpoint, Settings(), runtime=SYSTEM, lease=lease)


def open_run(run: Run, *names: str) -> None:
    run.open([served_sink(run, name, Delivery(Recorder(), start_from="earliest")) for name in names])


def renewals(place: Place, name: str = "a") -> list[str]:
    return place.wal.list(paths.leases(paths.committer_role(name)))


def newest_renewal(place: Place, name: str) -> int:
    """The number of the newest renewal in the first term; 0 before the first one. Old ones are deleted."""
    found = [lease.number for lease in map(paths.parse_lease, renewals(place, name)) if lease is not None]
    return max(found, default=0)


def supersede(place: Place, name: str = "a") -> None:
    claim(Log(place.wal, SYSTEM, "newer"), paths.committer_role(name))


@contextmanager
def keeping(run: Run) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(run)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop(PATIENCE_S)


def test_a_run_without_a_lease_renews_none_and_writes_none() -> None:
    place = Place()
    run = a_run(place, lease=None)
    open_run(run, "a")

    assert run.renew_leases() == float("inf")
    assert b"lease" not in place.wal.read(paths.term(paths.committer_role("a"), 1))
    run.end()
    assert place.wal.list(paths.LEASES) == []


def test_it_renews_the_lease_of_each_sink_until_it_is_stopped() -> None:
    place = Place()
    run = a_run(place)
    with keeping(run):
        open_run(run, "a", "b")
        for name in ("a", "b"):
            wait_until(lambda name=name: newest_renewal(place, name) >= 3)  # type: ignore[misc]
    left = renewals(place)
    threading.Event().wait(2 * SHORT.renew_every_s)
    assert renewals(place) == left


def test_it_begins_before_the_run_is_open() -> None:
    """Opening may take longer than a lease: another standby would then take over, and so on for ever."""
    place = Place()
    opener = threading.current_thread()
    found: list[bool] = []

    def slow(what: str, _: str) -> None:
        if what == "before list" and len(run.committers) == 1 and threading.current_thread() is opener:
            wait_until(lambda: bool(renewals(place)))
            found.append(True)

    run = a_run(place, FaultyStore(place.wal, slow))
    with keeping(run):
        open_run(run, "a", "b")

    assert any(found)


def test_until_a_term_is_claimed_it_sends_nothing() -> None:
    place = Place()
    run = a_run(place, FaultyStore(place.wal, place._note))

    assert run.renew_leases() == SHORT.renew_every_s / LOOKS_PER_RENEWAL
    assert place.requests == []


def test_the_end_of_a_run_releases_its_leases_after_it_recorded_its_end() -> None:
    place = Place()
    run = a_run(place, FaultyStore(place.wal, place._note))
    open_run(run, "a")
    run.renew_leases()
    place.requests.clear()
    run.end()

    role = paths.committer_role("a")
    creates = [each for each in place.requests if each.startswith("create")]
    assert creates == [f"create {paths.ended(role, 1)}", f"create {paths.lease(role, 1, 2)}"]
    record = run.log.require(LeaseRecord, paths.lease(role, 1, 2))
    assert record.released
    assert holder_of(run.log, role, 1).state is Holding.ENDED


def a_pool(run: Run, keeper: LeaseKeeper, on_failure: Callable[[], None] = lambda: None) -> CommitterPool:
    stopping = threading.Event()
    object.__setattr__(run.shared, "pause", stopping.wait)  # as a `WalSink` makes its run
    return CommitterPool(run, stopping=stopping, on_failure=on_failure, keeper=keeper)


def test_an_idle_run_that_follows_ends_once_it_is_superseded() -> None:
    place = Place()
    run = a_run(place)
    open_run(run, "a")
    failed = threading.Event()
    with keeping(run) as keeper:
        pool = a_pool(run, keeper, failed.set)
        pool.start()
        wait_until(lambda: bool(renewals(place)))
        supersede(place)
        pool.follow(PATIENCE_S)

        assert failed.wait(PATIENCE_S)
        with pytest.raises(FencedError, match="a newer process took over"):
            pool.raise_error()
        assert pool.stop(PATIENCE_S)


def test_so_does_one_that_was_superseded_while_it_opened(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    run = a_run(place)
    open_run(run, "a")
    supersede(place)

    def fail() -> None:
        raise RuntimeError("the query does not stop")

    with keeping(run) as keeper:
        wait_until(lambda: keeper._error is not None)
        pool = a_pool(run, keeper, fail)
        pool.start()
        assert isinstance(pool.error, FencedError)
        assert pool.stop(PATIENCE_S)
    assert "after this process was superseded: RuntimeError" in caplog.text


def test_a_run_whose_sink_hangs_renews_its_lease_until_it_gives_up_waiting() -> None:
    place = Place()
    run = a_run(place)
    called, let_go = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        called.set()
        let_go.wait(PATIENCE_S)

    run.open([served_sink(run, "a", Delivery(hang, start_from="earliest"))])
    run.become_stager()
    list(place.query().batches(run, 1))
    with keeping(run) as keeper:
        pool = a_pool(run, keeper)
        pool.start()
        assert called.wait(PATIENCE_S)
        assert not pool.stop(0.05)
        there = renewals(place)
        wait_until(lambda: renewals(place) != there)  # its chunk is in flight
        pool.stop_renewing()
        there = renewals(place)
        threading.Event().wait(2 * SHORT.renew_every_s)
        assert renewals(place) == there
        let_go.set()
        assert pool.stop(PATIENCE_S)


def test_an_error_that_nobody_expected_ends_no_renewals(caplog: pytest.LogCaptureFixture) -> None:
    """The system may give this process no thread for a moment."""
    place = Place()
    reads: list[str] = []

    def no_thread(what: str, where: str) -> None:
        if what == "before read" and where == paths.term(paths.committer_role("a"), 2):
            reads.append(where)
            if len(reads) in {2, 3}:
                raise RuntimeError("can't start new thread")

    run = a_run(place, FaultyStore(place.wal, no_thread))
    open_run(run, "a", "b")
    with keeping(run):
        for name in ("a", "b"):
            wait_until(lambda name=name: newest_renewal(place, name) >= 4)  # type: ignore[misc]
    assert caplog.text.count("the lease was not renewed, and this will be tried again: RuntimeError") == 1


@pytest.mark.parametrize("on_failure", ["park", "stop"])
def test_a_sink_that_gave_up_is_let_go_so_that_a_standby_takes_over(on_failure: Literal["park", "stop"]) -> None:
    place = Place()
    run = a_run(place)

    def refuse(_: object) -> None:
        raise PermanentError("no such table")

    bad = Delivery(refuse, start_from="earliest", on_failure=on_failure)
    run.open([served_sink(run, "a", bad), served_sink(run, "b", Delivery(Recorder(), start_from="earliest"))])
    run.become_stager()
    list(place.query().batches(run, 1))
    role = paths.committer_role("a")
    with keeping(run) as keeper:
        pool = a_pool(run, keeper)
        pool.start()
        wait_until(lambda: holder_of(run.log, role, 1).state is Holding.ENDED)
        # Its lease is released a moment later, and the lease of the other sink may not have been renewed yet.
        wait_until(lambda: run._renewal(role, SHORT).due_in_s == float("inf"), "the lease of sink a is released")
        wait_until(lambda: bool(renewals(place, "b")), "the lease of sink b is renewed")
        standby = Watch(Log(place.wal, SYSTEM, ""), role, SHORT)
        assert standby.look() == 1
        supersede(place, "a")
        there = renewals(place, "b")
        wait_until(lambda: renewals(place, "b")[-1] > max(there))
        assert keeper._error is None, "the other sinks go on"
        assert run.renew_leases() > 0
        assert pool.stop(PATIENCE_S)


def test_a_hook_that_does_not_return_keeps_no_standby_from_a_sink_that_gave_up() -> None:
    place, hears, returns = Place(), threading.Event(), threading.Event()

    def hook(event: Event) -> None:
        if isinstance(event, GaveUp):
            hears.set()
            returns.wait(PATIENCE_S)

    def refuse(_: object) -> None:
        raise PermanentError("no such table")

    events = events_of(place.wal.root, hook, None)
    run = Run(place.wal, place.checkpoint, Settings(), runtime=SYSTEM, lease=SHORT, events=events)
    bad = Delivery(refuse, start_from="earliest", on_failure="park")
    run.open([served_sink(run, "a", bad), served_sink(run, "b", Delivery(Recorder(), start_from="earliest"))])
    run.become_stager()
    list(place.query().batches(run, 1))
    with keeping(run) as keeper:
        pool = a_pool(run, keeper)
        pool.start()
        try:
            assert hears.wait(PATIENCE_S)
            standby = Watch(Log(place.wal, SYSTEM, ""), paths.committer_role("a"), SHORT)
            assert standby.look() == 1, "its first look: the sink is free"
        finally:
            returns.set()
        assert pool.stop(PATIENCE_S)


def test_a_standby_may_claim_a_sink_before_its_lease_is_released() -> None:
    """The record of its end is enough for that. The run goes on with its other sinks."""
    place = Place()
    renewed: list[float] = []

    def taken_over(what: str, path: str) -> None:
        if (what, path) == ("after create", paths.ended(paths.committer_role("a"), 1)):
            supersede(place)
            renewed.append(run.renew_leases())

    run = a_run(place, FaultyStore(place.wal, taken_over))
    open_run(run, "a", "b")

    run.let_go(run.committers[0])

    assert renewed
    assert run.renew_leases() > 0
    assert renewals(place, "b")


def test_a_standby_may_claim_a_sink_that_is_let_go_while_its_lease_is_renewed() -> None:
    place = Place()
    role = paths.committer_role("a")
    letting_go: list[threading.Thread] = []

    def let_go_meanwhile(what: str, path: str) -> None:
        if (what, path) == ("before read", paths.term(role, 2)) and not letting_go:
            letting_go.append(threading.Thread(target=run.let_go, args=(run.committers[0],)))
            letting_go[0].start()
            wait_until(lambda: holder_of(run.log, role, 1).state is Holding.ENDED)
            supersede(place)

    run = a_run(place, FaultyStore(place.wal, let_go_meanwhile))
    open_run(run, "a", "b")

    assert run.renew_leases() > 0

    letting_go[0].join(PATIENCE_S)
    assert renewals(place, "b")


def test_a_sink_that_was_not_let_go_ends_the_run_once_it_is_claimed() -> None:
    place = Place()
    run = a_run(place)
    open_run(run, "a", "b")
    run.let_go(run.committers[0])
    supersede(place, "b")

    with pytest.raises(FencedError):
        run.renew_leases()
