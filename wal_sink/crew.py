"""The committer threads of one run, as one: started, woken, finished or left together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from wal_sink.errors import UndeliveredError, WalSinkError
from wal_sink.run import Run
from wal_sink.threads import CommitterThread

_logger = logging.getLogger(__name__)


class Crew:
    """Every sink of a run on a thread of its own, so that a slow or failing one holds back no other."""

    def __init__(self, run: Run, *, stopping: threading.Event, on_failure: Callable[[], None]) -> None:
        self._run = run
        self._stopping = stopping
        self._on_failure = on_failure
        self._failed = threading.Event()
        self._threads = [CommitterThread(run, committer, on_failure=self._note) for committer in run.committers]

    def start(self, timeout_s: float | None = None) -> None:
        """Start, and wait until what earlier runs left is delivered, a committer gave up, or time ran out."""
        for thread in self._threads:
            thread.start()
        deadline = None if timeout_s is None else self._now_s() + timeout_s
        for thread in self._threads:
            thread.caught_up.wait(None if deadline is None else max(0.0, deadline - self._now_s()))

    def wake(self) -> None:
        """A batch was staged."""
        for thread in self._threads:
            thread.wake()

    def follow(self, timeout_s: float | None) -> None:
        """Deliver what other processes stage, until a committer stops the run, all are parked, or time runs out."""
        for thread in self._threads:
            thread.follow()
        self._failed.wait(timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Deliver what is complete, then end all threads. Raises `UndeliveredError` when time ran out."""
        for thread in self._threads:
            thread.finish()
        deadline = None if timeout_s is None else self._now_s() + timeout_s
        for thread in self._threads:
            left = None if deadline is None else max(0.0, deadline - self._now_s())
            if not thread.join(left):
                raise UndeliveredError(
                    f"sink {thread.committer.name!r} of {self._run.log.store.root}: not everything complete was "
                    f"delivered within {timeout_s:g} s (delivered through batch "
                    f"{thread.committer.marked_through}). The rest is kept in the WAL; start again, or allow more time"
                )

    def stop(self, grace_s: float) -> bool:
        """Finish the chunks in hand and keep the rest; False if a thread was still busy after `grace_s` seconds."""
        self._stopping.set()
        for thread in self._threads:
            thread.finish()
        deadline = self._now_s() + grace_s
        joined = [thread.join(max(0.0, deadline - self._now_s())) for thread in self._threads]
        return all(joined)

    @property
    def is_over(self) -> bool:
        """Whether every thread came to its end without giving up."""
        return all(thread.has_ended and thread.error is None for thread in self._threads)

    @property
    def error(self) -> BaseException | None:
        """What the first committer that did not park gave up on."""
        return next((thread.error for thread in self._threads if thread.error and not thread.parked), None)

    @property
    def parked(self) -> dict[str, BaseException]:
        """Sinks that gave up while the run goes on, and why."""
        return {thread.committer.name: thread.error for thread in self._threads if thread.parked and thread.error}

    def is_waiting_for_parked_only(self, before: int) -> bool:
        """Whether every batch below `before` is delivered to all sinks but parked ones."""
        return bool(self.parked) and all(
            thread.parked or thread.committer.marked_through >= before - 1 for thread in self._threads
        )

    def _note(self, thread: CommitterThread) -> None:
        name = thread.committer.name
        if thread.parked:
            _logger.error("sink %s is parked, the others go on: %s", name, thread.error)
            if all(other.parked for other in self._threads):
                self._failed.set()
            return
        _logger.error("sink %s gave up: %s", name, thread.error)
        self._failed.set()
        try:
            self._on_failure()
        except (
            WalSinkError
        ) as problem:  # this thread has no caller; the next stage() and close() raise what it gave up on
            _logger.error("after sink %s gave up: %s", name, problem)  # noqa: TRY400 - the message says it all

    def _now_s(self) -> float:
        return self._run.log.runtime.monotonic_s()
