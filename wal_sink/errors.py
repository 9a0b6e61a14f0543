"""Every error wal-sink raises, one class per remedy.

    WalSinkError
    ├── ConfigError           change the configuration, then start again
    ├── HistoryError          the checkpoint and the WAL tell different stories
    │   ├── DivergentReplay   a known batch id came back with other source offsets
    │   ├── MissingBatch      a completed batch has no manifest
    │   └── HistoryGone       the batch asked for was already collected
    ├── CorruptError          stored bytes are not what was written
    │   └── ObjectLost        an object of the WAL that must be there is gone
    ├── StoreError            the store answered with a failure, or not at all
    ├── FencedError           a successor claimed the role; this process must end
    ├── HeldError             another process serves the sink, or may do so
    ├── DeliveryError         the sink refused for good, or the retries ran out
    ├── UndeliveredError      closed before everything complete was delivered
    └── OutcomeUnknownError   a request may or may not have had its effect
        └── ForgottenError    a target no longer has what it acknowledged before; nothing was written
    PermanentError            raised *by sinks*: do not retry this chunk
    RetryLaterError           raised *by sinks*: retry this chunk, but not before so many seconds
    HandleGoneError           raised *by two-phase sinks*: what was prepared is no longer there to be committed

Every class takes one message, so that an error survives pickling on its way from an executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class WalSinkError(Exception):
    """Base of all errors of wal-sink. The message names batch, path, what was expected and found, and the next step."""


class ConfigError(WalSinkError):
    """The configuration cannot work. Remedy: change what the message names; nothing was written for it."""


class HistoryError(WalSinkError):
    """Checkpoint and WAL disagree about the past. Remedy: find out which is right before going on."""


class DivergentReplay(HistoryError):
    """Spark replays a batch id the WAL knows, with other source offsets.

    Remedy: restore the checkpoint that belongs to this WAL, or start a new WAL.
    """


class MissingBatch(HistoryError):
    """Spark completed a batch whose manifest the WAL does not hold.

    Remedy: restore the deleted objects, or start a new WAL from the next batch.
    """


class HistoryGone(HistoryError):
    """A checkpoint rolled back beyond the retention asks for a batch that was delivered and collected.

    Remedy: restore a newer checkpoint, or start a new WAL.
    """


class CorruptError(WalSinkError):
    """Stored bytes differ from what was written. Remedy: restore the object the message names; nothing was skipped."""


class ObjectLost(CorruptError):
    """An object of the WAL is gone, although something exists that is made after it.

    Remedy: stop what deletes objects of the WAL (a bucket's life-cycle rule, most often), and restore the object.
    """


class StoreError(WalSinkError):
    """The store failed or did not answer. Remedy: check address, credentials and rights; the run can be repeated."""


class FencedError(WalSinkError):
    """A successor claimed this role. Remedy: none here; the successor goes on, this process must end.

    `term` is the higher term, where a transactional target names it; 0 where the WAL's own terms tell.
    """

    def __init__(self, message: str, *, term: int = 0) -> None:
        super().__init__(message)
        self.term = term

    def __reduce__(self) -> tuple[Callable[[str], FencedError], tuple[str]]:
        return partial(type(self), term=self.term), (str(self),)


class HeldError(WalSinkError):
    """Another process serves the sink, or may do so. Remedy: stop that process, or take over if it is gone."""


class DeliveryError(WalSinkError):
    """A sink refused for good or kept failing until its budget ended. Remedy: mend the target, then start again."""


class UndeliveredError(WalSinkError):
    """Not everything that is complete was delivered in time. Remedy: start again; the rest is kept in the WAL."""


class OutcomeUnknownError(WalSinkError):
    """A request may have had its effect. Remedy: look at the object the message names before repeating anything."""


class ForgottenError(OutcomeUnknownError):
    """A transactional target no longer has what it acknowledged: rows that come before the chunk at hand.

    Nothing of the chunk was written. Delivery asks the target for all positions of the batch and sends again what is
    missing. Remedy, where that is not enough: restore the newer target, and let it acknowledge only what it keeps.
    """


class PermanentError(Exception):
    """For sinks to raise: this chunk can never succeed, so retrying it is pointless."""


class RetryLaterError(Exception):
    """For sinks to raise: this chunk did not arrive, and the target named the seconds after which to try again.

    The sink's delivery waits at least `after_s` then, in the driver and without a task slot, but no longer than
    `Delivery.budget_s` permits.
    """

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s

    def __reduce__(self) -> tuple[Callable[[str], RetryLaterError], tuple[str]]:
        return partial(type(self), after_s=self.after_s), (str(self),)


class HandleGoneError(Exception):
    """For a `TwoPhaseSink` to raise in `commit`: what it prepared is not there any more, and never will be again.

    `never_committed`: the target knows for certain that it was not committed either (it timed out, say). Leave it False
    where the target cannot tell that from what was committed and has gone since. `never_published` is its earlier name,
    and means the same.
    """

    def __init__(self, message: str, *, never_committed: bool = False, never_published: bool = False) -> None:
        super().__init__(message)
        self.never_committed = never_committed or never_published

    @property
    def never_published(self) -> bool:
        """The earlier name of `never_committed`."""
        return self.never_committed
