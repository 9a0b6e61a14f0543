"""Tables and columns that a segment does not fit are refused by name, at start and at each commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.house.sinks import BatchCommit
from tests.support.delta_tables import FIELDS, ROWS, Declared, batch, context, digest, made, opened, rows_in, segment
from wal_sink.errors import PermanentError, StoreError
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.schema import table_schema


def field(
    name: str, kind: Any, metadata: Mapping[str, Any] | None = None, *, nullable: bool = True
) -> Mapping[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata or {}}


def with_metadata(**metadata: str) -> list[Mapping[str, Any]]:
    return [field("id", "long"), field("note", "string", metadata)]


def mapped() -> list[Mapping[str, Any]]:
    annotated = [("id", "long", 1, "p1"), ("note", "string", 2, "p2")]
    return [
        field(name, kind, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical})
        for name, kind, number, physical in annotated
    ]


REFUSED = {
    "partitions": (Declared(partitions=["note"]), "it is partitioned by note"),
    "column mapping": (
        Declared(2, 5, None, mapped(), {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}),
        "it has column mapping by name",
    ),
    "a constraint": (
        Declared(1, 3, properties={"delta.constraints.positive": "id > 0"}),
        "it has the constraint positive",
    ),
    "positions that expire": (
        Declared(properties={"delta.setTransactionRetentionDuration": "interval 7 days"}),
        "other writers drop the position of this sink",
    ),
    "an invariant": (
        Declared(fields=with_metadata(**{"delta.invariants": '{"expression": {"expression": "note = 1"}}'})),
        "it has a column with delta.invariants",
    ),
    "a generated column": (
        Declared(1, 4, fields=with_metadata(**{"delta.generationExpression": "id"})),
        "it has a column with delta.generationExpression",
    ),
    "an identity column": (
        Declared(1, 7, ["identityColumns"], with_metadata(**{"delta.identity.start": "1"})),
        "it has the features identityColumns",
    ),
    "a text of limited length": (
        Declared(fields=with_metadata(__CHAR_VARCHAR_TYPE_STRING="varchar(3)")),
        "it has a column with __CHAR_VARCHAR_TYPE_STRING",
    ),
    "the oldest writer with identity columns": (Declared(2, 6), "its reader version is 2 and its writer version 6"),
    "a newer writer": (Declared(1, 8), "its writer version 8"),
    "row tracking": (Declared(1, 7, ["rowTracking", "domainMetadata"]), "the features domainMetadata, rowTracking"),
    "Iceberg's rules": (Declared(1, 7, ["icebergCompatV2"]), "the features icebergCompatV2"),
    "default values": (Declared(1, 7, ["allowColumnDefaults"]), "the features allowColumnDefaults"),
    "clustering": (Declared(1, 7, ["clustering", "domainMetadata"]), "the features clustering"),
    "moments of commits": (Declared(1, 7, ["inCommitTimestamp"]), "the features inCommitTimestamp"),
    "a feature of the future": (Declared(1, 7, ["madeUp"]), "the features madeUp"),
    "a required column that the batch lacks": (
        Declared(fields=[*FIELDS, field("new", "long", nullable=False)]),
        "column 'new' of the table is NOT NULL, and the batch lacks it",
    ),
    "a column that the table lacks": (
        Declared(fields=[FIELDS[0]]),
        "the table has no column 'note', only ['id']. Add it to the table",
    ),
    "a column in another case": (
        Declared(fields=[FIELDS[0], field("Note", "string")]),
        "the table has no column 'note', only 'Note', in another case",
    ),
    "a column of another type": (
        Declared(fields=[field("id", "integer"), FIELDS[1]]),
        "column 'id' is integer in the table and long in the batch. Cast it in the query",
    ),
}


@pytest.mark.parametrize(("declared", "told"), REFUSED.values(), ids=REFUSED)
def test_a_table_that_needs_more_than_a_segment_has_is_refused(tmp_path: Path, declared: Declared, told: str) -> None:
    declared.make(tmp_path)
    with pytest.raises(PermanentError, match=re.escape(told)) as at_start:
        DeltaSink(str(tmp_path)).examine(ROWS.schema)
    assert str(at_start.value).startswith(f"DeltaSink('file://{tmp_path}'): ")
    with opened(tmp_path) as sink:
        waiting = batch(sink, 0)
        with pytest.raises(PermanentError, match=re.escape(told)):
            sink.commit(waiting)
    assert [path.name for path in (tmp_path / "_delta_log").iterdir()] == [f"{0:020}.json"]


@pytest.mark.parametrize(
    ("reader", "features"), [(3, ["madeUp"]), (3, ["catalogManaged"]), (4, [])], ids=["feature", "catalog", "version"]
)
def test_a_table_that_the_library_cannot_read_is_refused(
    tmp_path: Path, reader: int, features: list[str] | None
) -> None:
    Declared(reader, 7, features).make(tmp_path)
    with pytest.raises(PermanentError, match="reading the table: Kernel error"):
        DeltaSink(str(tmp_path)).examine(ROWS.schema)


TAKEN = {
    "the oldest": Declared(1, 1),
    "changes are fed": Declared(1, 4, properties={"delta.enableChangeDataFeed": "true"}),
    "only appended to": Declared(properties={"delta.appendOnly": "true"}),
    "a known feature of readers": Declared(3, 7, ["deletionVectors", "timestampNtz", "v2Checkpoint"]),
    "features that nothing uses": Declared(
        2, 7, ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"]
    ),
    "more columns, in another order": Declared(fields=[field("more", "double"), *reversed(FIELDS)]),
    "comments": Declared(fields=with_metadata(comment='the word "delta.invariants" in a comment')),
    "required columns without NULLs": Declared(fields=[field("id", "long", nullable=False), FIELDS[1]]),
}


@pytest.mark.parametrize("declared", TAKEN.values(), ids=TAKEN)
def test_a_table_that_a_segment_fits_is_taken(tmp_path: Path, declared: Declared) -> None:
    declared.make(tmp_path)
    (finding,) = DeltaSink(str(tmp_path)).examine(ROWS.schema)
    assert finding.found == f"DeltaSink('file://{tmp_path}') can be reached, is at version 0 and takes whole files"
    with opened(tmp_path) as sink:
        sink.commit(batch(sink, 0))
    read = pa.table(DeltaTable(str(tmp_path)).scan().read_all())
    assert read.select(["id", "note"]).to_pylist() == ROWS.to_pylist()


def test_nulls_in_a_required_column_are_refused(tmp_path: Path) -> None:
    Declared(fields=[FIELDS[0], field("note", "string", nullable=False)]).make(tmp_path)
    assert DeltaSink(str(tmp_path)).examine(ROWS.schema), "the type does not tell whether a value is NULL"
    with opened(tmp_path) as sink:
        waiting = batch(sink, 0, ROWS.slice(0, 1), ROWS)
        with pytest.raises(
            PermanentError, match=r"column 'note' of the table is NOT NULL, and wal-sink-wal-default-0+1"
        ):
            sink.commit(waiting)
        sink.commit(batch(sink, 0, ROWS.slice(0, 1)))
    assert rows_in(tmp_path) == ROWS.slice(0, 1).to_pylist()


def test_a_required_column_beyond_the_statistics_of_a_handle_is_read_from_the_footer(tmp_path: Path) -> None:
    names = [*(f"c{number}" for number in range(40)), "note"]
    fields = [field(name, "long", nullable=False) for name in names]
    Declared(fields=fields).make(tmp_path)
    for batch_id, last in enumerate([1, None]):
        rows = pa.table({name: pa.array([last if name == "note" else 1], pa.int64()) for name in names})
        with opened(tmp_path, context(columns=names)) as sink:
            waiting = batch(sink, batch_id, rows)
            if last is None:
                with pytest.raises(PermanentError, match="column 'note' of the table is NOT NULL"):
                    sink.commit(waiting)
            else:
                sink.commit(waiting)


def test_a_nested_required_column_is_refused(tmp_path: Path) -> None:
    kind = {"type": "array", "elementType": "long", "containsNull": True}
    Declared(fields=[field("id", kind, nullable=False)]).make(tmp_path)
    with pytest.raises(PermanentError, match="or it is nested"):
        DeltaSink(str(tmp_path)).examine(pa.schema({"id": pa.list_(pa.int64())}))


def test_a_table_that_is_altered_while_the_stream_runs_is_refused_from_then_on(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink:
        sink.commit(batch(sink, 0))
        DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "id > 0"})
        waiting = batch(sink, 1)
        with pytest.raises(PermanentError, match="it has the constraint positive"):
            sink.commit(waiting)
    assert len(rows_in(tmp_path)) == 3


def test_columns_that_are_added_to_the_table_are_null(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink:
        sink.commit(batch(sink, 0))
        more = ROWS.append_column("more", pa.array([1, 2, 3], pa.int64()))
        write_deltalake(str(tmp_path), more, mode="append", schema_mode="merge")
        sink.commit(batch(sink, 1))
    assert [row["more"] for row in rows_in(tmp_path)].count(None) == 6


@pytest.mark.parametrize(("name", "told"), [("a.b", "a.b"), ("", ""), ("ID", "id")])
def test_names_that_segments_do_not_keep_are_refused(tmp_path: Path, name: str, told: str) -> None:
    made(tmp_path)
    sink, columns = DeltaSink(str(tmp_path)), ["id", name]
    with pytest.raises(PermanentError, match=f"column '{re.escape(told)}' has no name, a dot in it, or the name of"):
        sink.open(context(columns=columns))
    with pytest.raises(PermanentError, match=f"column '{re.escape(told)}' has no name, a dot in it, or the name of"):
        sink.examine(pa.schema([(each, pa.int64()) for each in columns]))


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "{a}", "(a)", "a=b", "a\tb", "a\nb"])
def test_names_that_delta_does_not_have_are_refused(name: str) -> None:
    for schema in (pa.schema({name: pa.int64()}), pa.schema({"s": pa.struct([(name, pa.int64())])})):
        with pytest.raises(PermanentError, match="Delta has no name"):
            table_schema(schema, "x")


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.timestamp("ns"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.time64("us"),
        pa.null(),
        pa.uint8(),
        pa.float16(),
        pa.date64(),
        pa.list_(pa.null()),
        pa.map_(pa.string(), pa.duration("us")),
        pa.struct([("a", pa.int64()), ("A", pa.int64())]),
        pa.struct([]),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_types_that_delta_has_in_another_form_are_refused(tmp_path: Path, kind: Any) -> None:
    schema = pa.schema({"x": kind})
    for create in (False, True):
        made(tmp_path / "table", mode="ignore")
        with pytest.raises(PermanentError, match=r"column 'x' is .*, which Delta has in another form or not at all"):
            DeltaSink(str(tmp_path / "table"), create=create).examine(schema)


ALL = pa.table(
    {
        "boolean": pa.array([True, None]),
        "byte": pa.array([-128, None], pa.int8()),
        "short": pa.array([-32768, None], pa.int16()),
        "int": pa.array([-(2**31), None], pa.int32()),
        "long": pa.array([-(2**63), None], pa.int64()),
        "float": pa.array([float("-inf"), None], pa.float32()),
        "double": pa.array([1e-300, None], pa.float64()),
        "decimal": pa.array([Decimal("-1234567890.0123456789"), None], pa.decimal128(38, 10)),
        "small": pa.array([Decimal("1.10"), None], pa.decimal128(3, 2)),
        "string": ["Zürich 東京 \U0001f600", None],
        "binary": pa.array([b"\x00\xff", None]),
        "date": pa.array([date(1, 1, 1), None]),
        "timestamp": pa.array([datetime(1, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),  # noqa: DTZ001
        "array": pa.array([[1, None], None], pa.list_(pa.field("element", pa.int32()))),
        "map": pa.array([[("k", None), ("l", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1, "b": [{"c": "x"}]}, None]),
    }
)


def test_every_type_is_read_back_from_a_table_that_the_sink_makes(tmp_path: Path) -> None:
    with opened(tmp_path, context(columns=ALL.column_names), create=True) as sink:
        (finding,) = sink.examine(ALL.schema)
        assert finding.found.endswith(": the first delivery makes this table")
        sink.commit(BatchCommit(0, digest(0), 2, (sink.prepare(segment(ALL, 1)),), None))
        assert sink.examine(ALL.schema), "the table that it made fits"
    assert rows_in(tmp_path) == ALL.to_pylist()
    table = DeltaTable(str(tmp_path))
    read = pa.table(table.scan().read_all())
    assert (
        read.select([name for name in ALL.column_names if name != "map"]).to_pylist() == ALL.drop(["map"]).to_pylist()
    )
    assert {field.name: field.nullable for field in table.schema().fields} == dict.fromkeys(ALL.column_names, True)
    write_deltalake(table, ALL, mode="append")
    assert len(rows_in(tmp_path)) == 4


def test_a_table_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, OSError)), opened(tmp_path / "file" / "table", create=True):
        pass
