"""Which running query a batch belongs to: told once per batch, at the entrance of `stage`. Driver only.

Two facts tell it, and both are certain. Spark calls `foreachBatch` on the thread of its query, and no other query has
that thread. Each run of a query has a session that no other run has, a clone of the user's, and a DataFrame made of its
batch has that session on every thread. The job group tells nothing: users set their own.

PySpark has no public way to either. The calls were read off Spark 4.0 to 4.3 (`StreamExecution`, `SharedState`), and
`tests/integration/test_identity_versions.py` runs them on each. A Spark that answers otherwise is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from wal_sink.errors import ConfigError
from wal_sink.spark.session.job_properties import is_running
from wal_sink.spark.session.private import understood
from wal_sink.spark.session.query import check_classic
from wal_sink.spark.session.writer_check import check_batch_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WHAT = "which query a batch belongs to"


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The run of a query that one batch belongs to, and what Spark knows of that batch."""

    batch_id: int
    query_id: str
    """Survives restarts: it lies in the checkpoint."""
    run_id: str
    """Another one after each restart."""
    checkpoint: str = field(repr=False)
    """The location as Spark resolved it, with whatever the user wrote into it."""
    planned_ms: int
    """When Spark planned the batch, in milliseconds since 1970, as in its `offsets` entry (`batchTimestampMs`)."""
    is_first: bool
    """Whether this run completed no batch before it. Where it is not, the run completed the batch before."""
    rows_id: int
    """Of Spark's RDD that holds the batch. No other batch of the run has it."""
    session: SparkSession
    """The user's session that started the query. It outlives the run, whose own is a clone."""
    query: StreamingQuery
    """To stop the run, whichever session started it."""

    def is_on_its_thread(self) -> bool:
        """Whether the caller is inside this run's `foreachBatch`, on the thread that Spark calls it on."""
        context = self.session.sparkContext
        if not is_running(context):
            return False  # a query ends with its context
        execution = cast("Any", self.query)._jsq  # noqa: SLF001 - PySpark has no public way
        with understood(self.session.version, _WHAT):
            return bool(_calling_thread(context).equals(execution.queryExecutionThread()))


def identity_of(df: DataFrame, batch_id: int) -> QueryIdentity:
    """The run whose `foreachBatch` calls with `df`, or whose batch `df` is made of.

    Raises `ConfigError` if there is none, if it does not run batch `batch_id`, and if this Spark is not understood.
    """
    check_batch_frame(df)
    check_classic(df)
    with understood(df.sparkSession.version, _WHAT):
        execution = _execution_of(df)
        if execution is None:
            raise _belongs_to_none(batch_id)
        running = execution.lastExecution()
        if running.currentBatchId() != batch_id:
            raise _another_batch(batch_id, execution.id().toString(), running.currentBatchId())
        return _identity(df, batch_id, execution, running)


def _identity(df: DataFrame, batch_id: int, execution: Any, running: Any) -> QueryIdentity:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - with the import above it would be for types only
    from pyspark.sql.streaming.query import StreamingQuery  # noqa: PLC0415

    return QueryIdentity(
        batch_id=batch_id,
        query_id=_text(execution.id().toString()),
        run_id=_text(execution.runId().toString()),
        checkpoint=_text(execution.resolvedCheckpointRoot()),
        planned_ms=_positive(running.offsetSeqMetadata().batchTimestampMs()),
        is_first=_flag(running.isFirstBatch()),
        rows_id=_number(running.toRdd().id()),
        session=SparkSession(df.sparkSession.sparkContext, execution.sparkSession()),
        query=StreamingQuery(execution),
    )


def _execution_of(df: DataFrame) -> Any:
    """The JVM's `StreamExecution`; None if neither the thread nor the DataFrame belongs to one.

    The thread first: a DataFrame of another query's batch may be joined to this one's.
    """
    context = df.sparkSession.sparkContext
    session = cast("Any", df)._jdf.sparkSession()  # noqa: SLF001 - Python's may be that of a side of a join
    queries = session.sharedState().activeStreamingQueries().values()
    active = list(cast("Any", context)._jvm.java.util.ArrayList(queries))  # noqa: SLF001 - as values() cannot be read
    thread = _calling_thread(context)
    on_thread = (each for each in active if thread.equals(each.queryExecutionThread()))
    of_session = (each for each in active if session.equals(each.sparkSessionForStream()))
    return next(on_thread, None) or next(of_session, None)


def _calling_thread(context: Any) -> Any:
    """The JVM's thread that works for this one. With PySpark's pinned threads, its default, no other has it."""
    return context._jvm.java.lang.Thread.currentThread()  # noqa: SLF001 - PySpark has no public way


def _belongs_to_none(batch_id: int) -> ConfigError:
    return ConfigError(
        f"batch {batch_id}: the DataFrame given to stage() belongs to no running query, and this is not the thread "
        "that calls foreachBatch. Call stage() on the thread that calls foreachBatch (and without "
        "PYSPARK_PIN_THREAD=false); on another thread, give it a DataFrame made of the one that foreachBatch was given "
        "(in a join, that one first). Nothing was staged"
    )


def _another_batch(batch_id: int, query_id: str, running: int) -> ConfigError:
    return ConfigError(
        f"query {query_id} runs batch {running}, but stage() was given batch {batch_id}: pass the batch id that "
        "foreachBatch was given, and let foreachBatch wait for every thread that stages. Nothing was staged"
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"expected text, found {value!r}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected True or False, found {value!r}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected the number of an RDD, found {value!r}")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"expected a time in milliseconds since 1970, found {value!r}")
    return value
