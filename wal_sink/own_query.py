"""`OwnQuery`: the streaming query that stages into one WAL: started, held, stopped, asked why its staging failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.crew import Crew
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.serving import StoppedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_S = 0.05
"""How often a held stream looks whether it may go on."""
_STOP_S = 5.0
"""How long a held stream waits for `query.stop()`, once it is on its way."""


@dataclass(slots=True)
class ChainRun:
    """One run of a query whose own `foreachBatch` calls `stage`."""

    run_id: str | None
    """None if it cannot be told."""
    has_term: bool = False
    staged: int | None = None
    """The batch staged last."""


class OwnQuery:
    """The query of one `WalSink`: started by it, or an own `writeStream` chain that calls its `stage`. Driver only.

    pyspark is imported when there is a query, for draining needs none.
    """

    def __init__(self, owner: str) -> None:
        """`owner`: what errors call the `WalSink`, without secrets."""
        self._owner = owner
        self._query: StreamingQuery | None = None
        self._chain: ChainRun | None = None
        self._stage_error: BaseException | None = None
        self._staging_thread: threading.Thread | None = None
        self._leaving = threading.Event()

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        """The query is about to be stopped, for good: a held stream waits for that only."""
        self._leaving.set()

    def start(
        self, writer: DataStreamWriter, checkpoint: str, take: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Start a query that gives each of its batches to `take`. Raises `ConfigError` for one that cannot work.

        What an earlier query of this object failed with is forgotten.
        """
        from wal_sink.spark.query import start_query  # noqa: PLC0415

        def on_batch(df: DataFrame, batch_id: int) -> None:
            self._staging_thread = threading.current_thread()
            try:
                take(df, batch_id)
            except BaseException as error:
                self._stage_error = error  # Spark will tell the user about it without its type or cause
                raise

        self._stage_error = None
        self._query = start_query(writer, checkpoint, on_batch)
        return self._query

    def enter_chain(self, df: DataFrame, batch_id: int) -> ChainRun:
        """The run of an own chain that stages this batch. On the calling thread `stop` does nothing from now on.

        The newest run is the one that is stopped when delivery gives up or the `WalSink` closes. Raises `ConfigError`
        if the run staged this very batch last, where the run can be told.
        """
        from wal_sink.spark.query import run_id_of, running_query  # noqa: PLC0415

        self._staging_thread = threading.current_thread()
        run_id = run_id_of(df)
        if self._chain is None or self._chain.run_id != run_id:
            self._chain = ChainRun(run_id)
            self._query = running_query(df)
        if run_id is not None and self._chain.staged == batch_id:
            raise ConfigError(
                f"batch {batch_id} of {self._owner} is staged already: a batch is staged by one stage() call. "
                "Union the DataFrames first, or give each a WAL (and a WalSink) of its own"
            )
        return self._chain

    def hold(self, df: DataFrame, crew: Crew, *, until: Callable[[], bool]) -> None:
        """Hold the stream, inside its `foreachBatch`, until `until()` is true.

        Raises what made delivery give up, before or meanwhile, and `StoppedError` when the query is stopped, which
        Spark does not count as its failure.
        """
        from wal_sink.spark.query import sleep_in_stream  # noqa: PLC0415

        crew.raise_error()
        while not until():
            if self.is_leaving:
                sleep_in_stream(df, _STOP_S)
                raise StoppedError(
                    f"{self._owner} is closing: the batch is not staged, and comes again at the next start"
                )
            sleep_in_stream(df, _POLL_S)
            crew.raise_error()

    def stop(self) -> None:
        """Stop this query, if there is one, and no other: a fenced run must not stop its successor.

        Does nothing on the thread of its `foreachBatch`, which would wait for itself. Raises `WalSinkError` if Spark
        cannot stop it.
        """
        if self._query is not None and threading.current_thread() is not self._staging_thread:
            from wal_sink.spark.query import stop_query  # noqa: PLC0415

            stop_query(self._query)

    @property
    def stage_error(self) -> WalSinkError | None:
        """What staging for a query of `start` failed with, if it is an error of ours: it tells more than Spark does."""
        error = self._stage_error
        return error if isinstance(error, WalSinkError) else None

    def raise_failure(self) -> None:
        """Raise what made staging for a query of `start` fail; not if it was stopped, which fails its last batch."""
        error = self._stage_error
        if isinstance(error, WalSinkError):
            raise error
        if self._query is None or error is None or isinstance(error, StoppedError):
            return
        if (failure := self._query.exception()) is not None:
            raise failure
