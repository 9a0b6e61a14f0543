"""Tables and columns that a segment does not fit are refused by name, at the start and at each commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from tests.house.sinks import BatchCommit
from tests.support.iceberg_tables import (
    NAME,
    ROWS,
    arrow_rows,
    batch,
    catalog_in,
    context,
    deliver,
    digest,
    made,
    opened,
    rows_in,
    segment,
    there,
)
from tests.support.refusals import unrefused
from wal_sink.errors import PermanentError
from wal_sink_backends.iceberg import IcebergSink
from wal_sink_backends.iceberg.schema import check_table

MAPPING = "schema.name-mapping.default"
ID, NOTE = NestedField(1, "id", LongType(), required=False), NestedField(2, "note", StringType(), required=False)
MOMENT = datetime(2020, 2, 3, 4, 5, 6, 789, UTC)
ALL = pa.table(
    {
        "flag": pa.array([True, None]),
        "int8": pa.array([-128, None], pa.int8()),
        "int16": pa.array([-32768, None], pa.int16()),
        "int32": pa.array([-(2**31), None], pa.int32()),
        "int64": pa.array([2**63 - 1, None], pa.int64()),
        "real": pa.array([0.5, None], pa.float32()),
        "double": pa.array([float("nan"), None], pa.float64()),
        "exact": pa.array([Decimal("12.34"), None], pa.decimal128(38, 2)),
        "day": pa.array([date(1969, 12, 31), None]),
        "at": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
        "local": pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")),
        "text": pa.array(["é", None]),
        "long_text": pa.array(["x" * 100, None], pa.large_string()),
        "raw": pa.array([b"\0\xff", None]),
        "list": pa.array([[1, None], None], pa.list_(pa.field("element", pa.int64()))),
        "map": pa.array([[("a", [1])], None], pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))),
        "struct": pa.array([{"x": 1, "y": {"z": ["a"]}}, None]),
    }
)


def test_every_type_is_written_and_read_back(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    with opened(catalog, context(columns=ALL.column_names), create=True) as sink:
        deliver_all = batch(sink, 0, ALL, ALL)
        sink.commit(deliver_all)
        assert sink.examine(ALL.schema)
    assert str(rows_in(catalog)) == str(ALL.to_pylist() * 2) == str(arrow_rows(there(catalog)))
    for text in ("int8 = -128", "day < '1970-01-01'", "at >= '2020-02-03T04:05:06.000789+00:00'", "text = 'é'", "flag"):
        condition = "flag = true" if text == "flag" else text
        assert there(catalog).scan(row_filter=condition).to_arrow().num_rows == 2, text
    types = {field.name: str(field.field_type) for field in there(catalog).schema().fields}
    assert (types["int8"], types["exact"], types["at"], types["local"]) == (
        *("int", "decimal(38, 2)", "timestamptz", "timestamp"),
    )


def test_types_that_iceberg_lacks_and_names_that_segments_lack(tmp_path: Path) -> None:
    def examine(schema: pa.Schema) -> None:
        IcebergSink(NAME, catalog=catalog_in(tmp_path), create=True).examine(schema)

    cases: list[tuple[Any, ...]] = [
        (pa.schema({"a": kind}), "column 'a' is .*, which Iceberg has in another form or not at all. Cast it")
        for kind in (
            *(pa.null(), pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin")),
            *(pa.time64("us"), pa.duration("us"), pa.decimal256(50, 2), pa.struct([])),
            *(pa.list_(pa.uint8()), pa.map_(pa.string(), pa.uint8()), pa.struct([("x", pa.uint8())])),
            pa.struct([("x", pa.int8()), ("X", pa.int8())]),
        )
    ]
    cases += [
        (pa.schema({name: pa.int64(), "a": pa.int64()}), "Segments, which become files of the table, do not keep such")
        for name in ("", "a.b", "A")
    ]
    assert unrefused(PermanentError, examine, cases) == []


def test_tables_that_need_more_of_a_file(tmp_path: Path) -> None:
    def make(number: int, given: dict[str, Any], change: Callable[[Table], object] | None) -> None:
        catalog = catalog_in(tmp_path / str(number))
        schema = given.pop("schema", Schema(ID, NOTE))
        table = made(catalog, schema, **given)
        if change is not None:
            change(table)
        sink = IcebergSink(NAME, catalog=catalog)
        with pytest.raises(PermanentError) as at_start:
            sink.examine(ROWS.schema)
        with opened(catalog) as running, pytest.raises(PermanentError) as at_commit:
            running.commit(batch(running, 0))
        assert str(at_commit.value) == f"batch 0: {at_start.value}"
        assert there(catalog).metadata.snapshots == []
        raise at_start.value

    def column(table: Table) -> None:
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.add_column("must", IntegerType(), required=True)

    partition = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    needed = Schema(NestedField(1, "id", LongType(), required=True), NOTE, identifier_field_ids=[1])
    mapping = json.dumps([{"field-id": 1, "names": ["id"]}])
    wrong = json.dumps([{"field-id": 2, "names": ["id"]}, {"field-id": 1, "names": ["note"]}])
    cases: list[tuple[Any, ...]] = [
        (
            1,
            {"partition_spec": partition},
            None,
            "it is partitioned by id. IcebergSink hands segments over as they are",
        ),
        (2, {"schema": needed}, None, "it has identifier columns: id"),
        (4, {"properties": {MAPPING: mapping}}, None, f"property {MAPPING} does not lead to column 'note'"),
        (5, {"properties": {MAPPING: wrong}}, None, f"property {MAPPING} does not lead to column 'id'"),
        (6, {"schema": Schema(ID)}, None, "the table has no column 'note', only \\['id'\\]"),
        (7, {"schema": Schema(ID, NestedField(2, "Note", StringType()))}, None, "only 'Note', in another case"),
        (8, {"schema": Schema(ID, NestedField(2, "note", LongType()))}, None, "is long in the table and string in the"),
        (9, {}, column, "column 'must' of the table is NOT NULL, and the batch lacks it"),
    ]
    assert unrefused(PermanentError, make, cases) == []


@pytest.mark.parametrize("default", ["initial_default", "write_default"])
def test_default_values_and_other_versions_and_stores_are_refused(tmp_path: Path, default: str) -> None:
    metadata = made(catalog_in(tmp_path)).metadata
    given: dict[str, Any] = {default: 1}
    field = NestedField(1, "id", LongType(), required=False, **given)
    with pytest.raises(PermanentError, match="column 'id' has a default value"):
        check_table(metadata.model_copy(update={"schemas": [Schema(field, schema_id=0)]}), "the table")
    with pytest.raises(PermanentError, match="its format version is 3; supported are 1 and 2"):
        check_table(metadata.model_copy(update={"format_version": 3}), "the table")
    with pytest.raises(PermanentError, match="its files are on hdfs://, which is not supported"):
        check_table(metadata.model_copy(update={"location": "hdfs://host/lake"}), "the table")


def test_a_required_column_takes_batches_without_null(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    made(catalog, Schema(NestedField(1, "id", LongType(), required=True), NOTE))
    nulls = pa.table({"id": pa.array([1, None], pa.int64()), "note": ["a", "b"]})
    with opened(catalog) as sink:
        sink.commit(batch(sink, 0))
        with pytest.raises(PermanentError, match=r"column 'id' of the table is NOT NULL, and .* has NULLs in it"):
            sink.commit(batch(sink, 1, ROWS, nulls))
    assert rows_in(catalog) == ROWS.to_pylist()


def test_nulls_of_a_wide_table_are_read_from_the_footer(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    rows = pa.table({**{f"a_column_with_a_long_name_{number}": ["x" * 60] for number in range(60)}, "id": [1]})
    with opened(catalog, context(columns=rows.column_names), create=True) as sink:
        (handle,) = (waiting := batch(sink, 0, rows)).handles
        assert len(handle) <= 4096
        with there(catalog).update_schema(allow_incompatible_changes=True) as update:
            update.make_column_optional("id")
        sink.commit(waiting)
    assert rows_in(catalog) == rows.to_pylist()


def test_columns_that_only_the_table_has_are_null_and_added_ones_are_found(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    made(catalog, Schema(ID, NOTE, NestedField(3, "more", StringType())), sort_order=order)
    with opened(catalog) as sink:
        deliver(sink, 0)
        with there(catalog).update_schema() as update:
            update.add_column("late", StringType())
        with there(catalog).update_schema() as update:
            update.rename_column("more", "renamed")
        late = ROWS.append_column("late", pa.array(["x"] * 3))
        sink.commit(batch(sink, 1, late))
    assert rows_in(catalog) == [
        *({**row, "renamed": None, "late": "x"} for row in ROWS.to_pylist()),
        *({**row, "renamed": None, "late": None} for row in ROWS.to_pylist()),
    ]


def test_a_process_without_the_schema_reads_it_from_a_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_in(tmp_path)
    made(catalog)
    with opened(catalog) as sink:
        handle = sink.prepare(segment(ROWS, 0))
        monkeypatch.setattr("wal_sink_backends.common.segment_files._schemas", {})
        sink.commit(BatchCommit(0, digest(0), 3, (handle,), None))
    assert rows_in(catalog) == ROWS.to_pylist()
