"""What a target implements: `Sink` and its capabilities.

The guarantee follows from what a target is able to do, see `wal_sink.sinks.guarantees`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from wal_sink.arguments.targets import check_chunk_function, check_claims, check_sink, refused_target
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.reporting.texts import repr_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wal_sink.sinks.chunk import Chunk, Position

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
        if self.reasons and not isinstance(self.reasons, Mapping):
            found = type(self.reasons).__name__
            raise PermanentError(
                f"Rejected takes a mapping from the index of a row to why, {{0: 'bad'}}, not a {found}"
            )
        if not self.reasons:
            raise ValueError("Rejected needs at least one row; a sink that took every row returns None")
        for index in self.reasons:
            if not hasattr(index, "__index__"):
                raise ValueError(
                    f"Rejected names a row by {repr_of(index)}: expected its index in the chunk, from 0 on"
                )


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
    """JSON of the batch's Spark schema; empty if it was staged without Spark. It comes from the WAL: do not pass it to
    PySpark's `StructType.fromJson`, which imports what it names; see docs/SECURITY.md.
    """


class Sink(ABC):
    """A target, written to chunk by chunk.

    An instance is pickled to executors, and under `where="auto"` the driver too calls an unpickled copy: keep plain
    data in `__init__`; fetch secrets and make connections in `open`.

    Per delivery task, on one thread: `open` once, `write` for each chunk, `close` once, also after a failure.
    """

    idempotent: bool = False
    """True if the target ignores a `chunk.key` it has already seen: repeats are then harmless."""
    replaces_rows: bool = False
    """True if rows of a batch take the place of earlier ones: of those with the same key, or of all. A query in output
    mode `complete`, whose batches hold the whole result each, then gets no warning.
    """
    driver_only: bool = False
    """True if this sink cannot leave the driver's process."""
    max_chunk_rows: int | None = None
    """Most rows its target takes in one call; None: any number. A query that would stage more is refused at start."""
    max_chunk_bytes: int | None = None
    """The same for `Settings.chunk_bytes`."""
    max_concurrency: int | None = None
    """Most delivery tasks that its target lets write side by side; None: any number. More of them would only wait for
    each other, on task slots that staging needs. `Delivery.max_concurrency` can only make it fewer. A `TwoPhaseSink` is
    written to by every staging task all the same.
    """

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


MakeSink = Callable[[], Sink]
"""Makes a sink in this process: a fresh one at each call, or always the same."""


@runtime_checkable
class Wrapper(Protocol):
    """A sink that passes its calls to an object which is no sink. That object must stand behind no other sink."""

    def wrapped_object(self) -> object:
        """The object."""
        ...


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
    one ends, also where there is none yet; commit nothing and return None if it has the chunk, as
    `LedgerEntry.is_known` tells, which refuses a lower term, rows of another history, and a target that has lost what
    it acknowledged; else write the rows and store `LedgerEntry.of(chunk)`. If it returns `Rejected`, nothing may be
    committed: the whole chunk comes again after a new start.

    Several tasks have it open at a time. With `spark.speculation` one of them may only ask for the positions that
    another one moves, so that neither `open` nor `last` may shut others out.
    """

    @abstractmethod
    def last(self, slot: str) -> Position | None:
        """The position the target has stored for this slot; None if it has none."""

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        """What `last` says of each of some slots; every one of them is a key of the answer.

        Read before each marker and at the start and the end of a run: one per segment of a batch, thousands of them for
        a large one. Override it where the target answers for many slots in one request.
        """
        return {slot: self.last(slot) for slot in slots}


@dataclass(frozen=True, slots=True)
class Transaction:
    """The rows of one segment on their way into a two-phase target, which shows none of them before `commit`."""

    id: str
    """32 hexadecimal digits, unique to this attempt: the same rows prepared again have another one."""
    wal_id: str
    sink: str
    """The sink's name in the WAL."""
    batch_id: int
    partition: int
    file_index: int
    """The segment is the n-th of its partition, counted from 0. Of one batch, only one transaction of a partition and
    file index is ever committed, whatever attempts there were: the three numbers make a lasting name for what is
    committed.
    """

    @property
    def roll(self) -> int:
        """The earlier name of `file_index`."""
        return self.file_index


class TwoPhaseSink(Sink):
    """A target that holds rows invisibly until they are committed: exactly once, each segment as a whole.

    For each segment, while its batch is staged (on an executor): `begin`, `write` for each of its chunks, `prepare`.
    Once Spark completed the batch's checkpoint (on an executor or the driver, another instance): `commit`. What was
    begun and is not to be committed gets `abort`, in the driver's process. `open` comes first and `close` last each
    time; `SinkContext.term` is the stager's while it prepares.

    Where a segment was not prepared while it was staged (the target was away, the WAL is drained elsewhere), or where
    its handle has gone, it is prepared when it is delivered, from the rows kept in the WAL (`Delivery.keep_segments`).
    """

    @abstractmethod
    def begin(self, transaction: Transaction) -> str:
        """Begin a transaction; returns what `abort` needs besides to find it again, at most 4,096 characters, "" if the
        transaction's own `id` and numbers are enough (which saves a request, and leaves nothing in the target that
        nobody knows of if the process dies right here).

        One at a time. Nothing written until `prepare` may show to anybody, now or after a crash.
        """

    @abstractmethod
    def write(self, chunk: Chunk) -> None:
        """Put a chunk into the transaction begun last. Rows cannot be refused with `Rejected`; raise what is wrong."""

    @abstractmethod
    def prepare(self) -> str:
        """End the writing: all rows are in the target, durably and invisibly. Returns the handle that `commit` needs,
        at most 4,096 characters; no secret, since it lies in the WAL.
        """

    @abstractmethod
    def commit(self, transaction: Transaction, handle: str) -> None:
        """Commit what was prepared, at once. Repeating it, at any time and by whomever, changes nothing.

        Raises `HandleGoneError` if the target neither holds nor shows it; anything else is retried.
        """

    @abstractmethod
    def abort(self, transaction: Transaction, token: str) -> None:
        """Drop what was begun or prepared; `token` is what `begin` returned, "" if nobody knows.

        Harmless when repeated, and where there is nothing (any more). What was committed stays.
        """


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
    replaces_rows: bool = False
    """True if rows of a batch take the place of earlier ones: of those with the same key, or of all. A query in output
    mode `complete`, whose batches hold the whole result each, then gets no warning.
    """

    @abstractmethod
    def write_batch(self, batch: ReleasedBatch) -> None:
        """Write the whole batch. After a failure or a crash it is called again with the same rows."""

    def describe(self) -> str:
        """What this is, for messages, logs and the WAL, where secrets never go: the class's name unless overridden."""
        return type(self).__name__


def idempotent(function: F) -> F:
    """Mark a function of one `Chunk` as harmless to repeat: its target ignores a `chunk.key` it has seen."""
    if not callable(function) and not isinstance(function, Sink):
        raise ConfigError(
            f"@idempotent marks a function of one Chunk, and this is a {type(function).__name__}; a sink that is named "
            "by a URL has an option for that, such as https://…#idempotent=true"
        )
    function.idempotent = True  # type: ignore[attr-defined]
    return function


class FunctionSink(Sink):
    """A callable of one `Chunk` as a sink."""

    def __init__(self, function: Callable[[Chunk], Rejected | None]) -> None:
        self._function = function
        self.idempotent = getattr(function, "idempotent", False) is True

    def wrapped_object(self) -> object:
        """The function."""
        return self._function

    def write(self, chunk: Chunk) -> Rejected | None:
        return self._function(chunk)

    def describe(self) -> str:
        return str(getattr(self._function, "__qualname__", type(self._function).__name__))


_KINDS: tuple[type, ...] = (Sink, BatchSink, TransactionalSink, TwoPhaseSink, SegmentSink, Lookup)


def as_sink(to: object) -> Sink | BatchSink:
    """The sink behind what a user passed; `ConfigError` if it is none, or cannot be called as sinks are."""
    if isinstance(to, (Sink, BatchSink)):
        check_sink(to, [kind for kind in _KINDS if isinstance(to, kind)])
        check_claims(to)
        return to
    if isinstance(to, type) and issubclass(to, (Sink, BatchSink)):
        raise ConfigError(f"{to.__name__} is a class: pass an instance, {to.__name__}(…)")
    if callable(to):
        check_chunk_function(to)
        check_claims(to)
        return FunctionSink(cast("Callable[[Chunk], Rejected | None]", to))
    raise refused_target(to)
