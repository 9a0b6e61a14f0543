"""`RemoteQuery`: a query on a server of Spark Connect, as the client that started it sees it.

PySpark asks a server that is gone for some ten minutes. So each request runs on a daemon thread, and every wait for an
answer is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from wal_sink.errors import WalSinkError
from wal_sink.redaction import redacted
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import SYSTEM

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
_logger = logger_of(__name__)

ASK_EVERY_S = 30.0
"""The pause between two questions whether the query runs. A server ends a session that sends no request for an hour,
and the session's queries with it.
"""
STOP_WAIT_S = 120.0
"""How long `close` waits until the server confirms a stop. Delivery goes on meanwhile."""
LEAVE_WAIT_S = 10.0
"""The same for an end by an exception, where the committers have ended already."""
_POLL_S = 1.0
_NO_ANSWERS = frozenset({"SparkConnectGrpcException", "SparkConnectException"})
"""Classes of PySpark's errors for a request that no server answered, if they have no condition."""
_LOST = (
    *("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED"),
    *("STREAMING_QUERY_NOT_FOUND", "STREAMING_QUERY_RUN_ID_MISMATCH"),
)
"""Parts of the conditions with which a server says that it does not have this session or query any more."""


class RemoteQuery:
    """Asks whether the query runs, stops it, and keeps the error that ended it. Safe to share between threads."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._ended = threading.Event()
        """The query has ended, or its server does not have it any more."""
        self._failure: Exception | None = None
        self._wait_error: BaseException | None = None
        self._stop_asked_s: float | None = None
        self._stop_answered = threading.Event()
        self._refused: Exception | None = None
        self._is_silent = False
        self._is_awaited = False

    def watch(self) -> None:
        """Ask from now on whether the query runs, on a thread. That also keeps its session alive."""
        self._begin("watch", self._watch)

    def leave(self) -> None:
        """Ask no more: another query takes its place, or nobody waits for this one any more."""
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended, as its server said."""
        return self._ended.is_set()

    @property
    def failure(self) -> Exception | None:
        """The error of the query, or of the stop that its server did not confirm; None if there was none."""
        if self._failure is not None or self._ended.is_set():
            return self._failure
        if self._refused is not None:
            return self._refused
        return self._unconfirmed("no answer yet") if self._stop_asked_s is not None else None

    def raise_unconfirmed(self) -> None:
        """Raise `WalSinkError` if this client sent a stop and the query may still run."""
        if (failure := self.failure) is not None and not self._ended.is_set():
            raise failure

    # --- the end

    def wait_for_end(self) -> None:
        """Wait until the query ended. Raises its error.

        Returns also if this client sent a stop and the server does not answer; `failure` then says so.
        """
        self._is_awaited = True
        self._begin("wait-for", self._await)
        while not self._ended.wait(_POLL_S):
            if self._wait_error is not None:
                raise self._wait_error
            if self._stop_answered.is_set() or self._left_s(STOP_WAIT_S) <= 0:
                return
        if self._failure is not None:
            raise self._failure

    def ask_to_stop(self) -> None:
        """Send a stop if none is under way, and do not wait for its answer."""
        with self._lock:
            is_under_way = self._stop_asked_s is not None and self._refused is None
            if self._ended.is_set() or is_under_way:
                return
            self._refused = None
            self._stop_answered.clear()
            self._stop_asked_s = SYSTEM.monotonic_s()
        self._begin("stop", self._stop)

    def stop(self, wait_s: float) -> None:
        """Stop the query, and wait for the answer for at most `wait_s` seconds. Raises nothing: see `failure`."""
        self.ask_to_stop()
        if not self._ended.is_set():
            self._stop_answered.wait(max(0.0, self._left_s(wait_s)))

    def _left_s(self, wait_s: float) -> float:
        asked_s = self._stop_asked_s
        return wait_s if asked_s is None else asked_s + wait_s - SYSTEM.monotonic_s()

    # --- on threads

    def _begin(self, what: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=f"wal-sink-{what}-query", daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            try:
                if not self._query.isActive:
                    self._note_end(self._query.exception())
                self._is_silent = False
            except Exception as error:  # noqa: BLE001 - errors of gRPC and of PySpark
                self._note_problem(error)
        if self._failure is not None and not self._is_awaited:
            said = redacted(self._failure).partition("\n")[0]
            _logger.error("the query %s has ended on its server of Spark Connect: %s", self._query.id, said)

    def _await(self) -> None:
        while not self._ended.is_set() and self._wait_error is None:
            try:
                self._query.awaitTermination()
                self._note_end(None)
            except Exception as error:  # noqa: BLE001 - raised on the thread that waits
                if _is_end(error):
                    self._note_end(error)
                elif not self._note_problem(error) and not self._is_known():
                    self._wait_error = error
                self._ended.wait(_POLL_S)

    def _is_known(self) -> bool:
        """Whether the server says if the query runs, although the wait for its end failed: it may drop the wait alone.
        Notes the end.
        """
        try:
            if not self._query.isActive:
                self._note_end(self._query.exception())
        except Exception as error:  # noqa: BLE001 - the error of the wait is raised
            return self._note_problem(error)
        return True

    def _stop(self) -> None:
        try:
            self._query.stop()
            failure = self._query.exception()  # now: a long delivery may follow, and servers forget queries
        except Exception as error:  # noqa: BLE001 - errors of gRPC and of PySpark
            if not self._note_problem(error):
                self._refused = self._unconfirmed(redacted(error))
                self._refused.__cause__ = error
        else:
            self._note_end(failure)
        finally:
            self._stop_answered.set()

    # --- what is known

    def _note_end(self, failure: Exception | None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._failure = failure
            self._ended.set()

    def _note_problem(self, error: Exception) -> bool:
        """Keep what an error of a request says; True if it says that the query has ended."""
        condition = _condition_of(error)
        if any(part in condition for part in _LOST):
            lost = WalSinkError(
                f"the server of Spark Connect does not have the query {self._query.id} any more ({condition}): it was "
                "restarted, or it ended the session of this client and its queries. The WAL keeps what was staged. "
                "Start the query again"
            )
            lost.__cause__ = error
            self._note_end(lost)
            return True
        if not (self._is_silent or self._ended.is_set()):
            self._is_silent = True
            _logger.warning(
                "the server of Spark Connect does not say whether the query %s runs: %s. The client asks again. "
                "Delivery goes on",
                self._query.id,
                redacted(error).partition("\n")[0],
            )
        return False

    def _unconfirmed(self, said: str) -> WalSinkError:
        return WalSinkError(
            f"the server of Spark Connect did not confirm that the query {self._query.id} stopped: {said}. The query "
            "may still run there and stage batches. The WAL keeps them. Look at the server, then start the query "
            "again, or deliver what was staged: wal-sink drain"
        )


def _condition_of(error: Exception) -> str:
    """The name that Spark gives an error; empty for an error that no server sent."""
    ask = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return str((ask() if ask is not None else None) or "")


def asked(call: Callable[[], T], wait_s: float) -> T:
    """The result of a request. Raises its error, and `WalSinkError` if there is no answer within `wait_s` seconds."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            answer.set_exception(error)

    threading.Thread(target=ask, name="wal-sink-ask-server", daemon=True).start()
    if not wait([answer], wait_s).done:
        raise WalSinkError(f"no answer within {wait_s:g} s")
    return answer.result()


def is_answer(error: BaseException) -> bool:
    """Whether a server answered with this error. Another one may hide that the request took effect."""
    condition = _condition_of(error) if isinstance(error, Exception) else ""
    kind = type(error).__name__
    is_spark = "connect" in type(error).__module__.split(".")
    if any(part in condition for part in _LOST):
        return False
    return bool(condition) or (is_spark and kind not in _NO_ANSWERS)


def _is_end(error: Exception) -> bool:
    """Whether this is the error of a query that failed."""
    return type(error).__name__ == "StreamingQueryException"
