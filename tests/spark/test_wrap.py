"""Wrapping existing writers, as far as it needs no JVM."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from tests.house.sinks import Chunk, ReleasedBatch, SegmentSink, SinkContext, promise
from wal_sink import wrap
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.settings import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = t.StructType([t.StructField("id", t.LongType())])
SECRET = "hunter-2"  # noqa: S105 - a dummy


def context(schema: t.StructType | None = SCHEMA, **told: Any) -> SinkContext:
    text = schema.json() if schema else ""
    columns = tuple(schema.names) if schema else ("id",)
    place = {"on_executor": False, **told}
    return SinkContext("wal", "default", term=1, batch_id=7, columns=columns, spark_schema=text, **place)


def chunk(*ids: int) -> Chunk:
    return Chunk.of(pa.table({"id": pa.array(ids, pa.int64())}), key="key")


def deliver(sink: SegmentSink, *chunks: Chunk, ordinal: int = 3) -> None:
    sink.open(context())
    sink.write_segment(ordinal, 7, iter(chunks))
    sink.close()


class Recorder:
    """A ForeachWriter that remembers its calls, `open` answering what it is told."""

    def __init__(self, answer: object = True, fail_at: int | None = None) -> None:
        self.answer = answer
        self.fail_at = fail_at
        self.calls: list[object] = []

    def open(self, partition_id: int, epoch_id: int) -> object:
        self.calls.append(("open", partition_id, epoch_id))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def process(self, row: Row) -> None:
        self.calls.append(row)
        if row.id == self.fail_at:
            raise OSError(f"no row {row.id}")

    def close(self, error: Exception | None) -> None:
        self.calls.append(("close", repr(error)))


class Source(DataSourceStreamWriter):
    def __init__(self, secret: object = SECRET) -> None:
        self.secret = secret

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:  # noqa: ARG002
        return WriterCommitMessage()


@pytest.mark.processes
def test_importing_the_facade_imports_no_pyspark() -> None:
    program = "import sys; from wal_sink import wrap; wrap.foreach_batch(print); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)


def test_a_foreach_writer_is_opened_fed_and_closed_as_in_pyspark() -> None:
    writer = Recorder()
    deliver(wrap.foreach_writer(writer), chunk(1, 2), chunk(3))
    assert writer.calls == [("open", 3, 7), Row(id=1), Row(id=2), Row(id=3), ("close", "None")]


def test_a_failing_process_is_told_to_close_once_and_raised() -> None:
    writer = Recorder(fail_at=2)
    with pytest.raises(OSError, match="no row 2"):
        deliver(wrap.foreach_writer(writer), chunk(1, 2), chunk(3))
    assert writer.calls == [("open", 3, 7), Row(id=1), Row(id=2), ("close", "OSError('no row 2')")]


@pytest.mark.parametrize(("on_executor", "shown"), [(False, "13:30"), (True, "10:30")])
def test_times_have_the_zone_of_the_session_or_on_executors_that_of_the_process(
    on_executor: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Karachi")
    time.tzset()
    try:
        sink = wrap.foreach_writer((rows := list[Any]()).append)
        schema = t.StructType([t.StructField("at", t.TimestampType())])
        sink.open(context(schema, on_executor=on_executor, time_zone="GMT+8"))
        at = pa.array([dt.datetime(2024, 7, 1, 5, 30, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
        sink.write_segment(3, 7, [Chunk.of(pa.table({"at": at}), key="key")])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert f"{rows[0].at:%H:%M}" == shown


def test_rows_that_cannot_be_read_are_told_to_close_too() -> None:
    writer = Recorder()
    sink = wrap.foreach_writer(writer)
    sink.open(context())

    def broken() -> Iterator[Chunk]:
        yield chunk(1)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        sink.write_segment(0, 7, broken())
    assert writer.calls[-1] == ("close", "ValueError('broken')")


@pytest.mark.parametrize("answer", [False, None, 0])
def test_an_open_that_is_not_true_skips_the_rows_and_is_closed(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Recorder(answer)
    deliver(wrap.foreach_writer(writer), chunk(1))
    assert writer.calls == [("open", 3, 7), ("close", "None")]
    assert ("returned None" in caplog.text) == (answer is None)


def test_a_plain_function_gets_every_row() -> None:
    rows: list[Row] = []
    deliver(wrap.foreach_writer(lambda row: rows.append(row)), chunk(1), chunk(2))  # noqa: PLW0108
    assert rows == [Row(id=1), Row(id=2)]


def test_a_travelled_writer_is_a_fresh_copy_for_every_segment() -> None:
    class Counting:
        seen = 0

        def process(self, _: Row) -> None:
            self.seen += 1
            if self.seen > 2:
                raise AssertionError("state of another segment")

    sink = wrap.foreach_writer(Counting(), idempotent=True)
    for _ in range(2):  # a copy can travel again
        sink = pickle.loads(cast("Any", cloudpickle).dumps(sink))  # noqa: S301 - our own bytes
        assert (repr(sink), sink.idempotent) == (f"wrap.foreach_writer({Counting.__qualname__})", True)
        deliver(sink, chunk(1, 2))
        deliver(sink, chunk(3, 4))


def test_a_batch_without_a_spark_schema_is_refused_for_good() -> None:
    with pytest.raises(PermanentError, match="staged without Spark"):
        wrap.foreach_writer(print).open(context(None))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wrap.foreach_batch(cast("Any", 3)), "expected a function of a DataFrame and a batch id"),
        (lambda: wrap.foreach_batch(Recorder), "expected a function"),
        (lambda: wrap.foreach_writer(Recorder), r"pass an instance, Recorder\(…\)"),
        (lambda: wrap.foreach_writer(object()), r"no process\(row\)"),
        (lambda: wrap.foreach_writer(SimpleNamespace(process=print, close=3)), "close cannot be called"),
        (
            lambda: wrap.spark_writer("jdbc", {"password": SECRET}, mode="ignore"),
            "'ignore' would drop every batch, and 'error' would fail on every batch",
        ),
        (lambda: wrap.data_source_writer(Source), "Source: expected a DataSourceStreamWriter"),
        (lambda: wrap.data_source_writer(Source(secret=(letter for letter in SECRET))), "cannot be pickled"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert SECRET not in str(caught.value)


def writes(df: object, batch_id: int, password: str = "") -> None:
    raise AssertionError((df, batch_id, password))


def test_a_wrapped_writer_names_what_it_wraps_and_no_secret() -> None:
    wrapped: list[Any] = [
        wrap.foreach_batch(writes),
        wrap.foreach_batch(functools.partial(writes, password=SECRET)),
        wrap.foreach_writer(Recorder(SECRET)),
        wrap.spark_writer("jdbc", {"password": SECRET}),
        wrap.data_source_writer(Source()),
    ]
    names = [
        "wrap.foreach_batch(writes)",
        "wrap.foreach_batch(writes)",
        "wrap.foreach_writer(Recorder)",
        "wrap.spark_writer('jdbc', mode='append')",
        "wrap.data_source_writer(Source)",
    ]
    assert [repr(sink) for sink in wrapped] == names
    assert [sink.describe() for sink in wrapped] == names


def test_what_repeats_is_said() -> None:
    def sentence(sink: Any) -> str:
        return promise(sink, Delivery(sink), "default").sentence

    repeated = "at least once: a crash, takeover or retry may repeat"
    assert sentence(wrap.foreach_batch(writes)).startswith(f"{repeated} the whole batch")
    assert sentence(wrap.foreach_writer(print)).startswith(f"{repeated} the in-flight segments")
    assert sentence(wrap.foreach_batch(writes, idempotent=True)).startswith("exactly once in effect (batch writer)")
    assert sentence(wrap.data_source_writer(Source(), idempotent=True)).startswith("exactly once in effect")
    with pytest.raises(ConfigError, match="at_most_once needs a sink that is called chunk by chunk"):
        promise(wrap.foreach_writer(print), Delivery(print, guarantee="at_most_once"), "default")


def undecided(function: Callable[..., object]) -> Callable[..., Any]:
    """A decorator that hides what the function is, and so from every check of it."""
    return lambda *arguments: function(*arguments)  # noqa: PLW0108 - it is to hide


async def later(*_: object) -> None: ...


def lazily(*_: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("function", [later, lazily])
def test_a_function_for_batches_whose_call_did_not_run_fails_for_good(function: Callable[..., object]) -> None:
    batch = ReleasedBatch(batch_id=7, term=1, spark=cast("Any", None), read=lambda: cast("Any", "rows"))

    with pytest.raises(PermanentError, match=r"^the function returned a "):
        wrap.foreach_batch(undecided(function)).write_batch(batch)


@pytest.mark.parametrize(
    "options",
    [
        {"password": SECRET},
        {"url": f"jdbc:postgresql://db/x?user=me&password={SECRET}"},
        {"url": f"jdbc:sqlserver://db;user=me;password={SECRET};encrypt=true"},
        {"uri": f"mongodb://me:{SECRET}@db/x"},
    ],
)
def test_a_password_in_an_error_of_spark_is_masked(options: dict[str, str]) -> None:
    class Failing:
        def __getattr__(self, _: str) -> Any:
            return self

        def __call__(self, *_: Any, **__: Any) -> Any:
            return self

        def save(self) -> None:
            raise RuntimeError(f"cannot connect with {options}")

    batch = ReleasedBatch(batch_id=7, term=1, spark=cast("Any", None), read=lambda: cast("Any", Failing()))
    with pytest.raises(wrap.SparkWriterError, match=r"cannot connect with \{'") as caught:
        wrap.spark_writer("jdbc", options).write_batch(batch)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("missing", ["pyspark.sql.datasource", "another_module"])
def test_a_spark_without_python_data_sources_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delitem(sys.modules, "wal_sink.spark.data_source_writer", raising=False)
    monkeypatch.delattr("wal_sink.spark.data_source_writer", raising=False)
    error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    class Finder:
        """Finds no data sources, as with PySpark 3.5."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "wal_sink.spark.data_source_writer":
                raise error

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    expected = ConfigError if missing.startswith("pyspark") else ModuleNotFoundError
    with pytest.raises(expected, match="no Python data sources" if expected is ConfigError else missing):
        wrap.data_source_writer(Source())


def test_an_open_that_raises_is_not_closed() -> None:
    writer = Recorder(OSError("closed today"))
    with pytest.raises(OSError, match="closed today"):
        deliver(wrap.foreach_writer(writer), chunk(1))
    assert writer.calls == [("open", 3, 7)]


def test_only_process_is_required() -> None:
    rows: list[Row] = []
    deliver(wrap.foreach_writer(SimpleNamespace(process=rows.append)), chunk(1, 2))
    assert rows == [Row(id=1), Row(id=2)]


def test_rows_have_the_types_pyspark_gives_its_own_writers() -> None:
    inner = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", t.StringType())])
    arrow_inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    fields: list[tuple[str, t.DataType, pa.DataType, Any, Any]] = [
        ("a.b", t.StringType(), pa.string(), "x", "x"),
        ("a.b", t.DecimalType(5, 2), pa.decimal128(5, 2), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        ("day", t.DateType(), pa.date32(), dt.date(2024, 2, 29), dt.date(2024, 2, 29)),
        ("ntz", t.TimestampNTZType(), pa.timestamp("us"), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1)),  # noqa: DTZ001
        ("map", t.MapType(t.StringType(), inner), pa.map_(pa.string(), arrow_inner),
         [("k", {"x": 1, "y": "z"})], {"k": Row(x=1, y="z")}),
        ("list", t.ArrayType(inner), pa.list_(arrow_inner),
         [{"x": None, "y": "z"}], [Row(x=None, y="z")]),
        ("bytes", t.BinaryType(), pa.binary(), b"\0\xff", b"\0\xff"),
        ("void", t.NullType(), pa.null(), None, None),
    ]  # fmt: skip
    schema = t.StructType([t.StructField(name, kind) for name, kind, *_ in fields])
    table = pa.Table.from_arrays([pa.array([f[3]], f[2]) for f in fields], names=[f[0] for f in fields])
    rows: list[Row] = []
    sink = wrap.foreach_writer(rows.append)
    sink.open(context(schema))
    sink.write_segment(0, 7, [Chunk.of(table, key="key")])
    assert rows[0].__fields__ == schema.names
    assert list(rows[0]) == [f[4] for f in fields]


def test_an_instant_is_naive_local_time_as_in_pyspark() -> None:
    instant = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([instant], pa.timestamp("us", "UTC"))})
    rows: list[Row] = []
    sink = wrap.foreach_writer(rows.append)
    sink.open(context(t.StructType([t.StructField("at", t.TimestampType())])))
    sink.write_segment(0, 7, [Chunk.of(table, key="key")])
    assert rows[0].at == instant.astimezone().replace(tzinfo=None)


def test_what_a_foreach_batch_function_returns_is_ignored() -> None:
    calls: list[tuple[object, int]] = []

    def write(df: object, batch_id: int) -> str:
        calls.append((df, batch_id))
        return "whatever"

    batch = ReleasedBatch(batch_id=7, term=1, spark=cast("Any", None), read=lambda: cast("Any", "rows"))
    assert wrap.foreach_batch(write).write_batch(batch) is None
    assert calls == [("rows", 7)]


@pytest.mark.parametrize("function", [later, lazily])
@pytest.mark.parametrize("method", ["a function", "open", "process", "close"])
def test_a_row_writer_whose_call_did_not_run_fails_for_good(method: str, function: Callable[..., object]) -> None:
    recorder = Recorder()
    vars(recorder)[method] = undecided(function)

    with pytest.raises(PermanentError, match=r"returned a (coroutine|generator), which wal-sink would never run"):
        deliver(wrap.foreach_writer(recorder if method != "a function" else undecided(function)), chunk(1))
