"""One sink object is one sink's: under two names, in two `WalSink`s or in two calls at a time it is refused."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.house.sinks import SinkContext
from tests.house.support import CallTimedOutError, ThreadCall
from tests.integration.runtime.test_process_assumptions import in_child
from tests.support.waiting import PATIENCE_S
from wal_sink import Chunk, ConfigError, Delivery, Sink, WalSink, wrap
from wal_sink.operate.replay import DeadLetters
from wal_sink.sinks.held import hold, holding, objects_of, refuse_shared
from wal_sink.support.calls import InUseError


class Memory(Sink):
    """Knows for whom it was opened last, as a sink with a connection does."""

    def __init__(self, inner: object = None) -> None:
        self.inner = inner
        self.name = ""

    def open(self, context: SinkContext) -> None:
        self.name = context.sink

    def write(self, chunk: Chunk) -> None:
        """Nothing shows here."""


class Writer:
    def process(self, row: object) -> None:
        """A writer as Spark's `foreach` takes it."""


def function(chunk: Chunk) -> None:
    """Keeps nothing."""


class Calling:
    def __call__(self, chunk: Chunk) -> None:
        """Could keep anything."""

    def method(self, *_: Any) -> None:
        """The same."""


SINK, WRITER, CALLABLE = Memory(), Writer(), Calling()
SHARED = [
    pytest.param(SINK, SINK, "Memory", id="a sink"),
    pytest.param(SINK, Delivery(SINK), "Memory", id="in a Delivery"),
    pytest.param(SINK, Memory(SINK), "Memory", id="in another sink"),
    pytest.param(CALLABLE, CALLABLE, "Calling", id="a callable object"),
    pytest.param(CALLABLE, CALLABLE.method, "Calling", id="its method"),
    pytest.param(functools.partial(CALLABLE.method, 1), CALLABLE, "Calling", id="a partial of its method"),
    pytest.param([].append, functools.partial([].append), "", id="two lists"),
    pytest.param(wrap.foreach_writer(WRITER), wrap.foreach_writer(WRITER), "Writer", id="wrapped twice"),
    pytest.param(wrap.foreach_batch(CALLABLE.method), wrap.foreach_batch(CALLABLE.method), "Calling", id="batches"),
    pytest.param(function, function, "", id="a function"),
    pytest.param(functools.partial(function), function, "", id="a partial of it"),
    pytest.param(print, print, "", id="a builtin"),
    pytest.param(Memory(), Memory(), "", id="two sinks"),
]


@pytest.mark.parametrize(("first", "second", "shared"), SHARED)
def test_an_object_under_two_names_is_refused_and_a_plain_function_is_not(
    first: object, second: object, shared: str
) -> None:
    def made() -> WalSink:
        return WalSink({"a": first, "b": second}, wal="memory://held", checkpoint="/nowhere")

    if not shared:
        made()
        return
    told = f"sink 'b' was given a {shared} object that sink 'a' already uses: rows of one"
    with pytest.raises(ConfigError, match=told):
        made()


def opened(tmp_path: Path, name: str, to: object) -> WalSink:
    return WalSink(to, wal=str(tmp_path / name), checkpoint=str(tmp_path / f"checkpoint-{name}"))


def test_an_object_in_two_walsinks_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    sink = Memory()
    first, second = opened(tmp_path, "first", sink), opened(tmp_path, "second", sink)
    with first:
        with pytest.raises(ConfigError, match=r"WalSink\(wal='.*second'.*\) was given a Memory object that .*first'"):
            second.drain()
        assert not (tmp_path / "second").exists()
        first.drain()
    with second:
        second.drain()
    with opened(tmp_path, "first", sink) as again:
        again.drain()


def test_what_is_refused_holds_none_of_its_objects() -> None:
    first, second = Memory(), Memory()
    release = hold([second], "one")
    with pytest.raises(ConfigError, match="other was given a Memory object that one already uses"):
        hold([first, second], "other")
    with holding(first, "third"):
        pass
    release()
    release()
    with holding(second, "third"):
        pass


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.processes
def test_what_a_parent_holds_does_not_bind_its_child() -> None:
    sink = Memory()

    def tried() -> str:
        with holding(sink, "the child"), pytest.raises(ConfigError, match="that the child already uses"):
            hold([sink], "another of the child")
        release()
        return "held"

    release = hold([sink], "the parent")
    assert in_child(tried) == "held"
    release()


def test_every_object_in_an_object_is_found() -> None:
    first, second, third = Memory(), Memory(), Memory()
    first.inner = third
    outer = Memory(first)
    outer.other = second  # type: ignore[attr-defined]

    assert {id(thing) for thing in objects_of(outer)} == {id(thing) for thing in (outer, first, second, third)}


class Busy:
    """Its method waits until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def wait(self) -> str:
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)
        return "done"


def test_a_call_beside_one_that_was_left_behind_is_not_made() -> None:
    busy, other, callers = Busy(), Busy(), [ThreadCall() for _ in range(3)]
    other.let_go.set()
    with pytest.raises(CallTimedOutError):
        callers[0].call(busy.wait, timeout_s=0.05)
    assert busy.entered.wait(PATIENCE_S)
    with pytest.raises(InUseError, match="an earlier call of this Busy is still running, so this call was not made"):
        callers[1].call(busy.wait, timeout_s=PATIENCE_S)
    assert callers[2].call(other.wait, timeout_s=PATIENCE_S) == "done"
    busy.let_go.set()
    assert eventually(lambda: callers[1].call(busy.wait, timeout_s=PATIENCE_S) == "done")
    for caller in callers:
        caller.close()


def eventually(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            return holds()
        except InUseError:
            threading.Event().wait(0.01)
    return False


def test_a_walsink_that_cannot_be_opened_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.walsink.current_session", lambda: None)  # other tests of this process may have one
    sink = Memory()
    with pytest.raises(ConfigError, match="there is no Spark session"):
        opened(tmp_path, "first", Delivery(sink, where="executors")).drain()
    with opened(tmp_path, "second", sink) as second:
        second.drain()


def test_a_replay_is_refused_what_a_walsink_holds(tmp_path: Path) -> None:
    sink = Memory()
    with opened(tmp_path, "first", sink) as first:
        first.drain()
        letters = DeadLetters(str(tmp_path / "first"))
        with pytest.raises(ConfigError, match=r"the replay of sink 'default' of .* was given a Memory object that Wal"):
            letters.replay(sink)
    letters.replay(sink)


def test_an_object_that_is_held_stays_so_that_no_other_one_gets_its_id() -> None:
    sink = Memory()
    found = weakref.ref(sink)
    release = hold([sink], "one")

    del sink
    gc.collect()
    assert found() is not None

    release()
    gc.collect()
    assert found() is None


def test_objects_are_found_once_though_they_stand_in_each_other() -> None:
    inner = Memory()
    outer = Memory(inner)
    inner.inner = outer
    assert objects_of(outer) == [outer, inner]
    refuse_shared({"a": outer})
    hold([*objects_of(outer), *objects_of(outer)], "one")()


@Sink.register
class WithoutAttributes:
    """Has no attributes in which another sink could stand."""

    __slots__ = ()


def test_a_sink_without_attributes_stands_for_itself() -> None:
    sink = WithoutAttributes()

    assert objects_of(sink) == [sink]
