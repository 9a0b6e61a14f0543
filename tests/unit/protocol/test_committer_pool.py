"""The committer threads of a run together: who gave up, who is parked, who is still busy when time runs out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.house.log import Holding, holder_of, paths
from tests.house.protocol import CommitterPool, CommitterThread
from tests.house.sinks import Chunk
from tests.house.support import SYSTEM, Ended, Event
from tests.support.small_run import Place, Recorder
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import ConfigError, DeliveryError, UndeliveredError
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.support.events import OnEvent
from wal_sink.testing import FaultyStore


def raising(error: Exception) -> Callable[[Chunk], object]:
    def fail(_: Chunk) -> object:
        raise error

    return fail


def failing(on_failure: str = "stop") -> Delivery:
    return Delivery(raising(ConnectionError("down")), retry=Retry(attempts=1), on_failure=on_failure)  # type: ignore[arg-type]


class Held:
    """A sink whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, chunk: Chunk) -> None:  # noqa: ARG002
        self.called.set()
        assert self.let_go.wait(PATIENCE_S)


class Team:
    """A pool of committers over some sinks, with complete batches to deliver."""

    def __init__(
        self,
        sinks: dict[str, object],
        *,
        batches: int = 1,
        on_failure: Callable[[], None] = lambda: None,
        settings: Settings | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.place = Place()
        self.run = self.place.open(sinks, runtime=SYSTEM, settings=settings, on_event=on_event)
        list(self.place.query().batches(self.run, batches))
        self.stopping = threading.Event()
        object.__setattr__(self.run.shared, "pause", self.stopping.wait)  # as a `WalSink` makes its run
        self.pool = CommitterPool(self.run, stopping=self.stopping, on_failure=on_failure)

    def end(self) -> None:
        self.stopping.set()
        assert self.pool.stop(PATIENCE_S)


def test_the_summary_says_who_got_which_batches() -> None:
    team = Team({"api": Recorder(), "down": failing("park")}, batches=3)
    assert team.pool.summary == "sink 'api' got no batch, sink 'down' got no batch"
    team.pool.start()
    team.pool.finish(PATIENCE_S)
    assert team.pool.summary == "sink 'api' got batches 0 to 2, sink 'down' got no batch"
    team.end()


def test_a_sink_of_whole_batches_begins_later_and_nobody_waits_for_it_before() -> None:
    chunks, whole = Recorder(), Recorder()
    team = Team({"chunks": chunks, "whole": whole})
    team.run.committers[1].served_sink.dispatcher.whole_batch = True  # type: ignore[misc]

    team.pool.start()
    team.pool.wait_caught_up()
    assert (chunks.batches != [], whole.batches) == (True, [])

    team.pool.start(whole_batches=True)
    team.pool.wait_caught_up()
    assert whole.batches == chunks.batches
    team.end()


def test_every_sink_has_all_complete_batches_once_the_pool_is_finished() -> None:
    first, second = Recorder(), Recorder()
    team = Team({"a": first, "b": second}, batches=3)
    team.pool.start()

    team.pool.finish(PATIENCE_S)

    assert first.batches == second.batches == [0, 1, 2]
    assert team.pool.error is None
    assert team.pool.parked == {}
    assert team.pool.is_caught_up
    assert team.pool.stop(PATIENCE_S)


def test_a_pool_that_follows_delivers_new_batches_until_it_is_finished() -> None:
    sink = Recorder()
    team = Team({"a": sink}, batches=1)
    team.pool.start()
    team.pool.begin_following()
    team.pool.wait_caught_up()
    list(team.place.query().batches(team.run, 3))
    wait_until(lambda: sink.batches == [0, 1, 2])
    list(team.place.query().batches(team.run, 4))

    team.pool.finish(PATIENCE_S)

    assert sink.batches == [0, 1, 2, 3]
    assert team.pool.stop(PATIENCE_S), "no thread goes on following"


def test_a_pool_that_followed_for_some_time_has_no_thread_that_polls_on() -> None:
    team = Team({"a": Recorder()}, batches=0)
    assert not team.pool.running()

    team.pool.follow(0.01)

    wait_until(lambda: not team.pool.running())
    team.end()


def test_a_sink_that_gives_up_ends_the_run_and_its_error_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    team = Team({"a": Recorder(), "b": failing()}, on_failure=lambda: told.append("stop the query"))
    team.pool.start()
    team.pool.wait_caught_up()

    team.pool.follow(PATIENCE_S)  # returns at once, since the run has ended

    assert isinstance(team.pool.error, DeliveryError)
    assert "the delivery to sink b failed: batch 0: delivery stopped after 1 attempts" in caplog.text
    (record,) = [vars(each) for each in caplog.records if "the delivery to sink b failed" in each.getMessage()]
    assert (record["wal"], record["sink"]) == (team.place.wal.root, "b")
    assert team.pool.parked == {}
    team.end()
    assert told == ["stop the query"]


def test_an_error_while_a_failure_is_handled_is_logged_and_does_not_hide_the_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def cannot_stop() -> None:
        raise ConfigError("the query cannot be stopped")

    team = Team({"b": failing()}, on_failure=cannot_stop)
    team.pool.start()
    team.pool.follow(PATIENCE_S)
    team.end()

    assert isinstance(team.pool.error, DeliveryError)
    assert "after the delivery to sink b failed: ConfigError: the query cannot be stopped" in caplog.text


def test_a_parked_sink_is_no_error_and_is_named_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    healthy = Recorder()
    team = Team({"a": healthy, "b": failing("park")}, on_failure=lambda: told.append("stop the query"))
    team.pool.start()
    team.pool.finish(PATIENCE_S)
    team.end()

    assert team.pool.error is None
    assert list(team.pool.parked) == ["b"]
    assert isinstance(team.pool.parked["b"], DeliveryError)
    assert healthy.batches == [0]
    assert told == []
    assert "sink b is parked, the other sinks continue" in caplog.text


def test_following_ends_once_every_sink_is_parked() -> None:
    team = Team({"a": failing("park"), "b": failing("park")})
    team.pool.start()

    team.pool.follow(None)

    assert sorted(team.pool.parked) == ["a", "b"]
    team.end()


# Room for more batches.


def staged(**limits: int) -> Team:
    """Two undelivered batches. No thread of a committer was started."""
    return Team({"a": Recorder()}, batches=2, settings=Settings(chunk_rows=2, **limits))  # type: ignore[arg-type]


def test_there_is_room_only_without_a_limit_or_below_it() -> None:
    assert staged().pool.has_room(2, "memory://wal")
    assert staged(max_pending_batches=3).pool.has_room(2, "memory://wal")
    assert not staged(max_pending_batches=2).pool.has_room(2, "memory://wal")
    assert staged(max_pending_batches=2).pool.has_room(1, "memory://wal")


def test_room_that_only_a_parked_sink_could_make_is_refused_with_its_reason() -> None:
    team = Team({"a": Recorder(), "b": failing("park")}, settings=Settings(chunk_rows=2, max_pending_batches=1))
    team.pool.start()
    team.pool.catch_up(PATIENCE_S)

    with pytest.raises(UndeliveredError) as caught:
        team.pool.has_room(1, "memory://the-wal")

    said = "sink 'b' of memory://the-wal is parked, because its delivery failed: batch 0: delivery stopped after 1 "
    assert str(caught.value).startswith(said)
    team.end()


# Waiting for parked sinks.


def test_only_parked_sinks_are_waited_for_once_the_others_have_everything() -> None:
    held = Held()
    team = Team({"a": held, "b": failing("park")}, batches=2)
    team.pool.start()
    team.pool._threads[1].caught_up.wait(PATIENCE_S)
    assert held.called.wait(PATIENCE_S)
    assert not team.pool.waits_for_parked_only(before=2)

    held.let_go.set()
    team.pool.catch_up(PATIENCE_S)

    assert team.pool.waits_for_parked_only(before=2)
    assert team.pool.waits_for_parked_only(before=9)
    team.end()


def test_only_batches_below_the_one_at_hand_are_waited_for() -> None:
    team = Team({"a": Recorder(), "b": failing("park")}, batches=2)
    with pytest.raises(DeliveryError):
        team.run.advance(team.run.committers[1])
    team.run.advance(team.run.committers[0])
    team.pool._threads[1].start()
    team.pool._threads[1].caught_up.wait(PATIENCE_S)

    assert team.pool.waits_for_parked_only(before=1)
    assert not team.pool.waits_for_parked_only(before=2)
    team.end()


def test_the_refusal_of_parked_sinks_repeats_neither_a_name_nor_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    error = DeliveryError("sink 'a': the target is full; free some space, then start the query or command again")
    monkeypatch.setattr(CommitterPool, "parked", property(lambda _: {"a": error, "b": ValueError("no")}))
    team = Team({"a": Delivery(Recorder())})
    with pytest.raises(UndeliveredError) as caught:
        team.pool.refuse_parked("memory://wal")
    assert str(caught.value) == (
        "sink 'a' of memory://wal is parked, because its delivery failed: the target is full; free some space, then "
        "start the query or command again; and sink 'b' of memory://wal is parked, because its delivery failed: no"
    )
    team.end()


# Time that runs out.


@pytest.mark.parametrize("until", [CommitterPool.catch_up, CommitterPool.finish])
def test_time_that_runs_out_names_the_sink_and_how_far_it_came(
    until: Callable[[CommitterPool, float | None], None],
) -> None:
    held = Held()
    team = Team({"a": Recorder(), "b": held}, batches=1)
    team.pool.start()
    assert held.called.wait(PATIENCE_S)

    with pytest.raises(UndeliveredError, match=r"sink 'b' of .*were delivered within 0\.05 s .*through batch -1\)"):
        until(team.pool, 0.05)

    assert not team.pool.is_caught_up
    held.let_go.set()
    team.end()


def test_finishing_a_run_that_was_ended_meanwhile_is_an_error() -> None:
    held = Held()
    team = Team({"a": held}, batches=2)
    team.pool.start()
    assert held.called.wait(PATIENCE_S)
    team.stopping.set()
    held.let_go.set()

    with pytest.raises(UndeliveredError, match="were delivered before the run was ended"):
        team.pool.finish(None)


def test_stopping_returns_whether_every_thread_stopped_in_time() -> None:
    held = Held()
    team = Team({"a": held, "b": Recorder()})
    team.pool.start()
    assert held.called.wait(PATIENCE_S)

    assert not team.pool.stop(0.05)
    assert team.stopping.is_set()

    held.let_go.set()
    assert team.pool.stop(PATIENCE_S)


def test_a_pool_that_is_stopped_twice_records_the_end_of_its_run_once() -> None:
    team, role = Team({"a": Recorder()}), paths.committer_role("a")
    assert team.pool.stop(PATIENCE_S)
    assert holder_of(team.run.log, role, 1).state is Holding.ENDED

    team.place.wal.delete([paths.ended(role, 1)])
    assert team.pool.stop(PATIENCE_S)

    assert holder_of(team.run.log, role, 1).state is not Holding.ENDED


def test_all_threads_share_the_time_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    team, now_s, given = Team({"a": Recorder(), "b": Recorder(), "c": Recorder()}), 100.0, list[float | None]()

    def slow(_: CommitterThread, timeout_s: float | None) -> bool:
        nonlocal now_s
        given.append(timeout_s)
        now_s += 3.0
        return True

    monkeypatch.setattr(CommitterThread, "join", slow)
    object.__setattr__(team.run.log, "runtime", replace(SYSTEM, monotonic_s=lambda: now_s))

    assert team.pool.stop(4.0)

    assert given == [4.0, 1.0, 0.0]


def test_the_end_waits_for_a_store_that_does_not_answer_only_a_short_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the record of the end would take as long as the store's client: minutes."""
    monkeypatch.setattr("wal_sink.protocol.committer_pool.END_S", 0.2)
    heard: list[Event] = []
    team = Team({"a": Recorder()}, on_event=heard.append)
    store, let_go = team.run.log.store, threading.Event()

    def silent(what: str, where: str) -> None:
        if what == "before create" and where == paths.ended(paths.committer_role("a"), 1):
            assert let_go.wait(PATIENCE_S)

    object.__setattr__(team.run.log, "store", FaultyStore(store, silent))
    team.pool.start()
    team.pool.wait_caught_up()

    assert team.pool.stop(PATIENCE_S)
    assert "the store did not record the end of this process within 0.2 s" in caplog.text
    assert not any(isinstance(event, Ended) for event in heard)

    let_go.set()  # a program that goes on gets the record and the event later
    wait_until(lambda: any(isinstance(event, Ended) for event in heard))
    assert holder_of(team.run.log, paths.committer_role("a"), 1).state is Holding.ENDED
    assert team.pool.stop(PATIENCE_S)


def test_a_run_whose_thread_is_still_busy_is_ended_later_by_a_thread_that_keeps_no_program_alive() -> None:
    held, over = Held(), threading.Event()
    team = Team({"a": held})
    team.pool.start()
    assert held.called.wait(PATIENCE_S)
    assert not team.pool.stop(0.05)

    team.pool.end_later(over.set)
    (waiting,) = [each for each in threading.enumerate() if each.name == "wal-sink-end-later"]
    assert waiting.daemon
    assert not over.is_set()

    held.let_go.set()
    assert over.wait(PATIENCE_S)
    role = paths.committer_role("a")
    assert holder_of(team.run.log, role, 1).state is Holding.ENDED
    team.place.wal.delete([paths.ended(role, 1)])
    assert team.pool.stop(PATIENCE_S)
    assert holder_of(team.run.log, role, 1).state is not Holding.ENDED, "it was ended already, and not twice"


def test_a_run_that_ends_with_the_interpreter_raises_nothing_and_leaves_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    team, over = Team({"a": Recorder()}), threading.Event()

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        team.pool.end_later(over.set)

    assert not over.is_set()
    assert holder_of(team.run.log, paths.committer_role("a"), 1).state is Holding.RUNNING
    team.end()
