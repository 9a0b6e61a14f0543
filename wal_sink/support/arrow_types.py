"""Arrow batches under other types, and of a form that Arrow's C++ reads: instants in UTC, lists with offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


def retyped(kind: Any, leaf: Callable[[Any], Any]) -> Any:
    """`kind` with `leaf` of each type that is no list, struct or map. Names and nullability stay."""

    def field(inside: Any) -> Any:
        return inside.with_type(retyped(inside.type, leaf))

    if pa.types.is_map(kind):
        fields: tuple[Any, Any] = field(kind.key_field), field(kind.item_field)
        return pa.map_(*fields, kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    return leaf(kind)


class InUtc:
    """Gives record batches whose instants are the same under the time zone UTC. `zones`: the time zones that they had.

    Java knows time zones that Python does not, and then no instant under such a name can be read.
    """

    def __init__(self) -> None:
        self.zones: set[str] = set()
        self._given = self._schema = pa.schema([])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._given):
            self._given = batch.schema
            self._schema = pa.schema([field.with_type(retyped(field.type, self._utc)) for field in batch.schema])
        return batch if self._schema.equals(self._given) else viewed(batch, self._schema)

    def _utc(self, kind: Any) -> Any:
        if not (pa.types.is_timestamp(kind) and kind.tz):
            return kind
        self.zones.add(kind.tz)
        return pa.timestamp(kind.unit, "UTC")


def viewed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same bytes as columns of `schema`, whose types must have the layout of those of `batch`.

    No copy, except where Arrow's C interface cannot carry the schema: names there end at a NUL.
    Arrow's `cast` refuses a struct that is null somewhere and has a field that is not null (measured, pyarrow 26).
    """
    made = pa.record_batch(_Viewed(batch, schema))
    return made if made.schema.equals(schema) else pa.ipc.read_record_batch(batch.serialize(), schema)


@dataclass(frozen=True, slots=True)
class _Viewed:
    """Arrow's C data interface separates data and schema."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        _, array = self.batch.__arrow_c_array__()  # type: ignore[no-untyped-call]
        return self.schema.__arrow_c_schema__(), array


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows from Java, with every offset that C++ looks at. Values are not copied.

    Arrow's Java writes a buffer of offsets with no bytes for lists, maps and strings that have no value at all, if they
    lie inside other lists. Arrow's C++ reads such batches, but looks at the first offset without asking whether there
    is one: the worker ends with a segmentation fault. Measured: Spark 3.5.9, 4.0.0, 4.0.5 and 4.1.4 crash, 4.2.1 and
    4.3.0 do not.
    """
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
