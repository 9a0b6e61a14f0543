"""`debezium`: given events of two connectors become rows, and the newest of each key count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.streams import Home
from wal_sink import Chunk, ConfigError, Delivery, Rejected
from wal_sink_backends.changes import debezium
from wal_sink_backends.changes.events import VERSIONS, Connector
from wal_sink_backends.common.changes import Changes

pytestmark = pytest.mark.spark

EVENTS = Path(__file__).parents[1] / "golden/debezium"
ORDERS = "id BIGINT, name STRING, note STRING, photo BINARY"
PEOPLE = "id BIGINT NOT NULL, name STRING"
POSTGRESQL = [
    ("r", 1, 0), ("r", 2, 0), ("r", 3, 0), ("c", 4, 110), ("u", 1, 120), ("u", 2, 130), ("d", 3, 140),
    ("d", 4, 150), ("c", 40, 150), ("d", 40, 160), ("u", 41, 160), ("u", 1, 115), ("r", 3, 0),
]  # fmt: skip
"""Operation, id and version of each row of the given events."""
MYSQL = [
    (0, 0, 0), (0, 0, 0), (9, 900, 0), (9, 900, 1), (10, 4, 0), (9, 1000, 0), (999_999, 7, 0), (1_000_000, 4, 0),
]  # fmt: skip
"""The version of each row."""


def rows_of(df: DataFrame) -> pa.Table:
    """The rows as a sink gets them."""
    return pa.Table.from_pylist(
        [row.asDict() for row in df.collect()],
        pa.schema([(field.name, KINDS[field.dataType.typeName()]) for field in df.schema.fields]),
    )


KINDS: dict[str, pa.DataType] = {"long": pa.int64(), "string": pa.string(), "binary": pa.binary()}


def events(spark: SparkSession, name: str, columns: str, connector: Connector) -> DataFrame:
    return debezium(spark.read.text(str(EVENTS / f"{name}.jsonl")), columns=columns, key="id", connector=connector)


def changes_of(connector: Connector) -> Changes:
    newer_by = VERSIONS[connector]
    found = Changes.of("s", key=["id"], newer_by=newer_by, operation="op", delete_when=None, on_delete="delete")
    assert found is not None
    return found


def applied(table: pa.Table, connector: Connector) -> list[list[Any]]:
    """The rows that the target has in the end, without operation and version."""
    changes = changes_of(connector)
    assert changes.refused(table) == {}
    newest = table.take(pa.array(changes.newest(table)))
    alive = [row for row, deletes in zip(newest.to_pylist(), changes.deletes(newest), strict=True) if not deletes]
    names = [name for name in table.column_names if name not in {"op", *VERSIONS[connector]}]
    return sorted([row[name] for name in names] for row in alive)


def test_events_of_postgresql_give_the_rows_of_its_table(spark: SparkSession) -> None:
    table = rows_of(events(spark, "postgresql", ORDERS, "postgresql"))
    assert applied(table, "postgresql") == [
        [1, "Ada L.", "first", b"ada"],
        [2, "Bob R.", "second", None],
        [41, "Dee", "fourth", None],
    ]
    assert [(row["op"], row["id"], row["source_lsn"]) for row in table.to_pylist()] == POSTGRESQL


def test_events_of_mysql_with_their_schema_give_the_rows_of_its_table(spark: SparkSession) -> None:
    table = rows_of(events(spark, "mysql", PEOPLE, "mysql"))
    assert applied(table, "mysql") == [[1, "Ada again"], [2, "Bob"], [3, "Cy B."], [4, "Dee"]]
    assert [tuple(row.values()) for row in table.select(VERSIONS["mysql"]).to_pylist()] == MYSQL


def test_what_is_no_change_of_a_known_row_is_refused_by_name(spark: SparkSession) -> None:
    """debezium-server-iceberg#196, risingwave#21577: the placeholder of an unchanged value replaces no value."""
    refused = changes_of("postgresql").refused(rows_of(events(spark, "postgresql_refused", ORDERS, "postgresql")))
    unknown = "is unknown, expected c, r, u, d"
    assert [reason for _, reason in sorted(refused.items())] == [
        f"operation 'u without the unchanged value of note' {unknown}",
        f"operation 'u without the unchanged value of photo' {unknown}",
        f"operation 't' {unknown}",
        "column 'id' of the change stream is NULL",
        "column 'id' of the change stream is NULL",
        f"operation 'm' {unknown}",
        f"operation 'no change event' {unknown}",
        "column 'source_lsn' of the change stream is NULL",
        f"operation 'no change event' {unknown}",
        f"operation 'u without the old key' {unknown}",
    ]
    refused = changes_of("mysql").refused(rows_of(events(spark, "mysql_refused", PEOPLE, "mysql")))
    assert [reason for _, reason in sorted(refused.items())] == [
        f"operation 'schema change' {unknown}",
        "column 'source_file' of the change stream is NULL",
        f"operation 'event of connector postgresql' {unknown}",
    ]


def test_each_placeholder_of_an_unchanged_value_becomes_the_value_before_it(spark: SparkSession) -> None:
    text = spark.read.text(str(EVENTS / "postgresql_unavailable.jsonl"))
    kinds = {"tags": "STRING", "digest": "STRING", "refs": "ARRAY<STRING>", "counts": "ARRAY<INT>"}
    columns = ", ".join(
        f"{name} {kind}" for name, kind in {"code": "STRING", **kinds, "rates": "ARRAY<DOUBLE>"}.items()
    )
    known, unknown, whole = debezium(text, columns=columns, key="code", connector="postgresql").collect()
    values = ["k", '{"a":"b"}', "00ff", ["11111111-2222-3333-4444-555555555555"], [1, 2], [0.5]]
    assert [*known] == [*values, "u", 300]
    assert unknown.op == "u without the unchanged value of tags, digest, refs, counts, rates"
    assert [*whole] == ["k", "b68a35a7", "5f5f6465", ["95"], [95, 95, 100], [95.0, 95.0, 100.0], "u", 302]


def test_a_value_with_more_or_less_than_one_event_is_refused(spark: SparkSession) -> None:
    event = '{"op":"c","after":{"id":1}}'
    df = spark.createDataFrame([(f"{event},{event}",), (" ",)], "value STRING")
    found = debezium(df, columns=PEOPLE, key="id", connector="mysql").collect()
    assert [row.op for row in found] == ["no change event"] * 2


def test_an_event_that_is_no_json_or_has_another_type_ends_the_query(spark: SparkSession) -> None:
    event = '{"op":"c","after":{"id":1}}'
    for text in ("{", '{"op":"c","after":{"id":"x"}}', f"{event}\n{event}", f"{event}xx}}", f"[{event}]"):
        df = spark.createDataFrame([(bytearray(text.encode()),)], "value BINARY")
        with pytest.raises(Exception, match=r"(?i)malformed"):
            debezium(df, columns=PEOPLE, key="id", connector="mysql").collect()


def test_columns_that_no_event_can_fill_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("{}",)], "value STRING")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": "no"}, r"key=\['no'\]: expected names of columns"),
        ({"key": []}, r"key=\[\]: expected names of columns"),
        ({"connector": "db2"}, "connector='db2'"),
        ({"columns": "id BIGINT, op STRING"}, "'op' occurs twice"),
        ({"columns": "id BIGINT, source_scn BIGINT", "connector": "oracle"}, "'source_scn' occurs twice"),
        ({"columns": "id BIGINT, s STRUCT<a: ARRAY<MAP<STRING, TIMESTAMP>>>"}, "'s' is .* but Debezium writes dates"),
        ({"columns": "id BIGINT, age TINYINT"}, "'age' is tinyint, but Spark wraps"),
        ({"columns": "id BIGINT, prices ARRAY<DECIMAL(9, 2)>"}, "'prices' is .* but Spark rounds"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=said):
            debezium(df, **{"columns": PEOPLE, "key": "id", "connector": "postgresql", **given})


def test_oracle_has_its_change_number_as_version(spark: SparkSession) -> None:
    text = '{"op":"c","after":{"id":1,"name":"a"},"source":{"connector":"oracle","snapshot":false,"scn":"1513734"}}'
    df = spark.createDataFrame([(text,), (text.replace("1513734", "null"),)], "value STRING")
    found = debezium(df, columns=PEOPLE, key=["id"], connector="oracle").collect()
    assert [row.source_scn for row in found] == [1_513_734, None]


def test_a_query_counts_what_it_leaves_out_and_keeps_what_a_sink_refuses(spark: SparkSession, tmp_path: Path) -> None:
    home, changes, taken = Home(tmp_path), changes_of("postgresql"), list[pa.Table]()

    def write(chunk: Chunk) -> Rejected | None:
        refused = changes.refused(chunk.table)
        taken.append(chunk.without(refused).table)
        return Rejected(refused) if refused else None

    for name in ("postgresql", "postgresql_refused"):
        home.feed.add_text((EVENTS / f"{name}.jsonl").read_text())
    text = spark.readStream.option("maxFilesPerTrigger", 1).text(str(home.feed.folder))
    rows = debezium(text, columns=ORDERS, key="id", connector="postgresql")
    columns: dict[str, str | None] = {"photo": None, "name": "who"}
    with home.sink(Delivery(write, on_rejected="dead_letter", where="driver", columns=columns)) as sink:
        query = sink.start(rows.writeStream.trigger(availableNow=True))
        query.awaitTermination()
    observed = [progress["observedMetrics"].get("debezium") for progress in query.recentProgress]
    first = next(each for each in observed if each is not None)
    assert (first["events"], first["tombstones"], first["heartbeats"]) == (15, 2, 1)
    found = applied(pa.concat_tables(taken), "postgresql")
    assert found == [[1, "Ada L.", "first"], [2, "Bob R.", "second"], [41, "Dee", "fourth"]]
    assert taken[0].column_names == ["id", "who", "note", "op", "source_lsn"]
