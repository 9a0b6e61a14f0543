"""Leases: how often they are renewed and looked at, when a standby may claim, and that no clocks are compared."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tests.support.processes import CHECKOUT
from wal_sink.errors import ConfigError, FencedError, HeldError, StoreError
from wal_sink.estimation.estimate import MONTH_S
from wal_sink.estimation.plan import S3_PRICES
from wal_sink.runtime.clock import ProcessIdentity, Runtime, process_identity
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FaultyStore, simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.fencing import Term, claim, renew
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.lease import Lease, LeaseRecord
from wal_sink.wal.log import Log
from wal_sink.wal.records import Record, TermRecord, decode, encode
from wal_sink.wal.renewal import Renewal
from wal_sink.wal.standby import FREE, Watch

ROLE = "committer-a"
LEASE = Lease(15.0)
ELSEWHERE = ProcessIdentity(host="elsewhere", pid=7, boot_id="another", pid_namespace="pid:[1]", started=1)
_seeds = itertools.count(500)


@dataclass
class Clock:
    """A monotonic clock that the test moves."""

    now_s: float = 0.0

    def runtime(self) -> Runtime:
        return replace(simulated_runtime(next(_seeds)), monotonic_s=lambda: self.now_s)


@dataclass
class Place:
    """One store, seen by processes of other hosts, each with its own clock."""

    wal: MemoryStore = field(default_factory=lambda: MemoryStore(StoreSpec(f"memory://leases-{next(_seeds)}")))
    requests: list[str] = field(default_factory=list)
    fail: Callable[[str, str], None] = lambda *_: None

    def log(self, clock: Clock, lease: Lease | None = LEASE) -> Log:
        runtime = clock.runtime()
        return Log(FaultyStore(self.wal, self._note), runtime, runtime.new_id(), lease=lease)

    def _note(self, what: str, where: str) -> None:
        self.fail(what, where)
        if what.startswith("before"):
            self.requests.append(f"{what.removeprefix('before ')} {where}")

    def renewals(self) -> list[str]:
        return self.wal.list(paths.leases(ROLE))


@dataclass
class Holder:
    """A process on another host that holds the role and renews its lease."""

    place: Place
    clock: Clock
    lease: Lease | None = LEASE
    identity: ProcessIdentity | None = ELSEWHERE

    def __post_init__(self) -> None:
        self.log = self.place.log(self.clock, self.lease)
        self.term = self.claim()
        self.renewal = Renewal(self.log, ROLE, self.lease or LEASE)

    def claim(self) -> Term:
        term = claim(self.log, ROLE)
        path = paths.term(ROLE, term.number)
        record = self.log.require(TermRecord, path)
        self.place.wal.delete([path])
        self.place.wal.create(path, encode(msgspec.structs.replace(record, holder=self.identity)))
        return term

    def renew(self) -> None:
        self.renewal.renew_if_due(self.term)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.parametrize("seconds", [0.0, 0.9, 3601, float("nan"), float("inf"), True, "15", None])
def test_a_lease_is_bounded(seconds: object) -> None:
    with pytest.raises(ConfigError, match=r"duration_s=.* \(--lease\): expected seconds from 1 to 3600"):
        Lease(seconds)  # type: ignore[arg-type]


# --- the holder


@pytest.mark.parametrize("duration_s", [3.0, 15.0, 60.0])
def test_a_lease_is_renewed_so_often_a_minute_whatever_is_delivered(place: Place, duration_s: float) -> None:
    """Exactly: three requests a third of the lease, however often the holder asks whether one is due."""
    clock, lease = Clock(), Lease(duration_s)
    holder = Holder(place, clock, lease)
    holder.renew()
    place.requests.clear()
    minutes, steps_per_s = 10, 8
    for step in range(minutes * 60 * steps_per_s):
        clock.now_s = (step + 1) / steps_per_s
        holder.renew()

    renewals = round(minutes * 60 / lease.renew_every_s)
    kinds = [request.partition(" ")[0] for request in place.requests]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "read": renewals,
        "create": renewals,
        "delete": renewals - 1,  # two are kept
    }
    assert len(place.renewals()) == 2


def test_the_first_renewal_comes_at_once_and_deletes_what_earlier_holders_left(place: Place) -> None:
    clock = Clock()
    old = Holder(place, clock)
    old.renew()
    new = Holder(place, clock)
    place.requests.clear()
    new.renew()

    assert place.renewals() == ["0000000002-0000000001.json"]
    assert place.requests == [
        f"read {paths.term(ROLE, 3)}",
        f"create {paths.lease(ROLE, 2, 1)}",
        f"list {paths.leases(ROLE)}",
        f"delete {paths.lease(ROLE, 1, 1)}",
    ]


def test_a_foreign_object_among_the_renewals_stays(place: Place) -> None:
    place.wal.create(f"{paths.leases(ROLE)}/notes.txt", b"mine")
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()

    assert "notes.txt" in place.renewals()
    assert Watch(place.log(clock), ROLE, LEASE).look() is None


def test_a_superseded_holder_learns_it_with_its_next_renewal(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()
    Holder(place, clock)
    clock.now_s += LEASE.renew_every_s

    with pytest.raises(FencedError, match="a newer process took over"):
        holder.renew()
    assert len(place.renewals()) == 1, "it renewed nothing"


@pytest.mark.parametrize("record", [b"not JSON", b'{"format":9,"kind":"term","crc32":1,"body":{}}'])
def test_a_newer_term_whose_record_cannot_be_read_supersedes_all_the_same(place: Place, record: bytes) -> None:
    holder = Holder(place, Clock())
    place.wal.create(paths.term(ROLE, 2), record)

    with pytest.raises(FencedError):
        holder.renew()


def test_a_term_that_the_run_claimed_itself_supersedes_it_not(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    following = renew(holder.log, holder.term)  # the thread of the lease may not know of it yet
    holder.renew()
    clock.now_s += LEASE.renew_every_s
    holder.term = following
    holder.renew()

    assert place.renewals() == ["0000000001-0000000001.json", "0000000002-0000000002.json"]


def test_a_renewal_that_failed_is_told_once_and_tried_again_under_the_same_name(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()

    def refuse(what: str, where: str) -> None:
        if what == "before create" and where.startswith(paths.LEASES):
            raise StoreError("no route")

    place.fail = refuse
    clock.now_s += LEASE.renew_every_s
    with caplog.at_level(logging.WARNING):
        holder.renew()
        clock.now_s += LEASE.renew_every_s
        holder.renew()
    assert caplog.text.count("the lease was not renewed") == 1
    holder.renew()  # not due: a store that fails gets no request more often
    place.fail = lambda *_: None
    clock.now_s += LEASE.renew_every_s
    holder.renew()

    assert place.renewals()[-1] == "0000000001-0000000002.json"


def test_one_whose_outcome_is_unknown_counts(place: Place) -> None:
    """The object is there, and a standby has seen it."""
    clock = Clock()
    holder = Holder(place, clock)

    def lose(what: str, where: str) -> None:
        if what in {"after create", "before read"} and where.startswith(paths.LEASES):
            raise StoreError("no answer")

    place.fail = lose
    holder.renew()
    place.fail = lambda *_: None
    clock.now_s += LEASE.renew_every_s
    holder.renew()
    clock.now_s += LEASE.renew_every_s
    holder.renew()

    assert place.renewals() == ["0000000001-0000000001.json", "0000000001-0000000002.json"]


def refuse_deletes(what: str, where: str) -> None:
    if what == "before delete" and where.startswith(paths.LEASES):
        raise StoreError("AccessDenied: s3:DeleteObject")


def test_where_the_store_deletes_nothing_the_lease_is_renewed_all_the_same(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby would fence a holder that lives."""
    clock = Clock()
    Holder(place, clock).renew()  # an earlier one, whose renewal cannot be deleted either
    holder = Holder(place, clock)
    watch = Watch(place.log(clock), ROLE, LEASE)
    place.fail = refuse_deletes
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            holder.renew()
            assert watch.look() is None
            clock.now_s += LEASE.renew_every_s
    assert watch.seen is not None
    assert watch.seen.number == 30
    assert caplog.text.count("older renewals were not deleted") == 1

    holder.renewal.release(holder.term)
    assert watch.look() == holder.term.number


def test_once_the_store_deletes_again_all_that_was_left_goes_in_one_request(place: Place) -> None:
    clock = Clock()
    Holder(place, clock).renew()
    holder = Holder(place, clock)
    place.fail = refuse_deletes
    for _ in range(9):
        holder.renew()
        clock.now_s += LEASE.renew_every_s
    assert len(place.renewals()) == 10
    place.fail = lambda *_: None
    place.requests.clear()
    holder.renew()

    assert place.renewals() == ["0000000002-0000000009.json", "0000000002-0000000010.json"]
    clock.now_s += LEASE.renew_every_s
    place.fail = refuse_deletes
    holder.renew()
    assert len(place.renewals()) == 3


def test_a_release_after_a_renewal_of_unknown_outcome_is_told_under_the_next_number(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None

    def lose(what: str, where: str) -> None:
        if what in {"after create", "before read"} and where.startswith(paths.LEASES):
            raise StoreError("no answer")

    place.fail = lose
    holder.renew()
    place.fail = lambda *_: None
    assert watch.look() is None  # it saw the renewal, and looks for the next one

    holder.renewal.release(holder.term)
    assert watch.look() == 1
    before = place.renewals()
    holder.renewal.release(holder.term)
    assert place.renewals() == before


def test_after_the_release_nothing_is_renewed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    holder = Holder(place, Clock())
    holder.renewal.release(holder.term)
    before = place.renewals()
    holder.renew()
    assert place.renewals() == before

    def refuse(*_: object) -> None:
        raise StoreError("gone")

    place.fail = refuse
    with caplog.at_level(logging.WARNING):
        Renewal(holder.log, ROLE, LEASE).release(holder.term)
    assert "the lease was not released" in caplog.text


# --- the standby


def test_a_role_that_nobody_held_is_free(place: Place) -> None:
    watch = Watch(place.log(Clock()), ROLE, LEASE)

    assert watch.look() == FREE
    assert watch.seen is None


def test_a_look_at_a_living_holder_is_one_read(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    place.requests.clear()
    for number in range(2, 102):
        clock.now_s += LEASE.renew_every_s
        holder.renew()
        place.requests.clear()
        assert watch.look() is None
        assert place.requests == [f"read {paths.lease(ROLE, 1, number)}"]


def looks(watch: Watch, clock: Clock, limit_s: float = 1000.0) -> tuple[int | None, float]:
    """Look as often as a standby does, until the role is free; the term, and the seconds that this took."""
    began_s = clock.now_s
    while clock.now_s - began_s < limit_s:
        if (free := watch.look()) is not None:
            return free, clock.now_s - began_s
        clock.now_s += LEASE.look_every_s
    return None, limit_s


@pytest.mark.parametrize("apart_s", [0.0, -1e6, 1e6])
def test_a_holder_that_is_silent_is_replaced_within_the_lease_and_a_look(place: Place, apart_s: float) -> None:
    """Whatever the clocks of the two hosts say."""
    theirs, mine = Clock(1e7 + apart_s), Clock(1e7)
    holder = Holder(place, theirs)
    holder.renew()

    free, took_s = looks(Watch(place.log(mine), ROLE, LEASE), mine)

    assert free == 1
    assert LEASE.duration_s <= took_s <= LEASE.duration_s + LEASE.look_every_s


def test_the_longer_of_two_leases_counts(place: Place) -> None:
    clock = Clock()
    Holder(place, clock, Lease(60.0)).renew()

    _, took_s = looks(Watch(place.log(clock), ROLE, LEASE), clock)

    assert took_s >= 60.0


def test_a_holder_that_died_before_its_first_renewal_is_replaced_too(place: Place) -> None:
    clock = Clock()
    Holder(place, clock)

    free, took_s = looks(Watch(place.log(clock), ROLE, LEASE), clock)
    assert (free, took_s >= LEASE.duration_s) == (1, True)


def test_a_standby_that_slept_saw_nothing_and_takes_over_no_sooner(place: Place) -> None:
    clock = Clock()
    Holder(place, clock).renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None

    clock.now_s += 3600

    assert watch.look() is None
    free, took_s = looks(watch, clock)
    assert free == 1
    assert took_s >= LEASE.duration_s - 2 * LEASE.look_every_s


def test_a_standby_whose_store_was_away_gives_the_holder_time(place: Place) -> None:
    clock = Clock()
    Holder(place, clock).renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None

    def unreachable(*_: object) -> None:
        raise StoreError("no route")

    place.fail = unreachable
    for _ in range(100):
        clock.now_s += LEASE.look_every_s
        with pytest.raises(StoreError):
            watch.look()
    place.fail = lambda *_: None

    assert watch.look() is None


def test_a_standby_that_fell_behind_finds_out_that_the_holder_lives(place: Place) -> None:
    """The renewals that it looked for were deleted meanwhile."""
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    for _ in range(5):
        clock.now_s += LEASE.renew_every_s
        holder.renew()

    for _ in range(8):
        assert watch.look() is None
        clock.now_s += LEASE.look_every_s
    assert watch.seen is not None
    assert (watch.seen.term, watch.seen.number) == (1, 6)


def test_a_term_that_was_claimed_meanwhile_is_watched_from_then_on(place: Place) -> None:
    clock = Clock()
    Holder(place, clock).renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    other = Holder(place, clock)
    other.renew()

    free, took_s = looks(watch, clock)

    assert free == 2
    assert took_s >= 2 * LEASE.duration_s


def test_a_holder_that_ended_in_order_is_replaced_with_the_next_look(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    note_end(holder.log, ROLE, 1)
    holder.renewal.release(holder.term)

    assert watch.look() == 1


def test_the_release_alone_is_enough(place: Place) -> None:
    """The record of the end was not written."""
    clock = Clock()
    holder = Holder(place, clock)
    holder.renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    holder.renewal.release(holder.term)

    assert watch.look() == 1


@pytest.mark.parametrize("damaged", [b"", b"not JSON", b'{"format":9,"kind":"lease","crc32":1,"body":{}}'])
def test_a_renewal_that_cannot_be_read_is_a_sign_of_life(place: Place, damaged: bytes) -> None:
    clock = Clock()
    Holder(place, clock).renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    place.wal.create(paths.lease(ROLE, 1, 2), damaged)

    assert watch.look() is None
    assert watch.seen is not None
    assert watch.seen.number == 2


def test_a_holder_of_this_machine_that_is_gone_is_replaced_at_once(place: Place) -> None:
    clock = Clock()
    gone = msgspec.structs.replace(process_identity(), started=process_identity().started - 1)
    Holder(place, clock, identity=gone).renew()

    assert Watch(place.log(clock), ROLE, LEASE).look() == 1


def test_one_that_dies_while_it_is_watched_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    Holder(place, clock, identity=process_identity()).renew()
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None

    monkeypatch.setattr("wal_sink.wal.holders.find_process", lambda _: 0)

    assert watch.look() == 1


# --- a holder without a lease


def test_a_holder_without_a_lease_is_waited_for_however_long_it_is_silent(place: Place) -> None:
    clock = Clock()
    Holder(place, clock, lease=None)
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    place.requests.clear()

    free, _ = looks(watch, clock, limit_s=3600)

    assert free is None
    assert set(place.requests) == {f"read {paths.ended(ROLE, 1)}", f"read {paths.term(ROLE, 2)}"}
    assert len(place.requests) == 3600 / LEASE.look_every_s


def test_until_it_ended(place: Place) -> None:
    clock = Clock()
    holder = Holder(place, clock, lease=None)
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    note_end(holder.log, ROLE, 1)

    free, took_s = looks(watch, clock)
    assert free == 1
    assert took_s <= 2 * LEASE.look_every_s


def test_or_died_on_this_machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    Holder(place, clock, lease=None, identity=process_identity())
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    monkeypatch.setattr("wal_sink.wal.holders.find_process", lambda _: 0)

    assert watch.look() == 1


def test_or_was_superseded_by_one_that_has_a_lease(place: Place) -> None:
    clock = Clock()
    Holder(place, clock, lease=None)
    watch = Watch(place.log(clock), ROLE, LEASE)
    assert watch.look() is None
    Holder(place, clock).renew()

    free, took_s = looks(watch, clock)
    assert free == 2
    assert took_s <= LEASE.duration_s + 3 * LEASE.look_every_s


def test_unless_the_user_said_that_it_ended_which_counts_for_the_holder_of_now_alone(place: Place) -> None:
    clock = Clock()
    Holder(place, clock, lease=None)
    watch = Watch(place.log(clock), ROLE, LEASE, accept_unknown=True)
    assert watch.look() == 1
    Holder(place, clock, lease=None)
    assert looks(watch, clock, limit_s=600) == (None, 600)


def test_a_holder_whose_lease_tells_is_not_meant_by_that(place: Place) -> None:
    clock = Clock()
    Holder(place, clock).renew()

    assert Watch(place.log(clock), ROLE, LEASE, accept_unknown=True).look() is None


# --- the claim


def test_of_two_standbys_that_saw_the_lease_run_out_one_claims_and_the_other_stands_by(place: Place) -> None:
    Holder(place, Clock()).renew()
    saw = Lease(LEASE.duration_s, {ROLE: 1})
    one, two = place.log(Clock(), saw), place.log(Clock(), saw)

    assert claim(one, ROLE, take_over=TakeOver.IF_GONE).number == 2
    with pytest.raises(HeldError):
        claim(two, ROLE, take_over=TakeOver.IF_GONE)


def test_without_having_seen_it_run_out_nobody_claims(place: Place) -> None:
    Holder(place, Clock()).renew()
    for lease in (None, LEASE, Lease(15.0, {"committer-other": 1})):
        with pytest.raises(HeldError):
            claim(place.log(Clock(), lease), ROLE, take_over=TakeOver.IF_GONE)


def test_clocks_of_the_day_are_not_looked_at(place: Place) -> None:
    theirs = replace(simulated_runtime(1), now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=400))
    log = Log(place.wal, theirs, "r", lease=LEASE)
    term = claim(log, ROLE)
    Renewal(log, ROLE, LEASE).renew_if_due(term)

    record = log.require(LeaseRecord, paths.lease(ROLE, 1, 1))
    assert record.created.startswith("2027")
    assert Watch(place.log(Clock()), ROLE, LEASE).look() is None


# --- the documents


def test_the_costs_of_a_lease_are_those_of_the_prices() -> None:
    minutes, prices = MONTH_S / 60, S3_PRICES
    renewals, looks = 60 / LEASE.renew_every_s, 60 / LEASE.look_every_s
    holder = minutes * renewals * (prices.per_1000_puts + prices.per_1000_gets + prices.per_1000_deletes) / 1000
    standby = minutes * looks * prices.per_1000_gets / 1000
    page = (CHECKOUT / "docs/operations/service.md").read_text()
    guide = (CHECKOUT / "docs/guide/draining.md").read_text()

    assert f"| {renewals:g} creates, {renewals:g} reads, {renewals:g} deletions | {holder:.2f} USD |" in page
    assert f"| {looks:g} reads | {standby:.2f} USD |" in page
    assert f"about {holder:.2f} USD a month for the holder and {standby:.2f} USD for each standby" in guide


class OlderTerm(Record, frozen=True, kw_only=True):
    """The record of a term, as a version without leases knows it."""

    kind = "term"
    role: str
    term: int
    run_id: str
    process: str
    holder: ProcessIdentity | None = None


def test_a_version_without_leases_reads_the_terms_of_one_with_leases(place: Place) -> None:
    Holder(place, Clock())
    data = place.wal.read(paths.term(ROLE, 1))

    assert b'"lease_s":15.0' in data
    assert decode(OlderTerm, data, "a term").term == 1


def test_a_term_of_a_version_without_leases_renews_none(place: Place) -> None:
    old = OlderTerm(role=ROLE, term=1, run_id="r", process="p:1", holder=ELSEWHERE, id="1" * 32, created="then")
    place.wal.create(paths.term(ROLE, 1), encode(old))
    watch = Watch(place.log(Clock()), ROLE, LEASE)

    assert watch.look() is None
    assert watch.seen is not None
    assert watch.seen.holder.lease_s is None
