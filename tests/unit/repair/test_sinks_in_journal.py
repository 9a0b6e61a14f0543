"""Retiring and renaming with an entry in the journal: killed at any request, the same command completes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, HeldError
from wal_sink.recovery.sink_changes import retire
from wal_sink.recovery.sink_names import read_names
from wal_sink.repair.journal import read_journal
from wal_sink.repair.sinks import rename_in_journal, retire_in_journal
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log


def two_sinks() -> Place:
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), 1)
    end_roles(place.wal)
    return place


def retired(place: Place, *, log: Log | None = None, name: str = "b", drop_pending: int = 0) -> tuple[int, ...]:
    log = log or log_on(place.wal)
    done = retire_in_journal(log, name, drop_pending=drop_pending, take_over=TakeOver.IF_GONE, why="old")
    return (done.through, *done.dropped)


def renamed(place: Place, *, log: Log | None = None, new: str = "c") -> None:
    rename_in_journal(log or log_on(place.wal), "b", new, take_over=TakeOver.IF_GONE, why="new name")


def states(place: Place) -> list[str]:
    return [entry.state for entry in read_journal(log_on(place.wal))]


def test_a_retirement_is_written_down() -> None:
    place = two_sinks()
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)

    assert retired(place, drop_pending=1) == (1, 2)

    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.begun.verb, entry.begun.why) == ("done", "sinks retire", "old")
    assert entry.plan == {"through": 1, "pending": [2], "drop_pending": 1}
    assert entry.ended is not None
    assert entry.ended.result == {"through": 1, "dropped": [2]}


def test_a_rename_is_written_down() -> None:
    place = two_sinks()

    renamed(place)

    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.begun.arguments) == ("done", {"old": "b", "new": "c"})


def test_a_change_that_is_refused_leaves_no_entry() -> None:
    place = two_sinks()
    run = place.open({"b": Recorder()})
    refused: list[Callable[[], object]] = [
        lambda: retired(place),
        lambda: retired(place, name="x"),
        lambda: renamed(place),
        lambda: renamed(place, new="a"),
    ]
    for change in refused:
        with pytest.raises((ConfigError, HeldError)):
            change()
    run.end()
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)
    with pytest.raises(ConfigError, match="--drop-pending 1"):
        retired(place)

    assert states(place) == []


def test_one_that_is_refused_at_the_last_moment_is_given_up() -> None:
    place = two_sinks()

    def rival(what: str, where: str) -> None:
        if (what, where) == ("after create", paths.repair(1)):
            retire(log_on(place.wal), "b", drop_pending=0, take_over=TakeOver.IF_GONE)

    with pytest.raises(ConfigError, match="was retired"):
        retired(place, log=log_on(place.wal, rival))

    [entry] = read_journal(log_on(place.wal))
    assert entry.state == "given up"
    assert entry.ended is not None
    assert entry.ended.why.startswith("refused: sink 'b'")


def test_one_that_was_interrupted_and_is_refused_now_stays_unfinished() -> None:
    place = two_sinks()
    [*_, last] = killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: renamed(place, log=log))
    assert states(last) in (["unfinished"], ["done"])
    place = next(
        place
        for place in killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: retired(place, log=log))
        if states(place) == ["unfinished"]
    )
    place.stream(place.open({"a": Recorder()}), 2)
    end_roles(place.wal)

    with pytest.raises(ConfigError, match="--drop-pending 1"):
        retired(place)

    assert states(place) == ["unfinished"]
    assert retired(place, drop_pending=1) == (1, 2)


def test_a_retirement_that_is_killed_anywhere_is_completed() -> None:
    for place in killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: retired(place, log=log)):
        live = Recorder()
        place.stream(place.open({"a": live}), 1)
        end_roles(place.wal)
        if states(place) != ["done"]:
            assert retired(place) == (1,)
        assert states(place) == ["done"]
        assert paths.RETIRED in place.wal.list("sinks/b")


def test_a_rename_that_is_killed_anywhere_is_completed() -> None:
    for place in killed_everywhere(two_sinks, lambda place: place.wal, lambda log, place: renamed(place, log=log)):
        name = next(sink.name for sink in read_names(log_on(place.wal)).sinks if sink.folder == "b")
        recorder = Recorder()
        place.stream(place.open({"a": Recorder(), name: recorder}), 2)
        assert recorder.batches == [2]
        end_roles(place.wal)
        if states(place) != ["done"]:
            renamed(place)
        assert states(place) == ["done"]
        assert [sink.name for sink in read_names(log_on(place.wal)).sinks] == ["a", "c"]
