"""What a target implements: `Sink` and its capabilities.

The guarantee follows from what a target is able to do, see `wal_sink.guarantees`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from wal_sink.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wal_sink.chunk import Chunk, Position

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rejected:
    """What a sink returns when the target refuses some rows of a chunk for good.

    `reasons` maps the index of a row in the chunk to why. A plain sink returns it after every other row was written; a
    `TransactionalSink` returns it having committed *nothing*. What follows is said by `Delivery.on_rejected`: delivery
    stops, and a new start brings the same chunk again; or the rows become dead letters, and a `TransactionalSink` gets
    the chunk without them, with no rows even if all were refused, since the position must move all the same.

    A target that ignores a key it has seen must answer a repeat as it answered the first: one that refused rows, and
    says None the second time, hides them from a process that never heard the first answer.
    """

    reasons: Mapping[int, str]

    def __post_init__(self) -> None:
        if not self.reasons:
            raise ValueError("Rejected needs at least one row; a sink that took every row returns None")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is told when it is opened."""

    wal_id: str
    sink: str
    """The sink's name in the WAL."""
    term: int
    batch_id: int
    columns: tuple[str, ...]
    """Real column names of the batch, in order."""
    on_executor: bool
    spark_schema: str = field(default="", repr=False)
    """JSON of the batch's Spark schema; empty if it was staged without Spark."""


class Sink(ABC):
    """A target, written to chunk by chunk.

    An instance is pickled to executors, and under `where="auto"` the driver too calls an unpickled copy: keep plain
    data in `__init__`; fetch secrets and make connections in `open`.

    Per delivery task, on one thread: `open` once, `write` for each chunk, `close` once, also after a failure.
    """

    idempotent: bool = False
    """True if the target ignores a `chunk.key` it has already seen: repeats are then harmless."""
    driver_only: bool = False
    """True if this sink cannot leave the driver's process."""

    def open(self, context: SinkContext) -> None:
        """Get ready: read secrets, connect. Raising here counts as a failed attempt and is retried."""

    @abstractmethod
    def write(self, chunk: Chunk) -> Rejected | None:
        """Put a chunk into the target, durably, before returning.

        Return None if the target has every row, `Rejected` if it refused some; any other value is an error. Raise
        `PermanentError` if repeating is pointless; anything else raised is retried with backoff, within the
        `Delivery`'s budgets, with the same chunk under the same key.
        """

    def close(self) -> None:
        """Free what `open` took. Errors here are logged only: what `write` returned from is in the target already."""

    def describe(self) -> str:
        """What this is, for messages, logs and the WAL, where secrets never go: the class's name unless overridden."""
        return type(self).__name__


@runtime_checkable
class Lookup(Protocol):
    """A sink whose target can say whether it has a chunk."""

    def was_applied(self, key: str) -> bool:
        """Whether the target has the whole chunk of this key. Asked before a chunk that may have been sent is sent
        again. A chunk of which it refused rows is not whole: where True hides them, nobody will ever hear of them.
        """
        ...


class TransactionalSink(Sink):
    """A target that stores rows, `chunk.position` and `chunk.term` in one transaction: exactly once, with nothing to
    repeat.

    `write` must, in one transaction: read the slot's `LedgerEntry`, so that no other transaction reads it before this
    one ends, also where there is none yet; commit nothing and return None if it has the chunk, as `LedgerEntry.has`
    tells, which refuses a lower term and rows of another history; else write the rows and store
    `LedgerEntry.of(chunk)`. If it returns `Rejected`, nothing may be committed: the whole chunk comes again after a new
    start.
    """

    @abstractmethod
    def last(self, slot: str) -> Position | None:
        """The position the target has stored for this slot; None if it has none."""


class SegmentSink(Sink):
    """A target written segment by segment (what a wrapped `ForeachWriter` is): a failed segment is repeated whole."""

    @abstractmethod
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Rejected | None:
        """Put all chunks of one segment into the target. Runs on an executor or the driver."""

    def write(self, chunk: Chunk) -> Rejected | None:
        """One chunk as if it were a segment, for tests of a sink on its own."""
        return self.write_segment(0, chunk.batch_id, [chunk])


@dataclass(frozen=True, slots=True)
class ReleasedBatch:
    """A released batch as a whole, for a `BatchSink`. Lives on the driver."""

    batch_id: int
    term: int
    spark: SparkSession = field(repr=False)
    read: Callable[[], DataFrame] = field(repr=False)
    """Makes a batch DataFrame of the staged rows with the exact schema of the streaming one; the same rows each
    time.
    """


class BatchSink(ABC):
    """A target only an existing whole-batch writer can reach: called once per batch, on the driver, with Spark."""

    idempotent: bool = False

    @abstractmethod
    def write_batch(self, batch: ReleasedBatch) -> None:
        """Write the whole batch. After a failure or a crash it is called again with the same rows."""

    def describe(self) -> str:
        """What this is, for messages, logs and the WAL, where secrets never go: the class's name unless overridden."""
        return type(self).__name__


def idempotent(function: F) -> F:
    """Mark a function of one `Chunk` as harmless to repeat: its target ignores a `chunk.key` it has seen."""
    function.idempotent = True  # type: ignore[attr-defined]
    return function


class FunctionSink(Sink):
    """A callable of one `Chunk` as a sink."""

    def __init__(self, function: Callable[[Chunk], Rejected | None]) -> None:
        self._function = function
        self.idempotent = bool(getattr(function, "idempotent", False))

    def write(self, chunk: Chunk) -> Rejected | None:
        return self._function(chunk)

    def describe(self) -> str:
        return str(getattr(self._function, "__qualname__", type(self._function).__name__))


def as_sink(to: object) -> Sink | BatchSink:
    """The sink behind what a user passed; `ConfigError` if it is none."""
    if isinstance(to, (Sink, BatchSink)):
        return to
    if isinstance(to, type) and issubclass(to, (Sink, BatchSink)):
        raise ConfigError(f"{to.__name__} is a class: pass an instance, {to.__name__}(…)")
    if callable(to):
        return FunctionSink(cast("Callable[[Chunk], Rejected | None]", to))
    raise ConfigError(
        f"{type(to).__name__} cannot be delivered to: expected a function of one Chunk, a Sink, a wrapped writer "
        "(wal_sink.wrap) or the URL of a backend"
    )
