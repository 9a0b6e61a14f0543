"""`OwnQuery`: the streaming query that stages into one WAL. It is started, held and stopped here, and its staging
errors are kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.protocol.committer_pool import CommitterPool
from wal_sink.protocol.stage import Entries, RunEntry, again
from wal_sink.spark.checkpoint_files import checkpoint_location
from wal_sink.spark.connect import LEAVE_WAIT_S, STOP_WAIT_S, RemoteQuery, start_over_connect
from wal_sink.support.clock import JobStoppedError, StoppedError
from wal_sink.support.logs import logger_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from wal_sink.spark.identity import BatchRows, QueryIdentity

_logger = logger_of(__name__)

_POLL_S = 0.05
"""The pause between two checks whether a held stream may go on."""
_STOP_S = 5.0
"""How long a held stream waits for `query.stop()` after `leave`."""


class OwnQuery:
    """The query of one `WalSink`: started by it, or the user's `writeStream` chain that calls its `stage`. Driver only.

    pyspark is imported only when there is a query, because draining works without it.
    """

    def __init__(self, owner: str, wal: str) -> None:
        """`owner`: the name of the `WalSink` in errors, without secrets. `wal`: the URL of its log."""
        self._owner = owner
        self._query: StreamingQuery | None = None
        self._remote: RemoteQuery | None = None
        """The query of `start_remote`, which runs in a server of Spark Connect."""
        self._identity: QueryIdentity | None = None
        """The identity of the batch that was entered last."""
        self._checked_run: str | None = None
        """The run whose checkpoint was compared last."""
        self._rows: BatchRows | None = None
        """The rows of the batches so far; None before the first batch."""
        self._entries = Entries(owner, wal)
        self._stage_error: BaseException | None = None
        self._staging_thread: threading.Thread | None = None
        self._was_told = False
        """`raise_failure` told how a query of Spark Connect ended."""
        self._leaving = threading.Event()
        self._has_left = False
        """The stop that `leave` announced is over, whether or not Spark could stop the query."""

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        """Announce that the query will be stopped and not continue: a held stream then waits only for the stop."""
        self._leaving.set()

    def start(
        self, writer: DataStreamWriter, checkpoint: str, take: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Start a query that passes each of its batches to `take`. Raises `ConfigError` if the query cannot work.

        The error of an earlier query of this object is forgotten.
        """
        from wal_sink.spark.query import start_query  # noqa: PLC0415

        def on_batch(df: DataFrame, batch_id: int) -> None:
            self._staging_thread = threading.current_thread()
            try:
                take(df, batch_id)
            except BaseException as error:
                self._stage_error = error  # Spark reports the error to the user without its type and cause
                raise

        self._stage_error = None
        self._query = start_query(writer, checkpoint, on_batch)
        return self._query

    def start_remote(
        self, writer: DataStreamWriter, options: Mapping[str, str], query_id: Callable[[], str | None]
    ) -> StreamingQuery:
        """Start a query of Spark Connect, which stages on its server. Raises `ConfigError` if it cannot work.

        `options` are those of `format("wal_sink")`; `query_id` reads the query's id from the checkpoint. From now on
        a thread asks the server whether the query runs.
        """
        self._stage_error = None
        query = start_over_connect(writer, options, query_id)
        if self._remote is not None:
            self._remote.leave()
        self._remote = RemoteQuery(query)
        self._remote.watch()
        return query

    @property
    def is_remote(self) -> bool:
        """Whether the query runs in a server of Spark Connect."""
        return self._remote is not None

    def wait_for_end_of(self, query: StreamingQuery) -> None:
        """Wait until the query of `start` ended. Raises Spark's error if it failed, or what a signal handler raises."""
        if self._remote is not None:
            self._remote.wait_for_end()
            return
        from wal_sink.spark.query import wait_for_end  # noqa: PLC0415

        wait_for_end(query)

    @contextmanager
    def entered(self, df: DataFrame, batch_id: int, checkpoint: str) -> Iterator[tuple[QueryIdentity, RunEntry]]:
        """Enter a batch for the time it is staged; yields the query's identity and the run's entry.

        See `Entries.entered`. From now on `stop` does nothing on the calling thread. If delivery gives up or the
        `WalSink` closes, the newest run is the one that is stopped. Raises `ConfigError` if no running query is found,
        if the query runs on another checkpoint, and if `df` holds only rows of earlier batches.
        """
        from wal_sink.spark import identity  # noqa: PLC0415

        with self._entries.unknown(batch_id):
            found = identity.identity_of(df, batch_id)

        def on_enter() -> None:
            self._staging_thread = threading.current_thread()
            self._identity = found
            self._query = found.query

        with self._entries.entered(found.query_id, found.run_id, batch_id, on_enter=on_enter) as entry:
            if self._checked_run != found.run_id:
                identity.refuse_other_checkpoint(found, checkpoint_location(checkpoint, found.session))
                self._checked_run = found.run_id
            self._rows = self._rows or identity.BatchRows()
            self._rows.refuse_earlier(df, found)
            yield found, entry

    def refuse_inside(self, is_complete: Callable[[int], bool]) -> None:
        """Refuse to close inside `foreachBatch`: the current batch cannot be complete before that returns.

        `is_complete` asks the checkpoint. A user's own thread that staged may close after the batch is complete.
        """
        entry, identity = self._entries.run, self._identity
        if entry is None or identity is None or entry.batch_id is None:
            return
        inside = identity.is_on_its_thread()
        if not inside and threading.current_thread() is self._staging_thread and identity.query.isActive:
            inside = not is_complete(entry.batch_id)
            if not inside:
                self._staging_thread = None
        if inside:
            raise ConfigError(
                f"{self._owner} was closed inside foreachBatch, in batch {entry.batch_id}. Spark completes this batch "
                "only after foreachBatch returned, so the last batch of the query could never be delivered. Create "
                "the WalSink before the query starts, and close it (or leave its with block) after the query ended"
            )

    def unstaged_error(self, is_complete: Callable[[int], bool]) -> Exception | None:
        """The error of a failed `stage` call whose batch Spark completed nevertheless, as it is to be raised.

        `is_complete` is called only if a call failed.
        """
        complete = (unstaged for unstaged in self._entries.unstaged if is_complete(unstaged.batch_id))
        return next((again(unstaged, self._owner) for unstaged in complete), None)

    def warn_unopened(self) -> None:
        """Warn that no batch was staged, when a `WalSink` that was never opened closes.

        It is not known whether a query ran: none called `stage`, and a new WAL may have an old checkpoint.
        """
        _logger.warning(
            "%s was closed but never opened: it staged no batch and delivered nothing. If a query ran in this time, "
            "foreachBatch did not call stage(), and the batches of this query are not in the WAL. Start the query "
            "inside the with block of the WalSink. Then the end of the block raises an error if batches were not "
            "staged",
            self._owner,
        )

    def hold(
        self,
        df: DataFrame,
        pool: CommitterPool,
        *,
        until: Callable[[], bool],
        while_held: AbstractContextManager[None] | None = None,
    ) -> None:
        """Hold the stream, inside its `foreachBatch`, until `until()` is true. `while_held` is entered if it must wait.

        Raises the error that made delivery give up, before or meanwhile. Raises `StoppedError` when the query is
        stopped; Spark does not count that as a failure of the query.
        """
        from wal_sink.spark.query import sleep_in_stream  # noqa: PLC0415

        pool.raise_error()
        if until():
            return
        with while_held or nullcontext():
            while True:
                if self.is_leaving:
                    self._wait_for_stop(df)
                sleep_in_stream(df, _POLL_S)
                pool.raise_error()
                if until():
                    return

    def wait_if_leaving(self, df: DataFrame) -> None:
        """Wait for the stop that is under way, inside `foreachBatch`, and raise `StoppedError`.

        So a batch that comes while the `WalSink` closes is not a failure of the query. Does nothing before `leave`, and
        nothing once the stop is over: a query that still runs then is one that nobody stops.
        """
        if self.is_leaving and not self._has_left:
            self._wait_for_stop(df)

    def _wait_for_stop(self, df: DataFrame) -> NoReturn:
        from wal_sink.spark.query import sleep_in_stream  # noqa: PLC0415
        from wal_sink.spark.tasks import INTERRUPTED  # noqa: PLC0415

        sleep_in_stream(df, _STOP_S)
        # The stop interrupts only the thread of the query. `stage` may be called on another one.
        raise StoppedError(
            f"{self._owner} is closing, so the batch was not staged. Spark runs the batch again at the next start "
            f"({INTERRUPTED})"
        ) from None  # Spark searches the text of this error, and a cause would be a part of it

    def stop(self, wait_s: float = STOP_WAIT_S) -> None:
        """Stop this query, if there is one, and no other: a fenced run must not stop the query of the newer process.

        Does nothing inside its `foreachBatch`, because a stop there would wait for itself. Raises `WalSinkError` if
        Spark cannot stop it. `wait_s` bounds the wait for a server of Spark Connect; `raise_failure` tells the outcome.
        """
        try:
            if self._remote is not None:
                self._remote.stop(wait_s)
            elif self._query is not None and not self._is_inside():
                from wal_sink.spark.query import stop_query  # noqa: PLC0415

                stop_query(self._query)
        finally:
            self._has_left = self.is_leaving

    def stop_soon(self) -> None:
        """Stop this query because delivery gave up. Does not wait for a server of Spark Connect."""
        if self._remote is not None:
            self._remote.ask_to_stop()
        else:
            self.stop()

    def stop_at_end(self) -> None:
        """Stop a query of Spark Connect after the committers ended. Raises `WalSinkError` if it may still run.

        Does nothing if `close` asked for the stop already: then `raise_failure` tells the outcome.
        """
        if self._remote is None:
            return
        try:
            if not (self._remote.has_ended or self._was_told):
                self.stop(LEAVE_WAIT_S)
                self._remote.raise_unconfirmed()
        finally:
            self._remote.leave()

    def _is_inside(self) -> bool:
        on_its_thread = self._identity is not None and self._identity.is_on_its_thread()
        return on_its_thread or threading.current_thread() is self._staging_thread

    @property
    def stage_error(self) -> WalSinkError | None:
        """The staging error of a query of `start`, if it is one of ours: it tells more than Spark's error."""
        error = self._stage_error
        return error if isinstance(error, WalSinkError) else None

    def raise_failure(self) -> None:
        """Raise the staging error of a query of `start`; not after a stop, which makes the last batch fail.

        If a job was cancelled, Spark knows whether a stop did it: then the query has no error.
        """
        error = self._stage_error
        if isinstance(error, WalSinkError):
            raise error
        if self._remote is not None:  # the errors of staging are the server's
            self._was_told = True
            if (failure := self._remote.failure) is not None:
                raise failure
            return
        was_held = isinstance(error, StoppedError) and not isinstance(error, JobStoppedError)
        if self._query is None or error is None or was_held:
            return
        if (failure := self._query.exception()) is not None:
            raise failure
