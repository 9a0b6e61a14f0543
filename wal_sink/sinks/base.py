"""The interface for targets: `Sink` and its kinds.

The guarantee of a sink follows from the abilities of its target, see `wal_sink.sinks.guarantees`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.support.arguments import check_chunk_function, check_claims, check_sink, refused_target
from wal_sink.support.texts import repr_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wal_sink.sinks.chunk import Chunk, Position

F = TypeVar("F", bound=Callable[..., Any])
OnGone = Literal["halt", "prepare_again"]


@dataclass(frozen=True, slots=True)
class Rejected:
    """Return value of a sink whose target permanently refuses some rows of a chunk.

    `reasons` maps the index of a row in the chunk to the reason. A plain sink returns it after it wrote every other
    row. A `TransactionalSink` returns it with *nothing* committed. `Delivery.on_rejected` decides what follows. `halt`:
    delivery stops, and a new start sends the same chunk again. `dead_letter`: the rows become dead letters, and a
    `TransactionalSink` gets the chunk without them. If all rows were refused, this chunk has no rows, since the
    position must still move.

    A target that ignores a key it has seen must answer a repeat as it answered the first call. If it refused rows first
    and then returns None, a process that missed the first answer does not learn of these rows.
    """

    reasons: Mapping[int, str]

    def __post_init__(self) -> None:
        if self.reasons and not isinstance(self.reasons, Mapping):
            found = type(self.reasons).__name__
            raise PermanentError(
                f"Rejected expects a mapping from the index of a row to the reason, {{0: 'bad'}}, not a {found}"
            )
        if not self.reasons:
            raise ValueError("Rejected needs at least one row. If the sink wrote every row, return None")
        for index in self.reasons:
            if not hasattr(index, "__index__"):
                raise ValueError(
                    f"Rejected names a row by {repr_of(index)}: expected its index in the chunk, counted from 0"
                )


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Information that a sink gets in `open`."""

    wal_id: str
    sink: str
    """The sink's first name in the WAL. A rename keeps it."""
    term: int
    batch_id: int
    columns: tuple[str, ...]
    """Names of the columns of the rows, in order: those of the query, or as `Delivery.columns` renames them."""
    on_executor: bool
    spark_schema: str = field(default="", repr=False)
    """JSON of the Spark schema of `columns`; empty if the batch was staged without Spark. It comes from the WAL. Do not
    pass it to PySpark's `StructType.fromJson`, which imports classes that it names; see docs/SECURITY.md.
    """
    time_zone: str = ""
    """The time zone of the session that staged the batch, as Spark names it, such as `GMT+8`. The rows hold instants in
    UTC. Empty: the batch has no instants, or is being staged.
    """
    at_most_once: bool = False
    """Whether rows whose outcome is unknown must not be sent again."""

    def own_key(self, key: str) -> str:
        """A key of a chunk or row, as this sink alone has it: 32 hexadecimal digits. For a target that compares keys,
        since two sinks of a WAL get the same `chunk.key`.
        """
        return hashlib.blake2b(f"{self.sink}/{key}".encode(), digest_size=16).hexdigest()


class Sink(ABC):
    """A target that is written chunk by chunk.

    The instance is pickled to executors, and with `where="auto"` the driver also calls an unpickled copy. So keep plain
    data in `__init__`; fetch secrets and open connections in `open`.

    Each delivery task calls, on one thread: `open` once, `write` for each chunk, `close` once, also after a failure.
    """

    idempotent: bool = False
    """True if the target ignores a `chunk.key` that it has already seen. Repeats are then harmless."""
    replaces_rows: bool = False
    """True if rows of a batch replace earlier rows: those with the same key, or all. A query in output mode `complete`,
    where each batch holds the whole result, then gets no warning.
    """
    driver_only: bool = False
    """True if this sink must run in the driver's process."""
    names_refused_rows: bool = True
    """False if `write` raises where the target refuses rows: no row can then become a dead letter."""
    needs_tasks: bool = False
    """True if `where="auto"` means executors for small batches too, since it calls code that looks at its task."""
    max_chunk_rows: int | None = None
    """Maximum number of rows that its target takes in one call. None: any number. A query that would stage larger
    chunks fails at start.
    """
    max_chunk_bytes: int | None = None
    """The same limit in bytes, for `Settings.chunk_bytes`."""
    max_concurrency: int | None = None
    """Maximum number of delivery tasks that can write to the target in parallel. None: any number. More tasks would
    only wait for each other, in task slots that staging needs. `Delivery.max_concurrency` can only lower it. A
    `TwoPhaseSink` is still written by every staging task.
    """
    writes_files_to: str | None = None
    """URL of the folder that it fills with files. A WAL or a checkpoint in it, or around it, is refused at start."""

    def open(self, context: SinkContext) -> None:
        """Prepare: read secrets, connect. An exception here counts as a failed attempt and is retried."""

    @abstractmethod
    def write(self, chunk: Chunk) -> Rejected | None:
        """Write a chunk durably to the target before returning.

        Return None if the target has every row, `Rejected` if it refused some; any other value is an error. Raise
        `PermanentError` if a retry is pointless. Any other exception leads to a retry with backoff, within the budgets
        of `Delivery`, with the same chunk under the same key.
        """

    def close(self) -> None:
        """Free the resources of `open`. Errors are only logged: the target already has every chunk for which `write`
        returned.
        """

    def describe(self) -> str:
        """Short description for messages, logs and the WAL. It must not contain secrets. Default: the class name."""
        return type(self).__name__


MakeSink = Callable[[], Sink]
"""A function that returns a sink in this process: a fresh one at each call, or always the same."""


@runtime_checkable
class Wrapper(Protocol):
    """A sink that passes its calls on to an object that is not a sink. No other sink may use that object."""

    def wrapped_object(self) -> object:
        """The object that gets the calls."""
        ...


@runtime_checkable
class Lookup(Protocol):
    """A sink whose target can tell whether it has a chunk."""

    def was_applied(self, key: str) -> bool:
        """Return whether the target has the whole chunk of this key. Called before a chunk that may have been sent is
        sent again.

        A chunk with refused rows is not whole. If this method returns True for it, the refused rows are never reported.
        """
        ...


class TransactionalSink(Sink):
    """A target that stores rows, `chunk.position` and `chunk.term` in one transaction: exactly once, nothing repeats.

    `write` must do all of this in one transaction:

    1. Read the slot's `LedgerEntry`, so that no other transaction reads it before this one ends, even if the slot is
       still empty.
    2. Call `LedgerEntry.is_known`. It raises if the term is too low, if the slot has rows of another history, or if the
       target lost rows that it had acknowledged.
    3. If it returns True, the target has the chunk: commit nothing and return None.
    4. Otherwise write the rows and store `LedgerEntry.of(chunk)`. If `write` returns `Rejected`, commit nothing: the
       whole chunk is sent again after a new start.

    Several tasks may have the sink open at the same time. With `spark.speculation`, one of them may only read the
    positions that another one moves. So neither `open` nor `last` may lock others out.
    """

    target_name: str = ""
    """The table or topic, as `describe` quotes it. A start refuses another one than that of the sink's registration,
    since both may share a ledger, which knows no tables. Empty: another description is only a warning.
    """

    @abstractmethod
    def last(self, slot: str) -> Position | None:
        """The position that the target stores for this slot; None if it has none."""

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        """The position of each of these slots, as `last` returns it. Every slot is a key of the answer.

        Called before each marker, and at the start and the end of a run, with one slot per segment of a batch:
        thousands for a large batch. Override it if the target answers for many slots in one request.
        """
        return {slot: self.last(slot) for slot in slots}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction with the rows of one segment in a two-phase target. The target shows none of them before
    `commit`.
    """

    id: str
    """32 hexadecimal digits, unique to this attempt: the same rows prepared again get another id."""
    wal_id: str
    sink: str
    """The sink's name in the WAL."""
    batch_id: int
    partition: int
    file_index: int
    """The segment is the n-th of its partition, counted from 0. For each batch, partition and file index, at most one
    transaction is ever committed, regardless of the number of attempts. So these three numbers make a lasting name for
    the committed rows.
    """


class TwoPhaseSink(Sink):
    """A target that holds rows invisibly until they are committed: exactly once, each segment as a whole.

    While a batch is staged (on an executor), each segment gets: `begin`, `write` for each of its chunks, `prepare`.
    After Spark completed the batch's checkpoint, another instance gets `commit` (on an executor or the driver). A
    transaction that will not be committed gets `abort`, in the driver's process. `open` comes first and `close` last
    each time. `SinkContext.term` is the stager's term while the sink prepares.

    A segment is prepared at delivery, from the rows kept in the WAL (`keep_segments`), if it was not prepared while it
    was staged (it holds small partitions, the target was unreachable, or another process drains the WAL) or if its
    handle is gone.
    """

    keep_segments: bool = True
    """True if the WAL keeps the rows too, against a target that loses a prepared transaction. False avoids writing the
    rows twice. It is permitted only if every sink of the WAL is a two-phase sink with this setting.
    """
    on_gone: OnGone = "halt"
    """Reaction when a handle is gone that may have been committed before. `halt`: delivery stops. `prepare_again`: the
    kept rows are prepared and committed again. This repeats rows that were committed before.
    """

    @abstractmethod
    def begin(self, transaction: Transaction) -> str:
        """Begin a transaction. Only one is open at a time. Returns the token that `abort` needs to find the transaction
        again, at most 4,096 characters.

        Return "" if the `id` and numbers of the transaction are enough. This avoids a request, and no unknown
        transaction stays in the target if the process dies right here. Rows written before `prepare` must
        not become visible, now or after a crash.
        """

    @abstractmethod
    def write(self, chunk: Chunk) -> None:
        """Write a chunk into the transaction begun last. `Rejected` is not supported: raise an exception for bad
        rows.
        """

    @abstractmethod
    def prepare(self) -> str:
        """Finish writing: all rows are durably and invisibly in the target. Returns the handle that `commit` needs, at
        most 4,096 characters. It must not contain a secret, since the WAL stores it.
        """

    @abstractmethod
    def commit(self, transaction: Transaction, handle: str) -> None:
        """Commit the prepared transaction at once. Repeating it, at any time and from any process, changes nothing.

        Raises `HandleGoneError` if the target neither holds nor shows it. Any other exception is retried.
        """

    @abstractmethod
    def abort(self, transaction: Transaction, token: str) -> None:
        """Drop a transaction that was begun or prepared; `token` is the value that `begin` returned, "" if it is
        unknown.

        It must be harmless when repeated, and if the transaction does not exist (any more). A committed transaction
        stays.
        """


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """The rows of one released segment, for a `CommitSink`."""

    id: str
    """32 hexadecimal digits. The same rows keep it for ever, and no other rows get it, so it makes a lasting name."""
    rows: int
    data: bytes = field(repr=False)
    """The segment as it lies in the WAL, checked: one Parquet file. Its columns have their real names if these are
    unique, not empty and without dots; else `c0`, `c1` …, see docs/FORMAT.md.
    """
    chunks: Iterable[Chunk] = field(repr=False)
    """The rows in chunks. They are decoded when they are read, and can be read once."""


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """The newest batch of a sink that its target holds, stored in the commit that has the batch's rows."""

    batch_id: int
    digest: str
    """`BatchCommit.digest` of that batch."""
    is_shown: bool = True
    """Whether the target still shows that commit, perhaps under later ones. False after a rollback or a restore to a
    state before it, which kept the position. Deletes, overwrites and compactions by others are no restore.
    """
    held_through: int = -1
    """If it is not shown: the newest batch of this sink whose commit the target still shows; -1: none. `catch-up` sends
    the later ones again.
    """


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """All rows of a batch, to be shown in one commit together with their position."""

    batch_id: int
    digest: str
    """15 hexadecimal digits that stand for the batch's segments. A batch of another history has another digest."""
    rows: int
    handles: tuple[str, ...]
    """The handle of each segment, in order."""
    follows: CommitPosition | None
    """The position that the target must still have. None: it has none of this sink."""

    @property
    def position(self) -> CommitPosition:
        """The position to store in the commit."""
        return CommitPosition(self.batch_id, self.digest)


class CommitSink(Sink):
    """A target that shows all rows of a batch in one commit, with the sink's position in it: exactly once, each batch
    as a whole.

    Each delivery task (on an executor or the driver) calls `open`, `prepare` for each of its segments, `close`. Then
    one instance in the driver's process gets `open`, `position`, `commit`, `close`. A batch without rows is not
    committed. `SinkContext` names the WAL and the sink that the position belongs to.
    """

    @abstractmethod
    def prepare(self, segment: StagedSegment) -> str:
        """Write the rows of a segment where nobody sees them. Returns the handle that `commit` needs, at most 4,096
        characters, without a secret.

        It is called again after a failure, a crash or a takeover, also if an earlier handle was committed, and perhaps
        by two processes at a time. So the same rows go under the same name (`segment.id`), with the same bytes.
        """

    @abstractmethod
    def position(self) -> CommitPosition | None:
        """The sink's position in the target; None if it has none. Reads the target at each call. Raises `HistoryError`
        if it cannot be told whether the target still shows that commit.
        """

    @abstractmethod
    def commit(self, batch: BatchCommit) -> None:
        """Show all rows of the batch and store `batch.position`, in one commit, and only if the target has the position
        `batch.follows` in the state that the commit builds on: the target itself must compare that.

        If another writer committed meanwhile, look again, and try again in the same call. If the position is another
        one, raise an exception: the core then reads it. A call whose process stopped may reach the target at any later
        time, and must then be refused. Nothing is repeated without a look: a commit whose answer was lost may be there.
        """

    def write(self, chunk: Chunk) -> Rejected | None:
        """Not called: rows come as segments."""
        raise NotImplementedError(f"{type(self).__name__} takes whole batches, and no single chunk such as {chunk.key}")


class SegmentSink(Sink):
    """A target that is written segment by segment, such as a wrapped `ForeachWriter`. A failed segment is repeated
    whole.
    """

    @abstractmethod
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Rejected | None:
        """Write all chunks of one segment to the target. Runs on an executor or the driver."""

    def write(self, chunk: Chunk) -> Rejected | None:
        """Write one chunk as if it were a segment, for tests of a sink."""
        return self.write_segment(0, chunk.batch_id, [chunk])


@dataclass(frozen=True, slots=True)
class ReleasedBatch:
    """A whole released batch, for a `BatchSink`. Lives on the driver."""

    batch_id: int
    term: int
    spark: SparkSession = field(repr=False)
    read: Callable[[], DataFrame] = field(repr=False)
    """Returns a batch DataFrame of the staged rows, with the exact schema of the streaming one. Each call returns the
    same rows.
    """


class BatchSink(ABC):
    """A target that only an existing whole-batch writer can reach: called once per batch, on the driver, with Spark."""

    idempotent: bool = False
    replaces_rows: bool = False
    """True if rows of a batch replace earlier rows: those with the same key, or all. A query in output mode `complete`,
    where each batch holds the whole result, then gets no warning.
    """

    @abstractmethod
    def write_batch(self, batch: ReleasedBatch) -> None:
        """Write the whole batch. After a failure or a crash it is called again with the same rows."""

    def describe(self) -> str:
        """Short description for messages, logs and the WAL. It must not contain secrets. Default: the class name."""
        return type(self).__name__


def idempotent(function: F) -> F:
    """Mark a function of one `Chunk` as harmless to repeat: its target ignores a `chunk.key` that it has seen."""
    if not callable(function) and not isinstance(function, Sink):
        raise ConfigError(
            f"@idempotent marks a function of one Chunk, but this is a {type(function).__name__}. A sink that is named "
            "by a URL has an option for this, such as https://…#idempotent=true"
        )
    function.idempotent = True  # type: ignore[attr-defined]
    return function


class FunctionSink(Sink):
    """A sink that calls a function of one `Chunk`."""

    def __init__(self, function: Callable[[Chunk], Rejected | None]) -> None:
        self._function = function
        self.idempotent = getattr(function, "idempotent", False) is True

    def wrapped_object(self) -> object:
        """The function that gets the chunks."""
        return self._function

    def write(self, chunk: Chunk) -> Rejected | None:
        return self._function(chunk)

    def describe(self) -> str:
        return str(getattr(self._function, "__qualname__", type(self._function).__name__))


_KINDS: tuple[type, ...] = (Sink, BatchSink, TransactionalSink, TwoPhaseSink, CommitSink, SegmentSink, Lookup)


def as_sink(to: object) -> Sink | BatchSink:
    """The sink for the user's argument. Raises `ConfigError` if it is not a sink, or cannot be called as wal-sink calls
    sinks.
    """
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
