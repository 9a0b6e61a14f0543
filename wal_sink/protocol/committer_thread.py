"""The thread of a committer. It asks the gate only while a batch may become complete; idle, it costs no request.

It is a plain daemon thread: one that inherits from the stream's thread would die with `query.stop()` (measured).

`Liveness` is a local file that tells a supervisor that the committers of a process make progress. No request to a
store.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from wal_sink.errors import ConfigError, CorruptError, DeliveryError, WalSinkError
from wal_sink.protocol.committer import Committer
from wal_sink.protocol.run import Run
from wal_sink.support.clock import SYSTEM, Runtime, StoppedError
from wal_sink.support.logs import logger_of, logging_about

FIRST_POLL_S = 0.06
"""The first pause, after staging: on a local disk `commits/N` shows 36 to 93 ms later, half of them within 60
(measured). The pauses after it double, from half of it.
"""
LONGEST_POLL_S = 1.0
LONGEST_FOLLOWING_POLL_S = 5.0
LOOK_BACK_EVERY_POLLS = 8
"""How often a poll asks whether Spark may have deleted the awaited entry. If so, a later one is searched for."""
_MOST_DOUBLINGS = 16
"""More than it takes to the longest pause. The bound only keeps the power small."""
SEARCH_EVERY_POLLS = 1024
"""How often a poll searches in any case, since Spark may have died while it deleted: every 85 minutes of waiting."""
TOUCH_EVERY_S = 1.0
"""Shortest time between two touches."""
BEAT_EVERY_S = 5.0
"""Longest wait between two beats of a committer that waits for a retry. One that waits for a batch polls as often."""

_logger = logger_of(__name__)


class CommitterThread:
    """Drives one committer until it is told to finish, or gives up.

    Its thread ends when everything callers asked for is delivered and no poll is due. A later call starts a new thread,
    unless the committer gave up.
    """

    def __init__(
        self,
        run: Run,
        committer: Committer,
        *,
        on_failure: Callable[[CommitterThread], None],
        tell: Callable[[CommitterThread], None] = lambda _: None,
        changed: threading.Condition | None = None,
    ) -> None:
        self._run = run
        self._committer = committer
        self._on_failure = on_failure
        self._tell = tell
        self._changed = changed or threading.Condition()  # every wait is on it, so that a test can set the time
        self._thread: threading.Thread | None = None
        self._running = False
        self._woken = False
        self._follow = False
        self._finishing = False
        self._asked = 0  # how often callers asked for an answer
        self._heard = 0  # how many of these the thread has noticed
        self._answered = 0  # and how many it has answered
        self._released = False  # whether the caller who followed has left, and nobody came since
        self._polls = 0
        self._staged_s = -math.inf  # when a batch was last staged
        self._began_with = committer.next_batch()
        self.caught_up = threading.Event()
        """Set once nothing was left to deliver, or the thread ended."""
        self.error: BaseException | None = None

    @property
    def committer(self) -> Committer:
        return self._committer

    @property
    def thread_name(self) -> str:
        return f"wal-sink-committer-{self._committer.name}"

    @property
    def summary(self) -> str:
        """The batches that this sink got in this run."""
        wal, last = self._run.history.wal, self._committer.marked_through
        first = self._began_with if self._began_with is not None or wal is None else wal.first_batch
        if first is None or last < first:
            return f"sink {self._committer.shown!r} got no batch"
        got = f"batch {first}" if first == last else f"batches {first} to {last}"
        return f"sink {self._committer.shown!r} got {got}"

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    @property
    def is_running(self) -> bool:
        return self._running

    @property
    def parked(self) -> bool:
        """Whether its sink gave up, or its batch lost an object, and the run goes on. No other error parks a sink."""
        policy = self._committer.served_sink.delivery.on_failure
        return policy == "park" and isinstance(self.error, (CorruptError, DeliveryError))

    def start(self) -> None:
        """Deliver the batches that earlier runs left."""
        with self._changed:
            self._rouse()

    def wake(self) -> None:
        """Begin to poll, since a batch was staged, or a query started that may complete one."""
        with self._changed:
            self._polls = 0
            self._staged_s = self._now_s()
            self._rouse()

    def follow(self) -> None:
        """Keep polling from now on, because another process stages."""
        with self._changed:
            self._follow = True
            self._rouse()

    def end_following(self) -> None:
        """Poll for other processes no more, and end once no poll is due."""
        with self._changed:
            self._follow, self._released, self._woken = False, True, True
            self._changed.notify_all()

    def catch_up(self) -> None:
        """Deliver all complete batches, of other processes too. `wait_caught_up` waits for that."""
        with self._changed:
            self._ask()

    def finish(self) -> None:
        """Deliver all complete batches, then end, even if other batches are staged."""
        with self._changed:
            self._finishing = True
            self._ask()

    def leave(self) -> None:
        """Stop waiting, since the run is ending."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait_caught_up(self, timeout_s: float | None) -> bool:
        """Wait until all is done or the committer gave up; False if time ran out or the run ended."""
        with self._changed:
            asked = self._asked
            self._changed.wait_for(lambda: self._answered >= asked or not self._running, timeout_s)
            return self._answered >= asked or self.error is not None

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end; False if time ran out."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _ask(self) -> None:
        self._asked += 1
        self._rouse()

    def _rouse(self) -> None:
        self._woken, self._released = True, False
        self._changed.notify_all()
        if not self._running and self.error is None:
            thread = threading.Thread(target=self._work, name=self.thread_name, daemon=True)
            try:
                thread.start()  # it waits for the lock that is held here
            except RuntimeError as error:  # the system gives this process no more threads
                self.error = error
                self.caught_up.set()  # no caller may wait, since there is no thread
                raise
            self._thread, self._running = thread, True

    def _work(self) -> None:
        with logging_about(wal=self._run.log.store.root, sink=self._committer.name):
            try:
                self._drive_until_stopped()
            except BaseException as error:  # noqa: BLE001 - every error that ends this thread must reach the user's
                self._end(error)
                self._on_failure(self)  # now: it stops the query, whose thread may be waiting for this one
                self._tell(self)  # last: a hook may not return

    def _drive_until_stopped(self) -> None:
        try:
            self._drive()
        except StoppedError:
            self._committer.mark_delivered()
            self._end(None)
            _logger.info("sink %s: stopped; undelivered batches stay in the WAL", self._committer.shown)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self.error, self._running = error, False
            self.caught_up.set()
            self._changed.notify_all()

    def _drive(self) -> None:
        """Look for batches and wait, until everything that callers asked for is done and no poll is due.

        The steps have the numbers of docs/ARCHITECTURE.md. An error may end any of them, and ends the thread.
        """
        delivered = False
        while True:
            # 1. Listen: note what callers asked for.
            self._listen()

            # 2. Pause while the batch that is due cannot be complete yet. A caller's answer does not wait for that.
            if not self._is_answer_due and self._pauses():
                continue

            # 3. Look: deliver the next batch, perhaps after a search for later entries of the checkpoint. There is no
            #    search after a delivery, since an earlier one found all complete batches, and the gate remembers them.
            search = not delivered and (self._is_answer_due or self._find_out_whether_to_search())
            if search or self._is_look_due(after_delivery=delivered):
                delivered = self._look(search=search)
                if delivered or (self._is_answer_due and not search):
                    continue
                # 4. Confirm: at the run's last look, so that a caller that closes the run learns of lost rows.
                if self._is_answer_due and self._finishing:
                    self._committer.confirm_marked()

            # 5. Wait: tell callers that all is done, then wait to be woken or for the next poll.
            delivered = False
            if self._wait():
                return

    def _pauses(self) -> bool:
        """Wait until the batch that is due may be complete; False if it may be now."""
        early_s = self._early_s()
        if early_s <= 0:
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._woken, early_s)
        return True

    def _is_look_due(self, *, after_delivery: bool) -> bool:
        if self._is_answer_due:
            return True
        return not (self._has_all() if after_delivery else self._is_read_spent())

    def _look(self, *, search: bool) -> bool:
        """Deliver the next batch if it is complete. Returns whether it was delivered."""
        delivered = self._run.advance(self._committer, search=search, closes=self._is_answer_due)
        if delivered:
            self._polls = 0
        return delivered

    def _wait(self) -> bool:
        """Answer, then wait; True if the thread ends instead. It is all done under one lock, so that a later call
        either wakes this thread or starts a new one.
        """
        with self._changed:
            was_due = self._is_answer_due
            self._answer()
            poll_s = self._poll_s()
            if self._is_over(was_due=was_due, poll_s=poll_s):
                self._running = False
                return True
            if not self._changed.wait_for(lambda: self._woken, poll_s):
                self._polls += 1
            return False

    def _listen(self) -> None:
        """Note the calls made so far. Raises `StoppedError` if the run is ending."""
        with self._changed:
            self._woken, self._heard = False, self._asked
        self._run.shared.sleep_s(0)  # last: a run that ends from now on wakes this thread

    @property
    def _is_answer_due(self) -> bool:
        """Whether a caller was heard that waits until all complete batches are delivered."""
        return self._heard > self._answered

    def _answer(self) -> None:
        """Tell the callers that were heard that all is done."""
        self._answered = self._heard
        self.caught_up.set()
        self._changed.notify_all()

    def _is_over(self, *, was_due: bool, poll_s: float | None) -> bool:
        """Whether the thread ends: the run is finishing, or a caller has its answer or has left, and no poll is due."""
        all_heard = self._heard == self._asked
        needed = poll_s is not None or self._woken or not (was_due or self._released)
        return all_heard and (self._finishing or not needed)

    def _has_all(self) -> bool:
        """Whether the sink has every batch that is known to be staged, with a marker, and no other process is followed.

        A group may wait for a batch that was completed and never staged: Spark's offline repartition makes one.
        """
        return not (self._lacks_known() or self._follow or self._committer.has_unmarked)

    def _lacks_known(self) -> bool:
        """Whether the sink does not have every batch that is known to be staged."""
        batch_id = self._committer.next_batch()
        return batch_id is not None and batch_id <= self._run.history.newest_known

    def _early_s(self) -> float:
        """Seconds in which the gate cannot be open yet, since the batch that is due was staged only just now.

        A batch before the newest needs no such pause: Spark ran another batch after it, so it is complete.
        """
        newest = self._committer.next_batch() == self._run.history.newest_known
        return self._staged_s + FIRST_POLL_S - self._now_s() if newest else 0.0

    def _now_s(self) -> float:
        return self._run.log.runtime.monotonic_s()

    def _poll_s(self) -> float | None:
        """Seconds until the next read of the gate; None: until a caller wakes this thread."""
        longest = LONGEST_FOLLOWING_POLL_S if self._follow else LONGEST_POLL_S
        polls = [] if self._committer.rolls_in_s is None else [self._committer.rolls_in_s]
        if self._follow or self._is_pending():
            polls.append(min(longest, FIRST_POLL_S * 2.0 ** (min(self._polls, _MOST_DOUBLINGS) - 1)))
        return min(polls, default=None)

    def _find_out_whether_to_search(self) -> bool:
        """Find out whether to search for a later entry, which takes a listing. At most one read."""
        if self._polls % SEARCH_EVERY_POLLS == SEARCH_EVERY_POLLS - 1:
            return True
        try:
            if self._awaits_first():
                return self._run.history.poll_owner() is not None
            return self._is_time_to_look_back() and self._may_have_missed()
        except WalSinkError:
            return True  # the search meets the same error, and retries or raises it

    def _is_read_spent(self) -> bool:
        """Whether this poll's one read was spent on finding out whether to search. Only a thread that follows another
        process leaves it at one read: a batch of this process is urgent.
        """
        return self._follow and (self._awaits_first() or self._is_time_to_look_back())

    def _awaits_first(self) -> bool:
        return self._follow and self._run.history.wal is None

    def _is_time_to_look_back(self) -> bool:
        return self._polls % LOOK_BACK_EVERY_POLLS == LOOK_BACK_EVERY_POLLS - 1

    def _may_have_missed(self) -> bool:
        batch_id = self._committer.next_batch()
        return batch_id is None or self._run.gate.may_have_passed(batch_id)

    def _is_pending(self) -> bool:
        """Whether a staged batch awaits its completion by this run's query, or was completed just before it.

        Spark may complete a batch of an earlier process after this process looked and before its query did. Then Spark
        does not run the batch again, and no call would wake this thread for it.
        """
        return self._run.is_stager and self._lacks_known()


class Liveness:
    """The liveness file of one process. `beat` may be called from any thread.

    A committer beats whenever it comes by: at every look for a batch, before every chunk, and while it waits for a
    retry. The file is touched once every running committer has beaten since the last time. So a committer that is
    stuck, in a call that never returns or in a lock, keeps the file from being touched, also while the committers of
    other sinks go on.
    """

    def __init__(self, path: str, runtime: Runtime = SYSTEM) -> None:
        self._path = Path(path)
        self._runtime = runtime
        self._lock = threading.Lock()
        self._beaten: set[str] = set()
        self._touched_s = -math.inf
        self._has_warned = False

    def begin(self) -> None:
        """Touch the file at the start. Raises `ConfigError` if that is impossible."""
        try:
            if self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a directory")
            self._path.touch()
        except OSError as error:
            raise ConfigError(
                f"liveness_file={str(self._path)!r} (--liveness-file): this file cannot be touched: {error}. Choose a "
                "file in an existing folder that this process may write"
            ) from error

    def beat(self, name: str, running: Callable[[], Collection[str]]) -> None:
        """Note that `name` made progress. Touch the file if everyone did who is running."""
        with self._lock:
            self._beaten.add(name)
            if self._runtime.monotonic_s() - self._touched_s >= TOUCH_EVERY_S and self._beaten.issuperset(running()):
                self._touched_s = self._runtime.monotonic_s()
                self._beaten.clear()
                self._touch()

    def _touch(self) -> None:
        try:
            self._path.touch()
            self._has_warned = False
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("the liveness file %s cannot be touched any more: %s", self._path, error)
