"""The identity of a calling query where Spark answers unlike known versions, and addresses of the same folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from wal_sink.errors import ConfigError
from wal_sink.spark import identity as locations
from wal_sink.spark.identity import BatchRows, Place, QueryIdentity, compare, identity_of, refuse_other_checkpoint
from wal_sink.spark.query import refuse_leftovers
from wal_sink.spark.staging import _first_of_the_run


class Odd:
    """Part of Spark's private interface of a version that nobody knows: answers `known`, and nothing else."""

    def __init__(self, **known: Any) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]

        def missing(*_: object) -> Any:
            raise Py4JError(f"Method {name}([]) does not exist")

        return missing


class Text(str):
    """A JVM's object that is text."""

    __slots__ = ()

    def toString(self) -> str:  # noqa: N802 - Java's name
        return str(self)


class Same(Odd):
    """A JVM's object that equals itself."""

    def equals(self, other: object) -> bool:
        return self is other


def dataframe(execution: object) -> Any:
    """A DataFrame on the thread of a query, in a session of Spark 9.9."""
    thread = execution._known.get("thread") if isinstance(execution, Odd) else None
    active = Odd(keySet=lambda: ["gone", "here"], get={"here": execution}.get)
    jvm = Odd(
        java=Odd(
            util=Odd(ArrayList=lambda keys: Odd(size=lambda: len(keys), get=keys.__getitem__)),
            lang=Odd(Thread=Odd(currentThread=lambda: thread or Same())),
        )
    )
    java_session = Same(sharedState=lambda: Odd(activeStreamingQueries=lambda: active))
    session = Odd(version="9.9", sparkContext=Odd(_jvm=jvm))
    return Odd(sparkSession=session, _jdf=Odd(sparkSession=lambda: java_session))


def running(*, planned_ms: object = 17, is_first: object = True, rows_id: object = 8) -> Odd:
    """The execution of batch 3."""
    metadata, rows = Odd(batchTimestampMs=lambda: planned_ms), Odd(id=lambda: rows_id)
    return Odd(
        currentBatchId=lambda: 3,
        offsetSeqMetadata=lambda: metadata,
        isFirstBatch=lambda: is_first,
        toRdd=lambda: rows,
    )


def execution(**answers: Any) -> Odd:
    thread = Same()
    planned = running()
    known = {
        "queryExecutionThread": lambda: thread,
        "sparkSessionForStream": Same,
        "lastExecution": lambda: planned,
        "id": lambda: Text("the-query"),
        "runId": lambda: Text("the-run"),
        "resolvedCheckpointRoot": lambda: "file:/checkpoint",
    }
    return Odd(thread=thread, **{**known, **answers})


NOT_UNDERSTOOD: dict[str, dict[str, Any]] = {
    "another thread's name": {"queryExecutionThread": None},
    "no execution": {"lastExecution": lambda: None},
    "an execution without a batch": {"lastExecution": Odd},
    "no time": {"lastExecution": lambda: running(planned_ms=None)},
    "time that was not set": {"lastExecution": lambda: running(planned_ms=0)},
    "no word on the batches before": {"lastExecution": lambda: running(is_first=None)},
    "no rows": {"lastExecution": lambda: running(rows_id=None)},
    "no id": {"id": lambda: None},
    "no run id": {"runId": lambda: None},
    "no checkpoint": {"resolvedCheckpointRoot": lambda: None},
    "an empty checkpoint": {"resolvedCheckpointRoot": lambda: ""},
}


@pytest.mark.parametrize("what", NOT_UNDERSTOOD)
def test_a_spark_that_answers_otherwise_is_an_error_that_names_it(what: str) -> None:
    with pytest.raises(ConfigError, match=r"Spark 9\.9 does not let wal-sink read which query a batch belongs to \("):
        identity_of(dataframe(execution(**NOT_UNDERSTOOD[what])), 3)


def of_spark_3_5(*, remembers: bool = True, commits: tuple[int, ...] = ()) -> Any:
    """The DataFrame of batch 3, and what the run remembers to have committed."""
    log = Odd(metadataCacheEnabled=lambda: remembers, batchCache=lambda: dict.fromkeys(commits))
    df = dataframe(execution(commitLog=lambda: log, sparkSession=lambda: None))
    df.sparkSession._known["version"] = "3.5.9"
    df.sparkSession.sparkContext._jvm.java.util._known["HashMap"] = lambda cache: Odd(keySet=lambda: list(cache))
    return df


@pytest.mark.parametrize(("commits", "is_first"), [((), True), ((2,), False), ((1, 2), False), ((1,), True)])
def test_spark_3_5_tells_the_first_batch_of_a_run_by_the_commits_that_it_remembers(
    monkeypatch: pytest.MonkeyPatch, commits: tuple[int, ...], is_first: bool
) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession", lambda *_: None)
    monkeypatch.setattr("pyspark.sql.streaming.query.StreamingQuery", lambda _: None)
    assert identity_of(of_spark_3_5(commits=commits), 3).is_first is is_first


def test_spark_3_5_without_its_memory_of_commits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"3\.5\.9 does not remember .*metadataCache\.enabled is false\. Set it to"):
        identity_of(of_spark_3_5(remembers=False), 3)


def test_a_spark_without_a_list_of_queries_is_an_error_that_names_it() -> None:
    df = dataframe(execution())
    df._jdf._known["sparkSession"] = lambda: Odd(sharedState=Odd)
    with pytest.raises(ConfigError, match=r"Spark 9\.9 .*Method activeStreamingQueries.* does not exist.*4\.0 to 4\.3"):
        identity_of(df, 3)


def test_a_writer_that_cannot_be_read_is_an_error_that_names_it() -> None:
    session = Odd(version="9.9", _jsparkSession=Odd())
    writer: Any = Odd(_spark=session, _jwrite=Odd(getClass=Odd))
    with pytest.raises(ConfigError, match=r"Spark 9\.9 does not let wal-sink read a setting of the writer \(extraOpt"):
        refuse_leftovers(writer, session, "/checkpoint")  # type: ignore[arg-type]


def batch_frame(*rows_ids: int) -> Any:
    """A DataFrame over these RDDs, and one file."""
    leaf = "org.apache.spark.sql.execution.LogicalRDD"
    leaves = [(leaf, Odd(id=lambda number=number: number)) for number in rows_ids] + [("…LogicalRelation", None)]
    each = [Odd(rdd=lambda rdd=rdd: rdd, getClass=lambda name=name: Odd(getName=lambda: name)) for name, rdd in leaves]
    plan = Odd(collectLeaves=lambda: Odd(size=lambda: len(each), apply=each.__getitem__))
    return Odd(sparkSession=Odd(version="9.9"), _jdf=Odd(queryExecution=lambda: Odd(analyzed=lambda: plan)))


def test_a_dataframe_that_was_kept_from_an_earlier_batch_is_refused() -> None:
    rows = BatchRows()
    third, fourth = identity("/c"), replace(identity("/c"), batch_id=4, rows_id=11)
    rows.refuse_earlier(batch_frame(8), third)
    rows.refuse_earlier(batch_frame(8, 11), fourth)  # joined to this one's
    rows.refuse_earlier(batch_frame(2), fourth)  # a table of the user's
    with pytest.raises(ConfigError, match=r"batch 4: .* holds rows of batch 3, and none of this batch"):
        rows.refuse_earlier(batch_frame(8), fourth)
    rows.refuse_earlier(batch_frame(8), replace(fourth, run_id="another"))  # another context numbers anew


def test_a_spark_whose_plans_are_unknown_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"Spark 9\.9 does not let wal-sink read which batch a DataFrame is made of"):
        BatchRows().refuse_earlier(cast("Any", Odd(sparkSession=Odd(version="9.9"), _jdf=Odd())), identity("/c"))


def identity(checkpoint: str) -> QueryIdentity:
    nothing: Any = None
    return QueryIdentity(3, "the-query", "the-run", checkpoint, 17, False, 8, nothing, nothing)


SAME = [
    ("/a/b", "file:/a/b"),
    ("/a/b/", "file:///a/b"),
    ("local:/a/./b", "/a/c/../b"),
    ("s3://bucket/key", "s3a://bucket/key/"),
    ("s3n://bucket/a b", "S3A://bucket/a b"),
    ("s3://bucket", "s3a://key:secret@bucket/"),
    ("hdfs://nn:8020/a", "hdfs://nn:8020/a/"),
    ("filecache::s3://b/k", "filecache::s3://b/k"),
]
OTHER = [
    ("/a/b", "file:/a/bb"),
    ("/a b", "file:/a%20b"),
    ("s3://bucket/key", "s3a://bucket/key2"),
    ("s3://bucket/key", "s3a://other/key"),
    ("s3://bucket/a b", "s3a://bucket/a%20b"),
]
UNDECIDED = [
    ("/dbfs/a", "dbfs:/a"),
    ("/mnt/bucket/a", "s3a://bucket/a"),
    ("webhdfs://nn:9870/a", "hdfs://nn:8020/a"),
    ("hdfs://nn/a", "hdfs://cluster/b"),
    ("hdfs:/a", "hdfs://nn/a"),
    ("abfs://c@account/a", "abfss://c@account/a"),
    ("filecache::s3://b/k", "s3://b/k"),
]


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (*pair, verdict)
        for pairs, verdict in ((SAME, Place.SAME), (OTHER, Place.OTHER), (UNDECIDED, Place.UNDECIDED))
        for pair in pairs
    ],
)
def test_two_addresses_name_the_same_folder_another_or_leave_it_open(one: str, other: str, verdict: Place) -> None:
    nobody: Any = None  # no file system of Spark's is needed
    assert compare(nobody, one, other) is verdict
    assert compare(nobody, other, one) is verdict


def test_links_lead_to_the_same_folder_and_a_copy_is_another(tmp_path: Path) -> None:
    nobody: Any = None
    folder, copy, link = tmp_path / "folder", tmp_path / "copy", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    assert compare(nobody, str(link), f"file:{folder}") is Place.SAME
    assert compare(nobody, str(copy), f"file:{folder}") is Place.OTHER, "it does not exist"
    copy.mkdir()
    assert compare(nobody, str(copy), f"file:{folder}") is Place.OTHER


def test_a_query_on_another_checkpoint_is_refused_with_both_addresses_and_no_secret() -> None:
    for given in ("s3://bucket/a", "/dbfs/a"):
        refuse_other_checkpoint(identity("s3a://bucket/a"), given)
    with pytest.raises(ConfigError, match=r"batch 3: query the-query runs on s3a://bucket/a, .* given .* s3://b/c\. "):
        refuse_other_checkpoint(identity("s3a://key:secret@bucket/a"), "s3://b/c")


@pytest.mark.parametrize(("is_first", "remembered", "earliest"), [(True, [], 5), (False, [], 4), (False, [2, 3], 2)])
def test_a_run_that_completed_any_batch_completed_the_one_before(
    is_first: bool, remembered: list[int], earliest: int
) -> None:
    progress = [Odd(batchId=batch_id) for batch_id in remembered]
    known = cast("QueryIdentity", Odd(is_first=is_first, batch_id=5, query=Odd(recentProgress=progress)))
    assert _first_of_the_run(known) == earliest


@pytest.mark.parametrize("table", [None, Odd(), Odd(keySet=lambda: None), Odd(keySet=lambda: ["a"])])
def test_a_spark_whose_list_of_queries_cannot_be_read_is_an_error_that_names_it(table: object) -> None:
    df = dataframe(execution())
    df._jdf._known["sparkSession"] = lambda: Odd(sharedState=lambda: Odd(activeStreamingQueries=lambda: table))
    with pytest.raises(ConfigError, match=r"Spark 9\.9 does not let wal-sink read which query a batch belongs to"):
        identity_of(df, 3)


def test_as_many_batches_are_remembered_as_there_is_room_for() -> None:
    rows = BatchRows()
    for number in range(1001):
        rows.refuse_earlier(batch_frame(), replace(identity("/c"), batch_id=number, rows_id=number))
    present = replace(identity("/c"), batch_id=1000, rows_id=1000)
    rows.refuse_earlier(batch_frame(0), present)
    with pytest.raises(ConfigError, match="holds rows of batch 1,"):
        rows.refuse_earlier(batch_frame(1), present)


@pytest.mark.parametrize(("through_mounts", "verdict"), [("hdfs://one/x", Place.SAME), (None, Place.OTHER)])
def test_mount_points_of_a_view_are_looked_through(
    through_mounts: str | None, verdict: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody: Any = None
    monkeypatch.setattr(locations, "_resolved", lambda _, url: through_mounts or url)
    assert compare(nobody, "viewfs://view/a", "viewfs://view/b") is verdict
