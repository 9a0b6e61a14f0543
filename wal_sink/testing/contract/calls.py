"""Single calls of a sink: chunks made for a test, calls made one by one, and errors as text for messages."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from wal_sink.sinks.base import (
    BatchCommit,
    CommitPosition,
    CommitSink,
    SegmentSink,
    Sink,
    SinkContext,
    StagedSegment,
    Transaction,
    TransactionalSink,
    TwoPhaseSink,
)
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.support.clock import SYSTEM
from wal_sink.support.texts import text_of
from wal_sink.testing.data.tables import spark_schema_of
from wal_sink.testing.simulation.fake_query import segment_of
from wal_sink.testing.simulation.watched import OwnLines

_WAL = "5e9f0f6e00004000800000000000ba5e"


def slot(ordinal: int = 0) -> str:
    """The slot of the n-th segment of every batch."""
    return f"{_WAL}/default/{ordinal}"


def chunks_of(
    table: pa.Table, *, batch_id: int = 0, ordinal: int = 0, term: int = 1, chunk_rows: int = 2
) -> list[Chunk]:
    """The chunks of a table that is the only segment with this ordinal in a batch."""
    segment = f"{batch_id:016x}{ordinal:016x}"
    ends = [*range(chunk_rows, table.num_rows, chunk_rows), table.num_rows]
    starts = [0, *ends[:-1]]
    return [
        Chunk(
            table=table.slice(start, end - start),
            batch_id=batch_id,
            key=chunk_key(segment, start, end),
            segment_id=segment,
            rows=range(start, end),
            position=Position(slot(ordinal), batch_id, end, segment),
            term=term,
            start=start,
        )
        for start, end in zip(starts, ends, strict=True)
    ]


@contextmanager
def opened(sink: Sink, chunk: Chunk, *, on_executor: bool = False, name: str = "default") -> Iterator[Sink]:
    """Open the sink under a name for the time of one delivery task, then close it."""
    context = SinkContext(
        wal_id=_WAL,
        sink=name,
        term=chunk.term,
        batch_id=chunk.batch_id,
        columns=tuple(chunk.table.column_names),
        on_executor=on_executor,
        spark_schema=spark_schema_of(chunk.table.schema),
    )
    sink.open(context)
    try:
        yield sink
    finally:
        sink.close()


def following(sink: Sink, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of one segment for an attempt that begins now: `follows` is the position in a transactional target."""
    if not isinstance(sink, TransactionalSink):
        return list(chunks)
    stored = sink.last(chunks[0].position.slot)
    return [replace(chunk, follows=stored) for chunk in chunks]


def attempt(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """Make one attempt at a segment with an opened sink; return the sink's answers."""
    return send(sink, following(sink, chunks))


def send(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """Pass the chunks of one segment to the sink, as delivery does; return the sink's answers."""
    if isinstance(sink, SegmentSink):
        first = chunks[0]
        return [sink.write_segment(int(first.position.slot.rpartition("/")[2]), first.batch_id, iter(chunks))]
    if isinstance(sink, TwoPhaseSink):
        written: list[object] = []
        held = prepare(sink, chunks, written=written)
        return [*written, commit(sink, held)]
    if isinstance(sink, CommitSink):
        returned: object = sink.commit(next_batch(sink, chunks, follows=sink.position()))
        return [returned]
    return [sink.write(chunk) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class Held:
    """A prepared transaction of a two-phase sink, as the WAL keeps it until it is committed or aborted."""

    transaction: Transaction
    token: str
    handle: str


def attempt_at(chunk: Chunk) -> Transaction:
    """A new transaction for the segment of a chunk. Every run of the tests has new ids, since targets may be kept."""
    ordinal = int(chunk.position.slot.rpartition("/")[2])
    return Transaction(SYSTEM.new_id(), _WAL, "default", chunk.batch_id, partition=ordinal, file_index=0)


def prepare(sink: TwoPhaseSink, chunks: Sequence[Chunk], *, written: list[object] | None = None) -> Held:
    """Begin, write and prepare chunks of one segment, and abort after an error, as staging does.

    The answers of the writes are added to `written`.
    """
    transaction, token = attempt_at(chunks[0]), ""
    try:
        token = sink.begin(transaction)
        for chunk in chunks:
            returned: object = sink.write(chunk)
            if written is not None:
                written.append(returned)
        return Held(transaction, token, sink.prepare())
    except Exception:
        sink.abort(transaction, token)
        raise


def commit(sink: TwoPhaseSink, held: Held) -> object:
    """Commit a transaction, which any instance may have prepared; return the sink's answer."""
    return sink.commit(held.transaction, held.handle)


def next_batch(sink: CommitSink, *segments: Sequence[Chunk], follows: CommitPosition | None) -> BatchCommit:
    """Prepare a batch of these segments with an opened sink, after the batch of a position."""
    batch_id = follows.batch_id + 1 if follows else 0
    pieces = [_staged(chunks, batch_id) for chunks in segments]
    handles = tuple(sink.prepare(piece) for piece in pieces)
    digest = hashlib.blake2b("".join(piece.id for piece in pieces).encode()).hexdigest()[:15]
    return BatchCommit(batch_id, digest, sum(piece.rows for piece in pieces), handles, follows)


def _staged(chunks: Sequence[Chunk], batch_id: int) -> StagedSegment:
    table = pa.concat_tables([chunk.table for chunk in chunks])
    data = segment_of(table)
    name = hashlib.blake2b(data, digest_size=16, person=str(batch_id).encode()).hexdigest()
    return StagedSegment(name, table.num_rows, data, iter(chunks))


def deliver(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """Run one delivery task: open, send, close."""
    with opened(sink, chunks[0]):
        return attempt(sink, chunks)


def parts_of(sink: Sink, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
    """The chunks grouped by what the sink takes at a time: one chunk, or all chunks of a segment."""
    return [chunks] if isinstance(sink, SegmentSink | TwoPhaseSink | CommitSink) else [[chunk] for chunk in chunks]


class _CountedLine:
    """Calls a function at the n-th executed line of a sink's own code, counted from 1."""

    def __init__(self, number: int, happens: Callable[[], object]) -> None:
        self._left = number
        self._happens = happens
        self.place = ""

    def __call__(self, place: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.place = place
            self._happens()


def fail() -> None:
    """Fail as a request does, for `send_meanwhile`."""
    raise ConnectionError("wal_sink.testing makes this request fail")


def lines_of(sink: Sink, chunks: Sequence[Chunk]) -> list[str]:
    """The lines of the sink's own code that run while it sends, in order."""
    places: list[str] = []
    with opened(sink, chunks[0]):
        OwnLines(sink).call(send, sink, following(sink, chunks), on_line=places.append)
    return places


def send_meanwhile(
    sink: Sink, chunks: Sequence[Chunk], happens: Callable[[], object], *, at_line: int
) -> tuple[str, BaseException | None]:
    """Call a function before one line of the sink's own code while it sends.

    Returns the place of the line and the error that the sink raised, if any.
    """
    line = _CountedLine(at_line, happens)
    with opened(sink, chunks[0]):
        begun = following(sink, chunks)
        try:
            OwnLines(sink).call(send, sink, begun, on_line=line)
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            return line.place, error
    return line.place, None


def travelled(sink: Sink) -> Sink:
    """A copy of the sink, as an executor gets it. Raises `ConfigError` with the ways out if it cannot be pickled."""
    return cast("Sink", pickle.loads(pickled(sink)))  # noqa: S301 - our own bytes


def pickled(sink: Sink) -> bytes:
    """The sink as bytes for executors."""
    try:
        return pickle.dumps(sink)
    except Exception:  # noqa: BLE001 - try by value: Spark's own pickling can do more, and its error tells the reason
        from wal_sink.spark.delivery import pickled as by_value  # noqa: PLC0415 - the kit runs without Spark

        return by_value(sink, "default").payload


def shown_error(error: BaseException) -> str:
    """An error as short text for a message."""
    text = text_of(error)
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:299] + '…'}"
