"""Events of a run, and `Events`: their way from the core to the hooks of a user.

Each is a frozen value that names the WAL by its URL, without credentials.

Texts of errors are those of the log: secrets are masked where the text is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from wal_sink.support.logs import logger_of
from wal_sink.support.measures import OperationTimes, Times
from wal_sink.support.texts import told

_logger = logger_of(__name__)
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a run did or met. Every event is of a subclass."""

    wal: str
    """URL of the log, without credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfSink(Event):
    sink: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfBatch(Event):
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfBatchAndSink(_OfSink):
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(_OfSink):
    """From now on this run delivers to a sink."""

    next_batch: int | None
    """The first batch that the sink does not have; None if the WAL has no batch yet."""
    newest_batch: int
    """The newest batch that the WAL holds; -1 if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(_OfSink):
    """This run no longer delivers to a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(_OfBatch):
    """A batch is in the WAL. It is delivered once Spark has completed it."""

    attempt: int
    rows: int
    bytes: int
    """Bytes of the segments."""
    segments: int
    took_s: float
    """Seconds from the begin of the attempt to its manifest, Spark's job included."""
    staged_at: float | None
    """Time of the manifest, in seconds since 1970, by the clock of this process; None if it cannot be read."""
    requests: tuple[OperationTimes, ...] = ()
    """Requests of the staging tasks; none unless metrics are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(_OfBatch):
    """Spark runs a released batch again. Its rows are evaluated and not staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeld(_OfBatch):
    """The stream waits inside `foreachBatch`, because `max_pending_batches` is reached."""

    pending_batches: int
    pending_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResumed(_OfBatch):
    """The stream waits no longer: there is room for the batch, or the run is ending."""

    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(_OfBatchAndSink):
    """The delivery of a batch to a sink begins: Spark completed the batch, and its release exists."""

    rows: int
    bytes: int
    staged_at: float | None
    """Time of the manifest, in seconds since 1970, by the clock of the process that staged; None if it is unknown."""
    complete_through: int
    """The newest batch that this run knows to be complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(_OfBatchAndSink):
    """Some segments of a batch were sent, in the driver or in one Spark job; a part of them may have failed."""

    segments: int
    rows: int
    """Rows that arrived, as far as this run knows."""
    chunks: int
    """Chunks that the sink took and the log recorded."""
    took_s: float
    failure: str
    """Kind of the first failure, such as `retriable` or `unknown`; empty if there was none."""
    chunk_times: tuple[Times, ...] = ()
    """Times of the calls that sent a chunk; none unless metrics are on."""
    requests: tuple[OperationTimes, ...] = ()
    """Requests of the executors; none unless metrics are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(_OfBatchAndSink):
    """A sink refused rows, which were kept as dead letters."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(_OfSink):
    """An attempt to deliver the next batch to a sink failed."""

    batch: int | None
    """None if the WAL has no batch yet."""
    attempt: int
    """Number of attempts since the last progress."""
    max_attempts: int
    next_in_s: float | None
    """Seconds until the next attempt; None if the budget is spent."""
    kind: str
    """Kind of the failure, such as `retriable`, or the class of an error of wal-sink, such as `StoreError`."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(_OfBatchAndSink):
    """A sink has every row of a batch. The marker follows."""

    rows: int
    took_s: float
    """Seconds since the delivery began in this process, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked(_OfBatchAndSink):
    """A marker stands for a batch, and for those of its group."""

    batches: int
    rows: int
    rejected: int
    """Rows of the batch that are kept as dead letters because the sink refused them."""
    unknown: int
    """Rows of the batch that are kept as dead letters because their outcome is unknown."""
    delays_s: tuple[float, ...]
    """For each batch whose time is known: seconds from its manifest to the marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDelivered(_OfBatchAndSink):
    """Another process has delivered a batch, so this run goes on after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Event):
    """Delivered batches were deleted, up to low water."""

    low_water: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStore(Event):
    """Some requests to the store took longer than a second. Told once a run, before the next event."""

    slow_requests: int
    last_requests: int
    """Number of requests among which they are."""
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(_OfSink):
    """The delivery to a sink ended with an error. The batches stay in the WAL."""

    parked: bool
    """Whether the other sinks of the run go on."""
    kind: str
    """Class of the error."""
    error: str


OnEvent = Callable[[Event], object]
"""A hook. It runs on the thread that does the work, so it should return at once."""


class Events:
    """Tells the events of one WAL to hooks. Without hooks it does nothing."""

    __slots__ = ("_failed", "_hooks", "_queued", "_wal", "measures")

    def __init__(self, wal: str = "", hooks: Sequence[OnEvent] = (), *, measures: bool = False) -> None:
        """`wal`: URL of the log without credentials. `measures`: whether tasks also count requests and time chunks."""
        self._wal = wal
        self._hooks = tuple(hooks)
        self._failed: set[int] = set()
        self._queued: deque[Event] = deque()
        self.measures = measures

    @property
    def is_heard(self) -> bool:
        """Whether there is a hook. Without one, a caller need not make the texts of an event."""
        return bool(self._hooks)

    def tell(self, event_type: Callable[Concatenate[str, _P], Event], /, *args: _P.args, **fields: _P.kwargs) -> None:
        """Make an event and pass it to the hooks, after those that are queued. Call it while no lock is held: a hook is
        a user's code.
        """
        if self._hooks:
            self.tell_queued()
            self._pass(event_type(self._wal, *args, **fields))

    def tell_later(
        self, event_type: Callable[Concatenate[str, _P], Event], /, *args: _P.args, **fields: _P.kwargs
    ) -> None:
        """Make an event for the next `tell` or `tell_queued`, where a caller may hold a lock."""
        if self._hooks:
            self._queued.append(event_type(self._wal, *args, **fields))

    def tell_queued(self) -> None:
        """Tell the events of `tell_later`. Call it while no lock is held."""
        while self._queued:
            with suppress(IndexError):  # another thread took it
                self._pass(self._queued.popleft())

    def _pass(self, event: Event) -> None:
        for number, hook in enumerate(self._hooks):
            try:
                hook(event)
            except BaseException as error:  # a user's code, which must not harm delivery
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                self._tell_failure(number, event, error)

    def _tell_failure(self, number: int, event: Event, error: BaseException) -> None:
        if number in self._failed:
            return
        self._failed.add(number)
        _logger.warning(
            "%s: on_event raised %s for %s. Delivery continues. This run does not log this again",
            self._wal,
            told(error),
            type(event).__name__,
        )


OFF = Events()
"""Tells nobody."""
