"""Rows as Parquet, for segments and for files of sinks: dictionaries only for columns whose values repeat."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_GROUP_BYTES = 16 << 20
"""Arrow bytes after which pending rows become a row group: about what a writer or reader holds in memory."""
ROW_GROUP_ROWS = 128 << 10
"""The same in rows."""
_SAMPLE_ROWS = 4096


def parquet_writer(file: Any, first: pa.Table) -> pq.ParquetWriter:
    """A writer of a Parquet file with the schema of `first`, its first rows. Raises pyarrow's own errors.

    zstd-1 and checksums of pages. Parquet gives every column a dictionary until that has grown to 1 MiB: for
    identifiers, digests and measurements this is a third of all the work of encoding, and then thrown away. So a column
    whose first rows hardly repeat a value goes without.
    """
    return pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        first.schema,
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,
        store_schema=True,
        use_dictionary=_with_dictionary(first),  # type: ignore[arg-type]  # the stubs know only bool
    )


def _with_dictionary(first: pa.Table) -> list[str] | bool:
    """The Parquet columns (leaves of nested ones) that get a dictionary; True for all of them."""
    without = {field.name for field, column in zip(first.schema, first.columns, strict=True) if _is_varied(column)}
    if not without:
        return True
    return [path for path in _leaves(first.schema) if path not in without]


def _is_varied(column: pa.ChunkedArray[Any]) -> bool:
    """Whether more than half of the first values differ from each other. Nested columns are not examined."""
    if pa.types.is_nested(column.type):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    return 2 * len(sample.unique()) > len(sample)


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """The names by which Parquet knows the columns: `c0`, and `c1.list.element` inside nested ones."""
    if not any(pa.types.is_nested(field.type) for field in schema):
        yield from schema.names
        return
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.ParquetFile(empty).schema
    yield from (columns.column(number).path for number in range(len(columns)))
