"""`Events`: the way of an event from the core to the hooks of a user."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Concatenate, ParamSpec

from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import told
from wal_sink.telemetry.events import Event

OnEvent = Callable[[Event], object]
"""A hook. It runs on the thread that does the work, so it should return at once."""

_logger = logger_of(__name__)
_P = ParamSpec("_P")


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
