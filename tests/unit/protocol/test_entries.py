"""A batch is staged by one call, and none after one that was not staged, whatever the user's code swallows."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wal_sink.errors import ConfigError, UndeliveredError
from wal_sink.protocol.stage import Entries

_wals = itertools.count()


class StageFailedError(Exception):
    """An error of `stage` that the user's code swallowed."""


@pytest.fixture
def wal() -> str:
    return f"memory://entries-{next(_wals)}"


@pytest.fixture
def entries(wal: str) -> Entries:
    return Entries("the sink", wal)


def stage(
    entries: Entries, batch_id: int, error: BaseException | None = None, *, run: str = "r", query: str = "q"
) -> None:
    with entries.entered(query, run, batch_id):
        if error is not None:
            raise error


def swallowed(entries: Entries, batch_id: int, error: BaseException | None = None, *, run: str = "r") -> BaseException:
    error = error or StageFailedError(f"batch {batch_id} failed")
    try:
        stage(entries, batch_id, error, run=run)
    except BaseException as caught:  # noqa: BLE001 - what users do
        return caught
    raise AssertionError("it was staged")


def test_batches_follow_each_other_and_nothing_is_left_unstaged(entries: Entries) -> None:
    assert entries.run is None
    with entries.entered("q", "r", 2) as entry:
        assert (entry.batch_id, entry.busy, entry.staged) == (2, True, False)
    for batch_id in (3, 4, 5):
        stage(entries, batch_id)
    assert entries.run is not None
    assert (entries.run.run_id, entries.run.batch_id, entries.run.busy, entries.run.staged) == ("r", 5, False, True)
    assert entries.unstaged == []


def test_a_second_call_for_a_batch_is_refused_and_the_next_batch_and_the_end_tell_it_again(entries: Entries) -> None:
    stage(entries, 0)
    with pytest.raises(ConfigError, match=r"batch 0 of the sink is already staged.*Union the DataFrames") as caught:
        stage(entries, 0)
    with pytest.raises(ConfigError) as next_one:
        stage(entries, 1)
    assert next_one.value is caught.value
    assert [unstaged.error for unstaged in entries.unstaged] == [caught.value]


def test_of_calls_side_by_side_one_gets_in(entries: Entries) -> None:
    gate = threading.Barrier(8)
    let_in: list[int] = []
    entered: list[int] = []

    def call(number: int) -> None:
        gate.wait(60)
        with entries.entered("q", "r", 0, on_enter=lambda: let_in.append(number)):
            entered.append(number)
            gate.wait(60)  # the others come while it is busy

    def other(number: int) -> BaseException | None:
        try:
            call(number)
        except ConfigError as error:
            gate.wait(60)
            return error
        return None

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(other, range(8)))
    assert len(entered) == 1
    assert let_in == entered
    assert [error for number, error in enumerate(outcomes) if number in entered] == [None]
    assert sum(isinstance(error, ConfigError) for error in outcomes) == 7
    with pytest.raises(ConfigError):
        stage(entries, 1)


def test_batches_staged_by_the_winner_do_not_make_up_for_the_call_that_was_refused(entries: Entries) -> None:
    with entries.entered("q", "r", 0), contextlib.suppress(ConfigError):
        stage(entries, 0)
    with pytest.raises(ConfigError, match="batch 0"):
        stage(entries, 1)
    stage(entries, 0, run="restarted")
    stage(entries, 1, run="restarted")


def test_a_failed_batch_is_not_overtaken(entries: Entries) -> None:
    error = swallowed(entries, 7)
    for batch_id in (8, 9):
        with pytest.raises(StageFailedError) as caught:
            stage(entries, batch_id)
        assert caught.value is error
    assert [(unstaged.batch_id, unstaged.error) for unstaged in entries.unstaged] == [(7, error)]
    (note,) = error.__notes__
    assert note.startswith("wal-sink: batch 7 of the sink was not staged because of this")
    assert "restore the checkpoint to its state before this batch" in note


def test_a_failed_batch_that_is_staged_again_is_made_up_for(entries: Entries) -> None:
    swallowed(entries, 0)
    swallowed(entries, 0)
    stage(entries, 0)
    stage(entries, 1)
    assert entries.unstaged == []


@pytest.mark.parametrize("run", ["r", "restarted"])
def test_a_failure_is_remembered_over_a_restart_of_the_query(entries: Entries, run: str) -> None:
    swallowed(entries, 3)
    stage(entries, 2, run="restored")
    assert len(entries.unstaged) == 1
    with pytest.raises(StageFailedError):
        stage(entries, 4, run=run)


def test_another_query_is_not_held_up(entries: Entries) -> None:
    swallowed(entries, 0)
    stage(entries, 1, query="another", run="s")


def test_an_interruption_that_was_swallowed_is_told_as_undelivered(entries: Entries) -> None:
    interruption = swallowed(entries, 0, KeyboardInterrupt())
    with pytest.raises(UndeliveredError, match="batch 0 of the sink was not staged because of this") as caught:
        stage(entries, 1)
    assert caught.value.__cause__ is interruption


def test_a_call_whose_query_is_not_known_holds_up_every_other_batch(entries: Entries) -> None:
    for number in range(2):
        with pytest.raises(StageFailedError), entries.unknown(4 + number):
            raise StageFailedError(f"who calls? {number}")
    for batch_id in (3, 5):
        with pytest.raises(StageFailedError, match=r"who calls\? 0"):
            stage(entries, batch_id)
    with entries.unknown(4):
        pass
    stage(entries, 4)
    stage(entries, 5)
    assert entries.unstaged == []


def test_a_thread_that_still_stages_when_the_next_batch_comes_is_an_error_of_that_batch(entries: Entries) -> None:
    refused = pytest.raises(
        ConfigError, match="batch 1 of the sink follows batch 0, but another thread is still staging that batch"
    )
    with entries.entered("q", "r", 0), refused:
        stage(entries, 1)
    with pytest.raises(ConfigError, match="batch 1"):
        stage(entries, 2)
    stage(entries, 1)
    stage(entries, 2)


def test_what_a_thread_of_an_earlier_run_comes_to_counts_no_more(entries: Entries) -> None:
    def late(error: BaseException | None) -> Iterator[None]:
        with entries.entered("q", "r", 0):
            yield
            if error is not None:
                raise error

    for run, error in (("s", StageFailedError()), ("t", None)):
        zombie = late(error)
        next(zombie)
        stage(entries, 0, run=run)
        with contextlib.suppress(StageFailedError, StopIteration):
            next(zombie)
        assert entries.unstaged == []
        assert entries.run is not None
        assert entries.run.run_id == run


def test_two_sinks_on_one_wal_do_not_share_a_run(entries: Entries, wal: str) -> None:
    stage(entries, 0)
    stage(Entries("the sink of another query", wal), 0, query="another", run="of another")
    anew = Entries("another sink", wal)
    with pytest.raises(
        ConfigError, match=r"batch 1 of another sink belongs to a run .* another WalSink of this process"
    ):
        stage(anew, 1)
    stage(Entries("the sink of another log", wal + "-2"), 1)
    stage(anew, 1, run="restarted")
    with pytest.raises(ConfigError, match="another WalSink"):
        stage(entries, 2, run="restarted")
