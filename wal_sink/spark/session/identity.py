"""The running query that a batch belongs to: found once per batch, at the entrance of `stage`. Driver only.

Two facts identify it, and both are certain. Spark calls `foreachBatch` on the thread of its query, and no other query
has that thread. Each run of a query has a session that no other run has, a clone of the user's session; a DataFrame
made from its batch has that session on every thread. The job group proves nothing, because users set their own.

PySpark has no public way to read either. The calls were found in the source of Spark 3.5 to 4.3 (`StreamExecution`,
`SharedState`), and `tests/integration/test_every_spark.py` runs them on each version. Any other answer of Spark
is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.spark.session.connect import check_classic
from wal_sink.spark.session.locations import Place, compare
from wal_sink.spark.session.private import is_running, private, understood

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


T = TypeVar("T")
_WHAT = "which query a batch belongs to"
_SPARK_3_5 = "3.5."
_METADATA_CACHE = "spark.sql.streaming.metadataCache.enabled"


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The run of a query that one batch belongs to, with Spark's facts about that batch."""

    batch_id: int
    query_id: str
    """The id of the query. It survives restarts, because it lies in the checkpoint."""
    run_id: str
    """The id of the run. Each restart has another one."""
    checkpoint: str = field(repr=False)
    """The location as Spark resolved it. It may hold secrets that the user wrote into it."""
    planned_ms: int
    """The time when Spark planned the batch, in ms since 1970, as in its `offsets` entry (`batchTimestampMs`)."""
    is_first: bool
    """Whether this run completed no batch before this one. If False, the run completed the previous batch."""
    rows_id: int
    """The id of Spark's RDD that holds the batch. No other batch of the run has it."""
    session: SparkSession
    """The user's session that started the query. It outlives the run, whose own session is a clone."""
    query: StreamingQuery
    """The query, to stop the run. It works for queries of every session."""

    def is_on_its_thread(self) -> bool:
        """Whether the caller is inside this run's `foreachBatch`, on the thread that Spark calls it on."""
        context = self.session.sparkContext
        if not is_running(context):
            return False  # a query ends with its context
        execution = cast("Any", self.query)._jsq  # noqa: SLF001 - PySpark has no public way
        with understood(self.session.version, _WHAT):
            return bool(_calling_thread(context).equals(execution.queryExecutionThread()))


def identity_of(df: DataFrame, batch_id: int) -> QueryIdentity:
    """The run on whose thread this is called; elsewhere the run from whose batch `df` was made.

    Raises `ConfigError` if there is none, if it does not run batch `batch_id`, and if this version of Spark gives an
    unknown answer.
    """
    if not hasattr(df, "sparkSession"):
        raise ConfigError(
            f"stage got a {type(df).__name__} as its DataFrame: expected stage(df, batch_id), with the two arguments "
            "of foreachBatch in this order"
        )
    check_classic(df)
    with understood(df.sparkSession.version, _WHAT):
        execution = _execution_of(df)
        if execution is None:
            raise _belongs_to_none(batch_id)
        running = execution.lastExecution()
        if running.currentBatchId() != batch_id:
            raise _another_batch(batch_id, execution.id().toString(), running.currentBatchId())
        return _identity(df, batch_id, execution, running)


def refuse_other_checkpoint(identity: QueryIdentity, given: str) -> None:
    """Refuse a query that runs on another checkpoint than the given one: its gate would open for other batches.

    A copy of a checkpoint has the same query id, so the id alone proves nothing. If the addresses leave it undecided,
    the id and the entry of the batch decide, at each batch (`stage_batch`, `Stager`): a copy lacks the entries that
    Spark writes from now on.
    """
    if compare(identity.session, given, identity.checkpoint) is Place.OTHER:
        raise ConfigError(
            f"batch {identity.batch_id}: query {identity.query_id} runs on {mask_url(identity.checkpoint)}, but "
            f"WalSink was given checkpoint {mask_url(given)}. Pass WalSink the checkpointLocation of the query that "
            "calls stage(), written the same way. Nothing was staged"
        )


def _identity(df: DataFrame, batch_id: int, execution: Any, running: Any) -> QueryIdentity:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - with the import above it would be for types only
    from pyspark.sql.streaming.query import StreamingQuery  # noqa: PLC0415

    return QueryIdentity(
        batch_id=batch_id,
        query_id=_answer(execution.id().toString(), str, "text"),
        run_id=_answer(execution.runId().toString(), str, "text"),
        checkpoint=_answer(execution.resolvedCheckpointRoot(), str, "text"),
        planned_ms=_positive(_answer(running.offsetSeqMetadata().batchTimestampMs(), int, "a time in milliseconds")),
        is_first=_is_first(df.sparkSession, execution, running),
        rows_id=_answer(running.toRdd().id(), int, "the number of an RDD"),
        session=SparkSession(df.sparkSession.sparkContext, execution.sparkSession()),
        query=StreamingQuery(execution),
    )


def _is_first(spark: SparkSession, execution: Any, running: Any) -> bool:
    """See `QueryIdentity.is_first`. Spark 3.5 does not tell it, but a run remembers the two last commits it wrote."""
    if not spark.version.startswith(_SPARK_3_5):
        return _answer(running.isFirstBatch(), bool, "True or False")
    log = execution.commitLog()
    if not log.metadataCacheEnabled():
        raise ConfigError(
            f"Spark {spark.version} does not remember what this run completed, because {_METADATA_CACHE} is false. "
            "Set it to true, which is Spark's default, before the query starts. Nothing was staged"
        )
    jvm = private(spark.sparkContext, "_jvm")
    remembered = jvm.java.util.HashMap(log.batchCache())  # a map of another class cannot be read through py4j
    return running.currentBatchId() - 1 not in _elements(jvm, remembered.keySet())


def _execution_of(df: DataFrame) -> Any:
    """The JVM's `StreamExecution`; None if neither the thread nor the DataFrame belongs to one.

    The thread decides first: the DataFrame may be a join with a batch of another query.
    """
    context = df.sparkSession.sparkContext
    session = cast("Any", df)._jdf.sparkSession()  # noqa: SLF001 - Python's session may be that of one side of a join
    queries = session.sharedState().activeStreamingQueries()
    found = [queries.get(key) for key in _elements(private(context, "_jvm"), queries.keySet())]
    active = [each for each in found if each is not None]  # None: a query that ended since its key was read
    thread = _calling_thread(context)
    on_thread = (each for each in active if thread.equals(each.queryExecutionThread()))
    of_session = (each for each in active if session.equals(each.sparkSessionForStream()))
    return next(on_thread, None) or next(of_session, None)


def _elements(jvm: Any, collection: Any) -> list[Any]:
    """The elements of a Java collection.

    A Python loop over it would end with a Java exception, about which PySpark asks the JVM some twenty questions. This
    runs in every batch.
    """
    elements = jvm.java.util.ArrayList(collection)
    return [elements.get(index) for index in range(elements.size())]


def _calling_thread(context: Any) -> Any:
    """The JVM thread that works for this Python thread. With PySpark's default of pinned threads, no other has it."""
    return context._jvm.java.lang.Thread.currentThread()  # noqa: SLF001 - PySpark has no public way


def _belongs_to_none(batch_id: int) -> ConfigError:
    return ConfigError(
        f"batch {batch_id}: the DataFrame given to stage() belongs to no running query, and this is not the thread "
        "that calls foreachBatch. Call stage() on the thread that calls foreachBatch (and without "
        "PYSPARK_PIN_THREAD=false). On another thread, pass a DataFrame made from the DataFrame that foreachBatch "
        "received (in a join, put that DataFrame first). Nothing was staged"
    )


def _another_batch(batch_id: int, query_id: str, running: int) -> ConfigError:
    return ConfigError(
        f"query {query_id} runs batch {running}, but stage() was given batch {batch_id}. Pass the batch id that "
        "foreachBatch received. In foreachBatch, wait for every thread that calls stage(). Nothing was staged"
    )


def _answer(value: object, kind: type[T], expected: str) -> T:
    """A value that Spark gave. Raises `TypeError` if it is of another kind, `ValueError` for empty text."""
    if not isinstance(value, kind) or type(value) is not kind:  # for Python, True is a number
        raise TypeError(f"expected {expected}, found {value!r}")
    if value == "":
        raise ValueError(f"expected {expected}, found nothing")
    return value


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError(f"expected a time in milliseconds since 1970, found {value!r}")
    return value
