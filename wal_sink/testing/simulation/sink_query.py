"""`SinkQuery`: a query into one sink. A test runs it batch by batch, lets it crash and starts it again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.support.texts import name_of, text_of
from wal_sink.testing.simulation.faults import Crash
from wal_sink.testing.simulation.process import MakeFrame, Place, Process, bury
from wal_sink.testing.simulation.watched import CALLS

_BOTH = ("create", "delete", "segment", *CALLS)
_POINTS = (*(f"{when} {what}" for what in _BOTH for when in ("before", "after")), "before read", "before list")
_SMALL_CHUNKS = Settings(chunk_rows=2)


class SinkQuery:
    """A streaming query, its checkpoint and its WAL in memory, and the process that runs it. No Spark, no real time.

        with query_into(sink) as query:
            query.batch(first)             # staged, completed, delivered
            query.crash_at("after write")
            query.batch(second)            # the process dies once the sink has its first chunk
            query.restart()                # the next process delivers the rest

    `make_sink` is called once per process. Chunks have two rows unless `settings` says otherwise. A writer of whole
    batches needs `data_frame`, which makes a DataFrame from a pyarrow table. Leaving the `with` block without an error
    delivers the complete batches. All methods raise the errors of `WalSink`, such as `DeliveryError`. A crash raises
    nothing: `alive` is False after it.
    """

    def __init__(
        self,
        make_sink: Callable[[], object],
        *,
        settings: Settings = _SMALL_CHUNKS,
        data_frame: MakeFrame | None = None,
    ) -> None:
        self._place = Place(make_sink, settings=settings, data_frame=data_frame)
        self._process: Process | None = None
        self._deadly = ""
        self._staged: int | None = None

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self._process is not None

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the present process so far: before and after operations of the stores and calls of the sink."""
        return tuple(self._process.points) if self._process is not None else ()

    def batch(self, *partitions: pa.Table) -> None:
        """Run the next batch as Spark does: plan, stage, complete. Then deliver it. Pass one table per partition."""
        self._do(self._stage, partitions, then=(self._complete, Process.deliver))

    def stage(self, *partitions: pa.Table) -> None:
        """Plan and stage the next batch. It is not complete yet, so nothing of it may be delivered."""
        self._do(self._stage, partitions)

    def complete(self) -> None:
        """Complete the checkpoint of the batch that was staged last, as Spark does."""
        self._do(self._complete)

    def deliver(self) -> None:
        """Deliver the complete batches."""
        self._do(Process.deliver)

    def crash_at(self, point: str) -> None:
        """Let the process die at its next point that begins with this text, such as `"before write"`.

        Points of the sink: before and after `open`, `write` (`write_segment`, `write_batch`), `was_applied`, `last`,
        `positions`, `begin`, `prepare`, `commit`, `abort` and `close`. Points of the stores: `before` and `after`
        `create`, `delete` and `segment`, with the path; `before` `read` and `list`. Raises `ValueError` for any other.
        """
        if not any(point.startswith(f"{known} ") or known.startswith(point) for known in _POINTS):
            raise ValueError(
                f"crash_at({point!r}): no crash point has a name that begins like this. Expected a name that begins "
                f"with one of {_POINTS}"
            )
        self._deadly = point

    def crash(self) -> None:
        """Let the process die now. Its effects stay, its memory is lost, and the sink's `close` is not called."""
        process, self._process = self._process, None
        if process is not None:
            bury(process, Crash("crash()"))

    def restart(self) -> None:
        """Start the next process. It delivers the rest, and runs the last batch again if Spark did not complete it."""
        self.crash()
        self._process = Process(self._place, hook=self._hook)
        self._do(self._recover)

    def __enter__(self) -> Self:
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.alive:
                self._do(Process.deliver, then=(Process.end,))
        finally:
            self._place.clear()

    def _stage(self, process: Process, partitions: tuple[pa.Table, ...]) -> None:
        if not partitions:
            raise ValueError("a batch needs at least one table, for its columns; the table may be empty")
        batch_id = process.next_batch()
        self._place.batches[batch_id] = partitions
        process.stage(batch_id)
        self._staged = batch_id

    def _complete(self, process: Process) -> None:
        if self._staged is None:
            raise RuntimeError("no batch is staged: call stage(table) first")
        staged, self._staged = self._staged, None
        process.complete(staged)

    def _recover(self, process: Process) -> None:
        self._staged = None
        process.open()
        if (batch_id := process.next_batch()) in self._place.batches:
            process.stage(batch_id)
            process.complete(batch_id)
            process.deliver()

    def _do(self, step: Callable[..., object], *args: object, then: Sequence[Callable[[Process], object]] = ()) -> None:
        """Run steps of the process. A crash ends the process and skips the other steps; it is not raised."""
        if self._process is None:
            raise RuntimeError(
                "no process runs: " + ("call restart()" if self._place.started else "use the query in a with block")
            )
        try:
            step(self._process, *args)
            for next_step in then:
                next_step(self._process)
        except Crash as crash:
            process, self._process = self._process, None
            bury(process, crash)

    def _hook(self, _: Process, point: str) -> None:
        if self._deadly and point.startswith(self._deadly):
            self._deadly = ""
            raise Crash(point)


def query_into(to: object, *, data_frame: MakeFrame | None = None) -> SinkQuery:
    """Make a query into a sink, with a new WAL in memory. It can crash and start again; see `SinkQuery`.

    `to` is anything that `WalSink` accepts as one sink. Each process gets a copy of it, as an executor does. A function
    that cannot be pickled is used without a copy; a sink that cannot be pickled is refused with `ConfigError`. A writer
    of whole batches needs `data_frame`, for example `spark.createDataFrame`.
    """
    return SinkQuery(copies(to), data_frame=data_frame)


def copies(to: object) -> Callable[[], object]:
    """Return a function that makes a separate copy of a sink for each process.

    A function that cannot be pickled, such as a lambda, is used without a copy. Raises `ConfigError` for an object of a
    sink class that cannot be pickled: a single object would keep its memory over a crash, as no real process does.
    """
    try:
        return partial(pickle.loads, pickle.dumps(to))
    except Exception as error:
        sink = to.to if isinstance(to, Delivery) else to
        if isinstance(sink, Sink | BatchSink):
            raise ConfigError(
                f"query_into({name_of(sink)}): each process gets a copy of the sink, but it cannot be pickled "
                f"({text_of(error)}). Keep plain data in __init__ and connect in open(), or pass a function that makes "
                "a sink for each process: SinkQuery(lambda: MySink(…))"
            ) from error
        return lambda: to
