"""`format("wal_sink")` without Spark: a batch that is begun, written and committed, and what Spark may do wrong."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.house.log import Log, Manifest, Release, paths
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM, process_identity
from wal_sink.errors import ConfigError, CorruptError, FencedError, HistoryError
from wal_sink.settings import Settings
from wal_sink.spark import source_reading as reading
from wal_sink.spark import source_writing as writing
from wal_sink.spark.source_options import options_of, read_options, write_options
from wal_sink.spark.source_writing import StagedMessage, WalSinkWriter

QUERY = "11111111-2222-3333-4444-555555555555"
SCHEMA = StructType([StructField("id", LongType())])
CHECKS = tuple(
    f"spark.sql.shuffle.orderIndependentChecksum.{name}" for name in ("enabled", "enableFullRetryOnMismatch")
)


class Task:
    """The answers that Spark gives a task."""

    def __init__(
        self, partition: int = 0, query: str | None = QUERY, batch: str | None = "0", conf: dict[str, str] | None = None
    ) -> None:
        self._partition = partition
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch, **(conf or {})}

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._partition

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(key)


class Place:
    """A checkpoint with planned batches, and a WAL, in local folders."""

    def __init__(self, root: Path) -> None:
        self.checkpoint = root / "checkpoint"
        self.wal = root / "wal"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))

    def plan(self, batch_id: int, offset: int = 7, planned_ms: int | None = 1000) -> None:
        metadata = {} if planned_ms is None else {"batchTimestampMs": planned_ms}
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{json.dumps(metadata)}\n{offset}")

    def complete(self, batch_id: int) -> None:
        (self.checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def writer(self, **more: str) -> WalSinkWriter:
        options = {"wal": str(self.wal), "checkpointlocation": str(self.checkpoint), **more}
        return WalSinkWriter(write_options(options), SCHEMA, (4, 3))

    def sent(self, **more: str) -> WalSinkWriter:
        """A writer as a task gets it."""
        sent: WalSinkWriter = pickle.loads(pickle.dumps(self.writer(**more)))  # noqa: S301
        return sent

    @property
    def log(self) -> Log:
        return Log(open_store(StoreSpec(str(self.wal))), SYSTEM, "")

    def manifests(self, batch_id: int = 0) -> list[Manifest]:
        names = [name for name in self.log.store.list(paths.batch(batch_id)) if paths.parse_manifest(name)]
        return [self.log.require(Manifest, f"{paths.batch(batch_id)}/{name}") for name in names]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(writing, "_stagers", {})
    made = Place(tmp_path)
    made.plan(0)
    return made


def in_task(monkeypatch: pytest.MonkeyPatch, writer: WalSinkWriter, rows: int, task: Any = ...) -> StagedMessage:
    """The result of one task of a writer."""
    monkeypatch.setattr("wal_sink.spark.source_writing.TaskContext.get", lambda: Task() if task is ... else task)
    batch = pa.record_batch([pa.array(range(rows), pa.int64())], ["id"])
    return writer.write(iter([batch]))


def test_a_batch_is_begun_once_written_by_tasks_and_committed_by_another_writer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = place.writer()
    payloads = [pickle.dumps(writer), pickle.dumps(writer)]  # Spark pickles it twice
    one, two = (pickle.loads(payload) for payload in payloads)  # noqa: S301
    messages = [in_task(monkeypatch, one, 3, Task(0)), in_task(monkeypatch, two, 4, Task(1))]
    assert place.manifests() == []
    place.writer().commit([messages[1], messages[0]], 0)
    (manifest,) = place.manifests()
    assert [segment.rows for segment in manifest.segments] == [3, 4], "in the order of the partitions"
    assert (manifest.term, manifest.attempt) == (1, 1)


def test_a_replay_of_a_released_batch_is_counted_and_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    (manifest,) = place.manifests()
    release = Release(batch_id=0, term=1, attempt=1, fingerprint=manifest.fingerprint, sink="default", run_id="x",
                      **place.log.stamp())  # fmt: skip
    place.log.create(paths.release(0), release)
    message = in_task(monkeypatch, place.sent(), 5)
    assert message.staged is None
    place.writer().commit([message], 0)
    assert len(place.manifests()) == 1
    assert "the replay had 5 rows, but 3 rows were released" in caplog.text


def test_other_input_under_a_released_batch_id_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    (manifest,) = place.manifests()
    release = Release(batch_id=0, term=1, attempt=1, fingerprint=manifest.fingerprint, sink="default", run_id="x",
                      **place.log.stamp())  # fmt: skip
    place.log.create(paths.release(0), release)
    place.plan(0, offset=8)
    with pytest.raises(HistoryError, match="under the same id"):
        place.sent()


def test_a_batch_that_is_complete_already_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    place.complete(0)
    with pytest.raises(FencedError, match="but this batch is running now"):
        place.sent()


def as_worker(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """Claim terms from now on as another process."""
    identity = msgspec.structs.replace(process_identity(), **changes)
    monkeypatch.setattr("wal_sink.log.terms.process_identity", lambda: identity)


def planned_by_another_worker(place: Place, monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """Begin batch 0 here, and again in another process, which has changed in this way. Then look from here again."""
    as_worker(monkeypatch)
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    ours = dict(writing._stagers)
    writing._stagers.clear()
    as_worker(monkeypatch, **changes)
    place.sent()
    monkeypatch.setattr(writing, "_stagers", ours)
    as_worker(monkeypatch)


def test_an_older_worker_is_fenced_and_a_new_start_is_not(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_by_another_worker(place, monkeypatch, pid=1, parent=1)
    with pytest.raises(FencedError, match="was superseded"):
        place.sent()
    place.sent()
    assert place.log.numbers(paths.terms("stager")) == [1, 2, 3]


def test_a_batch_that_workers_of_one_driver_plan_in_turn_goes_on_under_a_new_term(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two queries in a driver, Spark plans a batch in any worker, and again in another one after a failure."""
    planned_by_another_worker(place, monkeypatch, pid=1)
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    assert sorted(manifest.term for manifest in place.manifests()) == [1, 3]


def test_a_query_that_continued_elsewhere_is_a_new_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    older = dict(writing._stagers)
    for batch_id in (1, 2):
        writing._stagers.clear()
        place.complete(batch_id - 1)
        place.plan(batch_id)
        place.writer().commit([in_task(monkeypatch, place.sent(), 3, Task(batch=str(batch_id)))], batch_id)
    place.complete(2)
    place.plan(3)
    monkeypatch.setattr(writing, "_stagers", older)
    place.writer().commit([in_task(monkeypatch, place.sent(), 3, Task(batch="3"))], 3)
    assert [manifest.term for manifest in place.manifests(3)] == [4]


@pytest.mark.parametrize(
    "task",
    [Task(query="other"), Task(batch="1"), Task(query=None), Task(batch=None)],
    ids=lambda task: str(task._properties),
)
def test_a_task_of_another_batch_or_query_stages_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    with pytest.raises(FencedError, match="Nothing was staged"):
        in_task(monkeypatch, place.sent(), 3, task)
    assert not list(place.wal.rglob("*.parquet"))


def test_a_task_that_got_no_batch_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HistoryError, match="got no batch"):
        in_task(monkeypatch, place.writer(), 3)
    with pytest.raises(HistoryError, match="got no batch"):
        in_task(monkeypatch, place.sent(), 3, None)


@pytest.mark.parametrize(
    ("version", "values", "is_fine"),
    [
        ((4, 3), {}, True),
        ((4, 2), {}, True),
        ((4, 1), {}, False),
        ((4, 1), dict.fromkeys(CHECKS, "true"), True),
        ((4, 1), {CHECKS[0]: "true"}, False),
        ((4, 3), {CHECKS[1]: "false"}, False),
        ((4, 3), {CHECKS[1]: "TRUE"}, True),
    ],
)
def test_shuffles_that_spark_does_not_compare_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], values: dict[str, str], is_fine: bool
) -> None:
    writer = place.sent()
    writer._version = version
    if is_fine:
        assert in_task(monkeypatch, writer, 3, Task(conf=values)).rows == 3
        return
    with pytest.raises(ConfigError, match=r"needs spark\.sql\.shuffle"):
        in_task(monkeypatch, writer, 3, Task(conf=values))


def test_results_that_do_not_fit_together_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (in_task(monkeypatch, place.sent(), 3) for _ in range(2))
    other_partition = replace(again, partition=1)
    for messages, expected in (
        ([replace(first, partition=1)], r"partitions 0 to 0, found those of \[1\]"),
        ([first, None], "expected the results of 2 tasks, found 1"),
        ([first, other_partition], "found results of several"),
        ([first, replace(first, staged=replace_partition(first))], r"found those of \[0, 0\]"),
    ):
        with pytest.raises(FencedError, match=expected):
            place.writer().commit(list(messages), 0)
    assert place.manifests() == []


def replace_partition(message: StagedMessage) -> Any:
    return pickle.loads(pickle.dumps(message.staged))  # noqa: S301 - an equal object that is another one


def test_another_batch_than_the_one_that_was_begun_is_not_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = in_task(monkeypatch, place.sent(), 3)
    with pytest.raises(FencedError, match="batch 0 was staged"):
        place.writer().commit([message], 1)
    assert place.manifests() == []


def test_segments_that_the_driver_does_not_see_are_not_committed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL is a folder that each machine has for itself."""
    message = in_task(monkeypatch, place.sent(), 3)
    (segment,) = place.wal.rglob("*.parquet")
    segment.unlink()
    with pytest.raises(ConfigError, match="executors wrote 1 segments that the driver does not see"):
        place.writer().commit([message], 0)
    assert place.manifests() == []


@pytest.mark.parametrize("offset", [8, None])
def test_an_entry_that_changed_since_the_batch_began_is_not_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch, offset: int | None
) -> None:
    message = in_task(monkeypatch, place.sent(), 3)
    if offset is None:
        (place.checkpoint / "offsets" / "0").unlink()
    else:
        place.plan(0, offset)
    with pytest.raises(FencedError, match="changed or vanished while the batch was staged"):
        place.writer().commit([message], 0)
    assert place.manifests() == []


def test_an_entry_without_a_time_of_planning_is_refused(place: Place) -> None:
    place.plan(0, planned_ms=None)
    with pytest.raises(FencedError, match="does not say when the batch was planned"):
        place.sent()


def test_a_folder_that_is_no_checkpoint_is_refused(place: Place, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="holds no planned batch"):
        place.sent(checkpointlocation=str(tmp_path / "elsewhere"))
    assert not place.wal.exists()


def test_an_aborted_batch_leaves_no_manifest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.writer().abort([in_task(monkeypatch, place.sent(), 3), None], 0)
    assert place.manifests() == []


# --- reading


def released(place: Place, batch_id: int) -> None:
    (manifest,) = place.manifests(batch_id)
    fields: Any = {"fingerprint": manifest.fingerprint, "sink": "default", "run_id": "x", **place.log.stamp()}
    record = Release(batch_id=batch_id, term=manifest.term, attempt=manifest.attempt, **fields)
    place.log.create(paths.release(batch_id), record)


def staged(place: Place, monkeypatch: pytest.MonkeyPatch, batches_wanted: int) -> None:
    for batch_id in range(batches_wanted):
        place.plan(batch_id)
        place.writer().commit([in_task(monkeypatch, place.sent(), 3, Task(batch=str(batch_id)))], batch_id)
        place.complete(batch_id)


def test_a_batch_that_is_released_while_others_are_read_is_read_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(place, monkeypatch, 2)
    find = reading._released

    def late(log: Log, batch_id: int) -> Manifest | None:
        found = find(log, batch_id)
        if batch_id == 0 and found is None:
            released(place, 0)  # a committer releases both, right after batch 0 was looked up
            released(place, 1)
        return found

    monkeypatch.setattr(reading, "_released", late)
    in_turn = replace(SYSTEM, side_by_side=lambda look, items: [look(each) for each in items])
    monkeypatch.setattr(reading, "SYSTEM", in_turn)
    assert [manifest.batch_id for manifest in reading._all_released(place.log, [0, 1])] == [0, 1]


# --- options


def test_options_are_read_without_case_and_a_path_stands_for_the_wal() -> None:
    found = read_options({"path": "/wal", "FROMbatch": "3", "toBatch": "5"})
    assert (found.store.url, found.first_batch, found.last_batch) == ("file:///wal", 3, 5)


def test_the_options_of_a_walsink_are_those_of_the_format() -> None:
    spec = StoreSpec("s3://bucket/wal", {"anon": True, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}})
    settings = Settings(chunk_rows=7, chunk_bytes=1000, segment_bytes=2000)
    found = write_options(options_of(spec, "s3://bucket/checkpoint", settings))
    assert (found.store, found.checkpoint, found.settings) == (spec, "s3://bucket/checkpoint", settings)


def test_storage_options_that_another_process_cannot_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected values that JSON can hold, found values of type object"):
        options_of(StoreSpec("s3://bucket/wal", {"anon": object()}), "/checkpoint", Settings())
    with pytest.raises(ConfigError, match="'key' may hold a secret"):
        options_of(StoreSpec("s3://bucket/wal", {"key": b"topsecret"}), "/checkpoint", Settings())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"wal": "/a", "path": "/b"}, "Pass one of them"),
        ({}, "option wal is missing"),
        ({"wal": "/a", "fromBatch": "5", "toBatch": "4"}, "expected fromBatch to be at most toBatch, found 5 and 4"),
        ({"wal": "/a", "fromBatch": "-1"}, "expected a whole number"),
        ({"wal": "/a", "whatever": "1"}, "Expected one of wal, storageOptions, fromBatch, toBatch"),
        ({"wal": "webhdfs://user:topsecret@host/a"}, "may be a secret"),
        ({"wal": "webhdfs://user:pw@host/a"}, "may be a secret"),
        ({"wal": "hdfs://user@host/a?token=abcdefgh"}, "may be a secret"),
        ({"wal": "sftp://Ghp16C7e42F292c69@host/a"}, "may be a secret"),
        ({"wal": "/a", "storageOptions": '{"user": "a token that is no name"}'}, "may hold a secret"),
        ({"wal": "/a", "storageOptions": '{"token": "topsecret"}'}, "'token' may hold a secret"),
        ({"wal": "/a", "storageOptions": '{"client_kwargs": {"password": 12345678}}'}, "'client_kwargs' may hold a"),
        ({"wal": "/a", "storageOptions": "[1]"}, "expected one JSON object"),
    ],
)
def test_wrong_options_are_named_and_no_secret_is_shown(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        read_options(options)
    assert "topsecret" not in str(raised.value)


def test_a_batch_without_partitions_is_staged_too(place: Place) -> None:
    place.writer().commit([], 0)
    assert [manifest.rows for manifest in place.manifests()] == [0]


def test_the_run_of_a_worker_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.writer().commit([in_task(monkeypatch, place.sent(), 3)], 0)
    place.complete(0)
    place.plan(1)
    place.writer().commit([in_task(monkeypatch, place.sent(), 3, Task(batch="1"))], 1)
    assert [(manifest.term, manifest.attempt) for manifest in place.manifests(1)] == [(1, 2)]


def test_a_worker_whose_batch_is_refused_for_another_reason_does_not_claim_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_by_another_worker(place, monkeypatch, pid=1)
    place.complete(0)
    with pytest.raises(FencedError, match="but this batch is running now"):
        place.sent()
    writing._stagers.clear()
    with pytest.raises(FencedError, match="but this batch is running now"):
        place.sent()


def test_a_release_that_is_gone_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    staged(place, monkeypatch, 2)
    released(place, 1)
    with pytest.raises(CorruptError, match="batch 1 is released"):
        reading._all_released(place.log, [0, 1])
    assert reading._all_released(place.log, [0]) == []


@pytest.mark.parametrize("wal", ["hdfs://spark@name-node:8020/wal", "webhdfs://etl_user@host/wal"])
def test_the_user_of_a_hadoop_address_is_no_secret(wal: str) -> None:
    assert read_options({"wal": wal, "storageOptions": '{"user": "spark"}'}).store.url == wal
    options = write_options({"wal": wal, "checkpointLocation": "hdfs://spark@name-node:8020/checkpoint"})
    assert options.store.url == wal


def test_the_container_of_an_address_is_no_secret() -> None:
    url = "abfs://container@account.dfs.core.windows.net/wal"
    assert read_options({"wal": url}).store.url == url
