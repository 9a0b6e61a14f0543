"""Processes that end each other in turn are seen; those that end in order, and take-overs of long ago, are not."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from tests.house.log import Log, claim, note_end, paths
from tests.house.support import process_identity
from tests.support.repairs import log_on
from tests.support.small_run import Place, Recorder
from wal_sink.operate.health import LOOKED_AT, take_overs
from wal_sink.testing import FaultyStore
from wal_sink.wal.fencing import renew

ROLE = paths.committer_role("a")


def served() -> Place:
    place = Place()
    place.open({"a": Recorder()})
    return place


def found(place: Place, *, later: timedelta = timedelta()) -> int:
    log = log_on(place.wal)
    return take_overs(log, "a", max(log.numbers(paths.terms(ROLE))), log.runtime.now() + later)


def a_process(place: Place) -> Log:
    log = log_on(place.wal)
    return Log(log.store, log.runtime, log.runtime.new_id())


def test_processes_that_fence_each_other_are_counted() -> None:
    place = served()
    for _ in range(LOOKED_AT - 1):
        claim(a_process(place), ROLE)
    assert found(place) == LOOKED_AT - 1


def test_processes_that_ended_in_order_are_not() -> None:
    place = served()
    note_end(log_on(place.wal), ROLE, 1)
    for _ in range(6):
        log = a_process(place)
        note_end(log, ROLE, claim(log, ROLE).number)
    assert found(place) == 0


def test_processes_of_this_machine_that_were_killed_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor starts a process again that is killed each time; there is no second supervisor."""
    place, killed = served(), msgspec.structs.replace(process_identity(), pid=2**22 + 1)
    monkeypatch.setattr("wal_sink.wal.fencing.process_identity", lambda: killed)
    for _ in range(LOOKED_AT):
        claim(a_process(place), ROLE)
    assert found(place) == 0


def test_processes_that_recorded_their_end_after_they_were_fenced_are_counted() -> None:
    place = served()
    for number in range(1, LOOKED_AT):
        log = a_process(place)
        claim(log, ROLE)
        log.runtime.sleep_s(1.0)
        note_end(log, ROLE, number)
    assert found(place) == LOOKED_AT - 1


def test_take_overs_of_long_ago_are_not() -> None:
    place = served()
    for _ in range(6):
        claim(a_process(place), ROLE)
    assert found(place, later=timedelta(hours=2)) == 0


def test_one_process_that_claims_several_terms_is_not() -> None:
    place = served()
    log = a_process(place)
    term = claim(log, ROLE)
    for _ in range(6):
        term = renew(log, term)
    assert found(place) == 0


@pytest.mark.parametrize("data", [b"damaged", None])
@pytest.mark.parametrize("number", [3, 4])
def test_a_term_that_cannot_be_read_tells_nothing(data: bytes | None, number: int) -> None:
    place = served()
    for _ in range(6):
        claim(a_process(place), ROLE)
    place.wal.delete([paths.term(ROLE, number)])
    if data is not None:
        place.wal.create(paths.term(ROLE, number), data)
    assert found(place) < 3


def test_a_sink_with_few_terms_costs_no_request() -> None:
    place, requests = served(), list[str]()
    log = log_on(place.wal, lambda what, where: requests.append(f"{what} {where}"))
    assert isinstance(log.store, FaultyStore)
    assert take_overs(log, "a", LOOKED_AT - 1, log.runtime.now()) == 0
    assert requests == []
