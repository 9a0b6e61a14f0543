"""Staging one micro-batch of a running query: the core decides, Spark writes. On the driver, in the stream's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError
from wal_sink.lifecycle.run import Run
from wal_sink.reporting.logs import logger_of
from wal_sink.spark.session.cluster import inline_budget
from wal_sink.spark.session.identity import QueryIdentity
from wal_sink.spark.session.tasks import RepeatedShuffleError, ResultTooLargeError
from wal_sink.spark.staging.job import evaluate_without_staging, stage_dataframe
from wal_sink.spark.staging.schema import schema_json
from wal_sink.staging.manifests import Attempt, Staged, compare_replay
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_logger = logger_of(__name__)
_ATTEMPTS = 3
"""How many attempts in a row stage a batch if Spark repeats its shuffles."""


def stage_batch(run: Run, store: StoreSpec, df: DataFrame, identity: QueryIdentity) -> None:
    """Stage `df` as the batch of `identity`. A replay of a released batch is evaluated, counted and dropped."""
    _check_query(run, identity.query_id)
    _begin_with_the_run(run, identity)
    what = f"wal-sink {store.safe_url} batch {identity.batch_id}"

    def write(attempt: Attempt) -> Staged:
        columns, schema = tuple(df.schema.names), schema_json(df.schema)
        budget = inline_budget(df.sparkSession.sparkContext)
        context = run.staging_context(attempt, columns=columns, spark_schema=schema, inline_bytes=budget)
        description = f"{what}: stage attempt {attempt.number}"
        staged = stage_dataframe(df, store=store, context=context, description=description)
        return Staged(
            staged.segments, columns, schema, staged.prepared, staged.timing, staged.requests, staged.time_zone
        )

    if not _stage(run, identity, write):
        found = evaluate_without_staging(df, description=f"{what}: replay, already released")
        compare_replay(run.log, identity.batch_id, found, what=what)


def _stage(run: Run, identity: QueryIdentity, write: Callable[[Attempt], Staged]) -> bool:
    """Stage a batch in one Spark job; False if it is a replay.

    If Spark may have lost rows of an attempt, that attempt gets no manifest and a new one follows.
    """
    seen = ""
    for _ in range(_ATTEMPTS):
        attempt = run.begin_staging(identity.batch_id, planned_ms=identity.planned_ms)
        if attempt is None:
            return False
        try:
            staged = write(attempt)
        except RepeatedShuffleError as error:
            seen = str(error)
            _logger.warning("%s: no row of this attempt is used. Spark computes the shuffles again", seen)
        except ResultTooLargeError as error:
            if not run.inline_rows:
                raise
            run.inline_rows = False
            seen = str(error)
            _logger.warning(
                "%s: the batch is staged again. From now on the tasks of this run write the rows of small partitions "
                "themselves, and no rows travel to the driver. Raise spark.driver.maxResultSize, so that batches cost "
                "fewer requests",
                seen,
            )
        else:
            run.end_staging(attempt, staged)
            return True
    raise RepeatedShuffleError(
        f"{seen}; {_ATTEMPTS} attempts in a row ended like this, and nothing was staged. Find out why executors are "
        "lost, and start the query again"
    )


def _check_query(run: Run, running: str) -> None:
    """Refuse a checkpoint of another query than the running one: its gate would open for other batches."""
    if run.history.is_owned_by(running):
        run.history.refuse_other_query(running)
        return
    owner = run.checkpoint.query_id()
    found = f"query {owner}" if owner else "no query (it is empty or does not exist)"
    raise ConfigError(
        f"the running query is {running}, but the checkpoint {run.checkpoint.root} belongs to {found}. Pass WalSink "
        "the checkpointLocation of the query that calls stage()"
    )


def _begin_with_the_run(run: Run, identity: QueryIdentity) -> None:
    """Bind a new WAL to the earliest batch that this run of the query completed, or that was completed while the WAL
    was open.

    A WAL may begin with any batch of a checkpoint, but not after one of those: they were lost. If the WAL begins with
    the earliest of them, the stager finds it missing, now and after a restart.
    """
    history = run.history
    if history.wal is not None:
        return  # it began before
    earliest = min(_first_of_the_run(identity), history.first_since_opened(identity.batch_id))
    if earliest < identity.batch_id and history.poll_owner() is None:
        history.bind(earliest)


def _first_of_the_run(identity: QueryIdentity) -> int:
    """The earliest batch that this run of the query is known to have completed; the current batch if there is none.

    Batch ids are contiguous: a run that completed any batch completed the one before this. How many earlier ones Spark
    remembers depends on `spark.sql.streaming.numRecentProgressUpdates`; it may be none.
    """
    if identity.is_first:
        return identity.batch_id
    return min([identity.batch_id - 1, *(progress.batchId for progress in identity.query.recentProgress)])
