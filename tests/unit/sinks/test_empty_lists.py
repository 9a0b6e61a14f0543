"""Lists whose offsets Java left out get them back, with the rows as they were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from wal_sink.support.arrow_types import with_offsets

NOTHING = pa.py_buffer(b"")
TEXT = pa.field("text", pa.string(), nullable=False)
KINDS: list[Any] = [
    pa.string(),
    pa.large_binary(),
    pa.int32(),
    pa.list_(pa.int32()),
    pa.list_(pa.list_(pa.string())),
    pa.large_list(pa.list_(pa.int64())),
    pa.map_(pa.string(), pa.list_(pa.int32())),
    pa.struct([TEXT, pa.field("list", pa.list_(pa.struct([TEXT])))]),
]


def without_offsets(given: object) -> Any:
    """An array without values, as Arrow's Java sends it: no buffer has a byte."""
    kind: Any = given
    if not pa.types.is_nested(kind):
        return pa.Array.from_buffers(kind, 0, [None] + [NOTHING] * (1 if pa.types.is_integer(kind) else 2))
    if pa.types.is_struct(kind):
        children = [without_offsets(field.type) for field in kind]
        return pa.Array.from_buffers(kind, 0, [None], children=children)
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        return pa.Array.from_buffers(kind, 0, [None, NOTHING], children=[without_offsets(entries)])
    return pa.Array.from_buffers(kind, 0, [None, NOTHING], children=[without_offsets(kind.field(0).type)])


def lists_without_elements(kind: Any) -> Any:
    """Two rows, an empty list and a null."""
    offsets = pa.py_buffer(bytes(12))
    return pa.Array.from_buffers(pa.list_(kind), 2, [pa.py_buffer(b"\1"), offsets], 1, children=[without_offsets(kind)])


def lacking(array: Any) -> list[str]:
    """The types inside an array whose buffer of offsets has no room for a first one."""
    kind = array.type
    found = []
    has_offsets = not pa.types.is_struct(kind) and not pa.types.is_integer(kind)
    if has_offsets and (array.buffers()[1] is None or array.buffers()[1].size < 4):
        found.append(str(kind))
    if pa.types.is_struct(kind):
        return found + [one for place in range(kind.num_fields) for one in lacking(array.field(place))]
    return found + (lacking(array.values) if pa.types.is_nested(kind) else [])


def test_every_offset_is_there_and_the_rows_are_the_same() -> None:
    for kind in KINDS:
        for in_struct in [False, True]:
            column = lists_without_elements(kind)
            if in_struct:
                column = pa.Array.from_buffers(
                    pa.struct([pa.field("x", column.type)]), 2, [pa.py_buffer(b"\1")], 1, children=[column]
                )
            field = pa.field("c.0", column.type, metadata={"k": "v"})
            batch = pa.record_batch([column, pa.array([1, 2])], schema=pa.schema([field, pa.field("c.0", pa.int64())]))
            assert bool(lacking(batch.column(0))) is (kind != pa.int32()), "otherwise nothing is shown here"

            filled = with_offsets(batch)
            assert lacking(filled.column(0)) == []
            filled.validate(full=True)
            assert filled.schema.equals(batch.schema, check_metadata=True)
            assert filled.column(0).to_pylist() == ([{"x": []}, None] if in_struct else [[], None])
            assert filled.column(1) is batch.column(1) or filled.column(1).equals(batch.column(1))
            assert filled.slice(0, 1).nbytes < filled.nbytes


def test_values_beside_an_empty_list_stay() -> None:
    kind = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.list_(pa.string())))])
    parts: list[Any] = [pa.array([7, None], pa.int32()), lists_without_elements(pa.list_(pa.string()))]
    column = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\3")], 0, children=parts)
    assert with_offsets(pa.record_batch([column], ["c"])).column(0).to_pylist() == [
        {"a": 7, "b": []},
        {"a": None, "b": None},
    ]


def test_a_batch_in_which_every_list_has_elements_is_left_alone() -> None:
    rows = [{"k": [[1], None]}, None]
    batch = pa.record_batch(
        [pa.array(rows), pa.array([{1: [2]}, None], pa.map_(pa.int32(), pa.list_(pa.int32())))], ["a", "b"]
    )
    assert with_offsets(batch) is batch
