"""A user's sink with a point before and after each call, at which its process can die or the call can fail.

While it sends, each line of the sink's own code is such a point too. So a sink that sends several requests for one
chunk can be interrupted between them. This needs neither a hook in the target nor a special client.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from wal_sink.sinks.base import (
    BatchCommit,
    BatchSink,
    CommitSink,
    Lookup,
    SegmentSink,
    Sink,
    StagedSegment,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.chunk import Chunk
from wal_sink.support.texts import name_of

T = TypeVar("T")
OnLine = Callable[[str], None]
"""A function that is called before each line runs, with the line. Its exceptions are raised in the line."""

_CORE = f"{Path(__file__).resolve().parents[1]}/"


class OwnLines:
    """The lines of a sink: of its class's methods, or of its function, and of functions of their module that they call.

    All other code, classes of that module included, belongs to a client or to the target. It is not interrupted,
    because a target may do in one atomic step what takes several lines in a fake of it.
    """

    def __init__(self, sink: object) -> None:
        self._own = frozenset(_own_names(sink))
        self._known: dict[CodeType, str] = {}

    def call(self, function: Callable[..., T], *args: object, on_line: OnLine) -> T:
        """Call a method of the sink on this thread. Debuggers and coverage tools see nothing of the call."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                on_line(_place(frame))
                return trace
            return trace if self._is_own(frame) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return next(_apart(function, args))
        finally:
            sys.settrace(before)

    def _is_own(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        if (known := self._known.get(frame.f_code)) is None:
            known = self._known[frame.f_code] = self._kind(frame.f_code)
        return known == "own" or (known == "helper" and self._is_own(frame.f_back))

    def _kind(self, code: CodeType) -> str:
        if any(code.co_filename == file and _is_in(code.co_qualname, name) for file, name in self._own):
            return "own"
        return "helper" if _is_of_module(code) and any(code.co_filename == file for file, _ in self._own) else ""


def _apart(function: Callable[..., T], args: tuple[object, ...]) -> Iterator[T]:
    """Call the function in a generator, since a generator has a separate state of handled exceptions.

    If a trace function raises at the beginning of an `except` clause, the handled exception stays in that state.
    Without the generator it would become the context of everything that this thread raises later.
    """
    yield function(*args)


def _is_in(name: str, function: str) -> bool:
    return name == function or name.startswith(f"{function}.<locals>.")


def _is_of_module(code: CodeType) -> bool:
    """Tell whether the code is a function that a module defines, or a comprehension in one."""
    name, *inner = code.co_qualname.split(".<locals>.")
    return name != "<module>" and "." not in name and all(part.startswith("<") for part in inner)


def _own_names(sink: object) -> Iterator[tuple[str, str]]:
    """Yield file and qualified name of each function that belongs to the sink. Functions of the core do not."""
    yield from _names_in(sink)
    if type(sink).__module__.partition(".")[0] == "wal_sink":  # it wraps the user's function or writer
        for part in vars(sink).values():
            yield from _names_in(part)


def _names_in(part: object) -> Iterator[tuple[str, str]]:
    members = (member for kind in type(part).__mro__ for member in vars(kind).values())
    for member in (part, *members):
        function: Any = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and not code.co_filename.startswith(_CORE):
            yield code.co_filename, code.co_qualname


def _place(frame: FrameType) -> str:
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{code.co_qualname}, line {frame.f_lineno}: {text}"


SENDING = ("write", "begin", "prepare", "commit", "abort")
"""Calls in which a sink sends. In these, each line of the sink's own code is a point."""


_READING = ("was_applied", "last", "positions", "position")
CALLS = ("open", "write", "write_segment", "write_batch", *_READING, *SENDING[1:], "close")
"""All calls that are points."""


class Watcher(Protocol):
    """An observer of every point. Its exceptions are raised at the point."""

    lines: bool
    """Whether each line of the sink's own code is a point too, while the sink sends."""

    def point(self, what: str, where: str) -> None:
        """Observe one point."""


class _Calls:
    """The calls of one sink, until its process dies."""

    def __init__(self, sink: Any, watcher: Watcher) -> None:
        self._sink = sink
        self._watcher = watcher
        self._lines = OwnLines(sink) if watcher.lines else None

    def __call__(self, name: str, where: str, *args: object) -> Any:
        self._watcher.point(f"before {name}", where)
        method: Callable[..., Any] = getattr(self._sink, name)
        if self._lines is not None and name.startswith(SENDING):
            returned = self._lines.call(method, *args, on_line=self._line)
        else:
            returned = method(*args)
        self._watcher.point(f"after {name}", where)
        return returned

    def _line(self, place: str) -> None:
        self._watcher.point("inside", place)

    def die(self) -> None:
        """Drop the sink without a call of `close`, as the end of a process does."""
        self._sink = None
        self._lines = None


def _passed(name: str, where: Callable[..., str] = lambda *_: "") -> Any:
    """A method that passes its call on to the user's sink. `where` names the place from the arguments."""

    def method(self: Any, *args: Any) -> Any:
        return self.calls(name, where(*args), *args)

    return method


def _of(chunk: Chunk) -> str:
    if not isinstance(chunk.rows, range):
        return f"of {chunk.num_rows} rows of batch {chunk.batch_id}"
    ordinal = chunk.position.slot.rpartition("/")[2]
    return f"of rows {chunk.rows.start} to {chunk.rows.stop} of segment {ordinal} of batch {chunk.batch_id}"


def _of_transaction(transaction: Transaction, *_: str) -> str:
    return f"of segment {transaction.partition}-{transaction.file_index} of batch {transaction.batch_id}"


class WatchedSink(Sink):
    """A sink that passes each call to the user's sink. `watched` makes one of the same kind."""

    def __init__(self, sink: Sink, watcher: Watcher) -> None:
        self._name = name_of(sink)
        self.calls = _Calls(sink, watcher)
        self.idempotent = sink.idempotent
        self.driver_only = True
        if isinstance(sink, Lookup):
            self.was_applied = self._was_applied

    open = _passed("open", lambda context: f"for batch {context.batch_id}")
    write = _passed("write", _of)
    close = _passed("close")
    _was_applied = _passed("was_applied", str)

    def describe(self) -> str:
        return self._name


class _WatchedLedger(WatchedSink, TransactionalSink):
    last = _passed("last", str)
    positions = _passed("positions", lambda slots: f"of {len(slots)} slots")


class _WatchedSegments(WatchedSink, SegmentSink):
    write_segment = _passed("write_segment", lambda ordinal, batch_id, _: f"segment {ordinal} of batch {batch_id}")


class _WatchedTwoPhase(WatchedSink, TwoPhaseSink):
    def __init__(self, sink: TwoPhaseSink, watcher: Watcher) -> None:
        super().__init__(sink, watcher)
        self.keep_segments, self.on_gone = sink.keep_segments, sink.on_gone

    begin = _passed("begin", _of_transaction)
    prepare = _passed("prepare")
    commit = _passed("commit", _of_transaction)
    abort = _passed("abort", _of_transaction)


def _of_commit(given: StagedSegment | BatchCommit) -> str:
    return f"of batch {given.batch_id}" if isinstance(given, BatchCommit) else f"of {given.rows} rows"


class _WatchedCommit(WatchedSink, CommitSink):
    prepare = _passed("prepare", _of_commit)
    position = _passed("position")
    commit = _passed("commit", _of_commit)


class WatchedBatches(BatchSink):
    """A writer of whole batches that passes each call to the user's writer."""

    def __init__(self, sink: BatchSink, watcher: Watcher) -> None:
        self._name = name_of(sink)
        self.calls = _Calls(sink, watcher)
        self.idempotent = sink.idempotent

    write_batch = _passed("write_batch", lambda batch: f"of batch {batch.batch_id}")

    def describe(self) -> str:
        return self._name


Watched = WatchedSink | WatchedBatches


def watched(sink: Sink | BatchSink, watcher: Watcher) -> Watched:
    """Wrap a sink so that `watcher` sees every call. The result is a sink of the same kind."""
    if isinstance(sink, BatchSink):
        return WatchedBatches(sink, watcher)
    if isinstance(sink, TransactionalSink):
        return _WatchedLedger(sink, watcher)
    if isinstance(sink, TwoPhaseSink):
        return _WatchedTwoPhase(sink, watcher)
    if isinstance(sink, CommitSink):
        return _WatchedCommit(sink, watcher)
    if isinstance(sink, SegmentSink):
        return _WatchedSegments(sink, watcher)
    return WatchedSink(sink, watcher)
