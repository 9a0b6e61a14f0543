"""`OwnQuery`: the streaming query that stages into one WAL: started, held, stopped, asked why its staging failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.lifecycle.committer_pool import CommitterPool
from wal_sink.lifecycle.entries import Entries, RunEntry, again
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.stopped import JobStoppedError, StoppedError
from wal_sink.spark.session.checkpoint_files import checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from wal_sink.spark.session.identity import QueryIdentity
    from wal_sink.spark.staging.earlier_rows import BatchRows

_logger = logger_of(__name__)

_POLL_S = 0.05
"""How often a held stream looks whether it may go on."""
_STOP_S = 5.0
"""How long a held stream waits for `query.stop()`, once it is on its way."""


class OwnQuery:
    """The query of one `WalSink`: started by it, or an own `writeStream` chain that calls its `stage`. Driver only.

    pyspark is imported when there is a query, for draining needs none.
    """

    def __init__(self, owner: str, wal: str) -> None:
        """`owner`: what errors call the `WalSink`, without secrets. `wal`: the URL of its log."""
        self._owner = owner
        self._query: StreamingQuery | None = None
        self._identity: QueryIdentity | None = None
        """Of the batch that was entered last."""
        self._checked_run: str | None = None
        """The run whose checkpoint was compared last."""
        self._rows: BatchRows | None = None
        """Of the batches that came; none before the first."""
        self._entries = Entries(owner, wal)
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
        from wal_sink.spark.session.query import schema_of, start_query  # noqa: PLC0415
        from wal_sink.spark.staging.schema import check_schema  # noqa: PLC0415

        def on_batch(df: DataFrame, batch_id: int) -> None:
            self._staging_thread = threading.current_thread()
            try:
                take(df, batch_id)
            except BaseException as error:
                self._stage_error = error  # Spark will tell the user about it without its type or cause
                raise

        check_schema(schema_of(writer))
        self._stage_error = None
        self._query = start_query(writer, checkpoint, on_batch)
        return self._query

    @contextmanager
    def entered(self, df: DataFrame, batch_id: int, checkpoint: str) -> Iterator[tuple[QueryIdentity, RunEntry]]:
        """The time in which a batch is staged: who calls, told once, and the run's entry. See `Entries.entered`.

        On the calling thread `stop` does nothing from now on. The newest run is the one that is stopped when delivery
        gives up or the `WalSink` closes. Raises `ConfigError` if no running query can be told, if it runs on
        another checkpoint, and if `df` holds rows of an earlier batch alone.
        """
        from wal_sink.spark.session import identity, locations  # noqa: PLC0415
        from wal_sink.spark.staging import earlier_rows  # noqa: PLC0415

        with self._entries.unknown(batch_id):
            caller = identity.identity_of(df, batch_id)

        def on_enter() -> None:
            self._staging_thread = threading.current_thread()
            self._identity = caller
            self._query = caller.query

        with self._entries.entered(caller.query_id, caller.run_id, batch_id, on_enter=on_enter) as entry:
            if self._checked_run != caller.run_id:
                locations.refuse_other_checkpoint(caller, checkpoint_location(checkpoint, caller.session))
                self._checked_run = caller.run_id
            self._rows = self._rows or earlier_rows.BatchRows()
            self._rows.refuse_earlier(df, caller)
            yield caller, entry

    def refuse_inside(self, is_complete: Callable[[int], bool]) -> None:
        """Refuse to close inside `foreachBatch`: the batch at hand cannot be complete before that returns.

        `is_complete` asks the checkpoint. A thread of the user's that staged may close once the batch is complete.
        """
        entry, caller = self._entries.run, self._identity
        if entry is None or caller is None or entry.batch_id is None:
            return
        inside = caller.is_on_its_thread()
        if not inside and threading.current_thread() is self._staging_thread and caller.query.isActive:
            inside = not is_complete(entry.batch_id)
            if not inside:
                self._staging_thread = None
        if inside:
            raise ConfigError(
                f"{self._owner} was closed inside foreachBatch, in batch {entry.batch_id}, which Spark completes only "
                "after foreachBatch returned: the last batch of the query would never be delivered. Make the WalSink "
                "before the query starts, and close it (or leave its with block) after the query ended"
            )

    def unstaged_error(self, is_complete: Callable[[int], bool]) -> Exception | None:
        """What a call of `stage` failed with whose batch Spark completed all the same. Asks only if a call failed."""
        complete = (unstaged for unstaged in self._entries.unstaged if is_complete(unstaged.batch_id))
        return next((again(unstaged, self._owner) for unstaged in complete), None)

    def warn_unopened(self) -> None:
        """Warn that no batch came here, for a `WalSink` that closes and was never opened.

        Whether a query ran meanwhile, nothing tells: no call came from it, and a new WAL may have an old checkpoint.
        """
        _logger.warning(
            "%s was closed and never opened: it staged no batch and delivered nothing. If a query ran meanwhile, its "
            "foreachBatch did not call stage(): those batches are not in the WAL. Use the WalSink in a with block, "
            "around the query: then leaving the block raises an error for such batches",
            self._owner,
        )

    def hold(self, df: DataFrame, pool: CommitterPool, *, until: Callable[[], bool]) -> None:
        """Hold the stream, inside its `foreachBatch`, until `until()` is true.

        Raises what made delivery give up, before or meanwhile, and `StoppedError` when the query is stopped, which
        Spark does not count as its failure.
        """
        from wal_sink.spark.session.query import sleep_in_stream  # noqa: PLC0415

        pool.raise_error()
        while not until():
            if self.is_leaving:
                sleep_in_stream(df, _STOP_S)
                raise StoppedError(
                    f"{self._owner} is closing: the batch is not staged, and comes again at the next start"
                )
            sleep_in_stream(df, _POLL_S)
            pool.raise_error()

    def stop(self) -> None:
        """Stop this query, if there is one, and no other: a fenced run must not stop its successor.

        Does nothing inside its `foreachBatch`, which would wait for itself. Raises `WalSinkError` if Spark cannot stop
        it.
        """
        if self._query is not None and not self._is_inside():
            from wal_sink.spark.session.query import stop_query  # noqa: PLC0415

            stop_query(self._query)

    def _is_inside(self) -> bool:
        on_its_thread = self._identity is not None and self._identity.is_on_its_thread()
        return on_its_thread or threading.current_thread() is self._staging_thread

    @property
    def stage_error(self) -> WalSinkError | None:
        """What staging for a query of `start` failed with, if it is an error of ours: it tells more than Spark does."""
        error = self._stage_error
        return error if isinstance(error, WalSinkError) else None

    def raise_failure(self) -> None:
        """Raise what made staging for a query of `start` fail; not if it was stopped, which fails its last batch.

        Of a job that was cancelled Spark knows whether that was a stop: then the query has no error.
        """
        error = self._stage_error
        if isinstance(error, WalSinkError):
            raise error
        was_held = isinstance(error, StoppedError) and not isinstance(error, JobStoppedError)
        if self._query is None or error is None or was_held:
            return
        if (failure := self._query.exception()) is not None:
            raise failure
