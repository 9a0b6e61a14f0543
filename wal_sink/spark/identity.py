"""The running query that a batch belongs to: found once per batch, at the entrance of `stage`. Driver only.

Two facts identify it, and both are certain. Spark calls `foreachBatch` on the thread of its query, and no other query
has that thread. Each run of a query has a session that no other run has, a clone of the user's session; a DataFrame
made from its batch has that session on every thread. The job group proves nothing, because users set their own.

PySpark has no public way to read either. The calls were found in the source of Spark 3.5 to 4.3 (`StreamExecution`,
`SharedState`), and `tests/integration/test_every_spark.py` runs them on each version. Any other answer of Spark
is an error.

`BatchRows` tells the rows of the running batch from those of an earlier one. Spark gives each batch to `foreachBatch`
as a plan over one RDD, and every DataFrame made from it keeps that leaf. A DataFrame kept from an earlier batch also
has the session of its query, so only the RDD distinguishes the two.

The address of a checkpoint is read through Hadoop's file system in the driver's JVM, and compared with another one:
fsspec does not reach every store that Spark can use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from py4j.protocol import Py4JError, Py4JJavaError

from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.connect import check_classic
from wal_sink.spark.private import is_running, private, understood
from wal_sink.stores.base import ObjectMissing
from wal_sink.stores.spec import LOCAL, S3, StoreSpec
from wal_sink.support.secrets import mask_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

_MISSING = "java.io.FileNotFoundException"
_S3_SCHEMES = frozenset({S3, "s3a", "s3n"})
_LOCAL_SCHEMES = frozenset({LOCAL, "local"})


class HadoopFiles:
    """A folder on any file system that Spark can read. Driver only, read only."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url.rstrip("/")

    @property
    def root(self) -> str:
        return mask_url(self._url)

    def read(self, path: str) -> bytes:
        """The whole file; `ObjectMissing` if there is none, `StoreError` for anything else."""
        jvm = private(self._spark.sparkContext, "_jvm")
        try:
            full_path, file_system = self._found(path)
            stream = file_system.open(full_path)
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JError as error:
            raise self._translated(path, error) from error

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        """Names in a folder, like those of `Store.list`, folders with a trailing `/`. Never recursive."""
        if recursive:
            raise StoreError(f"{self.root}: a checkpoint is never listed recursively")
        try:
            full_path, file_system = self._found(prefix)
            found = file_system.listStatus(full_path)
        except Py4JError as error:
            translated = self._translated(prefix, error)
            if isinstance(translated, ObjectMissing):
                return []
            raise translated from error
        names = (status.getPath().getName() + ("/" if status.isDirectory() else "") for status in found)
        return sorted(name for name in names if not name.startswith(".") and name > after)

    def _found(self, path: str) -> tuple[Any, Any]:
        return path_and_file_system(self._spark, f"{self._url}/{path}".rstrip("/"))

    def _translated(self, path: str, error: Py4JError) -> StoreError:
        where = f"{self.root}/{path}"
        if isinstance(error, Py4JJavaError) and error.java_exception.getClass().getName() == _MISSING:
            return ObjectMissing(f"{where} does not exist")
        said = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        return StoreError(
            f"{where} cannot be read through Spark's file system: {said.partition(chr(10))[0]}. Check that the "
            "query itself can use this checkpoint"
        )


def path_and_file_system(spark: SparkSession, url: str) -> tuple[Any, Any]:
    """Hadoop's `Path` of an address, and the JVM's file system that holds it."""
    path = private(spark.sparkContext, "_jvm").org.apache.hadoop.fs.Path(url)
    return path, path.getFileSystem(_hadoop_conf(spark))


def default_file_system(spark: SparkSession) -> str:
    """The file system of a checkpoint without a scheme, e.g. `file:///` or `hdfs://name-node:8020`.

    Hadoop's own default is `file:///` (`FileSystem.DEFAULT_FS`, source); this function uses the same one.
    """
    return str(_hadoop_conf(spark).get("fs.defaultFS") or "file:///")


def _hadoop_conf(spark: SparkSession) -> Any:
    """The Hadoop configuration of the session, including its `spark.hadoop.*` settings."""
    return private(spark, "_jsparkSession").sessionState().newHadoopConf()


class Place(Enum):
    """The result of comparing two addresses."""

    SAME = "same"
    OTHER = "other"
    UNDECIDED = "undecided"
    """Two file systems may show the same folder: a mount, a gateway such as WebHDFS, another name of a name node."""


def compare(spark: SparkSession, one: str, other: str) -> Place:
    """Compare two full addresses. May read local folders, and may ask Spark's file systems about others."""
    if "::" in one or "::" in other:
        return Place.SAME if one == other else Place.UNDECIDED
    schemes = {_scheme(one), _scheme(other)}
    if schemes <= _LOCAL_SCHEMES:
        return _same(_is_same_folder(_local(one), _local(other)))
    if schemes <= _S3_SCHEMES:
        return _same(_bucket_and_key(one) == _bucket_and_key(other))
    if schemes & (_LOCAL_SCHEMES | _S3_SCHEMES):
        return Place.UNDECIDED
    return _compare_in_hadoop(spark, one, other)


def _compare_in_hadoop(spark: SparkSession, one: str, other: str) -> Place:
    if _file_system(one) != _file_system(other):
        return Place.UNDECIDED
    if one.rstrip("/") == other.rstrip("/"):
        return Place.SAME
    try:
        return _same(_resolved(spark, one) == _resolved(spark, other))
    except Py4JJavaError:  # for example, access to a folder is denied
        return Place.UNDECIDED


def _resolved(spark: SparkSession, url: str) -> str:
    """The address with links and mount points followed; the plain address of a folder that does not exist."""
    path, file_system = path_and_file_system(spark, url)
    try:
        return str(file_system.resolvePath(path).toString())
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == _MISSING:
            return str(file_system.makeQualified(path).toString())
        raise


def _same(found: bool) -> Place:  # noqa: FBT001 - it turns one answer into another
    return Place.SAME if found else Place.OTHER


def _is_same_folder(one: str, other: str) -> bool:
    """Whether two local paths lead to one folder, links and bind mounts followed.

    If one of them does not exist, the resolved paths are compared: a missing folder cannot be the same as an existing
    one.
    """
    try:
        return Path(one).samefile(other)
    except OSError:
        return Path(one).resolve() == Path(other).resolve()


def _local(url: str) -> str:
    return StoreSpec(url).location


def _bucket_and_key(url: str) -> str:
    """Bucket and key, without the user that older versions of Hadoop accept in the address."""
    bucket, slash, key = url.partition("://")[2].partition("/")
    return f"{bucket.rpartition('@')[2]}{slash}{key}".rstrip("/")


def _file_system(url: str) -> tuple[str, str]:
    """Scheme and authority, as the user wrote them."""
    rest = url.partition(":")[2]
    return _scheme(url), rest[2:].partition("/")[0] if rest.startswith("//") else ""


def _scheme(url: str) -> str:
    """The scheme of a full address; one without a scheme is a local path (see `checkpoint_location`)."""
    return url.partition(":")[0].lower() if ":" in url.partition("/")[0] else LOCAL


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


_LEAF = "org.apache.spark.sql.execution.LogicalRDD"
_REMEMBERED = 1000
"""The number of batches of a run that are remembered. A DataFrame of an older batch is not recognised."""


class BatchRows:
    """The RDDs of the batches of one run of a query."""

    def __init__(self) -> None:
        """Begin without any batch."""
        self._run_id = ""
        self._batches: dict[int, int] = {}
        """Batch ids by the id of their RDD, for one run only: a new SparkContext gives the same RDD ids again."""

    def refuse_earlier(self, df: DataFrame, identity: QueryIdentity) -> None:
        """Raise `ConfigError` if `df` holds rows of an earlier batch, and none of the batch of `identity`.

        A DataFrame with rows of neither is the user's own: a table, or rows that were written and read back.
        """
        if self._run_id != identity.run_id:
            self._run_id, self._batches = identity.run_id, {}
        self._batches[identity.rows_id] = identity.batch_id
        if len(self._batches) > _REMEMBERED:
            del self._batches[next(iter(self._batches))]
        with understood(df.sparkSession.version, "which batch a DataFrame is made of"):
            found = _rows_in(df)
        earlier = [self._batches[rows] for rows in found if rows in self._batches]
        if earlier and identity.rows_id not in found:
            raise ConfigError(
                f"batch {identity.batch_id}: the DataFrame given to stage() holds rows of batch {earlier[-1]}, and "
                "none of this batch. Pass the DataFrame that foreachBatch received with this batch id, or a DataFrame "
                "made from it. Nothing was staged"
            )


def _rows_in(df: DataFrame) -> list[int]:
    """The ids of the RDDs that a DataFrame's plan reads."""
    leaves = cast("Any", df)._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - PySpark has no public way
    each = [leaves.apply(index) for index in range(leaves.size())]
    return [int(leaf.rdd().id()) for leaf in each if leaf.getClass().getName() == _LEAF]
