"""Rows as Parquet, for segments and for files of sinks. Only columns with repeated values get a dictionary."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

ROW_GROUP_BYTES = 16 << 20
"""Arrow bytes after which pending rows become a row group. A writer or reader holds about this much in memory."""
ROW_GROUP_ROWS = 128 << 10
"""The same limit in rows."""
WRITING: Mapping[str, Any] = MappingProxyType(
    {"compression": "zstd", "compression_level": 1, "write_page_checksum": True, "store_schema": True}
)
"""How every Parquet file is written: zstd-1, checksums of pages, and Arrow's own schema."""
_SAMPLE_ROWS = 4096


def parquet_writer(file: Any, first: pa.Table, *, encoded: bool) -> pq.ParquetWriter:
    """A writer of a Parquet file with the schema of `first`, its first rows. Raises pyarrow's own errors.

    By default Parquet builds a dictionary for every column, up to 1 MiB. For
    identifiers, digests and measurements this takes a third of the encoding time, and the dictionary is then discarded.
    So a column whose first rows hardly repeat a value gets none.

    With `encoded`, such a column may get another encoding than `PLAIN`. Any Arrow reads it, some other readers do not:
    it is for files that only wal-sink reads.
    """
    without = {name: column for name, column in _flat_columns(first) if _is_varied(column)}
    encodings = {name: _encoding_of(column) for name, column in without.items()} if encoded else {}
    return pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        first.schema,
        use_dictionary=_others(first.schema, without) if without else True,  # type: ignore[arg-type]  # stubs: only bool
        column_encoding={name: encoding for name, encoding in encodings.items() if encoding} or None,
        **WRITING,
    )


def _flat_columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray[Any]]]:
    """The columns that are not nested, by their names."""
    for number, name in enumerate(table.column_names):
        column = table.column(number)
        if not pa.types.is_nested(column.type):
            yield name, column


def _is_varied(column: pa.ChunkedArray[Any]) -> bool:
    """Return whether more than half of the first values are distinct."""
    sample = column.slice(0, _SAMPLE_ROWS)
    return 2 * len(sample.unique()) > len(sample)


def _encoding_of(column: pa.ChunkedArray[Any]) -> str | None:
    """The encoding that takes less time than `PLAIN` to compress, for a column without a dictionary; None: `PLAIN`.

    Whole numbers and moments become differences of neighbours. The lengths of texts are written apart, if all of the
    first ones have the same length, as digests and identifiers have: between incompressible texts, each length costs
    the compression a match.
    """
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return "DELTA_BINARY_PACKED"
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        lengths = pc.binary_length(column.slice(0, _SAMPLE_ROWS))
        return "DELTA_LENGTH_BYTE_ARRAY" if pc.min(lengths).equals(pc.max(lengths)) else None
    return None


def _others(schema: pa.Schema, without: Container[str]) -> list[str]:
    """The Parquet columns (leaves of nested ones) that get a dictionary."""
    return [path for path in _leaves(schema) if path not in without]


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """The names of the columns in Parquet: `c0`, and `c1.list.element` inside nested ones."""
    if not any(pa.types.is_nested(field.type) for field in schema):
        yield from schema.names
        return
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.ParquetFile(empty).schema
    yield from (columns.column(number).path for number in range(len(columns)))
