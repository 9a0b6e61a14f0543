"""`WalSink`: the object that users hold. It connects one run of the core with Spark, threads and the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from wal_sink.deliveries import (
    check_arguments,
    deliveries_of,
    folder_of,
    place_of,
    refuse_large_chunks,
    refuse_unfit_columns,
    refuse_what_only_the_stager_can_do,
    sinks_of,
)
from wal_sink.errors import ConfigError, UndeliveredError, WalSinkError
from wal_sink.log.holders import TakeOver
from wal_sink.metrics.prometheus import Metrics
from wal_sink.operate.status import Status, read_status
from wal_sink.protocol.committer_pool import CommitterPool
from wal_sink.protocol.committer_thread import Liveness
from wal_sink.protocol.history import MissingBatchError
from wal_sink.protocol.run import refuse_ends
from wal_sink.settings import GuaranteeName, Settings
from wal_sink.sinks.calls import refuse_unfit_targets
from wal_sink.sinks.guarantees import Guarantees, promise
from wal_sink.spark.checkpoint_files import checkpoint_location, current_session
from wal_sink.spark.committers import Committers
from wal_sink.spark.connect import OVER_CONNECT, check_stream_writer, is_connect
from wal_sink.spark.environment import check_pyspark
from wal_sink.spark.streaming_query import OwnQuery
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.arguments import check_bool, check_text, check_timeout
from wal_sink.support.clock import SYSTEM
from wal_sink.support.events import OnEvent
from wal_sink.support.logs import logger_of, logging_about
from wal_sink.support.texts import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from wal_sink.spark.identity import QueryIdentity

_logger = logger_of(__name__)

_DEFAULT_SETTINGS = Settings()
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


class WalSink:
    """A write-ahead log between a streaming query and its sinks. Lives on the driver (or in a draining process).

    The constructor does no I/O. Entering the `with` block, or the first call of a method, probes the store, claims the
    committers' terms and delivers the batches that earlier runs left. Spark starts after that. A wrapped writer that
    gets whole batches begins at `start`, `stage`, `drain` or `close`, since it runs in a clone of that call's session.
    """

    def __init__(
        self,
        to: object,
        /,
        *,
        wal: str,
        checkpoint: str,
        guarantee: GuaranteeName | None = None,
        name: str = "default",
        storage_options: Mapping[str, object] | None = None,
        checkpoint_options: Mapping[str, object] | None = None,
        settings: Settings = _DEFAULT_SETTINGS,
        moved_from: str | None = None,
        moved_from_gone: str | None = None,
        take_over: TakeOver | Literal["always", "if_gone", "unless_running"] = "always",
        check_targets: bool = True,
        on_event: OnEvent | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Describe what goes where. Raises `ConfigError` for every mistake that shows without I/O.

        - `to`: a function of one `Chunk`, a `Sink`, a wrapped writer, the URL of a backend, a `Delivery` of one of
          these, None (staged here, drained elsewhere), or a mapping from names to these.
        - `wal`: the URL of the log's folder on any fsspec store.
        - `checkpoint`: the query's checkpointLocation, as Spark gets it.
        - `guarantee`: the requested one, for the sinks that are not given as a `Delivery`.
        - `name`: the name of the sink, if `to` is no mapping.
        - `storage_options`, `checkpoint_options`: fsspec's, and never shown. Without `checkpoint_options`, a
          checkpoint on the same kind of store is read with `storage_options`.
        - `settings`: those of the log, `Settings()` by default.
        - `moved_from`: the URL from which the WAL was moved here; pass it once. It is refused until the original's
          `wal.json` is gone: a copy delivers the same rows as the original.
        - `moved_from_gone`: the same for an original that cannot be looked at from here. You know that it is gone.
        - `take_over`: which other processes that serve one of these sinks are fenced. Default: all; "if_gone": only
          those that certainly ended (`HeldError` for the others); "unless_running": also those of unknown state.
        - `check_targets`: look at each target on entering the `with` block and before a query starts. A wrong password,
          host, table or column is then refused within seconds. False: this process cannot reach the targets.
        - `on_event`: a function that gets each event of the run, such as `wal_sink.telemetry.Staged` or `GaveUp`. It
          runs on the thread that does the work. It should return at once, and its errors are only logged.
        - `metrics`: Prometheus metrics of the run; see `Metrics`. Several `WalSink`s may share one.
        """
        check_arguments(
            settings=settings,
            storage_options=storage_options,
            checkpoint_options=checkpoint_options,
            moved_from=moved_from,
            name=name,
            on_event=on_event,
            metrics=metrics,
        )
        folder = folder_of("wal", wal)
        self._spec = StoreSpec(folder, storage_options or _NO_OPTIONS, single_writer=settings.single_writer)
        self._settings = settings
        location = folder_of("checkpoint", checkpoint)
        place, processes = place_of(moved_from, moved_from_gone), TakeOver(take_over)
        check_bool("check_targets", check_targets)
        self._check_targets = check_targets
        self._deliveries = deliveries_of(to, guarantee, name)
        self._sinks = sinks_of(self._deliveries)
        self._promises = {each: promise(self._sinks[each], given, each) for each, given in self._deliveries.items()}
        self._committers = Committers(
            repr(self),
            self._spec,
            location,
            checkpoint_options,
            settings,
            self._deliveries,
            self._sinks,
            moved_from=place,
            take_over=processes,
            on_event=on_event,
            metrics=metrics,
        )
        self._own_query = OwnQuery(repr(self), self._spec.url)
        self._closing = threading.RLock()
        self._failure: BaseException | None = None
        """The error that ended it before everything was delivered."""

    def __repr__(self) -> str:
        return f"WalSink(wal={self._spec.safe_url!r}, sinks={sorted(self._sinks)})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: Spark Connect would send a function that uses this object to its server."""
        raise ConfigError(
            f"{self!r} cannot be sent to another process. {OVER_CONNECT} For a function that runs on executors, use a "
            "Sink"
        )

    def guarantee(self) -> Mapping[str, str]:
        """The guarantee of each sink and the rows that may repeat, one sentence for each name. `print` shows a line for
        each sink. No I/O.
        """
        return Guarantees({name: kept.sentence for name, kept in self._promises.items()})

    # --- with a streaming query

    def run(self, writer: DataStreamWriter) -> None:
        """Start the query, wait until it ends, deliver everything it completed, close. Raises every failure."""
        try:
            self._own_query.wait_for_end_of(self.start(writer))
        except Exception as error:
            self._end_early()
            self._failure = self._cause_of(error)
            if self._failure is not error:
                # Spark puts a page of text around the message of our error.
                raise self._failure from (None if text_of(self._failure) in text_of(error) else error)
            raise
        except BaseException as error:  # Ctrl-C is raised as it is
            self._end_early()
            self._failure = error
            _logger.warning(
                "%r was ended by %s before its query ended: %s", self, type(error).__name__, self._committers.pending()
            )
            raise
        self.close()
        if self._committers.pool is not None:
            _logger.info("%r: the run is complete: %s", self, self._committers.pool.summary)

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query into this WAL: sets its `foreachBatch` and `checkpointLocation`. Returns Spark's query.

        The writer keeps its trigger, output mode and query name. Raises `ConfigError` if the writer already has
        another checkpointLocation, or a target such as a format.
        `query.awaitTermination()` returns normally after every stop, also when delivery failed. Only `close()`, `run()`
        and leaving the `with` block confirm that everything was delivered.

        A writer of Spark Connect gets `format("wal_sink")`, and its server stages. This process delivers.
        """
        self._committers.refuse_fork()
        check_pyspark()
        refuse_ends(name for name, given in self._deliveries.items() if given.through is not None)
        if is_connect(writer):
            return self._start_over_connect(writer)
        from wal_sink.spark.query import refuse_leftovers, schema_of, session_of  # noqa: PLC0415 - draining needs no Spark
        from wal_sink.spark.schema import arrow_schema, check_schema  # noqa: PLC0415

        refuse_large_chunks(self._settings, self._sinks)
        spark, schema = session_of(writer), schema_of(writer)
        refuse_unfit_columns(self._sinks, self._deliveries, schema.json())
        refuse_leftovers(writer, spark, checkpoint_location(self._committers.checkpoint, spark), self._sinks)
        check_schema(schema)
        self._look_at_targets(arrow_schema(schema))
        self._begin(self._open(spark), spark)
        pool = self._opened()
        pool.run.become_stager()
        query = self._own_query.start(writer, self._committers.checkpoint, self._on_batch)
        if pool.error is not None or self._own_query.is_leaving:  # this came before there was a query to stop
            self._own_query.stop()
        pool.wake()
        return query

    def stage(self, df: DataFrame, batch_id: int) -> None:
        """Stage one batch, from inside `foreachBatch`. For your own `writeStream` chain; it must use this checkpoint.

        Call it once per batch. If you have several DataFrames, union them first, or use one WAL for each. It runs on
        any thread if the DataFrame was made from the one that `foreachBatch` got. Any other DataFrame must be staged on
        the thread that calls `foreachBatch`.
        Raises the error that made delivery give up, and `HistoryError`, before anything is written, if this batch
        contradicts the WAL. Let `foreachBatch` raise it too. A swallowed error is raised again by the next call and by
        `close`.
        """
        self._committers.refuse_fork()
        with self._own_query.entered(df, batch_id, self._committers.checkpoint) as (identity, entry):
            # The batch is entered before anything waits, so that `stop` never waits for this thread.
            pool = self._pool_for(df, identity.session)
            if not entry.has_term:
                self._begin(pool, identity.session, df.sparkSession)
            self._own_query.hold(df, pool, until=lambda: pool.is_caught_up)
            if not entry.has_term:
                refuse_large_chunks(self._settings, self._sinks)
                refuse_unfit_columns(self._sinks, self._deliveries, df.schema.json())
                pool.run.become_stager()
                entry.has_term = True
            self._stage(df, identity, pool, as_given=False)

    # --- without one

    def drain(self, *, follow: bool = False, timeout_s: float | None = None, liveness_file: str | None = None) -> None:
        """Deliver all complete batches. With `follow`, go on as batches complete, until stopped or `timeout_s` passed.

        `liveness_file` is touched while every committer makes progress, for a supervisor that looks at its age.

        Needs no pyspark, unless a sink does. Raises the error that made a committer give up, and `UndeliveredError` for
        a parked sink; without `follow`, also when the time is over.
        """
        check_timeout("timeout_s", timeout_s)
        if not self._sinks:
            raise ConfigError(f"{self!r} only stages: it has no sink. To drain, pass the target: WalSink(to, …)")
        self._committers.refuse_own_thread("drain()")
        began_s = SYSTEM.monotonic_s()
        if liveness_file is not None:
            self._committers.liveness = liveness = Liveness(
                check_text("liveness_file", liveness_file, "/run/wal-sink/alive")
            )
            liveness.begin()
        pool = self._open()
        self._begin(pool)
        left_s = None if timeout_s is None else max(0.0, timeout_s - (SYSTEM.monotonic_s() - began_s))
        if follow:
            pool.follow(left_s)
        else:
            pool.catch_up(left_s)
        self._refuse_given_up(pool)

    def status(self) -> Status:
        """Where the WAL and its sinks stand, read from the store."""
        return read_status(open_store(self._spec))

    def close(self, timeout_s: float | None = None) -> None:
        """Stop the query of this object and deliver all complete batches, or raise.

        An error that `run` or `close` raised before is raised again. So a `with` block that caught it does not end like
        a success.
        """
        check_timeout("timeout_s", timeout_s)
        self._committers.refuse_fork()
        self._committers.refuse_own_thread("close()")
        try:
            with self._closing:
                self._close(timeout_s)
        finally:
            self._committers.events.tell_queued()

    def _close(self, timeout_s: float | None) -> None:
        if self._committers.is_closed:
            _raise_again(self._failure, repr(self))
            return
        try:
            self._own_query.refuse_inside(self._committers.is_complete)
            self._own_query.leave()
            self._own_query.stop()
            self._finish(timeout_s)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._end()

    def __enter__(self) -> Self:
        try:
            self._look_at_targets()
            self._opened()
        except BaseException:  # Ctrl-C during the first delivery: `with` does not call `__exit__` for it
            self._end_early()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end_early()

    # --- opening

    def _look_at_targets(self, schema: object = None) -> None:
        if self._check_targets:
            refuse_unfit_targets(self._sinks, self._deliveries, schema, SYSTEM)

    def _opened(self) -> CommitterPool:
        """The committer pool, after it delivered what earlier runs left. Raises the error that prevented this."""
        pool = self._open()
        pool.wait_caught_up()
        pool.raise_error()
        self._committers.refuse_closed()
        return pool

    def _open(self, spark: SparkSession | None = None) -> CommitterPool:
        """The committer pool, made and started at the first call. Waits for no sink: see `Committers.open`."""
        return self._committers.open(
            lambda: spark or current_session(),
            is_needed=spark is not None,
            on_failure=self._own_query.stop_soon,
            at_end=self._end_early,
        )

    def _begin(self, pool: CommitterPool, spark: SparkSession | None = None, state: SparkSession | None = None) -> None:
        """Let the sinks of whole batches begin, each in a clone of `state`, else of the session of a query, `spark`, or
        of the active one.
        """
        self._committers.begin(pool, spark, state or spark or current_session())

    def _start_over_connect(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query that stages on its server, and begin to deliver in this process what it stages."""
        from wal_sink.spark.source_options import options_of  # noqa: PLC0415 - draining needs no Spark

        check_stream_writer(writer)
        refuse_large_chunks(self._settings, self._sinks)  # types are refused when a batch is opened
        refuse_what_only_the_stager_can_do(
            self._settings, self._sinks, has_checkpoint_options=bool(self._committers.checkpoint_options)
        )
        self._look_at_targets()
        pool = self._opened()
        options = options_of(self._spec, self._committers.checkpoint, self._settings)
        query = self._own_query.start_remote(writer, options, pool.run.checkpoint.query_id)
        if pool.error is not None or self._own_query.is_leaving:  # this came before there was a query to stop
            self._own_query.stop_soon()
        pool.begin_following()
        return query

    # --- while it runs

    def _on_batch(self, df: DataFrame, batch_id: int) -> None:
        """Stage a batch of the query that `start` started; `start` has claimed the stager's term already."""
        with self._own_query.entered(df, batch_id, self._committers.checkpoint) as (identity, _):
            self._stage(df, identity, self._pool_for(df), as_given=True)

    def _pool_for(self, df: DataFrame, spark: SparkSession | None = None) -> CommitterPool:
        """The committer pool for one batch. If this object is closing, waits for the stop of the query instead."""
        try:
            return self._open(spark)
        except ConfigError:
            if self._committers.is_closed:
                self._own_query.wait_if_leaving(df)
            raise

    def _stage(self, df: DataFrame, identity: QueryIdentity, pool: CommitterPool, *, as_given: bool) -> None:
        from wal_sink.spark.staging import stage_batch  # noqa: PLC0415 - there is a DataFrame, so there is Spark

        batch_id, wal = identity.batch_id, self._spec.safe_url
        told = pool.told_to_wait(batch_id)
        with logging_about(wal=pool.run.log.store.root, batch=batch_id):
            self._own_query.hold(df, pool, until=lambda: pool.has_room(batch_id, wal), while_held=told)
            stage_batch(pool.run, self._spec, df, identity, as_given=as_given)
        pool.wake()

    # --- ending

    def _finish(self, timeout_s: float | None) -> None:
        """Deliver all complete batches, then raise what failed.

        A batch that an error kept from being staged is missing for that reason: then the error is raised.
        """
        unstaged = self._own_query.unstaged_error(self._committers.is_complete)
        try:
            if (pool := self._committers.pool) is not None:
                self._begin(pool)
                pool.finish(timeout_s)
                self._refuse_given_up(pool)
                pool.run.history.refuse_unstaged()
            elif unstaged is None:
                self._own_query.warn_unopened()
        except MissingBatchError as error:
            if unstaged is not None:
                raise unstaged from error
            raise
        self._own_query.raise_failure()
        if unstaged is not None:
            raise unstaged

    def _end_early(self) -> None:
        """Call `_end` while no lock is held, then tell its events."""
        self._end()
        self._committers.events.tell_queued()

    def _end(self) -> None:
        """Stop the query, finish the chunks in flight, keep the rest; only once.

        Raises nothing: another error is being raised already.
        """
        if self._committers.can_close:
            self._own_query.leave()  # before it is closed: a batch that finds it closed then waits for the stop
            self._committers.close()
            if self._own_query.is_remote:  # its server may not answer, and nothing of the query waits here
                self._try_to(self._committers.stop)
                self._try_to(self._own_query.stop_at_end)
            else:
                self._try_to(self._own_query.stop)
                self._try_to(self._committers.stop)

    def _try_to(self, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception:  # no error of the end may hide the error that led here
            _logger.warning("%r did not end cleanly. Undelivered batches stay in the WAL", self, exc_info=True)

    def _cause_of(self, error: Exception) -> Exception:
        """The error of ours that Spark's error reports, if there is one; else `error`."""
        pool = self._committers.pool
        known = (self._own_query.stage_error, pool.error if pool is not None else None)
        return next((cause for cause in known if isinstance(cause, WalSinkError)), error)

    def _refuse_given_up(self, pool: CommitterPool) -> None:
        pool.raise_error()
        pool.refuse_parked(self._spec.safe_url)


def _raise_again(failure: BaseException | None, owner: str) -> None:
    """Raise the error that ended `owner`, so that a second `close` does not look like a success.

    Nothing happens for None. Ctrl-C and other exits become an `UndeliveredError`: raised again, they would end the
    program a second time.
    """
    if failure is None:
        return
    if isinstance(failure, Exception):
        raise failure
    raise UndeliveredError(
        f"{owner} was ended by {type(failure).__name__} before all complete batches were delivered. The other batches "
        "stay in the WAL. Start the query or command again"
    ) from failure
