"""A query over Spark Connect: its driver is another process, which stages through `format("wal_sink")`.

Driver here means the client. Nothing in this module needs a JVM or py4j in the client. PySpark asks a server that is
gone for some ten minutes. So each request runs on a daemon thread, and every wait for an answer is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar, cast

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import mask_url, redacted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_WRITER = "DataStreamWriter"
_EXPECTED = "expected a DataStreamWriter: df.writeStream of a streaming DataFrame"
_logger = logger_of(__name__)
FORMAT = "wal_sink"
CHECKPOINT = "checkpointLocation"
OVER_CONNECT = (
    "Over Spark Connect, pass the query's writer to WalSink.run or WalSink.start, without your foreachBatch; "
    'or stage with writeStream.format("wal_sink"), and deliver with: wal-sink drain … --follow.'
)
_FIND_S = 30.0
"""How long a start without an answer waits for the list of queries."""
_FUNCTIONS = ("foreach_writer", "foreach_batch")
T = TypeVar("T")
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


def is_connect(thing: object) -> bool:
    """Whether an object of PySpark is one of Spark Connect, by its module."""
    return "connect" in type(thing).__module__.split(".")


def check_classic(thing: object) -> None:
    """Refuse a DataFrame of Spark Connect, whose `foreachBatch` runs in a process of the server. `ConfigError`."""
    if is_connect(thing):
        raise ConfigError(
            "stage() cannot be called over Spark Connect: foreachBatch runs there in a process of the server, where "
            f"no committer can run. {OVER_CONNECT}"
        )


def check_stream_writer(writer: object) -> None:
    """Refuse anything but a `DataStreamWriter`, known by its class name: Spark Connect has its own. `ConfigError`."""
    if not any(base.__name__ == _WRITER for base in type(writer).__mro__):
        kind = type(writer).__name__
        raise ConfigError(f"{kind} cannot be run: {_EXPECTED}{_meant(writer, kind)}. Nothing was started")


def _meant(given: object, kind: str) -> str:
    if kind == "DataFrame":
        if not cast("Any", given).isStreaming:
            return (
                ". This is a batch DataFrame, and streaming queries need a streaming one: read its source with "
                "spark.readStream, then pass df.writeStream"
            )
        return "; write sink.run(df.writeStream) instead of sink.run(df)"
    if kind in {"DataFrameWriter", "DataFrameWriterV2"}:
        return (
            "; df.write writes once and has no checkpoint: read the source with spark.readStream, pass df.writeStream"
        )
    if kind == "StreamingQuery":
        return "; this query was started already. Leave out start(): sink.run(df.writeStream.trigger(…))"
    return ""


def asked(call: Callable[[], T], wait_s: float | None = None) -> T:
    """The result of a request, which another thread makes. Raises its error, and `WalSinkError` if there is no answer
    within `wait_s` seconds.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            answer.set_exception(error)

    threading.Thread(target=ask, name="wal-sink-ask-spark", daemon=True).start()
    if not wait([answer], wait_s).done:
        raise WalSinkError(f"no answer within {wait_s:g} s")
    return answer.result()


def start_over_connect(
    writer: DataStreamWriter, options: Mapping[str, str], query_id: Callable[[], str | None]
) -> StreamingQuery:
    """Start a query that stages on the server. Raises `ConfigError` for a writer that has another target already.

    The writer keeps its trigger, output mode and query name. `query_id` reads the id of the query from the checkpoint.
    If the answer of the start is lost, it is found out whether the query runs; `WalSinkError` if that is not known.
    """
    _refuse_leftovers(writer, options[CHECKPOINT])
    try:
        return writer.format(FORMAT).options(**dict(options)).start()
    except Exception as error:
        if is_answer(error):
            raise
        return _found_after(error, writer, query_id)
    except BaseException:
        _logger.warning(
            "the start of a query over Spark Connect was interrupted. Its server may still run the query and stage "
            "batches. The WAL keeps them. Look at the server, or start the query again"
        )
        raise


def _found_after(error: Exception, writer: DataStreamWriter, query_id: Callable[[], str | None]) -> StreamingQuery:
    """The query that a start without an answer started. Raises `WalSinkError` if none is found."""
    said = _line(error)
    try:
        session: Any = writer._session  # type: ignore[attr-defined] # noqa: SLF001 - PySpark has no public way
        wanted, active = query_id(), asked(lambda: list(session.streams.active), _FIND_S)
    except Exception as problem:  # noqa: BLE001 - errors of gRPC, of PySpark, and of the checkpoint's store
        raise WalSinkError(
            f"the server of Spark Connect did not answer the start of the query: {said}. It does not say whether the "
            f"query runs: {_line(problem)}. The query may run there and stage batches. The WAL keeps them. Look at "
            "the server. Then start the query again: Spark refuses a second query on this checkpoint while the first "
            "one runs"
        ) from error
    if found := next((query for query in active if wanted is not None and query.id == wanted), None):
        _logger.warning(
            "the server of Spark Connect did not answer the start of the query (%s), but it runs the query %s of this "
            "checkpoint. This process continues with that query",
            said,
            wanted,
        )
        return cast("StreamingQuery", found)
    raise WalSinkError(
        f"the server of Spark Connect did not answer the start of the query: {said}. It runs no query of this session "
        "on this checkpoint now. Start the query again"
    ) from error


def _line(error: Exception) -> str:
    return redacted(error).partition("\n")[0]


def _refuse_leftovers(writer: DataStreamWriter, checkpoint: str) -> None:
    """Refuse settings of a writer that would be overridden silently. Sends no request."""
    try:
        operation: Any = writer._write_proto  # type: ignore[attr-defined] # noqa: SLF001 - PySpark has no public way
        found = dict(operation.options)
        target = operation.format, operation.path, operation.table_name
        has_function = any(operation.HasField(name) for name in _FUNCTIONS)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this version of PySpark does not tell which target the writer has ({type(error).__name__}: {error}). Use "
            "a version of PySpark that README.md names, or a newer wal-sink. Nothing was started"
        ) from error
    if (target[0] and target[0] != FORMAT) or any(target[1:]) or has_function:
        said = "a function" if has_function else f"the target {mask_url(next(filter(None, target)))}"
        raise ConfigError(f"the writer has {said} already. WalSink replaces it, so remove it. Nothing was started")
    of_writer = next((value for name, value in found.items() if name.lower() == CHECKPOINT.lower()), checkpoint)
    if of_writer != checkpoint:
        raise ConfigError(
            f'the writer has option("{CHECKPOINT}", "{mask_url(of_writer)}"), but WalSink was given the checkpoint '
            f"{mask_url(checkpoint)}. Pass the checkpoint to WalSink alone. Nothing was started"
        )


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
            self._is_silent = not self._is_known() and self._is_silent
        if self._failure is not None and not self._is_awaited:
            said = _line(self._failure)
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
        """Whether the server says if the query runs. Notes the end.

        It may say so although a wait for the end failed: a server may drop the wait alone.
        """
        try:
            if not self._query.isActive:
                self._note_end(self._query.exception())
        except Exception as error:  # noqa: BLE001 - errors of gRPC and of PySpark
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
                f"the server of Spark Connect does not have the query {self._query.id} any more ({condition}). The "
                "server was restarted, or ended the session of this client and its queries. The WAL keeps what was "
                "staged. Start the query again"
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
                _line(error),
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
