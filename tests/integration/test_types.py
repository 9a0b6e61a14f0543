"""Every type Arrow carries comes back as it was staged; others are refused by their path before a query runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as t

from tests.house.log import SegmentLimits
from tests.house.protocol import StagingContext
from tests.house.spark import version_of
from tests.house.stores import StoreSpec
from wal_sink.errors import ConfigError
from wal_sink.log.segment_writer import segment_names
from wal_sink.spark.environment import Version
from wal_sink.spark.schema import are_resolved_by_name, check_schema, schema_from_json, schema_json
from wal_sink.spark.staging import stage_dataframe
from wal_sink.spark.whole_batch import read_segments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LIMITS = SegmentLimits(chunk_rows=2, chunk_bytes=1 << 20, segment_bytes=1 << 20)

POINT = "X'0101000000000000000000F03F0000000000000040'"

SIMPLE = {
    "boolean": ["true", "null"],
    "byte": ["-128Y", "127Y", "cast(null as byte)"],
    "short": ["-32768S", "32767S"],
    "int": ["-2147483648", "2147483647", "null"],
    "long": ["-9223372036854775807L", "9223372036854775807L"],
    "float": ["cast('NaN' as float)", "cast('-Infinity' as float)", "1.5f", "-0.0f"],
    "double": ["cast('NaN' as double)", "cast('Infinity' as double)", "1e-300d"],
    "decimal": ["cast(-12345678901234567890.123456789012345678 as decimal(38,18))", "null"],
    "small decimal": ["1.10BD", "-9.99BD"],
    "string": ["''", "'Zürich 東京 \U0001f600'", "null"],
    "collation": ["'a' collate UNICODE_CI", "'B' collate UNICODE_CI"],
    "binary": ["X''", "X'00ff'", "null"],
    "date": ["date'0001-01-01'", "date'-0044-03-15'", "date'9999-12-31'"],
    "timestamp": ["timestamp'0001-01-01 00:00:00'", "timestamp_micros(9223372036854775807)", "null"],
    "oldest timestamp": ["timestamp_micros(-9223372036854775807)"],
    "timestamp_ntz": ["timestamp_ntz'0001-01-01 00:00:00.000001'", "timestamp_ntz'9999-12-31 23:59:59.999999'"],
    "day-time interval": ["interval '-1 2:3:4.000005' day to second", "interval '999999' day"],
    "hours": ["interval '5' hour"],
    "void": ["null"],
    "array": ["array(1, null)", "array()", "null"],
    "nested arrays": ["array(array('a'), array(null), null)"],
    "map": ["map('k', cast(null as int))", "map('a', 1, 'b', 2)"],
    "map with struct keys": ["map(named_struct('x', 1, 'y', 'z'), array(2))"],
    "map of void": ["map('a', null)"],
    "array of void": ["array(null)"],
    "struct": ["named_struct('a.b', 1, 'c`d', null, ' ', X'01', '', 1.5d)", "null"],
    "struct of void": ["named_struct('x', null)"],
    "struct of a and A": ["named_struct('a', 1, 'A', 'x')"],
    "deep": ["array(map(1, named_struct('k', array(named_struct('d', date'2020-02-29', 't', 1Y)))))"],
}
VARIANTS = {
    "variant": ['parse_json(\'{"a": [1, null, 1.5, "x"]}\')', "parse_json('null')", "null"],
    "nested variant": ["named_struct('v', array(parse_json('1'), null))"],
}
SPATIAL = {
    "geometry": [f"st_geomfromwkb({POINT}, 4326)", "null"],
    "geography": [f"st_geogfromwkb({POINT})"],
    "array of geography": [f"array(st_geogfromwkb({POINT}))"],
}

SINCE: dict[str, Version] = {
    "collation": (4, 0),
    **dict.fromkeys(VARIANTS, (4, 0)),
    **dict.fromkeys(SPATIAL, (4, 2)),  # 4.1 has them too, but switched off
}
"""The first Spark that has a type. Spark 3.5, the oldest that wal-sink allows, has all others."""
SPARK = version_of(pyspark.__version__)

ALL = {name: values for name, values in (SIMPLE | VARIANTS | SPATIAL).items() if SINCE.get(name, SPARK) <= SPARK}
FORMS = {
    **dict.fromkeys(VARIANTS, "to_json(struct({0}))"),
    **dict.fromkeys(SPATIAL, "hex(st_asbinary({0}))"),
    "array of geography": "hex(st_asbinary({0}[0]))",
}
"""How to show what cannot be cast to a string; `{0}` is the column."""


def round_trip(df: DataFrame, folder: Path) -> DataFrame:
    store = StoreSpec(url=folder.as_uri())
    context = StagingContext(folder="staged", limits=LIMITS, columns=tuple(df.columns))
    folder.mkdir(exist_ok=True)  # a run makes it when it opens the WAL; a task must find it
    refs = stage_dataframe(df, store=store, context=context, description="types").segments
    return read_segments(df.sparkSession, store=store, segments=refs, schema=df.schema, chunk_rows=LIMITS.chunk_rows)


@dataclass(frozen=True)
class Compared:
    """Staged and read back: per column, schema and text of every row before and after."""

    before: dict[str, object]
    after: dict[str, object]


def observed(df: DataFrame, forms: dict[str, str]) -> dict[str, object]:
    """Each column's field and, made by the JVM since Python cannot hold the year 1 in every zone, its rows as text."""
    texts = df.orderBy("row").selectExpr(*(form.format(f"`{name}`") for name, form in forms.items())).collect()
    return {name: (df.schema[name], [row[place] for row in texts]) for place, name in enumerate(forms)}


@pytest.fixture(scope="module")
def compared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """All types in one round trip, since a Spark job each would take minutes."""
    count = max(len(values) for values in ALL.values())
    rows = [
        {name: values[row] if row < len(values) else "null" for name, values in ALL.items()} for row in range(count)
    ]
    columns = [", ".join(f"{value} as `{name}`" for name, value in row.items()) for row in rows]
    df = spark.sql(" union all ".join(f"select {row} as row, {values}" for row, values in enumerate(columns)))
    forms = {name: FORMS.get(name, "concat({0} is null, cast(struct({0}) as string))") for name in ALL}
    back = round_trip(df, tmp_path_factory.mktemp("types"))
    return Compared(observed(df, forms), observed(back, forms))


def test_every_type_comes_back(compared: Compared) -> None:
    changed = {name: compared.after[name] for name in ALL if compared.after[name] != compared.before[name]}
    assert changed == {}


NESTED = (
    "array<array<string>>",
    "array<array<array<int>>>",
    "array<struct<x:array<string>>>",
    "array<map<int,array<int>>>",
    "map<int,map<int,map<int,int>>>",
    "map<string,array<string>>",
    "struct<x:array<array<array<int>>>>",
)


@pytest.mark.parametrize("rows", ["null", "empty"])
def test_nested_lists_of_which_none_has_an_element(spark: SparkSession, tmp_path: Path, rows: str) -> None:
    """The workers of Spark 3.5 to 4.1 crashed: their Java leaves out what Arrow's C++ looks at."""
    made = {
        kind: "null" if rows == "null" or kind.startswith("struct") else f"{kind.split('<')[0]}()" for kind in NESTED
    }
    columns = [f"cast({value} as {kind}) as c{place}" for place, (kind, value) in enumerate(made.items())]
    df = spark.range(0, 3, 1, 1).selectExpr("id", *columns)
    back = round_trip(df, tmp_path)
    assert back.schema == df.schema
    assert back.collect() == df.collect()


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark has TIME since 4.1")
def test_time(spark: SparkSession, tmp_path: Path) -> None:
    """On its own: Spark 4.3 refuses to cast TIME, which a union of the other types needs."""
    df = spark.range(1).selectExpr("time'23:59:59.999999' as a", "array(time'00:00:00') as b")
    back = round_trip(df, tmp_path)
    assert back.schema == df.schema
    assert back.collect() == df.collect()


def test_a_user_defined_type(spark: SparkSession, tmp_path: Path) -> None:
    schema = t.StructType([t.StructField("value", VectorUDT()), t.StructField("row", t.IntegerType())])
    df = spark.createDataFrame([(Vectors.dense(1.5, 2.5), 0), (None, 1), (Vectors.sparse(9, {4: 1.0}), 2)], schema)
    back = round_trip(df, tmp_path)
    assert back.schema == df.schema
    assert sorted(back.collect(), key=lambda row: row.row) == df.collect()


class Months(t.UserDefinedType):
    @classmethod
    def sqlType(cls) -> t.DataType:  # noqa: N802 - Spark's name
        return t.ArrayType(t.YearMonthIntervalType())


def test_all_at_once_with_nullability_and_metadata(spark: SparkSession, tmp_path: Path) -> None:
    fields = [
        t.StructField("not null", t.LongType(), nullable=False, metadata={"unit": "m", "deep": {"list": [1, 2]}}),
        t.StructField("fixed", t.StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}),
        t.StructField("list", t.ArrayType(t.IntegerType(), containsNull=False), nullable=False),
        t.StructField(
            "struct",
            t.StructType([t.StructField("x", t.IntegerType(), nullable=False, metadata={"comment": "inner"})]),
            nullable=False,
        ),
        t.StructField("map", t.MapType(t.StringType(), t.LongType(), valueContainsNull=False)),
    ]
    rows = [(1, "abcde", [1], {"x": 1}, {"k": 2}), (2, None, [], {"x": 3}, None)]
    df = spark.createDataFrame(rows, t.StructType(fields))
    back = round_trip(df, tmp_path)
    assert back.schema == df.schema
    assert back.schema.json() == df.schema.json()
    assert sorted(back.collect()) == sorted(df.collect())


def jvm_schema(df: DataFrame) -> str:
    jdf: Any = df._jdf
    return str(jdf.schema().json())


def test_char_and_varchar_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    columns = "c char(5), v varchar(7) comment 'short'"
    spark.sql(f"create table chars ({columns}) using parquet location '{tmp_path / 'table'}'")
    try:
        spark.sql("insert into chars values ('ab', 'cd')")
        df = spark.table("chars")
        back = round_trip(df, tmp_path)
        assert back.schema == df.schema
        assert jvm_schema(back) == jvm_schema(df)
        assert back.collect() == df.collect()
    finally:
        spark.sql("drop table chars")


@pytest.mark.parametrize(
    "names",
    [
        ["a.b", "c"],
        ["a", "a"],
        ["a", "A"],
        ["`", "a`b"],
        ["", " "],
        ["c1", "c0"],
        ["a.b", "a.b"],
        ["é", "x y"],
        ["select", "1"],
        ["_metadata", "c0"],
    ],
)
def test_column_names(spark: SparkSession, tmp_path: Path, names: list[str]) -> None:
    df = spark.range(3).selectExpr("id", "id * 10").toDF(*names)
    back = round_trip(df, tmp_path)
    assert back.schema == df.schema
    assert back.columns == names
    segment = next(tmp_path.rglob("*.parquet"))
    assert pq.read_schema(segment).names == segment_names(names)
    assert sorted(tuple(row) for row in back.collect()) == [(0, 0), (1, 10), (2, 20)]


def test_names_that_mapinarrow_finds_get_no_projection() -> None:
    cases: list[tuple[list[str], bool]] = [
        (["a", "b_2"], True),
        (["a", "A"], False),
        (["a.b"], False),
        (["`"], False),
        (["x y"], False),
    ]
    for names, found in cases:
        schema = t.StructType([t.StructField(name, t.LongType()) for name in names])
        assert are_resolved_by_name(schema) is found


def test_another_time_zone_reads_the_same_instants(spark: SparkSession, tmp_path: Path) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    df = spark.range(1).selectExpr("timestamp'2020-01-01 00:00:00Z' as value")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        back = round_trip(df, tmp_path)
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        assert back.selectExpr("unix_micros(value)").collect() == df.selectExpr("unix_micros(value)").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


NOT_IN_3_5 = pytest.mark.skipif(SPARK == (3, 5), reason="Spark 3.5 itself refuses such a DataFrame")


class TestRefused:
    MONTHS: ClassVar = "interval '1-2' year to month"
    CASES: ClassVar = {
        f"{MONTHS} as a": r"\ba is of type 'interval year to month'.*cast it",
        "make_interval(1) as a": r"\ba is of type 'interval'",
        "array(make_interval(1)) as a": r"a\[\] is of type",
        f"map({MONTHS}, 1) as a": r"a\[key\] is of type",
        f"map(1, array({MONTHS})) as a": r"a\[value\]\[\] is of type",
        f"named_struct('b', array(named_struct('c.d', {MONTHS}))) as a": r"a\.b\[\]\.`c\.d` is of type",
        "named_struct('a', 1, 'a', 2) as x": r"x has 2 fields named 'a'",
        "array(named_struct('b', named_struct('a', 1, 'a', 2))) as x": r"x\[\]\.b has 2 fields",
        "named_struct() as a": r"a is a struct without fields",
        "array(named_struct('s', named_struct())) as a": r"a\[\]\.s is a struct without fields",
        "array() as `a.b`": r"`a\.b`\[\] is void",
        "map() as a": r"a\[key\] is void",
    }

    @pytest.mark.parametrize(
        "expression",
        [
            pytest.param(one, marks=NOT_IN_3_5) if "make_interval" in one or "named_struct()" in one else one
            for one in CASES
        ],
    )
    def test_by_the_path_of_the_field(self, spark: SparkSession, tmp_path: Path, expression: str) -> None:
        df = spark.range(1).selectExpr(expression)
        with pytest.raises(ConfigError, match=self.CASES[expression]):
            round_trip(df, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_without_columns(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no columns"):
            round_trip(spark.range(1).select(), tmp_path)

    def test_inside_a_user_defined_type(self) -> None:
        with pytest.raises(ConfigError, match=r"`the month`\[\] is of type 'interval year to month'"):
            check_schema(t.StructType([t.StructField("the month", Months())]))

    @pytest.mark.parametrize("kind", [t.CharType(5), t.VarcharType(5)], ids=["char", "varchar"])
    def test_text_of_a_length(self, kind: t.DataType) -> None:
        """`spark.sql.preserveCharVarcharTypeInfo` keeps it. Before: it was staged; no wrapped writer could read it."""
        inside = t.StructType([t.StructField("b", t.ArrayType(kind))])
        with pytest.raises(ConfigError, match=r"a\.b\[\] is of type '(var)?char\(5\)'.*cast it to a string"):
            check_schema(t.StructType([t.StructField("a", inside)]))


def test_the_schema_survives_its_json(spark: SparkSession) -> None:
    text = "'a' collate UNICODE_CI" if "collation" in ALL else "'a'"
    df = spark.range(1).selectExpr(f"{text} as `a.b`", "map(1, named_struct('x', current_date())) as c")
    assert schema_from_json(schema_json(df.schema), what="batch 0") == df.schema
