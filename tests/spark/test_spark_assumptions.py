"""What is taken for granted of Spark without being promised, each falsified once: see docs/ASSUMPTIONS.md.

Spark is played here; that a real one keeps to it is shown by tests/integration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from tests.house.spark import REPEAT_CHECKS, SparkJobError, setting_of, task_slots
from tests.house.stores import ObjectMissing
from tests.support.logged import said_here
from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.checkpoint_files import current_session
from wal_sink.spark.cluster import _OLD_FETCHES, check_kept_batches, warn_of_unchecked_shuffles
from wal_sink.spark.data_source_writer import DataSourceSink, _WritingTask
from wal_sink.spark.foreach_writer import spark_rows
from wal_sink.spark.identity import HadoopFiles, default_file_system
from wal_sink.spark.private import is_running
from wal_sink.spark.query import schema_of, session_of
from wal_sink.spark.staging import _in_order, _task

# PySpark's private names.

BARE: Any = SimpleNamespace(sparkContext=SimpleNamespace())
"""A session of another PySpark, which keeps nothing under the names we know."""


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("_jsc", lambda: is_running(BARE.sparkContext)),
        ("_jsc", lambda: task_slots(BARE.sparkContext)),
        ("_jvm", lambda: HadoopFiles(BARE, "hdfs://n/c").read("metadata")),
        ("_jvm", lambda: HadoopFiles(BARE, "hdfs://n/c").list("commits")),
        ("_jsparkSession", lambda: default_file_system(BARE)),
    ],
)
def test_a_private_name_that_is_gone_is_an_error_and_not_none(name: str, use: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=rf"SimpleNamespace has no {name} in PySpark \d.*Use a version of PySpark"):
        use()


def test_a_session_that_pyspark_hides_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a drain beside Spark looked for the checkpoint on another file system."""
    monkeypatch.delattr(SparkSession, "_instantiatedSession")
    with pytest.raises(ConfigError, match=r"pyspark\.sql\.session\.SparkSession has no _instantiatedSession"):
        current_session()


def test_a_writer_that_hides_its_session_or_its_dataframe_starts_nothing() -> None:
    hiding: Any = type("DataStreamWriter", (SimpleNamespace,), {})()
    with pytest.raises((AttributeError, ConfigError), match=r"no .*_spark"):
        session_of(hiding)
    with pytest.raises((AttributeError, ConfigError), match=r"no .*_df"):
        schema_of(hiding)


def test_the_session_of_a_stopped_spark_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(_jsc=object())
    session = SimpleNamespace(sparkContext=context)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    assert current_session() is session  # type: ignore[comparison-overlap]
    context._jsc = None
    assert current_session() is None


# Settings.


def told(answer: object) -> Any:
    """A session whose settings answer so."""

    def get(key: str, *default: object) -> object:
        assert not default, "a default of ours would hide that this Spark does not know the setting"
        assert key == "spark.sql.streaming.minBatchesToRetain"
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(conf=SimpleNamespace(get=get))


@pytest.mark.parametrize("answer", [PySparkException("[SQL_CONF_NOT_FOUND] no such key"), None, "", "many"])
def test_how_many_batches_spark_keeps_is_never_guessed(answer: object) -> None:
    with pytest.raises(
        ConfigError,
        match=r"the number of batches that Spark keeps \(spark\.sql\.streaming\.minBatchesToRetain\) cannot be read",
    ):
        check_kept_batches(told(answer), 1000)


def test_as_many_batches_as_spark_keeps_must_be_in_the_wal() -> None:
    check_kept_batches(told("100"), 100)
    with pytest.raises(ConfigError, match="minBatchesToRetain is 100, but retention_batches=99"):
        check_kept_batches(told("100"), 99)


# Shuffles that Spark repeats.


class Conf:
    """The settings of a session: those that are set, and Spark's defaults. It knows no others."""

    def __init__(self, known: dict[str, str | None]) -> None:
        self._known = known

    def get(self, key: str) -> str | None:
        if key not in self._known:
            raise PySparkException(f'[SQL_CONF_NOT_FOUND] The SQL config "{key}" cannot be found.')
        return self._known[key]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((None, None), ["orderIndependentChecksum.enabled is not known", "to false; or use Spark 4.1 or newer"]),
        (("false", "false"), ["orderIndependentChecksum.enabled is false", "to false; or set them to true"]),
        (("true", "false"), ["enableFullRetryOnMismatch is false", "to false; or set them to true"]),
        (("true", "True"), ["a shuffle of an RDD (Spark compares only those that SQL plans)", "to false"]),
    ],
)
def test_a_shuffle_that_nobody_can_check_is_told_of(
    answers: tuple[str | None, ...], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    known = {key: answer for key, answer in zip(REPEAT_CHECKS, answers, strict=True) if answer is not None}
    conf = Conf({**known, _OLD_FETCHES: "TRUE"})

    warn_of_unchecked_shuffles(cast("SparkSession", SimpleNamespace(conf=conf)))

    assert len(said_here(caplog)) == 1
    assert all(part in caplog.text for part in told)


@pytest.mark.parametrize("known", [{}, {_OLD_FETCHES: "false"}])
def test_a_spark_whose_shuffles_tell_their_writers_needs_no_warning(
    known: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_unchecked_shuffles(cast("SparkSession", SimpleNamespace(conf=Conf(known))))
    assert not said_here(caplog)


def test_a_setting_that_cannot_be_read_is_not_one_that_is_unknown() -> None:
    conf = SimpleNamespace(get=lambda _: (_ for _ in ()).throw(PySparkException("the JVM is gone")))
    with pytest.raises(PySparkException, match="the JVM is gone"):
        setting_of(cast("SparkSession", SimpleNamespace(conf=conf)), "spark.sql.anything")


# Hadoop's file system, in the JVM.


class Hadoop:
    """A driver's JVM whose file system answers every call as it is told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.sparkContext = SimpleNamespace(_jvm=self._jvm())
        self._jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=dict))

    def _jvm(self) -> object:
        path = SimpleNamespace(getFileSystem=lambda _: SimpleNamespace(open=self._say, listStatus=self._say))
        hadoop = SimpleNamespace(fs=SimpleNamespace(Path=lambda _: path))
        return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop, commons=None)))

    def _say(self, _: object) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    @property
    def files(self) -> HadoopFiles:
        spark: Any = self
        return HadoopFiles(spark, "hdfs://name-node/checkpoint")


class JavaError(Py4JJavaError):  # type: ignore[misc] # py4j has no types
    """The error that py4j raises for an exception of Java's."""

    def __init__(self, kind: str) -> None:
        Exception.__init__(self, kind)
        self.java_exception = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: kind))

    def __str__(self) -> str:
        return "a page of Java"


def test_only_hadoops_own_word_for_a_missing_file_is_absence() -> None:
    hadoop = Hadoop(JavaError("java.io.FileNotFoundException"))
    with pytest.raises(ObjectMissing):
        hadoop.files.read("commits/7")
    assert hadoop.files.list("commits") == []


@pytest.mark.parametrize(
    "error",
    [
        JavaError("org.apache.hadoop.fs.s3a.UnknownStoreException"),
        JavaError("java.nio.file.NoSuchFileException"),
        JavaError("java.net.ConnectException"),
        Py4JError("Method newHadoopConf([]) does not exist"),
    ],
    ids=str,
)
def test_any_other_word_of_hadoop_is_an_error_and_no_absence(error: Exception) -> None:
    """An unreachable name node, or a version that says it in other words, must not look like a batch not committed."""
    files = Hadoop(error).files
    asked: list[Callable[[], object]] = [lambda: files.read("commits/7"), lambda: files.list("commits")]
    for ask in asked:
        with pytest.raises(StoreError, match="cannot be read through Spark's file system") as caught:
            ask()
        assert not isinstance(caught.value, ObjectMissing)


# Rows and tasks.


def test_rows_are_made_by_pyspark_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyspark.sql.conversion", "pyspark.sql.connect"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError):
        next(spark_rows(pa.table({"a": [1]}), StructType([StructField("a", LongType())])))


class DataSourceStreamArrowWriter:
    """PySpark's, in another module than today."""

    def commit(self, messages: object, batchId: int) -> None: ...  # noqa: N803 - PySpark's name

    def abort(self, messages: object, batchId: int) -> None: ...  # noqa: N803


class Moved(DataSourceStreamArrowWriter):
    def write(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        self.got = list(batches)
        return WriterCommitMessage()


def test_an_arrow_writer_gets_record_batches_wherever_its_base_class_lies() -> None:
    schema = StructType([StructField("a", LongType())])
    task = _WritingTask(b"", schema)
    batch = pa.record_batch([pa.array([1])], ["c0"])
    assert [*task._input(Moved(), iter([batch]))] == [pa.record_batch([pa.array([1])], ["a"])]
    rows: list[Any] = [*task._input(object(), iter([batch]))]
    assert [tuple(row) for row in rows] == [(1,)]
    assert repr(DataSourceSink(Moved(), idempotent=False)) == "wrap.data_source_writer(Moved)"


def test_a_partition_that_comes_twice_is_staged_by_nobody() -> None:
    rows: list[Any] = [SimpleNamespace(partition=number) for number in (2, 0, 1)]
    assert [row.partition for row in _in_order(rows, "batch 7")] == [0, 1, 2]
    with pytest.raises(
        SparkJobError, match="batch 7: expected one result from each partition, found two from partition 0"
    ):
        _in_order([*rows, SimpleNamespace(partition=0)], "batch 7")  # type: ignore[list-item]


def test_a_task_that_spark_tells_nothing_of_stages_nothing() -> None:
    with pytest.raises(RuntimeError, match="outside of a Spark task"):
        _task()
