"""The committer threads of one run: started, woken, finished or left together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wal_sink.errors import DeliveryError, UndeliveredError
from wal_sink.protocol.committer_thread import CommitterThread
from wal_sink.protocol.run import Run
from wal_sink.support.calls import within
from wal_sink.support.events import GaveUp, StreamHeld, StreamResumed
from wal_sink.support.logs import RAISED_TOO, logger_of
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import said_once, text_of, told

END_S = 5.0
"""How long the end of a run waits until a store has the records that it ended."""

_logger = logger_of(__name__)


class CommitterPool:
    """The threads of a run, one per sink, so that a slow or failing sink holds back no other."""

    def __init__(
        self,
        run: Run,
        *,
        stopping: threading.Event,
        on_failure: Callable[[], None],
    ) -> None:
        self.run = run
        self._stopping = stopping
        self._on_failure = on_failure
        self._over = threading.Event()
        """Set once following must end: every sink gave up, one failed, or the run is ending."""
        self._has_ended = False
        self._threads = [
            CommitterThread(run, committer, on_failure=self._note, tell=self._tell) for committer in run.committers
        ]

    def start(self, *, whole_batches: bool = False) -> None:
        """Deliver what earlier runs left: to the sinks of whole batches, which need a session, or to the others."""
        for thread in self._threads:
            if thread.committer.served_sink.dispatcher.whole_batch == whole_batches:
                thread.start()

    @property
    def summary(self) -> str:
        """The batches that went to each sink in this run, and where they began."""
        return ", ".join(thread.summary for thread in self._threads) or "batches were only staged"

    def running(self) -> list[str]:
        """The names of the threads that run."""
        return [thread.thread_name for thread in self._threads if thread.is_running]

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is a committer's, for which the end of the run waits."""
        return any(thread.runs_here for thread in self._threads)

    @property
    def is_caught_up(self) -> bool:
        """Whether every sink has the batches that earlier runs left, or gave up."""
        return all(thread.caught_up.is_set() for thread in self._threads)

    def wait_caught_up(self) -> None:
        """Wait until every sink that has begun has the batches that earlier runs left, or gave up."""
        for thread in self._threads:
            if thread.is_running or not thread.committer.served_sink.dispatcher.whole_batch:
                thread.caught_up.wait()

    def wake(self) -> None:
        """Begin to poll, since a batch was staged, or a query started."""
        for thread in self._threads:
            thread.wake()

    def follow(self, timeout_s: float | None) -> None:
        """Deliver the batches of other processes until a failure ends the run, all sinks gave up, or time runs out."""
        self.begin_following()
        try:
            self._over.wait(timeout_s)
        finally:
            for thread in self._threads:
                thread.end_following()

    def begin_following(self) -> None:
        """Deliver the batches of another process from now on, until `finish` or `stop`. Returns at once."""
        for thread in self._threads:
            thread.follow()

    def catch_up(self, timeout_s: float | None) -> None:
        """Deliver all complete batches. Raises `UndeliveredError` when time ran out."""
        for thread in self._threads:
            thread.catch_up()
        self._wait_delivered(timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Deliver all complete batches, then end all threads. Raises `UndeliveredError` when time ran out."""
        self._over.set()
        for thread in self._threads:
            thread.finish()
        self._wait_delivered(timeout_s)

    def stop(self, grace_s: float) -> bool:
        """Finish the chunks in hand and keep the rest; False if a thread was still busy after `grace_s` seconds.

        Once no thread is busy any more, a record says that this run no longer serves its sinks. Waits `END_S` for it.
        """
        self._over.set()
        self._stopping.set()
        for thread in self._threads:
            thread.leave()
        deadline = self._deadline_s(grace_s)
        if not all(thread.join(self._left_s(deadline)) for thread in self._threads):
            return False
        if not self._has_ended:
            self._has_ended = True
            self._end_in_time()
        return True

    def _end_in_time(self) -> None:
        """Leave the records of the end, or go on without them: a store that does not answer would hold up the end."""
        is_late = threading.Event()

        def end() -> None:
            self.run.end()
            if is_late.is_set():  # else the caller tells them
                self.run.log.events.tell_queued()

        try:
            within(END_S, "wal-sink-end", end)
        except TimeoutError:
            is_late.set()
            _logger.warning(
                "%s: the store did not record the end of this process within %g s. The process ends without this "
                "record, so the next command may need --take-over",
                self.run.log.store.root,
                END_S,
            )

    def end_later(self, then: Callable[[], None]) -> None:
        """Record the end once the threads that `stop` left have ended, then call `then`. Returns at once."""

        def end() -> None:
            for thread in self._threads:
                thread.join(None)
            self._has_ended = True
            self.run.end()
            then()
            self.run.log.events.tell_queued()

        with suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            threading.Thread(target=end, name="wal-sink-end-later", daemon=True).start()

    @property
    def error(self) -> BaseException | None:
        """The error on which the first committer gave up without being parked; None if none did."""
        return next((thread.error for thread in self._threads if thread.error and not thread.parked), None)

    def raise_error(self) -> None:
        """Raise `error`, if there is one."""
        if (error := self.error) is not None:
            raise error

    @property
    def parked(self) -> dict[str, BaseException]:
        """Sinks that gave up while the run goes on, and their errors."""
        return {thread.committer.shown: thread.error for thread in self._threads if thread.parked and thread.error}

    def refuse_parked(self, wal: str) -> None:
        """Raise `UndeliveredError` if sinks are parked; it names each. `wal`: the URL of the log, for the message."""
        told = []
        for name, error in self.parked.items():
            said = f"sink {name!r} of {wal} is parked, because its delivery failed: {_said(name, error)}"
            if isinstance(error, DeliveryError) and "start the query or command again" not in said:
                said += (
                    ". The WAL keeps the rows of this sink. Repair the target, then start the query or command again"
                )
            told.append(said)
        if told:
            raise UndeliveredError("; and ".join(told)) from None  # the errors' texts are in this one

    def has_room(self, batch_id: int, wal: str) -> bool:
        """Whether the undelivered batches before this one are within the limit.

        Raises `UndeliveredError` if only parked sinks could make room.
        """
        batches, _ = self.run.history.pending(before=batch_id)
        most = self.run.settings.max_pending_batches
        if most is None or batches < most:
            return True
        if self.waits_for_parked_only(before=batch_id):
            self.refuse_parked(wal)
        return False

    @contextmanager
    def told_to_wait(self, batch_id: int) -> Iterator[None]:
        """Tell that the stream waits for room for a batch while the block runs, and then that it does not any more."""
        tell, began_s = self.run.log.events.tell, self._now_s()
        batches, size = self.run.history.pending(before=batch_id)
        tell(StreamHeld, batch=batch_id, pending_batches=batches, pending_bytes=size)
        try:
            yield
        finally:
            tell(StreamResumed, batch=batch_id, waited_s=self._now_s() - began_s)

    def waits_for_parked_only(self, *, before: int) -> bool:
        """Whether every known batch below `before` is delivered to all sinks but parked ones."""
        newest = min(self.run.history.newest_known, before - 1)
        return bool(self.parked) and all(
            thread.parked or thread.committer.marked_through >= newest for thread in self._threads
        )

    def _wait_delivered(self, timeout_s: float | None) -> None:
        deadline = self._deadline_s(timeout_s)
        for thread in self._threads:
            if not thread.wait_caught_up(self._left_s(deadline)):
                when = "before the run was ended" if timeout_s is None else f"within {timeout_s:g} s"
                raise UndeliveredError(
                    f"sink {thread.committer.shown!r} of {self.run.log.store.root}: not all complete batches were "
                    f"delivered {when} (delivered through batch {thread.committer.marked_through}). The WAL keeps the "
                    "other batches. Start the query or command again, or allow more time"
                )

    def _note(self, thread: CommitterThread) -> None:
        name = thread.committer.shown
        if thread.parked:
            _logger.error("sink %s is parked, the other sinks continue: %s", name, _said(name, thread.error))
            if all(other.parked for other in self._threads):
                self._over.set()
        else:
            _logger.error("the delivery to sink %s failed: %s", name, _said(name, thread.error), extra=RAISED_TOO)
            self._end_run(name)

    def _tell(self, thread: CommitterThread) -> None:
        """Tell that a sink gave up, as the last thing, since a hook may not return."""
        events, name, error = self.run.log.events, thread.committer.name, thread.error
        if events.is_heard:
            kind, said = type(error).__name__, redacted(_said(thread.committer.shown, error))
            events.tell(GaveUp, sink=name, parked=thread.parked, kind=kind, error=said)

    def _end_run(self, failed: str) -> None:
        self._over.set()
        try:
            self._on_failure()
        except Exception as problem:  # noqa: BLE001 - no caller; stage() and close() raise the first error
            _logger.error("after the delivery to sink %s failed: %s", failed, told(problem))  # noqa: TRY400

    def _deadline_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._now_s() + timeout_s

    def _left_s(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else max(0.0, deadline_s - self._now_s())

    def _now_s(self) -> float:
        return self.run.log.runtime.monotonic_s()


def _said(name: str, error: BaseException | None) -> str:
    """The text of an error without the name of the sink, which the message has already."""
    head = f"sink {name!r}: "
    return said_once(f"{head}{text_of(error)}").removeprefix(head)
