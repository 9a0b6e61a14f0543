"""Staging one micro-batch of a running query: the core decides, Spark writes. On the driver, in the stream's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError
from wal_sink.lifecycle.run import Run
from wal_sink.reporting.logs import logger_of
from wal_sink.spark.session.cluster import REPEAT_CHECKS
from wal_sink.spark.session.identity import QueryIdentity
from wal_sink.spark.session.task_errors import RepeatedShuffleError
from wal_sink.spark.staging.job import evaluate_without_staging, stage_dataframe
from wal_sink.spark.staging.schema import schema_json
from wal_sink.staging.stager import Attempt, Staged
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_logger = logger_of(__name__)
_ATTEMPTS = 3
"""How often in a row a batch is staged if Spark repeats its shuffles."""


def stage_batch(run: Run, store: StoreSpec, df: DataFrame, caller: QueryIdentity) -> None:
    """Stage `df` as the caller's batch; a replay of a released batch is evaluated, counted and dropped."""
    _check_query(run, caller.query_id)
    _begin_with_the_run(run, caller)
    what = f"wal-sink {store.safe_url} batch {caller.batch_id}"

    def write(attempt: Attempt) -> Staged:
        columns, schema = tuple(df.schema.names), schema_json(df.schema)
        order = run.staging_context(attempt, columns=columns, spark_schema=schema)
        staged = stage_dataframe(df, store=store, order=order, description=f"{what}: stage attempt {attempt.number}")
        return Staged(staged.segments, columns=columns, spark_schema=schema, prepared=staged.prepared)

    if not _stage(run, caller, write):
        found = evaluate_without_staging(df, description=f"{what}: replay, already released")
        _compare_rows(run, what, caller.batch_id, found)


def _stage(run: Run, caller: QueryIdentity, write: Callable[[Attempt], Staged]) -> bool:
    """Stage a batch in one Spark job; False if it is a replay.

    If Spark may have lost rows in the job, the attempt gets no manifest, and another one is made.
    """
    seen = ""
    for _ in range(_ATTEMPTS):
        attempt = run.begin_staging(caller.batch_id, planned_ms=caller.planned_ms)
        if attempt is None:
            return False
        try:
            staged = write(attempt)
        except RepeatedShuffleError as error:
            seen = str(error)
            _logger.warning("%s: nothing of this attempt is used, and the shuffles are computed again", seen)
        else:
            run.end_staging(attempt, staged)
            return True
    raise RepeatedShuffleError(
        f"{seen}; {_ATTEMPTS} attempts in a row ended so, and nothing was staged. See why executors are lost, set "
        f"{' and '.join(REPEAT_CHECKS)} to true (Spark 4.1 and newer), and start the query again"
    )


def _compare_rows(run: Run, what: str, batch_id: int, found: int) -> None:
    """A replay's rows are dropped, since the WAL has those of the first time: another number is worth a warning."""
    released = run.released_rows(batch_id)
    if released is None:
        _logger.warning(
            "%s: the replay had %d rows; the batch was collected since, so nobody compared them", what, found
        )
    elif released != found:
        _logger.warning(
            "%s: the replay had %d rows, but %d were released and are what sinks get. The source did not replay what "
            "it gave (was a file overwritten in place?), or the query is not deterministic",
            what,
            found,
            released,
        )


def _check_query(run: Run, running: str) -> None:
    """The checkpoint given must be the running query's own, or its gate would open for other batches."""
    if run.history.is_owned_by(running):
        run.history.refuse_other_query(running)
        return
    owner = run.checkpoint.query_id()
    found = f"query {owner}" if owner else "no query (it is empty or not there)"
    raise ConfigError(
        f"the running query is {running}, but the checkpoint {run.checkpoint.root} belongs to "
        f"{found}: pass WalSink the checkpointLocation of the query that calls stage()"
    )


def _begin_with_the_run(run: Run, caller: QueryIdentity) -> None:
    """A WAL begins with any batch of a checkpoint, but not behind one that this very run of the query completed, nor
    behind one that was completed while the WAL was open.

    It then begins with that one, so that the stager finds it missing, now and after a restart.
    """
    history = run.history
    if history.wal is not None:
        return  # it began before
    earliest = min(_first_of_the_run(caller), history.first_since_opened(caller.batch_id))
    if earliest < caller.batch_id and history.poll_owner() is None:
        history.bind(earliest)


def _first_of_the_run(caller: QueryIdentity) -> int:
    """The earliest batch that this run of the query is known to have completed; the caller's own if there is none.

    Batch ids are contiguous: a run that completed any batch completed the one before this. Of those before that one
    Spark remembers as many as `spark.sql.streaming.numRecentProgressUpdates` lets it, which may be none.
    """
    if caller.is_first:
        return caller.batch_id
    return min([caller.batch_id - 1, *(progress.batchId for progress in caller.query.recentProgress)])
