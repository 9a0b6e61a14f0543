"""A sink on a bench: chunks made by hand, calls made one by one, and sentences for what turns out to be wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from wal_sink.reporting.texts import text_of
from wal_sink.runtime.clock import SYSTEM
from wal_sink.sinks.base import SegmentSink, Sink, SinkContext, Transaction, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position, chunk_key
from wal_sink.testing.data.tables import spark_schema_of
from wal_sink.testing.simulation.own_lines import OwnLines

_WAL = "5e9f0f6e00004000800000000000ba5e"


def slot(ordinal: int = 0) -> str:
    """The slot of the n-th segment of every batch."""
    return f"{_WAL}/default/{ordinal}"


def chunks_of(
    table: pa.Table, *, batch_id: int = 0, ordinal: int = 0, term: int = 1, chunk_rows: int = 2
) -> list[Chunk]:
    """A table as the only segment of this ordinal in a batch, in chunks."""
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


def of_term(chunk: Chunk, term: int) -> Chunk:
    """The same chunk, from the committer of another term."""
    return replace(chunk, term=term)


@contextmanager
def opened(sink: Sink, chunk: Chunk, *, on_executor: bool = False) -> Iterator[Sink]:
    """The sink for the length of one delivery task."""
    context = SinkContext(
        wal_id=_WAL,
        sink="default",
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
    """Chunks of one segment as an attempt has them that begins now: a transactional target tells what they follow."""
    if not isinstance(sink, TransactionalSink):
        return list(chunks)
    stored = sink.last(chunks[0].position.slot)
    return [replace(chunk, follows=stored) for chunk in chunks]


def attempt(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """One attempt at a segment with an opened sink; what it returned."""
    return send(sink, following(sink, chunks))


def send(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """Hand chunks of one segment to the sink, as delivery does; what it returned."""
    if isinstance(sink, SegmentSink):
        first = chunks[0]
        return [sink.write_segment(int(first.position.slot.rpartition("/")[2]), first.batch_id, iter(chunks))]
    if isinstance(sink, TwoPhaseSink):
        written: list[object] = []
        held = prepare(sink, chunks, written=written)
        return [*written, commit(sink, held)]
    return [sink.write(chunk) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class Held:
    """What a two-phase sink prepared, as it lies in the WAL until it is committed or aborted."""

    transaction: Transaction
    token: str
    handle: str


def attempt_at(chunk: Chunk) -> Transaction:
    """A new transaction of the segment of a chunk. Its id is new in every run of the tests: targets may be kept."""
    ordinal = int(chunk.position.slot.rpartition("/")[2])
    return Transaction(SYSTEM.new_id(), _WAL, "default", chunk.batch_id, partition=ordinal, file_index=0)


def prepare(sink: TwoPhaseSink, chunks: Sequence[Chunk], *, written: list[object] | None = None) -> Held:
    """Begin, write and prepare chunks of one segment as staging does, which aborts what fails.

    `written` takes what the writes returned.
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
    """Commit what was prepared, by whatever instance; what the sink returned."""
    return sink.commit(held.transaction, held.handle)


def deliver(sink: Sink, chunks: Sequence[Chunk]) -> list[object]:
    """One delivery task: open, send, close."""
    with opened(sink, chunks[0]):
        return attempt(sink, chunks)


def parts_of(sink: Sink, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
    """What the sink takes at a time: a chunk, or a segment of chunks."""
    return [chunks] if isinstance(sink, SegmentSink | TwoPhaseSink) else [[chunk] for chunk in chunks]


class _CountedLine:
    """Lets something happen at the n-th line of a sink's own code, counted from 1."""

    def __init__(self, number: int, happens: Callable[[], object]) -> None:
        self._left = number
        self._happens = happens
        self.place = ""

    def __call__(self, place: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.place = place
            self._happens()


def _fail() -> None:
    raise ConnectionError("wal_sink.testing lets this request fail")


def lines_of(sink: Sink, chunks: Sequence[Chunk]) -> list[str]:
    """The lines of the sink's own code that it comes by while it sends."""
    places: list[str] = []
    with opened(sink, chunks[0]):
        OwnLines(sink).call(send, sink, following(sink, chunks), on_line=places.append)
    return places


def send_failing(sink: Sink, chunk: Chunk, *, at_line: int) -> tuple[str, BaseException | None]:
    """Let one line of the sink's own code fail while it writes. Where that was ("": it has fewer lines), and what came
    of it: the error that `write` raised, if it did.
    """
    return send_meanwhile(sink, [chunk], _fail, at_line=at_line)


def send_meanwhile(
    sink: Sink, chunks: Sequence[Chunk], happens: Callable[[], object], *, at_line: int
) -> tuple[str, BaseException | None]:
    """Let something happen before one line of the sink's own code while it sends. Where that was, and the error that
    came out of the sink, if one did.
    """
    line = _CountedLine(at_line, happens)
    with opened(sink, chunks[0]):
        begun = following(sink, chunks)
        try:
            OwnLines(sink).call(send, sink, begun, on_line=line)
        except Exception as error:  # noqa: BLE001 - whatever the sink makes of it
            return line.place, error
    return line.place, None


def travelled(sink: Sink) -> Sink:
    """A copy, as an executor gets one. Raises `ConfigError` with the ways out if there can be none."""
    return cast("Sink", pickle.loads(pickled(sink)))  # noqa: S301 - our own bytes


def pickled(sink: Sink) -> bytes:
    """The sink as the bytes that travel to executors."""
    try:
        return pickle.dumps(sink)
    except Exception:  # noqa: BLE001 - by value, then: Spark's own pickling can do more, and says what is wrong
        from wal_sink.spark.delivery.pickling import pickled as by_value  # noqa: PLC0415 - the kit runs without Spark

        return by_value(sink, "default").payload


def shown_error(error: BaseException) -> str:
    """An error, for a message."""
    text = text_of(error)
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:299] + '…'}"
