"""The journal of repairs: begun before the first change, in one order, unfinished until the same command ends it."""

from __future__ import annotations

import getpass
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.support.small_run import Place
from wal_sink.errors import ConfigError, CorruptError, HeldError, StoreError
from wal_sink.repair.giving_up import give_up
from wal_sink.repair.journal import Order, begin, command_of, find_unfinished, finish, read_journal, who
from wal_sink.runtime.clock import ProcessIdentity, process_identity
from wal_sink.stores.base import Store
from wal_sink.testing import FaultyStore, simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.repair_records import RepairedRecord, RepairRecord

_seeds = itertools.count(7000)
SKIP = Order("skip", {"batch": 7, "--name": "orders"}, ("sinks/orders/",), why="poison")
OTHER = Order("skip", {"batch": 8, "--name": "orders"}, ("sinks/orders/",))


def log_of(place: Place, hook: Callable[[str, str], None] | None = None) -> Log:
    store: Store = place.wal if hook is None else FaultyStore(place.wal, hook)
    return Log(store, simulated_runtime(next(_seeds)), "repair")


def begun_by(place: Place, holder: ProcessIdentity | None, order: Order = SKIP) -> Log:
    """A WAL with an unfinished repair that another process began."""
    log = log_of(place)
    record = msgspec.structs.replace(begin(log_of(Place()), order, {}).begun, holder=holder)
    assert log.create(paths.repair(1), record)
    return log


def test_a_repair_is_written_down_before_and_after() -> None:
    place = Place()
    log = log_of(place)

    entry = begin(log, SKIP, {"rows": 3})
    assert [(each.number, each.state) for each in read_journal(log)] == [(1, "unfinished")]
    finish(log, entry, {"skipped": 7})

    [kept] = read_journal(log_of(place))
    assert (kept.state, kept.begun.why, kept.plan) == ("done", "poison", {"rows": 3})
    assert kept.begun.who.endswith(f"/{os.getpid()}")
    assert kept.begun.created.startswith("2026-01-01T")
    assert kept.ended is not None
    assert kept.ended.result == {"skipped": 7}
    assert place.wal.list(paths.REPAIRS) == ["0000000001.done.json", "0000000001.json"]


def test_the_same_command_goes_on_by_the_plan_that_was_recorded() -> None:
    place = Place()
    first = begin(log_of(place), SKIP, {"rows": 3})

    again = begin(log_of(place), replace(SKIP, why="another reason"), {"rows": 99})

    assert again == first
    assert again.plan == {"rows": 3}
    assert find_unfinished(log_of(place), SKIP) == first
    finish(log_of(place), again, {})
    assert find_unfinished(log_of(place), SKIP) is None
    assert begin(log_of(place), SKIP, {}).number == 2


def test_the_same_command_is_known_by_arguments_of_any_kind() -> None:
    place = Place()
    order = Order("replay", {"batches": (1, 2), "--to": "x"}, ("a/",))
    first = begin(log_of(place), order, {})

    assert begin(log_of(place), order, {}) == first


def test_a_repair_of_the_same_objects_is_refused_and_the_message_names_both_ways_out() -> None:
    place = Place()
    begin(log_of(place), SKIP, {})

    with pytest.raises(HeldError, match=r"repair 1 of .* is not finished \(skip, begun by .*\)") as refused:
        begin(log_of(place), OTHER, {})

    assert "wal-sink skip WAL 7 --name orders" in str(refused.value)
    assert "wal-sink repairs give-up WAL 1 --why" in str(refused.value)
    assert len(place.wal.list(paths.REPAIRS)) == 1
    with pytest.raises(HeldError):
        find_unfinished(log_of(place), OTHER)
    with pytest.raises(HeldError):
        begin(log_of(place), Order("copy", {}), {})


def test_a_repair_of_other_objects_goes_on() -> None:
    place = Place()
    begin(log_of(place), SKIP, {})

    other = begin(log_of(place), Order("skip", {"batch": 7, "--name": "b"}, ("sinks/b/",)), {})

    assert other.number == 2
    assert [entry.state for entry in read_journal(log_of(place))] == ["unfinished", "unfinished"]


@pytest.mark.parametrize("other", [OTHER, SKIP], ids=["another command", "the same command"])
def test_of_two_that_begin_at_once_one_sees_the_other(other: Order) -> None:
    """The second creates its record between the first one's look and its create."""
    place = Place()
    made: list[Any] = []

    def rival(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.repair(1)) and not made:
            made.append(begin(log_of(place), other, {}))

    if other is SKIP:
        assert begin(log_of(place, rival), SKIP, {}) == made[0]
    else:
        with pytest.raises(HeldError):
            begin(log_of(place, rival), SKIP, {})
    assert len(place.wal.list(paths.REPAIRS)) == 1


def test_numbers_go_on_where_an_end_is_all_that_is_left() -> None:
    """The record of its beginning was lost: its number is not used again."""
    place = Place()
    log = log_of(place)
    finish(log, begin(log, SKIP, {}), {})
    place.wal.delete([paths.repair(1)])

    assert begin(log, SKIP, {}).number == 2


def test_a_repair_that_a_running_process_of_this_machine_does_is_left_to_it() -> None:
    here = process_identity()
    parent = msgspec.structs.replace(here, pid=os.getppid(), started=started(os.getppid()))
    log = begun_by(Place(), parent)

    with pytest.raises(HeldError, match="is under way"):
        begin(log, SKIP, {})
    with pytest.raises(HeldError, match="is under way"):
        give_up(log, 1, why="x")


def started(pid: int) -> int:
    from wal_sink.runtime.clock import find_process  # noqa: PLC0415

    return find_process(pid) or 0


@pytest.mark.parametrize("holder", [None, ProcessIdentity(host="gone", pid=1)], ids=["unknown", "another host"])
def test_a_repair_whose_process_is_not_known_to_run_is_gone_on_with(holder: ProcessIdentity | None) -> None:
    assert begin(begun_by(Place(), holder), SKIP, {}).number == 1


def test_an_unfinished_repair_can_be_given_up_once() -> None:
    place = Place()
    begin(log_of(place), SKIP, {})

    entry = give_up(log_of(place), 1, why="the target is gone")

    assert entry.state == "given up"
    assert entry.ended is not None
    assert entry.ended.why == "the target is gone"
    assert begin(log_of(place), OTHER, {}).number == 2
    with pytest.raises(ConfigError, match=r"is not unfinished: it ended at .*given up"):
        give_up(log_of(place), 1, why="x")


def test_one_that_ends_while_it_is_given_up_is_done() -> None:
    place = Place()
    entry = begin(log_of(place), SKIP, {})

    def rival(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.repaired(1)):
            finish(log_of(place), entry, {})

    with pytest.raises(ConfigError, match=r"ended at .* \(done\)"):
        give_up(log_of(place, rival), 1, why="x")


@pytest.mark.parametrize("number", [0, 3])
def test_a_repair_that_does_not_exist_cannot_be_given_up(number: int) -> None:
    with pytest.raises(ConfigError, match=f"has no repair {number}"):
        give_up(log_of(Place()), number, why="x")


def test_a_long_journal_is_read_from_its_end_but_for_what_is_unfinished() -> None:
    place = Place()
    log = log_of(place)
    begin(log, SKIP, {})
    for batch in range(5):
        finish(log, begin(log, Order("x", {"batch": batch}, (f"x/{batch}/",)), {}), {})

    assert [entry.number for entry in read_journal(log, last=2)] == [1, 5, 6]
    assert [entry.number for entry in read_journal(log)] == [1, 2, 3, 4, 5, 6]


def test_a_begin_costs_one_listing_and_one_create() -> None:
    place = Place()
    requests: list[str] = []
    for batch in range(3):
        log = log_of(place)
        finish(log, begin(log, Order("x", {"batch": batch}, ()), {}), {})

    begin(log_of(place, lambda what, where: requests.append(f"{what} {where}")), SKIP, {})

    assert [each for each in requests if each.startswith("before")] == [
        "before list repairs",
        f"before create {paths.repair(4)}",
    ]


def test_a_create_without_an_answer_is_read_back() -> None:
    place = Place()

    def lose(what: str, _where: str) -> None:
        if what == "after create":
            raise StoreError("no answer")

    assert begin(log_of(place, lose), SKIP, {}).number == 1


def test_no_secret_gets_into_the_journal() -> None:
    place = Place()
    log = log_of(place)
    begin(log, replace(SKIP, why="see https://ada:geheim99@wiki/x"), {})
    give_up(log, 1, why="password=geheim99")

    assert b"geheim99" not in place.wal.read(paths.repair(1)) + place.wal.read(paths.repaired(1))


def test_a_record_under_another_number_is_refused() -> None:
    place = Place()
    log = log_of(place)
    finish(log, begin(log, SKIP, {}), {})
    for path, moved in ((paths.repair(1), paths.repair(2)), (paths.repaired(1), paths.repaired(2))):
        place.wal.create(moved, place.wal.read(path))

    with pytest.raises(CorruptError, match="written for another path"):
        read_journal(log)
    assert not RepairedRecord(number=1, run_id="", **log.stamp()).belongs_at(paths.repaired(2))
    assert not RepairRecord(number=1, verb="x", who="", run_id="", **log.stamp()).belongs_at(paths.repair(2))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ({"batch": 7, "--name": "a"}, "wal-sink skip WAL 7 --name a"),
        ({"--to": "x", "batches": [1, 2]}, "wal-sink skip WAL 1 2 --to x"),
        ({"--reason": ["a", "b"], "--all": True, "--not": False}, "wal-sink skip WAL --reason a --reason b --all"),
    ],
)
def test_the_command_is_told_as_it_is_typed(arguments: dict[str, Any], command: str) -> None:
    assert command_of(begin(log_of(Place()), Order("skip", arguments), {}).begun) == command


def test_a_user_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", no_name)
    assert who().startswith("unknown@")
