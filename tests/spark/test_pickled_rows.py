"""Rows of `foreach` are those that PySpark's own converter makes of the same table, but for bytes that are no text."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as t

from tests.house.spark import version_of
from wal_sink.errors import PermanentError
from wal_sink.spark.environment import SPARK_3_5
from wal_sink.spark.foreach_writer import conversion, readable, rows_of, spark_rows

pytestmark = pytest.mark.skipif(
    version_of(pyspark.__version__) == SPARK_3_5, reason="PySpark 3.5 has no converter to compare with"
)

INSTANT = dt.datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
INSIDE = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("t", t.ArrayType(t.TimestampType()))])
ARROW_INSIDE = pa.struct([("x", pa.int32()), ("t", pa.list_(pa.timestamp("us", "UTC")))])
MAP: list[Any] = [[("k", {"x": 1, "t": [INSTANT]})], None]
VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)
CASES: dict[str, tuple[t.DataType, Any, list[Any]]] = {
    "integers": (t.IntegerType(), pa.int32(), [1, None]),
    "text": (t.StringType(), pa.string(), ["", "ü", None]),
    "binary": (t.BinaryType(), pa.binary(), [b"\0", None]),
    "decimals": (t.DecimalType(10, 3), pa.decimal128(10, 3), [Decimal("1.500"), None]),
    "instants": (t.TimestampType(), pa.timestamp("us", "UTC"), [INSTANT, None]),
    "local times": (t.TimestampNTZType(), pa.timestamp("us"), [INSTANT.replace(tzinfo=None), None]),
    "days": (t.DateType(), pa.date32(), [dt.date(2024, 2, 29), None]),
    "intervals": (t.DayTimeIntervalType(), pa.duration("us"), [dt.timedelta(days=-1, microseconds=5), None]),
    "nothing": (t.NullType(), pa.null(), [None, None]),
    "lists": (t.ArrayType(t.BinaryType()), pa.list_(pa.binary()), [[b"a", None], [], None]),
    "maps": (t.MapType(t.StringType(), INSIDE), pa.map_(pa.string(), ARROW_INSIDE), MAP),
    "structs": (INSIDE, ARROW_INSIDE, [{"x": None, "t": None}, {"x": 2, "t": [None]}, None]),
    "vectors": (
        VectorUDT(),
        VECTOR,
        [{"type": 1, "size": None, "indices": None, "values": [1.5, 2.5]}, None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_pysparks_own_converter(name: str) -> None:
    kind, arrow, values = CASES[name]
    schema = t.StructType([t.StructField("a.b", kind), t.StructField("n", t.IntegerType())])
    numbers = pa.array(range(len(values)), pa.int32())
    table = pa.table([pa.array(values, arrow), numbers], ["c0", "c1"])
    expected = conversion().convert(table, schema)
    rows = list(rows_of(table, schema))
    assert rows == expected
    assert repr(rows) == repr(expected)
    assert [type(row[0]) for row in rows] == [type(row[0]) for row in expected]
    assert pickle.loads(pickle.dumps(rows)) == rows  # noqa: S301 - made above


def test_equal_names_are_kept() -> None:
    schema = t.StructType([t.StructField("a", t.LongType())] * 2)
    (row,) = rows_of(pa.table([pa.array([1]), pa.array([2])], ["a", "a"]), schema)
    assert (tuple(row), list(row.__fields__)) == ((1, 2), ["a", "a"])


def test_a_vector_is_a_vector() -> None:
    kind, arrow, values = CASES["vectors"]
    schema = t.StructType([t.StructField("v", kind)])
    first, second = rows_of(pa.table([pa.array(values, arrow)], ["v"]), schema)
    assert (first.v, second.v) == (Vectors.dense(1.5, 2.5), None)


def test_bytes_that_are_not_utf_8_become_what_java_makes_of_them() -> None:
    schema = t.StructType([t.StructField("a", t.ArrayType(t.StringType())), t.StructField("s", t.StringType())])
    given: Any = pa.array([[b"\xffA", None], [b"fine", b"\xed\xa0\x80."]]).cast(pa.list_(pa.binary()))
    texts = pa.ListArray.from_arrays(given.offsets, given.values.view(pa.string()))
    first, second = rows_of(pa.table([texts, pa.array(["x", None])], ["a", "s"]), schema)
    assert (first.a, first.s) == (["\ufffdA", None], "x")
    assert (second.a, second.s) == (["fine", "\ufffd."], None)


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("America/New_York", ["2024-11-03T01:30:00", "2024-11-03T01:30:00"]),
        ("GMT+8", ["2024-11-03T13:30:00", "2024-11-03T14:30:00"]),
        ("-03:30", ["2024-11-03T02:00:00", "2024-11-03T03:00:00"]),
        ("", ["2024-11-03T05:30:00", "2024-11-03T06:30:00"]),
    ],
)
def test_rows_of_another_process_have_the_zone_of_the_session(zone: str, shown: list[str]) -> None:
    moments = [dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    table = pa.table([pa.array(moments, pa.timestamp("us", "UTC"))], ["at"])
    found = [row.at for row in rows_of(table, t.StructType([t.StructField("at", t.TimestampType())]), zone)]
    assert [one.isoformat() for one in found] == shown
    assert [one.fold for one in found] == [0, int(zone == "America/New_York")]


def test_a_zone_that_only_java_knows_is_refused_by_name() -> None:
    with pytest.raises(PermanentError, match=r"time zone 'PST' .*Install tzdata, or deliver on executors"):
        rows_of(pa.table({"at": [1]}), t.StructType([t.StructField("at", t.LongType())]), "PST")


@pytest.mark.parametrize("make", [rows_of, spark_rows])
def test_a_value_that_python_cannot_hold_is_told_with_its_row_and_column(make: Any) -> None:
    fine = pa.table({"n": [1, 2], "at": pa.array([INSTANT, None], pa.timestamp("us", "UTC"))})
    late = pa.table({"n": [3, 4], "at": pa.array([0, 2**62], pa.timestamp("us", "UTC"))})
    schema = t.StructType([t.StructField("n", t.LongType()), t.StructField("at", t.TimestampType())])
    rows = readable(make, [fine, late], schema)
    assert [row.n for row in (next(rows), next(rows))] == [1, 2]
    with pytest.raises(PermanentError, match=r"^row 3 of the segment, column 'at': Python cannot hold .*Error: "):
        list(rows)


def test_a_variant_holds_bytearrays_as_with_spark_alone() -> None:
    table = pa.table({"v": pa.array([{"value": b"\x0c\x01", "metadata": b"\x01\0\0"}, None])})
    first, second = rows_of(table, t.StructType([t.StructField("v", t.VariantType())]))
    assert (type(first.v.value), type(first.v.metadata), str(first.v)) == (bytearray, bytearray, "1")
    assert second.v is None
