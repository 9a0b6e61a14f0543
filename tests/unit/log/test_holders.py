"""The holder of a term, whether that process lives, and the requests to learn and record it."""

from __future__ import annotations

import itertools
import os
from typing import Any

import msgspec
import pytest

import wal_sink.log.holders
import wal_sink.support.clock
from tests.house.log import Holding, Log, TakeOver, TermRecord, claim, holder_of, note_end, paths
from tests.house.support import ProcessIdentity, process_identity
from tests.support.small_run import Place, before_create
from wal_sink.errors import ConfigError, HeldError, StoreError
from wal_sink.log.holders import Holder, refuse_held
from wal_sink.support.clock import find_process
from wal_sink.testing import FaultyStore, simulated_runtime

ROLE = paths.committer_role("a")
HERE = process_identity()
_seeds = itertools.count(1000)


def log_of(place: Place) -> Log:
    return Log(place.wal, simulated_runtime(next(_seeds)), "later")


def claimed_by(holder: ProcessIdentity) -> Log:
    """A WAL whose role is held by a process."""
    log = log_of(Place())
    log.create(
        paths.term(ROLE, 1), TermRecord(role=ROLE, term=1, run_id="r", process="p:1", holder=holder, **log.stamp())
    )
    return log


def test_a_claim_tells_which_process_it_is() -> None:
    log = log_of(Place())
    claim(log, ROLE)

    assert log.require(TermRecord, paths.term(ROLE, 1)).holder == HERE
    assert holder_of(log, ROLE, 1).state is Holding.RUNNING


def test_an_end_that_was_recorded_counts_more_than_a_process_that_lives() -> None:
    """The process goes on with something else, such as its next query."""
    log = claimed_by(HERE)
    note_end(log, ROLE, 1)

    assert holder_of(log, ROLE, 1).state is Holding.ENDED
    assert claim(log, ROLE, take_over=TakeOver.IF_GONE).number == 2


STATES: dict[str, tuple[dict[str, Any], Holding]] = {
    "this process, whose host has another name by now": ({"host": "elsewhere"}, Holding.RUNNING),
    "another host": ({"host": "elsewhere", "boot_id": "another"}, Holding.UNKNOWN),
    "a copy of this machine": ({"host": "elsewhere", "pid": 2**22 + 1}, Holding.UNKNOWN),
    "another boot": ({"boot_id": "another"}, Holding.UNKNOWN),
    "another container": ({"pid_namespace": "pid:[1]"}, Holding.UNKNOWN),
    "no boot id": ({"boot_id": ""}, Holding.UNKNOWN),
    "no namespace": ({"pid_namespace": ""}, Holding.UNKNOWN),
    "no start": ({"started": 0}, Holding.UNKNOWN),
    "this process": ({}, Holding.RUNNING),
    "an earlier process of this id": ({"started": HERE.started - 1}, Holding.GONE),
    "an id that nobody has": ({"pid": 2**22 + 1}, Holding.GONE),
}


@pytest.mark.parametrize("which", STATES)
def test_a_holder_is_running_ended_gone_or_unknown(which: str) -> None:
    changes, expected = STATES[which]

    assert holder_of(claimed_by(msgspec.structs.replace(HERE, **changes)), ROLE, 1).state is expected


def test_a_term_whose_record_is_damaged_is_held_by_somebody(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(Place())
    log.store.create(paths.term(ROLE, 1), b"damage")

    assert holder_of(log, ROLE, 1) == Holder("a process", "an unknown time", Holding.UNKNOWN)
    assert f"sink 'a' of {log.store.root}: the record of its holder cannot be read" in caplog.text


def test_a_process_that_does_not_know_where_it_runs_knows_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that tell nothing are not the same because of that."""
    blank = ProcessIdentity(host=HERE.host, pid=HERE.pid)
    monkeypatch.setattr(wal_sink.log.holders, "process_identity", lambda: blank)

    assert holder_of(claimed_by(blank), ROLE, 1).state is Holding.UNKNOWN
    assert holder_of(claimed_by(HERE), ROLE, 1).state is Holding.UNKNOWN


def test_a_process_that_nobody_may_look_at_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.log.holders, "find_process", lambda _: None)

    assert holder_of(claimed_by(HERE), ROLE, 1).state is Holding.UNKNOWN


def test_a_process_that_proc_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Mounted with hidepid, /proc shows only one's own processes. It is there, since it can be signalled."""
    monkeypatch.setattr(wal_sink.support.clock, "_PROC", tmp_path)

    assert find_process(os.getpid()) is None
    assert process_identity() == ProcessIdentity(host=HERE.host, pid=HERE.pid)


def test_a_process_knows_its_parent_unless_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (HERE.parent, HERE.parent_started) == (os.getppid(), find_process(os.getppid()))
    for parent in (0, 1, 1 << 22):  # outside of the container; that of orphans; ended meanwhile
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        found = process_identity()
        assert found.is_known
        assert not found.is_sibling_of(found)


def test_a_process_of_another_user_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)

    assert find_process(HERE.pid) == HERE.started


def test_a_careful_claim_never_takes_over_from_a_process_that_runs_here() -> None:
    log = claimed_by(HERE)

    for take_over in (TakeOver.IF_GONE, TakeOver.UNLESS_RUNNING):
        with pytest.raises(
            HeldError, match=r"sink 'a' of .*: p:1 has served it since .* \(term 1\) and is running on this machine"
        ):
            claim(log, ROLE, take_over=take_over)
    assert log.numbers(paths.terms(ROLE)) == [1]
    assert claim(log, ROLE).number == 2


def test_an_unknown_process_is_taken_over_only_where_the_caller_says_so() -> None:
    log = claimed_by(ProcessIdentity(host="elsewhere", pid=1))

    with pytest.raises(HeldError, match="it is not known whether that process ended"):
        claim(log, ROLE, take_over=TakeOver.IF_GONE)
    assert claim(log, ROLE, take_over=TakeOver.UNLESS_RUNNING).number == 2


def test_a_look_before_a_claim_refuses_as_the_claim_does() -> None:
    log = claimed_by(ProcessIdentity(host="elsewhere", pid=1))

    refuse_held(log, ROLE, take_over=TakeOver.UNLESS_RUNNING)
    with pytest.raises(HeldError, match=r"sink 'a' of .* \(term 1\), and it is not known whether"):
        refuse_held(log, ROLE, take_over=TakeOver.IF_GONE)


def test_a_process_that_claims_after_the_look_is_not_fenced() -> None:
    """Between the listing and the create another process may start."""
    place = Place()
    log = log_of(place)
    before_create(place.wal, paths.term(ROLE, 1), lambda: claim(log_of(place), ROLE))

    with pytest.raises(HeldError, match="is running on this machine"):
        claim(log, ROLE, take_over=TakeOver.IF_GONE)
    assert log.numbers(paths.terms(ROLE)) == [1]


def test_an_end_that_cannot_be_recorded_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()

    def fail(what: str, where: str) -> None:
        if what == "before create":
            raise StoreError(where)

    note_end(Log(FaultyStore(place.wal, fail), simulated_runtime(1), "r"), ROLE, 1)

    assert "sink 'a' of memory://" in caplog.text
    assert "the end was not recorded" in caplog.text


def test_whom_to_take_over_from_is_one_of_three_words() -> None:
    with pytest.raises(ConfigError, match="take_over='never': expected one of 'always', 'if_gone', 'unless_running'"):
        TakeOver("never")
