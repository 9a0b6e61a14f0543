"""Record batches from Java as they are staged: lists without elements get offsets. On executors.

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
