"""Hooks that raise, wait or close: none keeps a run from its end, and none is called while the teller holds a lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.house.log import paths
from tests.house.protocol import CommitterPool, Run
from tests.house.sinks import Chunk
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM, Began, Collected, Ended, Event, Events, GaveUp, Marked, Replayed, Staged
from tests.simulation.histories.lives import lower_retention
from tests.support.small_run import Place, Recorder, numbers
from tests.support.traced_locks import TracedLocks
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import Delivery, DeliveryError, PermanentError, Rejected, Settings, WalSink
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.telemetry import Delivered, SlowStore
from wal_sink.testing import FakeQuery


def refuse(_: Chunk) -> None:
    raise PermanentError("no such table")


class Home:
    """A WAL on disk with complete batches, and what drains it."""

    def __init__(self, folder: Path, batches: int = 2) -> None:
        self.wal, self.checkpoint = str(folder / "wal"), str(folder / "checkpoint")
        self.store = open_store(StoreSpec(self.wal))
        checkpoint = open_store(StoreSpec(self.checkpoint))
        run = Run(self.store, checkpoint, Settings())
        run.open()
        run.become_stager()
        list(FakeQuery(checkpoint, lambda batch_id, _: [numbers(batch_id, 2)]).batches(run, batches))

    def sink(self, to: object, on_event: Callable[[Event], object], **given: Any) -> WalSink:
        delivery = Delivery(to, start_from="earliest", where="driver", on_rejected="dead_letter")
        return WalSink({"a": delivery}, wal=self.wal, checkpoint=self.checkpoint, on_event=on_event, **given)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


SHORT_S = 0.05


def pool_of(to: object, on_event: Callable[[Event], object], ended: list[str], **delivery: Any) -> CommitterPool:
    place = Place()
    run = place.open({"a": to}, runtime=SYSTEM, on_event=on_event, **delivery)
    for _ in place.query().batches(run, 1):
        continue
    stopping = threading.Event()
    object.__setattr__(run.shared, "pause", stopping.wait)
    return CommitterPool(run, stopping=stopping, on_failure=lambda: ended.append("query"))


class Ends(BaseException):
    """An exception that no `except Exception` catches."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Ends(), KeyboardInterrupt(), SystemExit(2)], ids=repr)
def test_a_hook_that_raises_anything_keeps_no_run_from_its_end(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(event: Event) -> None:
        if isinstance(event, GaveUp):
            raise error

    ended: list[str] = []
    pool = pool_of(refuse, hook, ended)
    pool.start()
    pool.follow(PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert pool.stop(PATIENCE_S), "a second stop changes nothing"
    assert ended == ["query"]
    assert isinstance(pool.error, DeliveryError)
    assert "on_event raised" in caplog.text


@pytest.mark.parametrize("on_failure", ["stop", "park"])
def test_a_hook_that_does_not_return_keeps_no_run_from_its_end(
    on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    let_go, called = threading.Event(), threading.Event()

    def hook(event: Event) -> None:
        if isinstance(event, GaveUp):
            called.set()
            assert let_go.wait(PATIENCE_S)

    ended: list[str] = []
    pool = pool_of(refuse, hook, ended, on_failure=on_failure)
    pool.start()
    pool._over.wait(PATIENCE_S / 2)
    assert pool._over.is_set(), "nobody ends the run while the hook waits"
    assert called.wait(PATIENCE_S)
    assert ended == (["query"] if on_failure == "stop" else [])
    assert "the delivery to sink a failed" in caplog.text or "sink a is parked" in caplog.text
    let_go.set()
    assert pool.stop(PATIENCE_S)


A, B = Replayed("w", batch=1), Replayed("w", batch=1)


def has_end_record(home: Home, number: int = 1) -> bool:
    return paths.ended(paths.committer_role("a"), number).rpartition("/")[2] in home.store.list(
        paths.terms(paths.committer_role("a"))
    )


class Waits:
    """A hook that does not return from one event before it is let go. It notes all events."""

    def __init__(self, kind: type[Event], batch: int) -> None:
        self.kind, self.batch = kind, batch
        self.called, self.let_go = threading.Event(), threading.Event()
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, self.kind) and getattr(event, "batch", None) == self.batch:
            self.called.set()
            assert self.let_go.wait(PATIENCE_S)


def test_a_run_that_was_left_because_of_a_hook_ends_once_the_hook_returns(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without this, no record said that it ended, and its sink was in use for ever."""
    hook, to = Waits(Delivered, 0), Recorder()
    sink = home.sink(to, hook)
    sink._open()
    assert hook.called.wait(PATIENCE_S)
    monkeypatch.setattr("wal_sink.spark.committers.GRACE_S", SHORT_S)
    monkeypatch.setattr("wal_sink.spark.committers.CANCEL_S", SHORT_S)
    sink._end_early()
    assert "a call of a sink or of on_event is still running" in caplog.text
    assert not has_end_record(home)
    with pytest.raises(ConfigError, match="already uses"):
        home.sink(to, print)._open()

    hook.let_go.set()
    wait_until(lambda: any(isinstance(event, Ended) for event in hook.events))
    assert has_end_record(home)
    with home.sink(to, print) as again:
        again.drain()


def test_ctrl_c_in_a_hook_is_raised_on_the_main_thread_only(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_: Event) -> None:
        raise KeyboardInterrupt

    events = Events("memory://x", [hook])
    with pytest.raises(KeyboardInterrupt):
        events.tell(Replayed, batch=1)
    thread = threading.Thread(target=lambda: events.tell(Replayed, batch=1))
    thread.start()
    thread.join(PATIENCE_S)
    assert "on_event raised KeyboardInterrupt" in caplog.text


class Closing:
    """A hook that closes the `WalSink` at some events."""

    def __init__(self, *kinds: type[Event]) -> None:
        self.kinds = kinds
        self.sink: WalSink | None = None
        self.errors: list[BaseException] = []
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, self.kinds) and self.sink is not None:
            for call in (self.sink.close, self.sink.drain):
                try:
                    call()
                except WalSinkError as error:
                    self.errors.append(error)


@pytest.mark.parametrize("kind", [Delivered, GaveUp])
def test_a_close_on_the_thread_of_a_committer_is_refused_and_the_run_ends_as_ever(
    home: Home, kind: type[Event]
) -> None:
    hook = Closing(kind)
    sink = hook.sink = home.sink(refuse if kind is GaveUp else Recorder(), hook)
    if kind is GaveUp:
        with pytest.raises(DeliveryError, match="no such table"), sink:
            sink.drain(follow=True, timeout_s=PATIENCE_S)
    else:
        with sink:
            sink.drain()
    assert hook.errors
    assert all(isinstance(error, ConfigError) for error in hook.errors)
    assert "close() was called on a thread that delivers" in str(hook.errors[0])
    assert "drain() was called on a thread that delivers" in str(hook.errors[1])
    assert [type(event) for event in hook.events][-1] is Ended
    assert paths.ended(paths.committer_role("a"), 1).rpartition("/")[2] in home.store.list("terms/committer-a")


def test_a_close_by_another_thread_while_a_hook_waits_ends_the_run(home: Home) -> None:
    """The committer's own call is refused before it waits for the close that waits for it."""
    inside = threading.Event()
    hook = Closing(Delivered)

    def first(event: Event) -> None:
        if isinstance(event, Delivered):
            inside.set()
            wait_until(lambda: sink._closing_waits)  # type: ignore[attr-defined]
        hook(event)

    sink = home.sink(Recorder(), first)
    hook.sink = sink
    closing = sink._closing

    class Watched:
        def __enter__(self) -> None:
            closing.acquire()
            sink._closing_waits = True  # type: ignore[attr-defined]

        def __exit__(self, *_: object) -> None:
            closing.release()

    sink._closing_waits = False  # type: ignore[attr-defined]
    sink._closing = Watched()  # type: ignore[assignment]
    drainer = threading.Thread(target=sink.drain)
    drainer.start()
    assert inside.wait(PATIENCE_S)
    closer = threading.Thread(target=sink.close)
    closer.start()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    drainer.join(PATIENCE_S)
    assert hook.errors


class Watching:
    """A hook that notes the locks which its thread holds."""

    def __init__(self, locks: TracedLocks) -> None:
        self.locks = locks
        self.held: dict[str, list[str]] = {}

    def __call__(self, event: Event) -> None:
        self.held.setdefault(type(event).__name__, []).extend(self.locks.held)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    monkeypatch.setattr(
        "wal_sink.stores.measured.SLOW_S", -1.0
    )  # every request is slow: the first ones are under locks
    return Watching(TracedLocks(monkeypatch))


def test_a_whole_life_tells_no_event_while_its_thread_holds_a_lock(tmp_path: Path, watching: Watching) -> None:
    home = Home(tmp_path, 30)

    def some(chunk: Chunk) -> object:
        if chunk.batch_id == 29:
            raise PermanentError("no")
        return Rejected({0: "bad"}) if chunk.batch_id == 1 else None

    sink = home.sink(some, watching, settings=lower_retention(4))
    with pytest.raises(DeliveryError), sink:
        sink.drain(follow=True, timeout_s=PATIENCE_S)
    assert watching.locks.made > 8
    wanted = {Began, Collected, Delivered, Ended, GaveUp, Marked, SlowStore}
    assert {kind.__name__ for kind in wanted} <= set(watching.held)
    assert {kind: held for kind, held in watching.held.items() if held} == {}


def test_a_close_and_a_refused_start_tell_no_event_while_their_thread_holds_a_lock(
    tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    with home.sink(Recorder(), watching) as sink:
        sink.drain()
    first = dict(watching.held)
    watching.held.clear()

    def refuse_to_open(_: Run, __: object) -> None:
        raise ConfigError("planned")

    monkeypatch.setattr(Run, "_warn_of_unserved", refuse_to_open)
    with pytest.raises(ConfigError, match="planned"):
        home.sink(Recorder(), watching).drain()
    assert {"Began", "Ended", "SlowStore"} <= set(first)
    assert {"Ended", "SlowStore"} <= set(watching.held)
    assert not any((*first.values(), *watching.held.values())), (first, watching.held)


def test_a_stager_tells_no_event_while_its_thread_holds_a_lock(watching: Watching) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, on_event=watching), 3)
    assert Staged.__name__ in watching.held
    assert not any(watching.held.values())


def test_a_run_begins_to_deliver_after_its_begin_is_told(home: Home) -> None:
    kinds: list[str] = []

    def hook(event: Event) -> None:
        if isinstance(event, Began):
            threading.Event().wait(0.3)
        kinds.append(type(event).__name__)

    with home.sink(Recorder(), hook) as sink:
        sink.drain()
    assert kinds[0] == "Began"
    assert kinds[-1] == "Ended"


def test_a_queued_event_is_told_before_the_next_one_and_only_once() -> None:
    heard: list[Event] = []
    events = Events("memory://x", [heard.append])
    events.tell_later(Replayed, batch=1)
    assert heard == []
    events.tell(Replayed, batch=2)
    events.tell_queued()
    assert [event.batch for event in heard] == [1, 2]  # type: ignore[attr-defined]
