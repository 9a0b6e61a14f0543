"""The first rows of a staged batch, as people read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.errors import ConfigError
from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink.stores.base import Store
from wal_sink.wal.records import Manifest
from wal_sink.wal.segment_reader import load_segment, read_chunks


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The first rows of a staged batch."""

    columns: tuple[str, ...]
    """Real names. Some may be equal."""
    keys: tuple[str, ...]
    """A key for each row, as `Chunk.row_keys` gives them."""
    rows: tuple[tuple[Any, ...], ...]
    """Values as `Chunk.to_json` writes them. Structs are dictionaries, decimals text, bytes unchanged."""


def read_rows(store: Store, manifest: Manifest, limit: int) -> StagedRows:
    """The first `limit` rows of a batch. Reads whole segments, checked; raises `CorruptError` if one is damaged."""
    keys: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for ref in manifest.segments:
        if len(rows) >= limit:
            break
        data, where = load_segment(store, ref), store.url_of(ref.path)
        for start, end, table in read_chunks(
            data, ref, chunk_rows=manifest.chunk_rows, columns=manifest.columns, where=where
        ):
            wanted = min(end - start, limit - len(rows))
            keys += [f"{ref.id}-{row}" for row in range(start, start + wanted)]
            rows += plain_rows(table.slice(0, wanted))
            if len(rows) >= limit:
                break
    return StagedRows(manifest.columns, tuple(keys), tuple(rows))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows for people. Values look as in JSON; those that JSON cannot hold, as Python prints them."""
    columns = [_plain_column(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain_column(column: Any, name: str) -> list[Any]:
    """Values of one column. A type that JSON rows cannot hold is printed by Python, so that looking always works."""
    if pa.types.is_decimal(column.type):
        return [text for part in column.chunks for text in decimal_texts(part)]
    try:
        return [_named(value) for value in plain_values(column, name)]
    except ConfigError:
        return [str(value) if value.is_valid else None for value in column]


def _named(value: Any) -> Any:
    """A nested value with the names of its fields."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {field.encode_name: _named(getattr(value, field.name)) for field in fields}
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list) else value
