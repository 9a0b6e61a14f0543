"""The thread a committer lives on. It asks the gate only while it waits for something; idle, it costs no request.

A plain daemon thread: one that inherits from the stream's thread would die with `query.stop()` (measured).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from wal_sink.committer import Committer
from wal_sink.errors import DeliveryError
from wal_sink.run import Run
from wal_sink.serving import StoppedError

FIRST_POLL_S = 0.01
LONGEST_POLL_S = 1.0
LONGEST_FOLLOWING_POLL_S = 5.0
SEARCH_EVERY_POLLS = 8
"""How often a later entry is looked for: Spark deletes old entries of its checkpoint."""

_logger = logging.getLogger(__name__)


class CommitterThread:
    """Drives one committer until it is told to finish, or gives up."""

    def __init__(self, run: Run, committer: Committer, *, on_failure: Callable[[CommitterThread], None]) -> None:
        self._run = run
        self._committer = committer
        self._follow = False
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._finishing = threading.Event()
        self._polls = 0
        self._thread = threading.Thread(target=self._work, name=f"wal-sink-committer-{committer.name}", daemon=True)
        self.caught_up = threading.Event()
        """Set once there was nothing left to do, or the thread ended."""
        self.error: BaseException | None = None

    @property
    def committer(self) -> Committer:
        return self._committer

    @property
    def has_ended(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def parked(self) -> bool:
        """Whether its sink gave up and the run goes on without it; what is wrong with WAL or run parks nothing."""
        return isinstance(self.error, DeliveryError) and self._committer.serving.delivery.on_failure == "park"

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """A batch was staged: begin to poll for its completion."""
        self._polls = 0
        self._wake.set()

    def follow(self) -> None:
        """From now on keep asking: another process stages."""
        self._follow = True
        self.wake()

    def finish(self) -> None:
        """Deliver what is complete now, then end."""
        self._finishing.set()
        self._wake.set()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end; False if time ran out."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._drive()
        except StoppedError:
            _logger.info("sink %s: stopped; what is not delivered stays in the WAL", self._committer.name)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread must reach the user's own
            self.error = error
            self.caught_up.set()  # before the query is stopped, whose thread may wait for somebody who waits for this
            self._on_failure(self)
        finally:
            self.caught_up.set()

    def _drive(self) -> None:
        just_searched = False
        while True:
            finishing = self._finishing.is_set()
            search = not just_searched if finishing else self._is_time_to_search()
            if self._run.deliver_next(self._committer, search=search):
                self._polls = 0
                just_searched = search or just_searched
                continue
            self.caught_up.set()
            if finishing and search:
                return
            just_searched = False
            if not finishing:
                self._wait()

    def _wait(self) -> None:
        self._wake.wait(self._poll_s())
        self._wake.clear()
        self._run.shared.sleep_s(0)
        self._polls += 1

    def _poll_s(self) -> float | None:
        """How long until the gate is asked again; None: until somebody wakes this thread."""
        longest = LONGEST_FOLLOWING_POLL_S if self._follow else LONGEST_POLL_S
        if self._follow or self._is_pending():
            return min(longest, FIRST_POLL_S * 2.0 ** min(self._polls, 16))
        return None

    def _is_time_to_search(self) -> bool:
        if self._follow and self._run.history.wal is None:
            return True
        return self._polls % SEARCH_EVERY_POLLS == SEARCH_EVERY_POLLS - 1

    def _is_pending(self) -> bool:
        batch_id = self._committer.next_batch()
        return batch_id is not None and self._run.history.is_pending(batch_id)
