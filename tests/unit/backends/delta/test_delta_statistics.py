"""Statistics of files: a reader that skips by them finds every row that it would find without."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tests.house.sinks import BatchCommit
from tests.support.delta_tables import ROWS, context, deliver, entries, opened, segment
from wal_sink_backends.common.statistics import statistics_of

MOMENT = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


def found(column: pa.Array[Any], rows_of_a_group: int = 1000) -> tuple[object, object, object]:
    """Return least and greatest value and the number of NULLs, as the log has them."""
    file = io.BytesIO()
    pq.write_table(pa.table({"x": column}), file, row_group_size=rows_of_a_group)
    footer = pq.ParquetFile(file)
    told = statistics_of(footer.metadata, footer.schema_arrow, 32)
    assert told["numRecords"] == len(column)
    return told["minValues"].get("x"), told["maxValues"].get("x"), told["nullCount"].get("x")


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int8(), [-128, None, 127], (-128, 127, 1)),
        (pa.int64(), [-(2**63), 2**63 - 1], (-(2**63), 2**63 - 1, 0)),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], ("0001-01-01", "9999-12-31", 0)),
        (pa.timestamp("us", "UTC"), [MOMENT], ("2024-02-29T12:00:00.123Z", "2024-02-29T12:00:00.124Z", 0)),
        (pa.timestamp("us"), [MOMENT.replace(tzinfo=None)], ("2024-02-29T12:00:00.123", "2024-02-29T12:00:00.124", 0)),
        (pa.timestamp("us", "UTC"), [-1], ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", 0)),
        (pa.timestamp("us", "UTC"), [2**63 - 1], (None, None, 0)),
        (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC)], ("0001-01-01T00:00:00.000Z",) * 2 + (0,)),
        (pa.string(), ["b", "ä", None], ("b", "ä", 1)),
        (pa.string(), ["", "b"], (None, None, 0)),
        (pa.string(), ["x" * 64], ("x" * 64, "x" * 64, 0)),
        (pa.string(), ["x" * 65], (None, None, 0)),
        (pa.string(), [None, None], (None, None, 2)),
        (pa.float64(), [1.0, 2.0], (None, None, 0)),
        (pa.float32(), [float("nan"), -0.0], (None, None, 0)),
        (pa.bool_(), [True, None], (True, True, 1)),
        (pa.binary(), [b"a"], (None, None, 0)),
        (pa.decimal128(20, 2), [Decimal("1.10")], (None, None, 0)),
        (pa.list_(pa.int64()), [[1], None], (None, None, None)),
    ],
)
def test_bounds_are_exact_or_absent(kind: pa.DataType, values: list[Any], expected: tuple[object, ...]) -> None:
    assert found(pa.array(values, kind)) == expected


def test_bounds_cover_all_groups_of_rows() -> None:
    assert found(pa.array([5, None, 3, None, None, 9], pa.int64()), rows_of_a_group=2) == (3, 9, 3)


def test_texts_that_are_no_utf8_have_no_bounds() -> None:
    raw = pa.array([b"\xff", b"a"], pa.binary())
    assert found(pa.Array.from_buffers(pa.string(), 2, raw.buffers())) == (None, None, 0)


def test_a_file_without_statistics_tells_the_number_of_rows() -> None:
    file = io.BytesIO()
    pq.write_table(ROWS, file, write_statistics=False)
    footer = pq.ParquetFile(file)
    told = statistics_of(footer.metadata, footer.schema_arrow, 32)
    assert told == {"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {}}


def test_a_reader_that_skips_files_finds_every_row(tmp_path: Path) -> None:
    """Values of the edges of milliseconds, of texts and of numbers, one a file: deltalake and Arrow both skip."""
    step = timedelta(microseconds=1)
    rows = pa.table(
        {
            "id": pa.array([-(2**63), -1, 0, 2**53 + 1, 2**63 - 1], pa.int64()),
            "at": pa.array([MOMENT - step, MOMENT, MOMENT + step, MOMENT.replace(microsecond=124_000), None]),
            "note": ["a", "ä", "z" * 65, "\U0001f600", "￿"],
            "day": pa.array([date(1582, 10, 4), date(1582, 10, 15), date(1, 1, 1), date(9999, 12, 31), None]),
        }
    )
    columns = tuple(rows.column_names)
    with opened(tmp_path, context(columns=columns), create=True) as sink:
        handles = tuple(sink.prepare(segment(rows.slice(place, 1), place)) for place in range(len(rows)))
        sink.commit(BatchCommit(0, "0" * 15, 5, handles, None))
    lake = DeltaTable(str(tmp_path))
    for name in columns:
        for value in rows.column(name).to_pylist():
            if value is None:
                continue
            scalar = pa.scalar(value, rows.schema.field(name).type)
            for compare in (pc.equal, pc.greater_equal, pc.less_equal):
                expected = rows.filter(compare(rows.column(name), scalar)).num_rows
                predicate = compare(pc.field(name), scalar)
                assert lake.to_pyarrow_dataset().to_table(filter=predicate).num_rows == expected, (name, value)
            literal = value if isinstance(value, int) else f"'{value}'"
            assert lake.scan(predicate=f"{name} = {literal}").read_all().num_rows == 1, (name, value)


def test_a_column_without_bounds_leaves_the_file_without(tmp_path: Path) -> None:
    """Beside other bounds, deltalake's dataset of Arrow takes a missing one for NULL, and skips the file."""
    rows = ROWS.append_column("price", pa.array([1.5, 2.5, None]))
    with opened(tmp_path, context(columns=rows.column_names), create=True) as sink:
        handle = sink.prepare(segment(rows, 0))
        sink.commit(BatchCommit(0, "0" * 15, 3, (handle,), None))
    (add,) = [action["add"] for action in entries(tmp_path, 1) if "add" in action]
    assert json.loads(add["stats"]) == {"numRecords": 3, "nullCount": {"id": 0, "note": 1, "price": 1}}
    dataset = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("price") > 1).num_rows == 2
    assert dataset.to_table(filter=pc.field("note").is_null()).num_rows == 1

    told = {**json.loads(add["stats"]), "minValues": {"id": 1}, "maxValues": {"id": 3}}
    lake = DeltaTable.create(str(tmp_path / "other"), rows.schema)
    pq.write_table(rows, tmp_path / "other" / "x.parquet")
    size = (tmp_path / "other" / "x.parquet").stat().st_size
    action = AddAction("x.parquet", size, {}, 1, data_change=True, stats=json.dumps(told))
    lake.create_write_transaction([action], "append", lake.schema())
    dataset = DeltaTable(str(tmp_path / "other")).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("price") > 1).num_rows == 0, "deltalake reads them now: give partial bounds"


def test_a_column_that_the_batch_lacks_leaves_the_file_without_bounds(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), ROWS.append_column("more", pa.array([1, 2, 3], pa.int64())).schema)
    with opened(tmp_path) as sink:
        deliver(sink, 0)
    dataset = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("more").is_null()).num_rows == 3


def test_the_handle_of_a_wide_table_is_short_enough(tmp_path: Path) -> None:
    names = [f"column_{'x' * 100}_{number}" for number in range(2000)]
    rows = pa.table({name: pa.array([1], pa.int64()) for name in names})
    with opened(tmp_path, context(columns=names), create=True) as sink:
        handle = sink.prepare(segment(rows, 0))
        assert len(handle) <= 4096
        sink.commit(BatchCommit(0, "0" * 15, 1, (handle,), None))
    (add,) = [action["add"] for action in entries(tmp_path, 1) if "add" in action]
    assert '"numRecords": 1' in add["stats"]
