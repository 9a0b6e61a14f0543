"""Instants of a batch in UTC."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from wal_sink.sinks.json_rows import maps_as
from wal_sink.support.arrow_types import InUtc


def test_instants_are_in_utc_at_any_depth_in_place_of_a_zone_that_only_java_knows() -> None:
    def kind_in(zone: str) -> Any:
        instant = pa.timestamp("us", zone)
        of_each = pa.struct([pa.field("at", instant, nullable=False), pa.field("list", pa.large_list(instant))])
        return pa.map_(pa.string(), of_each)

    moment = 1_719_835_200_000_000
    plain = pa.map_(
        pa.string(), pa.struct([pa.field("at", pa.int64(), nullable=False), ("list", pa.large_list(pa.int64()))])
    )
    rows: Any = pa.array([[("a", {"at": moment, "list": [moment, None]})], None], plain)
    given = pa.record_batch([rows.cast(kind_in("GMT+8")), pa.array([1, 2])], ["moments", "id"])

    in_utc = InUtc()
    staged: Any = in_utc(given)

    assert staged.schema.types == [kind_in("UTC"), pa.int64()]
    assert staged.column(0).cast(plain).to_pylist() == rows.to_pylist()
    assert in_utc.zones == {"GMT+8"}
    assert in_utc(given).equals(staged)
    assert in_utc(staged) is staged


def test_names_with_a_nul_stay_whole() -> None:
    given: Any = pa.array([{"a\0b": 1, "a\0c": 2}])
    instants = pa.array([1], pa.timestamp("us", "GMT+8"))
    staged = InUtc()(pa.record_batch([given, instants], ["x\0y", "at"]))
    assert staged.schema == pa.schema([("x\0y", given.type), ("at", pa.timestamp("us", "UTC"))])
    assert staged.column(0).to_pylist() == given.to_pylist()


def test_a_null_struct_with_a_field_that_is_not_null_is_no_obstacle() -> None:
    """Spark leaves such a field null where the struct is null, and Arrow then casts no column that has it."""
    number = pa.field("x", pa.int32(), nullable=False)
    structs = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32())], fields=[number], mask=pa.array([False, True])
    )
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32()))
    instants = pa.array([1, None], pa.timestamp("us", "GMT+8"))

    staged = InUtc()(pa.record_batch([structs, maps, instants], ["struct", "map", "at"]))
    assert staged.column(0).to_pylist() == [{"x": 1}, None]
    assert staged.column(2).cast(pa.int64()).to_pylist() == [1, None]
    entries = maps_as("entries", pa.Table.from_batches([staged]))
    assert entries.to_pylist()[0]["map"] == [{"key": "a", "value": 1}]
    assert [row["struct"] for row in entries.to_pylist()] == [{"x": 1}, None]
