"""Every error wal-sink raises, one class per remedy.

    WalSinkError
    ├── ConfigError           change the configuration, then start again
    ├── HistoryError          checkpoint, WAL and target tell different stories
    ├── CorruptError          stored bytes are not what was written, or are gone
    ├── StoreError            the store answered with a failure, or not at all
    ├── FencedError           a newer process took over the role; this process must end
    ├── HeldError             another process serves the sink, or may serve it
    ├── DeliveryError         the sink refused permanently, or the retries ran out
    ├── UndeliveredError      closed before every completed batch was delivered
    └── OutcomeUnknownError   a request may or may not have had its effect
    PermanentError            raised *by sinks*: do not retry this chunk
    RetryLaterError           raised *by sinks*: retry this chunk, but wait the given number of seconds first
    HandleGoneError           raised *by two-phase sinks*: the prepared transaction is gone and cannot be committed

Every class takes one message, so that an error survives pickling on its way from an executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class WalSinkError(Exception):
    """Base of all errors of wal-sink. The message names the batch, the path, the expected and the found value, and the
    next step.
    """


class ConfigError(WalSinkError):
    """The configuration cannot work. Remedy: change the setting that the message names. Nothing was written."""


class HistoryError(WalSinkError):
    """Checkpoint, WAL and target disagree about the past. Remedy: find out which one is right before you continue.

    The message says what they disagree about: Spark runs a known batch again with other source offsets, or runs one
    that was collected; a completed batch has no manifest; or the target holds rows of another history.
    """


class CorruptError(WalSinkError):
    """Stored bytes differ from the written ones, or an object is gone that must exist. Nothing was skipped.

    Remedy: stop what deletes or changes objects of the WAL, most often a life-cycle rule of the bucket. Then restore
    the object that the message names.
    """


class StoreError(WalSinkError):
    """The store failed or did not answer. Remedy: check address, credentials and rights. The run can be repeated."""


class FencedError(WalSinkError):
    """A newer process took over this role. Remedy: end this process; the newer one continues the work.

    `term` is the higher term if a transactional target names it, and 0 if the WAL's own terms show it.
    """

    def __init__(self, message: str, *, term: int = 0) -> None:
        super().__init__(message)
        self.term = term

    def __reduce__(self) -> tuple[Callable[[str], FencedError], tuple[str]]:
        return partial(type(self), term=self.term), (str(self),)


class HeldError(WalSinkError):
    """Another process serves the sink, or may serve it. Remedy: stop that process, or take over if it is gone."""


class DeliveryError(WalSinkError):
    """A sink refused permanently, or kept failing until its retry budget ended. Remedy: repair the target, then start
    again.
    """


class UndeliveredError(WalSinkError):
    """Completed batches were not delivered in time; the WAL keeps them. Remedy: start the query or command again."""


class OutcomeUnknownError(WalSinkError):
    """A request may have had its effect, or a target lost rows that it had acknowledged.

    Remedy: look at the object or the target that the message names before you repeat anything.
    """


class PermanentError(Exception):
    """For sinks to raise: this chunk can never succeed, so a retry is pointless."""


class RetryLaterError(Exception):
    """For sinks to raise: this chunk did not arrive, and the target named the seconds to wait before a retry.

    Delivery then waits at least `after_s`, in the driver and without a task slot, but no longer than
    `Retry.budget_s` permits.
    """

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s

    def __reduce__(self) -> tuple[Callable[[str], RetryLaterError], tuple[str]]:
        return partial(type(self), after_s=self.after_s), (str(self),)


class HandleGoneError(Exception):
    """For a `TwoPhaseSink` to raise in `commit`: the prepared transaction is gone from the target and will not come
    back.

    `never_committed`: True if the target knows for certain that the transaction was not committed either (for example,
    it timed out). Leave it False if the target cannot tell this from a transaction that was committed and has gone
    since.
    """

    def __init__(self, message: str, *, never_committed: bool = False) -> None:
        super().__init__(message)
        self.never_committed = never_committed
