"""Retention by age and bytes: how long batches are kept beyond `retention_batches`, and what that costs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import wal_sink.committer.collection
from tests.simulation.histories.lives import lower_retention
from tests.support.small_run import Place, Recorder
from wal_sink.committer import milestones
from wal_sink.committer.collection import COLLECT_EVERY_BATCHES
from wal_sink.committer.milestones import Limits, Milestones
from wal_sink.errors import StoreError
from wal_sink.lifecycle.run import Run
from wal_sink.runtime.clock import Runtime
from wal_sink.testing import FaultyStore, simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.milestone_records import Milestone
from wal_sink.wal.records import decode, encode

KEPT, EVERY = 4, 3
LOOK_AGAIN = COLLECT_EVERY_BATCHES
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def collects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", EVERY)


class Clock:
    """The time of day of all processes: each batch takes so many seconds."""

    def __init__(self) -> None:
        self.now = START
        self.seed = 900

    def runtime(self) -> Runtime:
        self.seed += 1
        return replace(simulated_runtime(self.seed), now=lambda: self.now)


def streamed(place: Place, through: int, *, each_s: float = 10, clock: Clock | None = None, **settings: Any) -> Run:
    """A run that streams batches up to this one, each of which takes some seconds."""
    clock = clock or Clock()
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT, **settings), runtime=clock.runtime())
    go_on(place, run, through, each_s=each_s, clock=clock)
    return run


def go_on(place: Place, run: Run, through: int, *, clock: Clock, each_s: float = 10) -> None:
    for _ in place.query().batches(run, through + 1):
        clock.now += timedelta(seconds=each_s)
        run.deliver_all()


def batches(place: Place, folder: str = paths.BATCHES) -> list[int]:
    return [number for name in place.wal.list(folder) if (number := paths.parse_number(name)) is not None]


def found(place: Place) -> dict[int, Milestone]:
    return {each: decode(Milestone, place.wal.read(paths.milestone(each)), "") for each in batches(place, "milestones")}


def size_of(place: Place, batch_id: int) -> int:
    """Segment bytes of a batch, which are the same for each batch of a test."""
    names = place.wal.list(paths.batch(batch_id), recursive=True)
    return sum(len(place.wal.read(f"{paths.batch(batch_id)}/{name}")) for name in names if name.endswith(".parquet"))


def test_without_a_setting_there_is_no_milestone_and_one_listing_for_each_collection() -> None:
    place = Place()
    streamed(place, 40)

    assert batches(place)[0] > 40 - KEPT - EVERY
    asked = [each for each in place.requests if paths.MILESTONES in each]
    assert set(asked) == {f"list {paths.MILESTONES}"}
    assert len(asked) == sum(each.startswith(f"create {paths.LOW_WATER}") for each in place.requests)


def test_batches_are_kept_until_they_are_old_enough() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 9, clock=clock, retention_age_s=200)
    assert batches(place) == list(range(10))

    for through in range(10, 60):
        go_on(place, run, through, clock=clock)
        oldest = batches(place)[0]
        # At least 20 batches of 10 s are younger than 200 s; two groups may be on their way.
        assert through - oldest >= min(through, 20)
        assert through - oldest <= 20 + 3 * EVERY


def test_batches_are_kept_up_to_so_many_bytes() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 9, clock=clock, retention_bytes=20 * size_of_one())
    for through in range(10, 60):
        go_on(place, run, through, clock=clock)
        kept = through - batches(place)[0]
        assert min(through, 20 - 1) <= kept <= 20 + 3 * EVERY


def size_of_one() -> int:
    place = Place()
    streamed(place, 0)
    return size_of(place, 0)


@pytest.mark.parametrize(("age_s", "most_bytes"), [(100, 30), (300, 10)])
def test_of_two_limits_the_first_one_that_permits_it_deletes(age_s: float, most_bytes: int) -> None:
    place = Place()
    streamed(place, 80, retention_age_s=age_s, retention_bytes=most_bytes * size_of_one())

    assert 10 - 1 <= 80 - batches(place)[0] <= 10 + 3 * EVERY


@pytest.mark.parametrize("settings", [{"retention_age_s": 0}, {"retention_bytes": 1}])
def test_the_batches_for_a_roll_back_are_kept_in_any_case(settings: Any) -> None:
    place = Place()
    streamed(place, 40, **settings)

    assert KEPT <= 40 - batches(place)[0] + 1 <= KEPT + 2 * EVERY
    assert len(batches(place, paths.markers("a"))) == len(batches(place))


def test_a_batch_that_a_sink_lacks_is_kept_and_its_age_begins_once_every_sink_has_it() -> None:
    place, clock = Place(), Clock()
    both = {"a": Recorder(), "b": Recorder()}
    settings = lower_retention(KEPT, retention_age_s=50)
    run = place.open(both, settings=settings, runtime=clock.runtime())
    go_on(place, run, 3, clock=clock)
    run = place.open({"a": Recorder()}, settings=settings, runtime=clock.runtime())
    go_on(place, run, 40, clock=clock)
    assert batches(place) == list(range(41))

    run = place.open(both, settings=settings, runtime=clock.runtime())
    run.deliver_all()
    go_on(place, run, 41, clock=clock)
    assert batches(place)[0] < 41 - KEPT - 2 * EVERY  # no batch has been everywhere for 50 s
    go_on(place, run, 52, clock=clock)
    assert batches(place)[0] > 35


def test_it_costs_one_create_a_read_and_a_listing_for_each_collection() -> None:
    costs = []
    for settings in ({}, {"retention_age_s": 100, "retention_bytes": 10**9}):
        place, clock = Place(), Clock()
        run = streamed(place, 50, clock=clock, **settings)
        place.requests.clear()
        go_on(place, run, 50 + 10 * EVERY, clock=clock)
        costs.append(list(place.requests))
    plain, kept = costs

    more = [each for each in kept if f" {paths.MILESTONES}" in each]
    assert {each.split()[0]: each for each in more}.keys() == {"create", "list", "delete"}
    for verb in ("create", "list", "delete"):
        assert sum(each.startswith(verb) for each in more) == 10
    for verb in ("create", "read", "segment"):
        assert sum(each.startswith(verb) for each in kept if each not in more) == sum(
            each.startswith(verb) for each in plain
        )


def test_a_new_run_reads_only_the_oldest_and_the_newest_milestone() -> None:
    place, clock = Place(), Clock()
    streamed(place, 90, clock=clock, retention_age_s=500)
    kept = batches(place, paths.MILESTONES)
    assert len(kept) > 12
    place.requests.clear()

    streamed(place, 91, clock=clock, retention_age_s=500)

    read = [each for each in place.requests if each.startswith(f"read {paths.MILESTONES}")]
    assert len(read) <= 3
    assert place.requests.count(f"list {paths.MILESTONES}") <= 2


def test_bytes_go_on_being_counted_over_a_restart() -> None:
    place, clock = Place(), Clock()
    for through in (10, 21, 22, 40):
        streamed(place, through, clock=clock, retention_bytes=10**9)

    every = list(found(place).values())
    assert len({each.since for each in every}) == 1
    for each in every:
        assert each.total_bytes == sum(size_of(place, batch_id) for batch_id in range(each.since, each.batch_id + 1))


def test_where_sizes_are_gone_or_too_many_they_are_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milestones, "MOST_READ_SIZES", 2)
    place, clock = Place(), Clock()
    streamed(place, 10, clock=clock, retention_bytes=10**9)
    streamed(place, 20, clock=clock)  # without a setting: the limits of the WAL hold
    first = {each.since for each in found(place).values()}
    monkeypatch.setattr("wal_sink.recovery.history.KEPT_SIZES", 0)

    streamed(place, 40, clock=clock, retention_bytes=10**9)

    assert len(first) == 1
    assert len({each.since for each in found(place).values()}) > 1
    assert batches(place) == list(range(41))


@pytest.mark.parametrize("lost", ["release", "manifest"])
def test_a_batch_whose_records_are_gone_begins_a_new_count(lost: str) -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 10, clock=clock, retention_bytes=10**9)
    newest = max(found(place))
    gone = newest + 1
    while max(found(place)) == newest:
        run.history.forget_sizes(10**6)
        if gone in batches(place):
            place.wal.delete(
                [f"{paths.batch(gone)}/{name}" for name in place.wal.list(paths.batch(gone)) if lost in name]
            )
        go_on(place, run, max(batches(place)) + 1, clock=clock)

    after = max(found(place))
    assert found(place)[after].since == after + 1
    assert found(place)[after].total_bytes == 0


def test_a_drain_without_a_setting_keeps_what_the_query_keeps() -> None:
    place, clock = Place(), Clock()
    streamed(place, 20, clock=clock, retention_age_s=10_000)

    streamed(place, 60, clock=clock)

    assert batches(place) == list(range(61))
    assert {each.age_s for each in found(place).values()} == {10_000}


def test_a_setting_of_0_ends_it_for_drains_too() -> None:
    place, clock = Place(), Clock()
    streamed(place, 20, clock=clock, retention_age_s=10_000)
    streamed(place, 30, clock=clock, retention_age_s=0)

    streamed(place, 40, clock=clock)

    assert batches(place)[0] >= 40 - KEPT - 2 * EVERY
    assert len(found(place)) <= 3


def test_limits_that_cannot_be_read_are_not_taken_for_none(caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place(), Clock()
    streamed(place, 20, clock=clock, retention_age_s=10_000)
    for batch_id in batches(place, paths.MILESTONES):
        place.wal.delete([paths.milestone(batch_id)])
        place.wal.create(paths.milestone(batch_id), b"rotten")

    with caplog.at_level(logging.WARNING):
        streamed(place, 60, clock=clock)

    assert batches(place) == list(range(61))
    assert "keeps batches longer, since a milestone is ignored" in caplog.text
    streamed(place, 90, clock=clock, retention_age_s=0)
    assert batches(place)[0] > 70


def a_second(place: Place, run: Run, clock: Clock, **limits: Any) -> Milestones:
    """The milestones as another process sees them from now on."""
    log = Log(place.wal, clock.runtime(), "other")
    second = Milestones(log, run.history, Limits(**limits), every=lambda: EVERY)
    second.expired_through(0, 0)
    return second


def test_a_milestone_that_another_process_deleted_is_passed_over() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 12, clock=clock, retention_age_s=100)
    second = a_second(place, run, clock, age_s=100)
    before = found(place)
    go_on(place, run, 50, clock=clock)
    assert not before.keys() & found(place).keys()

    through = second.expired_through(50, 50 - KEPT)

    assert through > 30
    assert second.passed(20) == []
    second._batches = sorted(before)  # as if they were deleted after this collection had listed them
    second._known.clear()
    assert second._newest() is None


def test_two_processes_that_make_one_milestone_at_once_go_on_from_the_same() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 12, clock=clock, retention_age_s=1000)
    newest = max(found(place))
    one, other = (a_second(place, run, clock, age_s=1000) for _ in range(2))

    for each in (one, other, one):
        each.expired_through(newest + EVERY, 0)

    assert len(found(place)) == len({*found(place), newest + EVERY})
    assert one._newest() == other._newest()


def test_every_milestone_may_have_expired() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 20, clock=clock, retention_age_s=1000)
    clock.now += timedelta(days=1)

    assert a_second(place, run, clock, age_s=0).expired_through(max(found(place)), 100) == max(found(place))


def test_a_milestone_of_a_batch_that_exists_already_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones could not be read when the run looked."""
    place, clock = Place(), Clock()
    run = streamed(place, 20, clock=clock, retention_age_s=1000)
    second = a_second(place, run, clock, age_s=1000)
    monkeypatch.setattr(second, "_newest", lambda: None)

    assert second.expired_through(max(found(place)), 0) == NOTHING


def test_a_wal_where_a_sink_has_nothing_yet_gets_no_milestone() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 0, clock=clock)

    assert run._collector._milestones.expired_through(-1, -5) == -5
    assert found(place) == {}


JUMPS: list[Callable[[int], timedelta]] = [
    lambda batch_id: timedelta(days=batch_id % 3 - 1),
    lambda batch_id: timedelta(days=-batch_id),
    lambda batch_id: timedelta(days=400 * (batch_id == 30)),
]


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_deletes_nothing_that_a_roll_back_needs(jump: Callable[[int], timedelta]) -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 5, clock=clock, retention_age_s=100)
    for through in range(6, 60):
        clock.now += jump(through)
        go_on(place, run, through, clock=clock)
        assert set(range(max(0, through - KEPT + 1), through + 1)) <= set(batches(place))
    assert batches(place)[-1] == 59


# Limits of one run that others follow, from its first batch on.


def two_runs(place: Place, clock: Clock, sinks: dict[str, object], **limits: Any) -> tuple[Run, Run]:
    """A drain of sink `a` without a setting that was opened first, and a query with limits beside it."""
    both = {"a": Recorder(), **sinks}
    first = place.open(both, settings=lower_retention(KEPT), runtime=clock.runtime())
    go_on(place, first, 0, clock=clock)
    drain = place.open({"a": Recorder()}, settings=lower_retention(KEPT), runtime=clock.runtime())
    query = place.open(sinks, settings=lower_retention(KEPT, **limits), runtime=clock.runtime())
    return query, drain


def side_by_side(place: Place, query: Run, drain: Run, through: int, *, clock: Clock) -> None:
    for _ in place.query().batches(query, through + 1):
        clock.now += timedelta(seconds=10)
        drain.gate.search()
        drain.deliver_all()
        query.deliver_all()


@pytest.mark.parametrize("others", [(), ("b",)])
def test_a_drain_that_lives_already_follows_a_query_with_limits_from_its_first_batch_on(others: tuple[str]) -> None:
    """Also if the query only stages, and if the drain comes to each batch first."""
    place, clock = Place(), Clock()
    query, drain = two_runs(place, clock, {name: Recorder() for name in others}, retention_age_s=7 * 86_400)

    side_by_side(place, query, drain, 60, clock=clock)

    assert batches(place) == list(range(61))
    assert {each.age_s for each in found(place).values()} == {7 * 86_400}
    assert len(found(place)) >= 60 // EVERY - 2


def test_so_does_one_that_delivers_bytes_it_did_not_keep_in_memory() -> None:
    place, clock = Place(), Clock()
    query, drain = two_runs(place, clock, {}, retention_bytes=20 * size_of_one())

    side_by_side(place, query, drain, 60, clock=clock)

    assert 20 - 1 <= 60 - batches(place)[0] <= 20 + 3 * EVERY


@pytest.mark.parametrize("others", [(), ("b",)])
def test_the_limits_of_a_newer_query_count_and_a_drain_copies_no_old_ones(others: tuple[str]) -> None:
    place, clock = Place(), Clock()
    sinks: dict[str, object] = {name: Recorder() for name in others}
    query, drain = two_runs(place, clock, sinks, retention_age_s=100)
    side_by_side(place, query, drain, 30, clock=clock)
    oldest = batches(place)[0]
    assert oldest > 10

    settings = lower_retention(KEPT, retention_age_s=7 * 86_400)
    query = place.open(sinks, settings=settings, runtime=clock.runtime())
    side_by_side(place, query, drain, 90, clock=clock)

    assert batches(place)[0] <= oldest + EVERY
    assert {each.age_s for batch_id, each in found(place).items() if batch_id > 31 + 2 * EVERY} == {7 * 86_400}


def test_a_query_that_only_stages_tells_its_limits_again_if_others_come_in_between() -> None:
    place, clock = Place(), Clock()
    query, drain = two_runs(place, clock, {}, retention_age_s=7 * 86_400)
    side_by_side(place, query, drain, 10, clock=clock)
    third = Limits(age_s=5.0)  # a drain that is given something else
    Milestones(drain.log, drain.history, third, every=lambda: EVERY).announce(drain.committers[0].marked_through)
    assert found(place)[max(found(place))].age_s == 5.0

    side_by_side(place, query, drain, 60, clock=clock)

    assert found(place)[max(found(place))].age_s == 7 * 86_400


def test_a_query_that_only_stages_makes_one_milestone_and_looks_again_after_so_many_batches() -> None:
    place, clock = Place(), Clock()
    query, _ = two_runs(place, clock, {}, retention_age_s=100)
    place.requests.clear()
    for _ in place.query().batches(query, 1 + 2 * LOOK_AGAIN):
        clock.now += timedelta(seconds=10)

    asked = [each for each in place.requests if f" {paths.MILESTONES}" in each]
    assert asked.count(f"list {paths.MILESTONES}") == 2
    assert len([each for each in asked if each.startswith("create")]) == 1


def test_a_new_wal_without_a_sink_tells_the_limits_with_its_first_batch() -> None:
    place, clock = Place(), Clock()
    query = place.open({}, settings=lower_retention(KEPT, retention_age_s=100), runtime=clock.runtime())
    go_on(place, query, 3, clock=clock)
    assert {batch_id: each.age_s for batch_id, each in found(place).items()} == {0: 100}

    other = place.open({}, settings=lower_retention(KEPT, retention_age_s=200), runtime=clock.runtime())
    go_on(place, other, 5, clock=clock)
    assert {batch_id: each.age_s for batch_id, each in found(place).items()} == {0: 100}  # there is no room for another


def test_limits_that_cannot_be_told_harm_no_batch_and_are_told_later(caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place(), Clock()
    usual = place.wal
    denied = [True]

    def deny(what: str, where: str) -> None:
        if denied[0] and what == "before create" and where.startswith(paths.MILESTONES):
            raise StoreError("403")

    place.wal = FaultyStore(usual, deny)  # type: ignore[assignment]
    query = place.open({}, settings=lower_retention(KEPT, retention_age_s=100), runtime=clock.runtime())
    go_on(place, query, 3, clock=clock)
    assert "the retention by age or bytes was not recorded" in caplog.text
    denied.clear()
    denied.append(False)
    go_on(place, query, LOOK_AGAIN + 1, clock=clock)
    assert len(found(place)) == 1


def test_while_a_collection_is_under_way_the_limits_wait_for_the_next_batch() -> None:
    place, clock = Place(), Clock()
    query = place.open({}, settings=lower_retention(KEPT, retention_age_s=100), runtime=clock.runtime())
    with query._collecting:
        go_on(place, query, 0, clock=clock)
    assert found(place) == {}
    go_on(place, query, 1, clock=clock)
    assert list(found(place)) == [0]


def test_the_newest_milestone_that_can_be_read_stays_since_it_has_the_limits() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 20, clock=clock, retention_age_s=100)
    newest = max(found(place))
    place.wal.create(paths.milestone(newest + 1), b"rotten")
    second = a_second(place, run, clock)

    assert second.expired_through(newest + 1, 0) == NOTHING
    assert paths.milestone(newest) not in second.passed(10**6)
    assert paths.milestone(newest + 1) in second.passed(10**6)


# Damage and clocks.


@pytest.mark.parametrize("damaged", ["release", "manifest"])
def test_a_damaged_record_of_a_delivered_batch_ends_no_delivery(damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place(), Clock()
    streamed(place, 10, clock=clock, retention_bytes=10**9)
    newest = max(found(place))
    gone = newest + 1
    for name in place.wal.list(paths.batch(gone)):
        if damaged in name:
            path = f"{paths.batch(gone)}/{name}"
            place.wal.delete([path])
            place.wal.create(path, b'{"format":1,"ki')

    sink = Recorder()
    settings = lower_retention(KEPT, retention_bytes=10**9)
    run = place.open({"a": sink}, settings=settings, runtime=clock.runtime())
    go_on(place, run, 30, clock=clock)

    assert sink.batches[-1] == 30
    assert f"since the size of batch {gone} cannot be read" in caplog.text
    assert batches(place) == list(range(31))


@pytest.mark.parametrize("ahead", [timedelta(days=3650), timedelta(hours=20)])
def test_a_clock_that_was_ahead_once_ends_no_retention(ahead: timedelta, caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 11, clock=clock, retention_age_s=200)
    before = max(found(place))
    clock.now += ahead  # the time was not set yet, for some collections
    for through in range(12, 20):
        go_on(place, run, through, clock=clock)
    clock.now -= ahead
    assert max(found(place)) > before
    for restart in (20, 60, 100):
        run = streamed(place, restart, clock=clock, retention_age_s=200)
        go_on(place, run, restart + 30, clock=clock)
    oldest = batches(place)[0]

    assert 130 - oldest <= 20 + 3 * EVERY
    assert 130 - oldest >= 20
    assert (f"{(ahead.days)} days ahead of the clock" in caplog.text) == (ahead.days > 1)


def test_it_is_told_once_and_the_next_milestone_counts(caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 30, clock=clock, retention_age_s=10_000)
    wrong, sane, gone = sorted(found(place))[:3]
    record = found(place)[wrong]
    place.wal.delete([paths.milestone(wrong)])
    place.wal.create(paths.milestone(wrong), encode(msgspec.structs.replace(record, at_ms=record.at_ms + 10**9)))
    second = a_second(place, run, clock, age_s=10_000)

    for _ in range(3):
        assert second.expired_through(30, gone) == NOTHING
    assert caplog.text.count("lies 12 days ahead of the clock") == 1
    clock.now += timedelta(seconds=9_900)
    assert second.expired_through(30, sane) == sane


def test_a_milestone_that_goes_while_a_later_time_is_looked_for_is_passed_over() -> None:
    place, clock = Place(), Clock()
    run = streamed(place, 30, clock=clock, retention_age_s=10_000)
    second = a_second(place, run, clock, age_s=10_000)
    second._list()
    first, gone = second._batches[:2]
    second._known.clear()
    place.wal.delete([paths.milestone(gone)])
    newest, oldest = second._newest(), second._find(first)
    assert newest is not None
    assert oldest is not None

    assert second._age_s(oldest, 0, newest) == (second._now_ms() - oldest.at_ms) / 1000
