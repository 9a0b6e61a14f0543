"""The committer's thread: it waits without asking, wakes, finishes, gives up, and never pretends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.house.protocol import CommitterThread, Run
from tests.house.sinks import Chunk
from tests.house.support import SYSTEM, DirectCall
from tests.support.forgetting import Forgetful, Target
from tests.support.small_run import Place, Recorder
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import CorruptError, DeliveryError
from wal_sink.protocol import committer_thread as threads
from wal_sink.protocol.committer_thread import FIRST_POLL_S
from wal_sink.settings import Delivery
from wal_sink.testing import FaultyStore


def committing(run: Run, failed: Callable[[CommitterThread], None] = lambda _: None) -> CommitterThread:
    thread = CommitterThread(run, run.committers[0], on_failure=failed)
    thread.start()
    return thread


def ended(thread: CommitterThread) -> None:
    thread.finish()
    assert thread.join(PATIENCE_S)


def wait_idle(thread: CommitterThread) -> None:
    """Wait until it waits to be woken, or for its next poll."""
    waiters: Any = vars(thread._changed)["_waiters"]
    wait_until(lambda: bool(waiters), "the thread waits")


def test_a_batch_is_delivered_while_the_query_runs_once_it_is_complete() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    thread.wake()
    time.sleep(0.1)
    assert sink.chunks == []

    query.complete_batch(0)

    wait_until(lambda: sink.batches == [0])
    ended(thread)


def test_a_batch_of_another_driver_does_not_keep_back_those_that_follow_it() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    wait_until(thread.caught_up.is_set)
    other = place.open({}, runtime=SYSTEM)
    query = place.query()
    next(query.batches(other, 1))
    run.become_stager()
    query.start_batch(1, 1)
    query.stage(run, 1)
    thread.wake()
    query.complete_batch(1)

    wait_until(lambda: sink.batches == [0, 1])
    ended(thread)


def test_what_an_earlier_process_completes_after_this_one_looked_is_delivered_without_a_new_batch() -> None:
    place, sink = Place(), Recorder()
    earlier = place.query()
    earlier.start_batch(0, 0)
    earlier.stage(place.open({}, runtime=SYSTEM), 0)
    run = place.open({"a": Delivery(sink, start_from="earliest")}, runtime=SYSTEM)
    thread = committing(run)
    wait_until(thread.caught_up.is_set)
    run.become_stager()
    thread.wake()
    time.sleep(4 * FIRST_POLL_S)
    assert sink.chunks == []

    earlier.complete_batch(0)

    wait_until(lambda: sink.batches == [0])
    ended(thread)


def test_finishing_searches_the_checkpoint_when_it_begins_and_when_nothing_more_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    for _ in place.query().batches(run, 5):
        continue
    searches: list[list[int]] = []
    search = run.gate.search

    def noted() -> int:
        searches.append(sink.batches)
        return search()

    monkeypatch.setattr(run.gate, "search", noted)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)

    ended(thread)

    assert sink.batches == [0, 1, 2, 3, 4]
    assert searches == [[], [0, 1, 2, 3, 4]]


def test_finishing_finds_what_was_completed_while_it_delivered() -> None:
    place = Place()
    query = place.query()

    def complete_another(chunk: Chunk) -> None:
        if chunk.batch_id < 3:
            next(query.batches(run, chunk.batch_id + 2))

    sink = Recorder(complete_another)
    run = place.open({"a": sink}, runtime=SYSTEM)
    next(query.batches(run, 1))

    ended(CommitterThread(run, run.committers[0], on_failure=lambda _: None))

    assert sink.batches == [0, 1, 2, 3]


def test_only_at_the_end_the_target_is_asked_whether_it_still_has_what_is_marked() -> None:
    place, target = Place(), Target()
    run = place.open({"a": Forgetful(target)}, runtime=SYSTEM)
    thread = committing(run)
    next(place.query().batches(run, 1))
    thread.catch_up()
    assert thread.wait_caught_up(PATIENCE_S)
    target.forget()

    thread.catch_up()
    assert thread.wait_caught_up(PATIENCE_S)
    assert thread.error is None
    ended(thread)

    assert "batch 0 was delivered and marked, but the target holds nothing" in str(thread.error)


def test_a_thread_that_has_caught_up_ends_and_a_new_batch_wakes_it_again() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    query = place.query()
    next(query.batches(run, 1))
    thread = committing(run)

    thread.catch_up()

    assert thread.wait_caught_up(PATIENCE_S)
    assert thread.join(PATIENCE_S)
    assert sink.batches == [0]
    next(query.batches(run, 2))
    thread.wake()
    wait_until(lambda: sink.batches == [0, 1])
    ended(thread)


def test_catching_up_does_not_wait_for_what_is_not_complete_nor_give_it_up() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    thread.catch_up()
    assert thread.wait_caught_up(PATIENCE_S)

    query.complete_batch(0)

    wait_until(lambda: sink.batches == [0])
    ended(thread)


def test_of_a_run_that_is_ending_nobody_is_told_that_all_was_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    place, stopping = Place(), threading.Event()
    run = place.open({"a": Recorder()}, runtime=SYSTEM)
    monkeypatch.setattr(run, "shared", replace(run.shared, pause=stopping.wait))
    next(place.query().batches(run, 1))
    stopping.set()
    thread = committing(run)

    thread.catch_up()

    assert not thread.wait_caught_up(PATIENCE_S)
    assert thread.error is None


def test_an_uncompleted_last_batch_is_no_error_and_waits_for_the_next_start() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    thread.wake()

    ended(thread)

    assert sink.chunks == []
    assert thread.error is None


def test_giving_up_is_told_once_and_kept_as_the_error() -> None:
    told: list[CommitterThread] = []
    place = Place()
    run = place.open({"a": Recorder(lambda _: False)}, runtime=SYSTEM)
    thread = committing(run, told.append)
    next(place.query().batches(run, 1))
    thread.wake()

    assert thread.join(PATIENCE_S)

    assert told == [thread]
    assert isinstance(thread.error, DeliveryError)
    assert thread.caught_up.is_set(), "nobody may wait for it for ever"


def test_callers_of_catch_up_are_released_before_the_failure_is_handled() -> None:
    released: list[bool] = []
    place = Place()
    run = place.open({"a": Recorder(lambda _: False)}, runtime=SYSTEM)
    next(place.query().batches(run, 1))
    thread = committing(run, lambda failed: released.append(failed.caught_up.is_set() and failed.error is not None))

    assert thread.join(PATIENCE_S)

    assert released == [True]


@pytest.mark.parametrize(("policy", "parked"), [("park", True), ("stop", False)])
def test_a_sink_that_gave_up_is_parked_only_where_it_is_allowed(policy: str, parked: bool) -> None:
    place = Place()
    sink = Delivery(Recorder(lambda _: False), on_failure=policy)  # type: ignore[arg-type]
    run = place.open({"a": sink}, runtime=SYSTEM)
    next(place.query().batches(run, 1))
    thread = committing(run)

    assert thread.join(PATIENCE_S)

    assert thread.parked is parked


@pytest.mark.parametrize(("policy", "parked"), [("park", True), ("stop", False)])
def test_a_sink_whose_batch_lost_an_object_is_parked_like_one_that_gave_up(policy: str, parked: bool) -> None:
    place, other = Place(), Recorder()
    sink = Delivery(Recorder(), on_failure=policy)  # type: ignore[arg-type]
    run = place.open({"a": other, "b": sink}, runtime=SYSTEM)
    batches = place.query().batches(run, 2)
    next(batches)
    while run.advance(run.committers[0]):
        continue
    place.wal.delete([path for path in place.wal.list("", recursive=True) if path.endswith(".parquet")])
    thread = CommitterThread(run, run.committers[1], on_failure=lambda _: None)
    thread.start()
    thread.finish()

    assert thread.join(PATIENCE_S)

    assert isinstance(thread.error, CorruptError)
    assert thread.parked is parked
    next(batches)
    assert run.advance(run.committers[0])
    assert other.batches == [0, 1]


def test_a_system_exit_in_a_sink_fails_its_batch_for_good_and_ends_no_program() -> None:
    def leave(_: object) -> object:
        raise SystemExit(3)

    place = Place()
    run = place.open({"a": Recorder(leave)}, runtime=SYSTEM)
    next(place.query().batches(run, 1))
    thread = committing(run)

    assert thread.join(PATIENCE_S)

    assert isinstance(thread.error, DeliveryError)
    assert "called sys.exit(3)" in str(thread.error)
    assert place.wal.list("sinks/a/markers") == []


def test_a_commit_that_spark_deleted_is_found_through_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONGEST_POLL_S", FIRST_POLL_S)  # some polls pass before it looks back
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    for _ in place.query().batches(run, 2):
        continue
    place.checkpoint.delete(["commits/0"])
    thread = committing(run)
    thread.wake()

    wait_until(lambda: sink.batches == [0, 1])
    ended(thread)


def test_a_committer_runs_on_a_daemon_thread_and_not_on_the_callers() -> None:
    threads: list[threading.Thread] = []
    place = Place()
    sink = Recorder(lambda _: threads.append(threading.current_thread()))
    run = place.open(
        {"a": sink}, runtime=replace(SYSTEM, new_timed_call=DirectCall)
    )  # else the sink has another thread
    next(place.query().batches(run, 1))

    ended(committing(run))

    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon
    assert threads[0].name == "wal-sink-committer-a"


def test_a_thread_that_follows_a_wal_without_batches_finds_the_first_that_another_process_stages() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    thread.follow()

    other = place.open({}, runtime=SYSTEM)
    list(place.query().batches(other, 2))

    wait_until(lambda: sink.batches == [0, 1])
    thread.end_following()
    ended(thread)


def test_a_batch_that_spark_completes_at_once_costs_three_reads_of_the_checkpoint() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    thread = committing(run)
    query = place.query()
    next(query.batches(run, 1))
    thread.wake()
    wait_until(lambda: sink.batches == [0])
    wait_idle(thread)  # else it may ask for the next batch between its staging and its completion
    asked: list[str] = []
    run.checkpoint._files = FaultyStore(place.checkpoint, lambda what, path: asked.append(f"{what} {path}"))

    for batch_id in (1, 2, 3):
        next(query.batches(run, batch_id + 1))
        thread.wake()
        wait_until(lambda: sink.batches == list(range(batch_id + 1)))  # noqa: B023 - it is called at once
        wait_idle(thread)

    per_batch = ("commits", "offsets", "offsets")  # the last when its release is confirmed
    reads = [what.removeprefix("before read ") for what in asked if what.startswith("before ")]
    assert sorted(reads) == sorted(f"{what}/{batch_id}" for batch_id in (1, 2, 3) for what in per_batch)
    ended(thread)


def test_a_batch_before_the_newest_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_POLL_S", 3600.0)
    place, sink = Place(), Recorder()
    run = place.open({"a": sink}, runtime=SYSTEM)
    query = place.query()
    next(query.batches(run, 1))
    query.start_batch(1, 1)
    query.stage(run, 1)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)

    thread.wake()

    wait_until(lambda: sink.batches == [0])
    ended(thread)


def test_where_the_system_gives_no_thread_nobody_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = CommitterThread(run := Place().open({"a": Recorder()}), run.committers[0], on_failure=lambda _: None)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            thread.start()

    assert thread.caught_up.is_set()
    thread.finish()
    assert thread.wait_caught_up(None), "it has given up, for ever"
    assert str(thread.error) == "can't start new thread"
    assert thread.join(None)


def test_a_caller_who_asks_during_the_last_look_waits_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    place, asked = Place(), threading.Event()

    def slow(chunk: Chunk) -> None:
        if chunk.batch_id == 1:
            time.sleep(0.3)

    sink = Recorder(slow)
    run = place.open({"a": sink}, runtime=SYSTEM)
    query = place.query()
    next(query.batches(run, 1))
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    is_open, looks = run.gate.is_open, []

    def ask_after_look(batch_id: int) -> bool:
        found = is_open(batch_id)
        if batch_id == 1 and not found:
            looks.append(batch_id)
            if len(looks) == 2:  # the last look of the answer that is due
                next(query.batches(run, 2))
                thread.catch_up()
                asked.set()
        return found

    monkeypatch.setattr(run.gate, "is_open", ask_after_look)
    thread.catch_up()
    assert asked.wait(PATIENCE_S)
    assert thread.wait_caught_up(PATIENCE_S)
    delivered = list(sink.batches)
    thread.finish()
    assert thread.join(PATIENCE_S)
    assert delivered == [0, 1]
