"""Record batches from Java as they are staged: lists without elements get offsets, instants are in UTC. On executors.

Arrow's Java writes a buffer of offsets with no bytes for lists, maps and strings that have no value at all, if they lie
inside other lists. Arrow's C++ reads such batches, but looks at the first offset without asking whether there is one:
the worker ends with a segmentation fault. Measured with Spark 3.5 to 4.3, see docs/ASSUMPTIONS.md.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with every offset that C++ looks at. Values are not copied."""
    given: list[Any] = batch.columns
    columns = [_with_offsets(column) for column in given]
    if all(new is old for new, old in zip(columns, given, strict=True)):
        return batch
    return pa.record_batch(columns, schema=batch.schema)


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with instants in UTC in place of the session's time zone. Values are not copied.

    An instant is the same in every zone. Java knows zones that Python does not (GMT+8, PST), and no reader of a segment
    could show an instant in such a zone.
    """
    kinds = [_utc(column.type) for column in batch.columns]
    if kinds == batch.schema.types:
        return batch
    columns = [_as(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    return pa.record_batch(columns, names=batch.schema.names)


def _utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    return pa.list_(_field(kind.value_field)) if pa.types.is_list(kind) else kind


def _field(field: Any) -> Any:
    return field.with_type(_utc(field.type))


def _as(array: Any, kind: Any) -> Any:
    """The array under a type that differs in the zones only. Arrays of a batch that was received begin at offset 0."""
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind):
        return array.view(kind)
    if pa.types.is_struct(kind):
        own, inside = 1, [_as(array.field(place), kind.field(place).type) for place in range(kind.num_fields)]
    else:
        own, inside = 2, [_as(array.values, _utc(array.values.type))]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own], array.null_count, children=inside)


def _with_offsets(array: Any) -> Any:
    """The array itself if nothing inside it has length 0. Arrays of a batch that was received begin at offset 0."""
    kind = array.type
    if not pa.types.is_nested(kind):
        return array if len(array) else pa.nulls(0, kind)
    if not len(array):
        return pa.nulls(0, kind)  # it has no value, so that only its type counts
    if pa.types.is_struct(kind):
        own, inside = 1, [array.field(place) for place in range(kind.num_fields)]
    else:  # a list or a map: Spark sends no other nested type
        own, inside = 2, [array.values]
    filled = [_with_offsets(child) for child in inside]
    if all(new is old for new, old in zip(filled, inside, strict=True)):
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own], array.null_count, children=filled)
