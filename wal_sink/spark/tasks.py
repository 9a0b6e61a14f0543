"""The errors of a task on their way to the driver, and the garbage that a task leaves in its worker.

Spark passes an exception of a task to the driver as text inside a stack trace. So a task that fails with one of our
errors puts its class and message into one line, and the driver rebuilds the error from that line.
"""

from __future__ import annotations

import gc
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from wal_sink import errors
from wal_sink.errors import ConfigError, StoreError, WalSinkError
from wal_sink.support.clock import JobStoppedError
from wal_sink.support.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal_sink.stores.spec import StoreSpec


_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = re.compile(r"^\s*Caused by: (\S+: .+)$", re.MULTILINE)
_LONGEST = 300
_MARK = "wal-sink error in a task: "
_LINE = re.compile(re.escape(_MARK) + r"(\[.*\])\s*$", re.MULTILINE)
_STOPPED = re.compile(r"InterruptedException|InterruptedIOException|ClosedByInterruptException|cancelled job group")
"""Names in the error of a query that is being stopped, or of a job that was cancelled."""
INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling collectToPython: java.lang.InterruptedException"
)
"""The text by which Spark recognises, in an error of `foreachBatch`, that its own stop of the query caused it. Spark
searches with a regular expression that overflows the stack of the stream's thread if Java's stack trace follows
(measured). If the query is not being stopped, Spark does not search and takes every error for a failure.
"""
_RESULT_LIMIT = "bigger than spark.driver.maxResultSize"
_NULL_POINTER = "java.lang.NullPointerException"
MOST_STORES = 4
"""So many stores of a process at most, so that what can stay has a bound whatever a worker opens."""
_settled: set[tuple[int, str]] = set()
"""The stores after whose first task this was done, by process and address. Empty: for a task that opened no store.

Not by options: each task unpickles them, and an object among them (credentials of a library) may equal only itself.
"""


def telling_line(error: BaseException | str) -> str:
    """The cause in one line, from an error of py4j or PySpark, or from its text.

    Of a Python worker's traceback it is the exception; of a Java trace the first line and the last cause. Any other
    text gives its first line. Passwords are masked.
    """
    text = redacted(error)  # first: a cut password cannot be recognised
    if isinstance(error, BaseException) and not text:
        text = type(error).__name__
    return (_of_traceback(text) or _of_java(text)).rstrip(".")


def _of_traceback(text: str) -> str:
    """The line after the indented frames of the last traceback; empty if there is no traceback."""
    _, found, last = text.rpartition(_TRACEBACK)
    lines = (line for line in last.splitlines() if line.strip() and not line[0].isspace())
    return next(lines, "")[:_LONGEST] if found else ""


def _of_java(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing"]
    first = lines[0]
    if first.startswith("An error occurred while calling") and len(lines) > 1:  # py4j's line: Java's follows
        first = lines[1].removeprefix(": ")
    causes: list[str] = _CAUSE.findall(text)
    caused = f"; caused by {causes[-1][:_LONGEST].rstrip()}" if causes and causes[-1] not in first else ""
    return first[:_LONGEST].rstrip(".") + caused


class SparkJobError(Exception):
    """A Spark job failed with a page of Java text; the message is its telling line. Raised on the driver."""


class RepeatedShuffleError(SparkJobError):
    """Spark may have lost and duplicated rows between the tasks of a job. No result of the job may be used."""


class ResultTooLargeError(SparkJobError):
    """The results of a job's tasks were larger together than Spark permits. Nothing of it arrived."""


class TaskError(Exception):
    """One of our errors as it crosses the JVM. Raised in Python workers only; no code needs to catch it."""


@contextmanager
def marked_errors() -> Iterator[None]:
    """In a task: mark our own errors, so that the driver recognises them. Spark may still run the task again."""
    try:
        yield
    except WalSinkError as error:
        line = msgspec.json.encode([_known_class(error).__name__, str(error)]).decode()
        raise TaskError(_MARK + line) from error


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """On the driver: name the job in our own errors, as `surfaced_errors` does in those of tasks."""
    try:
        yield
    except WalSinkError as error:
        raise _known_class(error)(f"{what}: {error}") from error


@contextmanager
def surfaced_errors(what: str, not_null: str = "", *, in_stream: bool = False) -> Iterator[None]:
    """On the driver, around a Spark job: raise the error of a task as the same class, without Java's stack trace.

    A page of Java text becomes a `SparkJobError`. Errors that PySpark translates pass unchanged. `in_stream`: the job
    belongs to the query, inside `foreachBatch`; its cancellation becomes a short `JobStoppedError`. `what` names the
    job in messages. `not_null` names the columns declared 'not null': a null in one of them makes Spark fail with a
    bare NullPointerException (measured, PySpark 4.3), which becomes a `ConfigError`.
    """
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        if match := _LINE.search(text):
            raise _rebuilt(match[1], what) from None
        if not_null and _NULL_POINTER in text and "PythonArrowInput" in text:
            raise ConfigError(
                f"{what}: Spark found a null in a column that the schema declares 'not null', and failed with "
                f"{_first_line(text)} Columns declared 'not null', including nested ones: {not_null}. Correct the "
                "schema of the source or function that declares such a column wrongly"
            ) from None
        if _RESULT_LIMIT in text:
            raise ResultTooLargeError(f"{what}: {telling_line(text)}") from None
        if in_stream and _STOPPED.search(text):
            raise JobStoppedError(
                f"{what}: the query was stopped, or its job cancelled, before the batch was staged. Spark runs the "
                f"batch again at the next start ({telling_line(text)}) ({INTERRUPTED})"
            ) from None
        if isinstance(error, Py4JJavaError):
            raise SparkJobError(f"{what}: {telling_line(text)}") from None
        raise


def _known_class(error: WalSinkError) -> type[WalSinkError]:
    """The nearest class in `wal_sink.errors`: the driver may not know a store's own subclasses."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, WalSinkError)]
    return next(kind for kind in kinds if kind.__module__ == errors.__name__)


def _rebuilt(line: str, what: str) -> WalSinkError:
    name, message = msgspec.json.decode(line, type=tuple[str, str])
    kind = getattr(errors, name, StoreError)
    error: WalSinkError = kind(f"{what}: {message}")
    return error


def _first_line(text: str) -> str:
    return (
        next(line for line in text.splitlines() if _NULL_POINTER in line).partition(_NULL_POINTER)[2].strip(" :") + "."
    )


def settle(opened: StoreSpec | None) -> None:
    """Let later collections skip the objects that live now. Call it at the end of a task, which opened this store.

    It happens once for each store that a worker opens, never for each task: a garbage cycle that is made later, of
    objects that live now, is not found any more. Objects without a cycle are freed as before. It happens never in a
    worker that ends with its task: PySpark collects nothing there.
    """
    if not os.environ.get("SPARK_REUSE_WORKER"):
        return
    process = os.getpid()
    key = process, opened.safe_url if opened is not None else ""
    if key in _settled or sum(1 for owner, _ in _settled if owner == process) > MOST_STORES:
        return
    _settled.add(key)
    gc.collect()  # garbage of this moment would stay for ever
    gc.freeze()
