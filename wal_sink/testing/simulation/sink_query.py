"""`SinkQuery`: a query into one sink that a test drives batch by batch, crashes and starts again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.reporting.texts import name_of, text_of
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import BatchSink, Sink
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
            query.restart()                # the next one delivers the rest

    `make_sink` is called once per process. Chunks have two rows unless `settings` says otherwise. A writer of whole
    batches needs `data_frame`, which makes a DataFrame of a pyarrow table. Leaving the `with` block normally delivers
    what is complete. Everything raises what `WalSink` raises, `DeliveryError` for instance; only a crash raises
    nothing: `alive` tells.
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
        """What the present process did so far: each operation of the stores and call of the sink, before and after."""
        return tuple(self._process.points) if self._process is not None else ()

    def batch(self, *partitions: pa.Table) -> None:
        """Run the next batch as Spark does: plan, stage, complete; then deliver it. One table a partition."""
        self._do(self._stage, partitions, then=(self._complete, Process.deliver))

    def stage(self, *partitions: pa.Table) -> None:
        """Plan and stage the next batch, which is not complete yet: nothing of it may be delivered."""
        self._do(self._stage, partitions)

    def complete(self) -> None:
        """Spark completes the checkpoint of the batch that was staged last."""
        self._do(self._complete)

    def deliver(self) -> None:
        """Deliver what is complete."""
        self._do(Process.deliver)

    def crash_at(self, point: str) -> None:
        """Let the process die when it next comes to a point that begins so, such as `"before write"`.

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
        """The process dies here. What it did is done, what it knew is gone; the sink's `close` is not called."""
        process, self._process = self._process, None
        if process is not None:
            bury(process, Crash("crash()"))

    def restart(self) -> None:
        """The next process: it delivers what was left, then runs the last batch again if Spark did not complete it."""
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
            raise ValueError("a batch needs at least one table, for its columns; an empty one will do")
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
        """Steps of the process; a crash ends it, and them, quietly."""
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
    """A query into a sink, over a new WAL in memory, which can crash and start again. See `SinkQuery`.

    `to` is what `WalSink` takes for one sink. Each process gets a copy of it, as an executor does; a function that
    cannot be pickled is used itself, a sink that cannot is refused with `ConfigError`. A writer of whole batches needs
    `data_frame`: `spark.createDataFrame`.
    """
    return SinkQuery(copies(to), data_frame=data_frame)


def copies(to: object) -> Callable[[], object]:
    """Makes a sink for each process, as unlike the others as those of real processes.

    A function that cannot be pickled, such as a lambda, is used itself. Raises `ConfigError` for a sink of a class that
    cannot: the one instance would remember over a crash what no process remembers.
    """
    try:
        return partial(pickle.loads, pickle.dumps(to))
    except Exception as error:
        sink = to.to if isinstance(to, Delivery) else to
        if isinstance(sink, Sink | BatchSink):
            raise ConfigError(
                f"query_into({name_of(sink)}): each process gets a copy of its own, and it cannot be pickled "
                f"({text_of(error)}). Keep plain data in __init__ and connect in open(), or say how each process makes "
                "its sink: SinkQuery(lambda: MySink(…))"
            ) from error
        return lambda: to
