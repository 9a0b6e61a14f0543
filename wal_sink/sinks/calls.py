"""`SinkSession`: the calls of one sink, bounded in time, and the translation of every possible answer.

A failure of the sink is data, not an exception: Spark's task retries must never repeat a send, and the committer owns
the retry budgets.

Some sinks can look at their target and change nothing (`examine`): before a query starts, and for `wal-sink doctor`.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from wal_sink.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    HandleGoneError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
    RetryLaterError,
)
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, Lookup, Rejected, SegmentSink, Sink, SinkContext
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.failures import Failure, FailureKind, ForgottenError, SinkFailedError, kind_of
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.support.arguments import LONGEST_S, check_ran
from wal_sink.support.calls import CallTimedOutError, ProgramExitError, TimedCall
from wal_sink.support.clock import Runtime
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import Finding, counted, name_of, repr_of, text_of, told

_logger = logger_of(__name__)
T = TypeVar("T")


def is_certificate_error(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, is a certificate error: an unknown authority, a wrong name, an
    expired date.

    A retry does not help against such an error. Clients wrap the error of `ssl` in their own, so causes and contexts
    are examined too.
    """
    return any(_is_about_a_certificate(each) for each in _with_causes(error))


def _is_about_a_certificate(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError) or type(error).__name__ == "CertificateError":
        return True  # the latter is urllib3's class, which does not derive from an error of ssl
    if not isinstance(error, ssl.SSLError):
        return False
    reason = str(getattr(error, "reason", None)).upper()  # one that `ssl` did not raise may have none
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, all its causes and all its contexts; each once."""
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [one for one in (each.__cause__, each.__context__) if one is not None]


def _asked_s(error: RetryLaterError) -> float:
    """The seconds that a target requested. 0 for a value that is no time to wait (0, negative, NaN, not a number)."""
    asked: object = error.after_s
    if not isinstance(asked, int | float) or not asked > 0:
        return 0.0
    return float(min(asked, LONGEST_S))  # no budget is longer, and an integer may be too large for a float


@contextmanager
def _failures_of(what: str) -> Iterator[None]:
    """Every way in which a user's code can fail becomes a `SinkFailedError`."""
    try:
        yield
    except CallTimedOutError as error:
        raise SinkFailedError(FailureKind.UNKNOWN, f"{what} timed out: {text_of(error)}") from error
    except (PermanentError, ConfigError) as error:
        message = redacted(f"{what} refused permanently: {text_of(error)}")
        raise SinkFailedError(FailureKind.PERMANENT, message) from error
    except ForgottenError as error:
        raise SinkFailedError(FailureKind.FORGOTTEN, redacted(f"{what}: {text_of(error)}")) from error
    except OutcomeUnknownError as error:
        raise SinkFailedError(FailureKind.UNKNOWN, redacted(f"{what}: {text_of(error)}")) from error
    except RetryLaterError as error:
        message = redacted(f"{what}: {text_of(error)}")
        raise SinkFailedError(FailureKind.RETRIABLE, message, retry_after_s=_asked_s(error)) from error
    except HandleGoneError as error:
        kind = FailureKind.NEVER_COMMITTED if error.never_committed else FailureKind.GONE
        raise SinkFailedError(kind, redacted(f"{what}: {text_of(error)}")) from error
    except (FencedError, HistoryError, CorruptError) as error:
        term = error.term if isinstance(error, FencedError) else 0
        raise SinkFailedError(kind_of(error), redacted(error), term=term) from error
    except ProgramExitError as error:
        message = redacted(f"{what} {error}: expected the call to return, or to raise an Exception")
        raise SinkFailedError(FailureKind.PERMANENT, message) from error
    except Exception as error:  # a user's sink may raise anything; it becomes the batch's result
        message = redacted(f"{what} raised {told(error)}")
        kind = FailureKind.PERMANENT if is_certificate_error(error) else FailureKind.RETRIABLE
        raise SinkFailedError(kind, message) from error


def call_sink(timed_call: TimedCall, what: str, function: Callable[..., T], *args: object, timeout_s: float) -> T:
    """Call a user's code. Every way it can fail becomes a `SinkFailedError`, and so does an answer that did not run."""
    with _failures_of(what):
        return check_ran("it", timed_call.call(function, *args, timeout_s=timeout_s))


def check_returned(what: str, returned: object, remedy: str = "Correct the rows in the query") -> None:
    """Raise `SinkFailedError` unless the sink returned None. Refused rows are an error here, and so is `False`.

    `remedy`: what to do about refused rows, for the message.
    """
    rejected = rejected_of(what, returned)
    if rejected is not None:
        first, reason = min(rejected.reasons.items())
        refused = counted(len(rejected.reasons), "row")
        message = (
            f"{what} rejected {refused}; row {first} of the chunk: {_shown(text_of(reason)).rstrip('.')}. {remedy}"
        )
        raise SinkFailedError(FailureKind.PERMANENT, message)


def rejected_of(what: str, returned: object, rows: int | None = None) -> Rejected | None:
    """The rows that a sink refused, of `rows` rows. Any value other than None or `Rejected` is an error."""
    if returned is None:
        return None
    if not isinstance(returned, Rejected):
        expected = "None (the target has every row) or Rejected"
        raise SinkFailedError(
            FailureKind.PERMANENT, f"{what} returned {_shown(repr_of(returned))}: expected {expected}"
        )
    if rows is not None and not set(returned.reasons) <= set(range(rows)):
        numbers = sorted(set(returned.reasons) - set(range(rows)))
        message = f"{what} rejected row {numbers[0]}: expected indices of rows in this chunk, from 0 to {rows - 1}"
        raise SinkFailedError(FailureKind.PERMANENT, message)
    return returned


def _shown(text: str, most: int = 200) -> str:
    """A sink's text, masked and cut for a message: it may be the whole answer of a server, with an address that holds a
    token.
    """
    masked = redacted(text)
    return masked if len(masked) <= most else f"{masked[: most - 1]}…"


def problem_of_variants(sink: Sink, spark_schema: str) -> str:
    """Why a sink cannot take the rows: Arrow has the internal bytes of a VARIANT. Empty if it can.

    A `SegmentSink` may be a wrapped writer, which gets Spark's own rows.
    """
    if isinstance(sink, SegmentSink) or '"variant"' not in spark_schema:
        return ""
    for column in json.loads(spark_schema)["fields"]:
        if re.search('[tT]ype": "variant"', json.dumps({"type": column["type"]})):
            has = (
                f"column {column['name']!r} holds a VARIANT, and this sink would get the internal bytes of the VARIANT"
            )
            return f"{has}. Convert it with to_json in the query"
    return ""


class SinkSession:
    """One sink instance, opened once per delivery task. Every call runs on the same thread and is bounded in time."""

    def __init__(
        self,
        sink: Sink,
        timed_call: TimedCall,
        context: SinkContext,
        *,
        timeout_s: float,
        renaming: Renaming = SAME,
    ) -> None:
        """`context` names the columns as they were staged. The sink gets context and rows as `renaming` says."""
        self._renaming = renaming
        self._sink = sink
        self._timed_call = timed_call
        self._context = context
        self._timeout_s = timeout_s
        self._opened = False

    @property
    def sink(self) -> Sink:
        return self._sink

    def open(self) -> None:
        """Open the sink if it is not open yet. A failure is retriable, since nothing was sent."""
        if self._opened:
            return
        with _failures_of(name_of(self._sink)):
            context = self._renaming.context(self._context)
            if problem := problem_of_variants(self._sink, context.spark_schema):
                raise PermanentError(problem)
        self.call("open", self._sink.open, context, nothing_sent=True)
        self._opened = True

    def call(self, what: str, function: Callable[..., T], *args: object, nothing_sent: bool = False) -> T:
        """Call the sink. If nothing can have been sent yet, an unknown outcome becomes a retriable one."""
        try:
            with _failures_of(what):
                return check_ran("it", self._timed_call.call(function, *args, timeout_s=self._timeout_s))
        except SinkFailedError as error:
            if nothing_sent and error.failure.kind is FailureKind.UNKNOWN:
                error.failure = Failure(FailureKind.RETRIABLE, error.failure.message)
            raise

    def write(self, what: str, chunk: Chunk) -> Rejected | None:
        """Send a chunk. Returns the rows that the sink refused; None if it has all. Raises `SinkFailedError`."""
        with _failures_of(what):
            returned = check_ran(
                "it", self._timed_call.call(self._sink.write, self.handed(chunk), timeout_s=self._timeout_s)
            )
        return rejected_of(what, returned, chunk.num_rows)

    def handed(self, chunk: Chunk) -> Chunk:
        """The chunk for a call of the sink, with the columns that the sink gets."""
        return handed(self._renaming.chunk(chunk))

    def close(self) -> None:
        """Close the sink and its thread. An error is only logged: the target has every chunk for which `write`
        returned.
        """
        try:
            if self._opened:
                self.call("close", self._sink.close)
        except SinkFailedError as error:
            _logger.warning("sink %s: %s", self._context.sink, error)
        finally:
            self._timed_call.close()


def handed(chunk: Chunk) -> Chunk:
    """The chunk for a sink's call, with a new table object over the same rows.

    `to_pandas(self_destruct=True)` empties the object on which it is called. Reading that object afterwards, for
    example for rows that the sink refused, ends the process with a segmentation fault.
    """
    table = chunk.table
    return replace(chunk, table=table.replace_schema_metadata(table.schema.metadata))


def ask_applied(session: SinkSession, sink: Lookup, key: str) -> bool:
    """Return whether the target says that it has a chunk. This answer alone decides that a row counts as sent.

    So any value other than True and False fails permanently: Python would take a response object, or the text "no", for
    true.
    """
    what = f"was_applied({key!r})"
    found: object = session.call(what, sink.was_applied, key, nothing_sent=True)
    if isinstance(found, bool):
        return found
    raise SinkFailedError(
        FailureKind.PERMANENT, f"{what} returned {_shown(repr_of(found))}: expected True or False; nothing was sent"
    )


LOOK_S = 15.0
"""Time limit of a look at one target. A target that fails for a moment is looked at again within it."""
_PAUSE_S = 1.0


@runtime_checkable
class Examined(Protocol):
    """A sink that can look at its target before anything is delivered. The sink is not open."""

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Findings about the target: whether it can be reached, and whether rows of this Arrow schema fit.

        `schema` is None if no rows are known. It makes nothing, writes nothing and fences no process. Raises what
        `open` and `write` raise about such a target. Runs on the driver.
        """
        ...


def refuse_unfit_targets(
    sinks: Mapping[str, Sink | BatchSink], deliveries: Mapping[str, Delivery], schema: Any, runtime: Runtime
) -> None:
    """Look at each target once, before Spark works for it. `ConfigError` for one that refuses or does not answer.

    A sink that may be parked gets a warning instead, since the stream goes on without it. Two kinds are left to their
    first delivery: sinks that cannot look, and those with `where="executors"`, which this process need not reach.
    """
    for name, sink in sinks.items():
        if not isinstance(sink, Examined) or deliveries[name].where == "executors":
            continue
        renamed = Renaming.of(deliveries[name].columns).schema(schema)
        failure = _looked_at(sink, name, renamed, runtime)
        if failure is None:
            continue
        if deliveries[name].on_failure != "park":
            raise ConfigError(
                f"{failure}. Nothing was started. Correct this; if only this process cannot reach the target, pass "
                "check_targets=False"
            ) from None
        _logger.warning("%s. The query starts without this target, since the sink has on_failure='park'", failure)


def _looked_at(sink: Examined, name: str, schema: Any, runtime: Runtime) -> SinkFailedError | None:
    """The error of the last look; None for a target that takes rows. It is looked at again while a retry may help."""
    until_s = runtime.monotonic_s() + LOOK_S
    timed_call = runtime.new_timed_call()
    earlier: SinkFailedError | None = None
    try:
        while True:
            left_s = max(_PAUSE_S, until_s - runtime.monotonic_s())
            try:
                call_sink(timed_call, f"looking at the target of sink {name!r}", sink.examine, schema, timeout_s=left_s)
            except SinkFailedError as failure:
                if failure.failure.kind is FailureKind.UNKNOWN and earlier is not None:
                    return earlier  # it has the reason; this look only had less time
                if failure.failure.kind is not FailureKind.RETRIABLE or runtime.monotonic_s() + _PAUSE_S >= until_s:
                    return failure
                earlier = failure
                runtime.sleep_s(_PAUSE_S)
            else:
                return None
    finally:
        timed_call.close()
