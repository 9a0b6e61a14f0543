"""Arrow types with other leaves: instants in UTC, texts as bytes."""

from __future__ import annotations

from collections.abc import Callable
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


def in_utc(batch: pa.RecordBatch, zones: set[str]) -> pa.RecordBatch:
    """The same instants under the time zone UTC. The time zones that they had are added to `zones`.

    Java knows time zones that Python does not, and then no instant under such a name can be read.
    """

    def utc(kind: Any) -> Any:
        if not (pa.types.is_timestamp(kind) and kind.tz):
            return kind
        zones.add(kind.tz)
        return pa.timestamp(kind.unit, "UTC")

    schema = pa.schema([field.with_type(retyped(field.type, utc)) for field in batch.schema])
    return batch if schema.equals(batch.schema) else viewed(batch, schema)


def viewed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same bytes as columns of `schema`, whose types must have the layout of those of `batch`.

    Arrow's `cast` refuses a struct that is null somewhere and has a field that is not null (measured, pyarrow 26).
    """
    return pa.ipc.read_record_batch(batch.serialize(), schema)
