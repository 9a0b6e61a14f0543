# Functions stand for those that users write.
# ruff: noqa: ARG002, ARG005
"""The most likely mistakes of users are answered at once, in words that name the right call. Needs no JVM."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from tests.house.sinks import Chunk, SegmentSink, Sink, as_sink, sink_from_url
from wal_sink import (
    BatchSink,
    Delivery,
    PermanentError,
    Rejected,
    Retry,
    Settings,
    TransactionalSink,
    WalSink,
    idempotent,
    wrap,
)
from wal_sink.errors import ConfigError
from wal_sink.protocol.location import refuse_shared_folder
from wal_sink.spark.foreach_writer import ForeachWriterSink
from wal_sink.spark.query import _cause_of
from wal_sink_backends import FilesSink, TwoPhaseFilesSink

LOOSE: Any = WalSink
"""As a user without a type checker calls it."""
PLACES = {"wal": "memory://wal", "checkpoint": "memory://checkpoint"}

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def post(chunk: Chunk) -> None: ...


def write_batch(df: DataFrame, batch_id: int) -> None: ...


class NoChunk(Sink):
    def write(self) -> None: ...  # type: ignore[override]


class OpensWithoutContext(Sink):
    def open(self) -> None: ...  # type: ignore[override]

    def write(self, chunk: Chunk) -> None: ...


class LooksUpLater(Sink):
    def write(self, chunk: Chunk) -> None: ...

    async def was_applied(self, key: str) -> bool:
        return bool(key)


class Lazy(SegmentSink):
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> Any:
        yield from chunks


class WholeBatch(BatchSink):
    def write_batch(self, df: DataFrame, batch_id: int) -> None: ...  # type: ignore[override]


class WriterOfASource:
    def write(self, rows: object) -> None: ...

    def commit(self, messages: object) -> None: ...


class ForeachWriter:
    def process(self, row: object) -> None: ...


class LikeASink:
    def write(self, chunk: Chunk) -> None: ...


async def later(chunk: Chunk) -> None: ...


def lazily(chunk: Chunk) -> Any:
    yield chunk


WRONG_TARGETS: list[tuple[object, str]] = [
    (write_batch, r"write_batch.*wrap\.foreach_batch\(write_batch\)"),
    (lambda df, epoch: None, r"wrap\.foreach_batch"),
    (idempotent(lambda df, epoch: None), r"wrap\.foreach_batch"),
    (functools.partial(lambda extra, df, batch_id: None, 1), r"wrap\.foreach_batch"),
    (lambda: None, r"expected a function of one Chunk"),
    (lambda a, b, c: None, r"expected a function of one Chunk"),
    (later, r"later.*async"),
    (lazily, r"lazily.*yield"),
    (Chunk, r"Chunk is a class"),
    (NoChunk(), r"NoChunk\.write.*write\(chunk\)"),
    (OpensWithoutContext(), r"OpensWithoutContext\.open.*open\(context\)"),
    (LooksUpLater(), r"LooksUpLater\.was_applied.*async"),
    (Lazy(), r"Lazy\.write_segment.*yield"),
    (WholeBatch(), r"WholeBatch\.write_batch.*write_batch\(batch\)"),
    (WriterOfASource(), r"WriterOfASource.*wrap\.data_source_writer"),
    (ForeachWriter(), r"ForeachWriter.*wrap\.foreach_writer"),
    (LikeASink(), r"LikeASink.*class LikeASink\(Sink\)"),
    (Path("orders.db"), r"PosixPath.*URL"),
    (Delivery(post), r"Delivery.*WalSink\(Delivery"),
    ([post], r"list.*mapping"),
]


@pytest.mark.parametrize(("to", "said"), WRONG_TARGETS, ids=lambda value: getattr(value, "__name__", None))
def test_what_no_rows_can_be_given_to_is_refused_at_once(to: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        as_sink(to)


@pytest.mark.parametrize(
    "to",
    [
        post,
        print,
        lambda chunk, tries=3: None,
        lambda *args: None,
        functools.partial(lambda a, chunk: None, 1),
        LikeASink().write,
    ],
)
def test_what_takes_one_chunk_is_a_sink(to: object) -> None:
    assert isinstance(as_sink(to), Sink)


WRONG_WRAPS: list[tuple[Callable[[], object], str]] = [
    (lambda: wrap.foreach_batch(cast("Any", post)), r"post.*WalSink\(post"),
    (lambda: wrap.foreach_batch(cast("Any", lambda: None)), r"df, batch_id"),
    (lambda: wrap.foreach_batch(cast("Any", later)), "async"),
    (lambda: wrap.foreach_writer(lambda a, b: None), "one Row"),
    (lambda: wrap.foreach_writer(later), "async"),
    (lambda: wrap.foreach_writer(lazily), "yield"),
    (lambda: wrap.foreach_writer(OpensLikeASink()), r"OpensLikeASink\.open.*open\(partition_id, epoch_id\)"),
    (lambda: wrap.spark_writer(cast("Any", {"url": "jdbc:x"})), r"spark_writer\('jdbc', \{"),
    (lambda: wrap.spark_writer("jdbc", cast("Any", "jdbc:postgresql://host/db")), "options.*mapping"),
    (lambda: wrap.spark_writer("jdbc", mode="apend"), "did you mean 'append'"),
]


class OpensLikeASink:
    def open(self, context: object) -> None: ...

    def process(self, row: object) -> None: ...


async def several(df: object, batch_id: int) -> None: ...


class CommitsLater(DataSourceStreamWriter):
    def write(self, iterator: object) -> WriterCommitMessage:
        return WriterCommitMessage()

    async def commit(self, messages: object, batchId: int) -> None: ...  # type: ignore[override]  # noqa: N803


WRONG_WRAPS.append((lambda: wrap.foreach_batch(several), "async"))
WRONG_WRAPS.append((lambda: wrap.data_source_writer(CommitsLater()), r"CommitsLater\.commit is async"))


@pytest.mark.parametrize(("call", "said"), WRONG_WRAPS)
def test_a_writer_that_cannot_be_called_so_is_refused_when_it_is_wrapped(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        call()


def test_a_function_of_one_row_is_a_writer_of_rows() -> None:
    sink = wrap.foreach_writer(lambda _: None)
    assert isinstance(sink, ForeachWriterSink)
    assert "<lambda>" in sink.describe()


@pytest.mark.parametrize(
    ("method", "function", "call"),
    [
        ("open", lambda self, partition_id: True, "open(partition_id, epoch_id)"),
        ("process", lambda self: None, "process(row)"),
        ("close", lambda self: None, "close(error)"),
    ],
)
def test_each_method_of_a_foreach_writer_is_checked(method: str, function: object, call: str) -> None:
    writer = type("Writer", (), {"process": lambda self, row: None, method: function})()

    with pytest.raises(ConfigError) as told:
        wrap.foreach_writer(writer)

    assert str(told.value) == f"Writer.{method} cannot be called as wal-sink calls it: expected {call}"


WRONG_VALUES: list[tuple[Callable[[], object], str]] = [
    (lambda: LOOSE(post, **PLACES, settings={"chunk_rows": 5}), r"settings=Settings\(chunk_rows=5\)"),
    (lambda: LOOSE(post, **PLACES, settings=None), r"settings=Settings\(\)"),
    (lambda: LOOSE(post, **PLACES, guarantee="exactly-once"), "did you mean 'exactly_once'"),
    (lambda: LOOSE(post, **PLACES, name=5), r"name=5.*text"),
    (lambda: LOOSE({5: post}, **PLACES), r"5.*text"),
    (lambda: LOOSE({}, **PLACES), r"WalSink\(None"),
    (lambda: LOOSE(post, **PLACES, storage_options="key=x"), r"storage_options.*mapping"),
    (lambda: LOOSE(post, **PLACES, checkpoint_options=[1]), r"checkpoint_options.*mapping"),
    (lambda: LOOSE(post, wal=None, checkpoint="c"), r"wal=None"),
    (lambda: LOOSE(post, wal="w", checkpoint=None), r"checkpoint=None"),
    (lambda: LOOSE(post, wal="w", checkpoint=""), r"checkpoint.*empty"),
    (lambda: LOOSE(post, wal="jdbc:postgresql://host/db", checkpoint="c"), r"wal.*folder"),
    (lambda: LOOSE(post, **PLACES, moved_from=3), r"moved_from=3"),
    (lambda: Retry(budget_s=cast("Any", "600")), r"budget_s='600'"),
    (lambda: Delivery(post, rows_per_s=cast("Any", "5")), r"rows_per_s='5'"),
    (lambda: Settings(retention_batches=cast("Any", "200")), r"retention_batches='200'"),
    (lambda: Delivery(post, where=cast("Any", "executor")), "did you mean 'executors'"),
]


WRONG_VALUES += [
    (lambda: LOOSE(post, **PLACES, settings={"key": "hunter-2"}), r"Settings\(key=…\)"),
    (lambda: LOOSE(post, wal={"url": "hunter-2"}, checkpoint="c"), r"wal=a dict: expected text"),
    (lambda: LOOSE(post, **PLACES).drain(timeout_s="3"), r"timeout_s='3'"),
    (lambda: idempotent(cast("Any", "https://api.example")), r"@idempotent.*#idempotent=true"),
]


WRONG_VALUES += [
    *[
        (lambda value=value, name=name: cast("Any", Settings)(**{name: value}), f"{name}=")
        for name in ("chunk_rows", "chunk_bytes", "segment_bytes", "retention_batches")
        for value in (None, True, math.nan, 10**30)
    ],
    *[
        (lambda value=value, name=name: cast("Any", Retry)(**{name: value}), f"{name}=")
        for name in ("budget_s", "attempt_timeout_s")
        for value in (None, 0, True, math.nan, math.inf, 1e300, 10**400)
    ],
    *[
        (lambda value=value: cast("Any", Delivery)(post, rows_per_s=value), "rows_per_s=")
        for value in (True, math.inf, math.nan)
    ],
    *[(lambda value=value: Settings(single_writer=cast("Any", value)), "True or False") for value in ("no", None, 0)],
    (lambda: Retry(attempts=cast("Any", None)), r"attempts=None"),
    (lambda: Delivery(post, threads_per_task=0), r"threads_per_task=0"),
    (lambda: Delivery(post, threads_per_task=17), r"threads_per_task=17: expected 1 to 16"),
    (
        lambda: Delivery(post, threads_per_task=2, max_concurrency=1),
        r"threads_per_task=2 .*max_concurrency=1 sends one after",
    ),
    (lambda: Delivery(post, threads_per_task=2, where="driver"), r"threads_per_task=2 .*where='driver' sends one afte"),
    (lambda: Delivery(post, retry=cast("Any", 3)), r"retry: expected Retry\(attempts=8, budget_s=600\), found a int"),
    (lambda: LOOSE(post, **PLACES).drain(timeout_s=math.inf), r"timeout_s=inf"),
]


class Claims(Sink):
    def __init__(self, **claims: object) -> None:
        for name, value in claims.items():
            setattr(self, name, value)

    def write(self, chunk: Chunk) -> None: ...


def test_threads_of_a_task_are_refused_for_a_sink_that_no_task_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal_sink.walsink.current_session", lambda: None)  # other tests of this process may have one
    for sink in (Claims(driver_only=True), wrap.foreach_batch(write_batch)):
        to = Delivery(sink, threads_per_task=2)
        wal = WalSink(to, wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint"))
        with pytest.raises(ConfigError, match=r"threads_per_task=2 .*can only run on the driver"):
            wal.drain()


class SaysNoByMethod(Sink):
    def idempotent(self) -> bool:  # type: ignore[override]
        return False

    def write(self, chunk: Chunk) -> None: ...


def marked_by_text(chunk: Chunk) -> None: ...


marked_by_text.idempotent = "no"  # type: ignore[attr-defined]

WRONG_VALUES += [
    (lambda: as_sink(Claims(on_gone="prepare")), r"Claims\.on_gone='prepare': expected one of.*prepare_again"),
    (lambda: as_sink(SaysNoByMethod()), r"SaysNoByMethod\.idempotent.*True or False"),
    (lambda: as_sink(marked_by_text), r"marked_by_text\.idempotent='no'.*True or False"),
    (lambda: as_sink(wrap.foreach_batch(write_batch, idempotent=cast("Any", "no"))), r"idempotent='no'"),
    *[
        (lambda value=value, name=name: as_sink(Claims(**{name: value})), rf"Claims\.{name}=")
        for name in ("max_chunk_rows", "max_chunk_bytes", "max_concurrency")
        for value in (0, -1, True, "5")
    ],
    *[
        (lambda value=value, name=name: as_sink(Claims(**{name: value})), rf"Claims\.{name}=.*True or False")
        for name in [claim for claim, kind in Sink.__annotations__.items() if kind == "bool"] + ["keep_segments"]
        for value in ("no", "", None, 0, 1, lambda: False)
    ],
]


@pytest.mark.parametrize(("call", "said"), WRONG_VALUES)
def test_a_value_of_another_kind_is_told_with_the_right_one(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        call()


def test_every_claim_of_a_sink_class_is_looked_at() -> None:
    assert [name for name, kind in Sink.__annotations__.items() if kind == "bool"] == [
        "idempotent",
        "replaces_rows",
        "driver_only",
        "names_refused_rows",
        "needs_tasks",
    ], "one that is new here must be looked at by check_claims, and one that is gone no longer"


def test_the_claims_of_a_backend_that_is_named_by_a_url_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        name = "odd"

        def load(self) -> Callable[[str], Sink]:
            return lambda _: Claims(driver_only="no")

    monkeypatch.setattr("wal_sink.sinks.urls.entry_points", lambda **_: [Found()])
    with pytest.raises(ConfigError, match=r"Claims\.driver_only='no'.*True or False"):
        sink_from_url("odd://host")


def test_a_copy_of_wal_sink_that_was_not_installed_knows_no_urls_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.sinks.urls.entry_points", lambda **_: [])
    with pytest.raises(ConfigError, match=r"installed are: none, as in a copy .*--py-files.*pass the sink itself"):
        sink_from_url("sqlite:///orders.db?table=orders")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("jdbc:postgresql://user:hunter-2@host/db", r"postgresql://user.*table=.*wrap\.spark_writer\('jdbc'"),
        ("jdbc:sqlite:orders.db", r"sqlite:///.*wrap\.spark_writer\('jdbc'"),
        ("jdbc:oracle:thin:@host", r"wrap\.spark_writer\('jdbc'"),
        ("orders.db", r"sqlite:///orders\.db\?table="),
        ("out/orders", r"files:///.*out/orders"),
        ("/data/out", r"files:///data/out"),
        ("s3://bucket/orders", r"files\+s3://bucket/orders"),
        ("s3a://bucket/orders", r"files\+s3://bucket/orders"),
        ("file:///data/out", r"files:///data/out"),
        ("postgre://host/db?table=t", r"did you mean postgres"),
        ("sqllite:///orders.db?table=t", r"did you mean sqlite"),
        ("sqlite:///orders.db?tabel=orders", r"unknown options tabel.*did you mean table"),
        ("https://api.example/orders#idempotnet=true", r"unknown options idempotnet.*did you mean idempotent"),
        (
            "redis+sentinel://:hunter-2@a:26379,b:26379/primary",
            r"^redis.sentinel://a.*Sentinel is not supported.*follows",
        ),
        (
            "rediss+sentinel://a/primary?key=o:{id}",
            r"Sentinel is not supported, so it cannot be used to find the primary",
        ),
        ("sentinel://a:26379", r"Sentinel is not supported, so it cannot be used to find the primary"),
        ("", "empty"),
    ],
)
def test_a_url_that_names_no_target_is_told_with_the_one_that_was_meant(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}") as told:
        sink_from_url(url)

    assert "hunter-2" not in str(told.value)


class Silent:
    """As a function of an extension module may be."""

    @property
    def __signature__(self) -> object:
        raise ValueError("no signature found")

    def __call__(self, a: object, b: object) -> None: ...


def test_a_function_that_does_not_tell_its_arguments_is_tried() -> None:
    sink = as_sink(Silent())

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        cast("Sink", sink).write(cast("Chunk", None))


SAME = "lie in the same folder. Deleting"
CHECKPOINT_INSIDE = "share a folder: the checkpoint lies inside the WAL. Deleting"
WAL_INSIDE = "share a folder: the WAL lies inside the checkpoint. Deleting"


@pytest.mark.parametrize(
    ("wal", "checkpoint", "how"),
    [
        ("s3://lake/orders", "s3://lake/orders", SAME),
        ("s3://lake/orders", "s3a://lake/orders/", SAME),
        ("s3://lake/orders", "s3a://lake/orders/checkpoint", CHECKPOINT_INSIDE),
        ("s3a://lake/orders/wal", "s3://lake/orders", WAL_INSIDE),
        ("s3://lake/ordersX", "s3://lake/ordersX/checkpoint", CHECKPOINT_INSIDE),
        ("memory://a", "memory:///a/b", CHECKPOINT_INSIDE),
        ("hdfs://one/a", "webhdfs://two:9870/a/b", CHECKPOINT_INSIDE),
        ("{here}/a", "{here}/a", SAME),
        ("{here}/a", "file://{here}/a/b", CHECKPOINT_INSIDE),
        ("{here}/a/b", "{here}/a", WAL_INSIDE),
        ("{here}/link/b", "{here}/real", WAL_INSIDE),
        ("file:{here}/a", "{here}/a/b", CHECKPOINT_INSIDE),
        ("/", "{here}/a", CHECKPOINT_INSIDE),
        ("file:///", "/", SAME),
    ],
)
def test_wal_and_checkpoint_in_one_folder_are_refused(wal: str, checkpoint: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    with pytest.raises(ConfigError, match=rf"(?s)WAL \S+ and checkpoint \S+ {how}.*moved_from"):
        refuse_shared_folder(wal.format(here=tmp_path), checkpoint.format(here=tmp_path))


@pytest.mark.parametrize(
    ("wal", "checkpoint"),
    [
        ("s3://lake/orders", "s3a://lake/orders-checkpoint"),
        ("s3://lake/wal/orders", "s3a://lake/checkpoints/orders"),
        ("s3://lake/a", "s3://other/a"),
        ("s3://lake/a", "{here}/a"),
        ("{here}/wal", "{here}/wal2"),
        ("{here}/a/wal", "{here}/a/checkpoint"),
    ],
)
def test_folders_beside_each_other_are_not(wal: str, checkpoint: str, tmp_path: Path) -> None:
    refuse_shared_folder(wal.format(here=tmp_path), checkpoint.format(here=tmp_path))


@pytest.mark.parametrize("checkpoint", ["a", "a/checkpoint"])
def test_a_shared_folder_is_refused_before_anything_is_written(tmp_path: Path, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        WalSink(post, wal=str(tmp_path / "a"), checkpoint=str(tmp_path / checkpoint)).drain()

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [FilesSink, TwoPhaseFilesSink])
@pytest.mark.parametrize(
    ("target", "named"),
    [("a", "WAL"), ("a/wal", "WAL"), ("a/wal/out", "WAL"), ("c", "checkpoint"), ("c/o", "checkpoint"), (".", "WAL")],
)
def test_a_sink_that_fills_the_folder_of_the_wal_or_the_checkpoint_is_refused_before_anything_is_written(
    kind: type[FilesSink | TwoPhaseFilesSink], target: str, named: str, tmp_path: Path
) -> None:
    """Readers of the target would take the segments for its rows."""
    sink = kind(str(tmp_path / target), format="parquet")
    with pytest.raises(ConfigError, match=rf"sink 'default' writes its files into \S+, and the {named} is \S+\. "):
        WalSink(sink, wal=str(tmp_path / "a/wal"), checkpoint=str(tmp_path / "c"), check_targets=False).drain()

    assert not list(tmp_path.iterdir())


def test_refused_rows_that_are_no_mapping_are_not_tried_again() -> None:
    with pytest.raises(PermanentError, match="mapping from the index"):
        Rejected(cast("Any", ["bad"]))


class Ledger(TransactionalSink):
    """Its `commit` is its own helper: wal-sink calls only methods of a sink's kind."""

    def write(self, chunk: Chunk) -> None: ...

    def last(self, slot: str) -> None: ...

    def commit(self) -> None: ...


def test_helpers_of_a_sink_may_look_as_they_like() -> None:
    ledger = Ledger()

    assert as_sink(ledger) is ledger


def test_a_type_error_inside_a_function_is_its_own() -> None:
    def adds(_: Chunk) -> None:
        raise TypeError("can only concatenate str")

    sink = as_sink(adds)

    with pytest.raises(TypeError, match="concatenate"):
        cast("Sink", sink).write(cast("Chunk", None))


def test_every_answer_fits_on_a_few_lines() -> None:
    calls = [call for call, _ in (*WRONG_VALUES, *WRONG_WRAPS)]

    for call in calls:
        with pytest.raises(ConfigError) as told:
            call()
        assert len(str(told.value)) < 700


class Thrown:
    """An exception of Java."""

    def __init__(self, text: str, cause: Thrown | None = None) -> None:
        self._text, self._cause = text, cause

    def __str__(self) -> str:
        return f"{self._text}\n\tat a.place.of.Java"

    def getCause(self) -> Thrown | None:  # noqa: N802 - as Java calls it
        return self._cause


def test_the_cause_of_a_refused_start_names_what_lies_innermost() -> None:
    """Spark's own text for a connector that it lacks says only that a file manager cannot be loaded."""
    inner = Thrown("ClassNotFoundException: S3AFileSystem")
    thrown = Thrown("CANNOT_LOAD_CHECKPOINT_FILE_MANAGER", Thrown("RuntimeException", inner))
    told = _cause_of(cast("Any", SimpleNamespace(java_exception=thrown)))
    assert told == "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER; ClassNotFoundException: S3AFileSystem"
    assert _cause_of(cast("Any", SimpleNamespace(java_exception=inner))) == "ClassNotFoundException: S3AFileSystem"
