"""Rows as Parquet, for segments and for files of sinks. Only columns with repeated values get a dictionary."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_GROUP_BYTES = 16 << 20
"""Arrow bytes after which pending rows become a row group. A writer or reader holds about this much in memory."""
ROW_GROUP_ROWS = 128 << 10
"""The same limit in rows."""
WRITING: Mapping[str, Any] = MappingProxyType(
    {"compression": "zstd", "compression_level": 1, "write_page_checksum": True, "store_schema": True}
)
"""How every Parquet file is written: zstd-1, checksums of pages, and Arrow's own schema."""
_SAMPLE_ROWS = 4096


def parquet_writer(file: Any, first: pa.Table) -> pq.ParquetWriter:
    """A writer of a Parquet file with the schema of `first`, its first rows. Raises pyarrow's own errors.

    By default Parquet builds a dictionary for every column, up to 1 MiB. For
    identifiers, digests and measurements this takes a third of the encoding time, and the dictionary is then discarded.
    So a column whose first rows hardly repeat a value gets none.
    """
    return pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        first.schema,
        use_dictionary=_with_dictionary(first),  # type: ignore[arg-type]  # the stubs know only bool
        **WRITING,
    )


def _with_dictionary(first: pa.Table) -> list[str] | bool:
    """The Parquet columns (leaves of nested ones) that get a dictionary; True for all of them."""
    without = {name for index, name in enumerate(first.column_names) if _is_varied(first.column(index))}
    if not without:
        return True
    return [path for path in _leaves(first.schema) if path not in without]


def _is_varied(column: pa.ChunkedArray[Any]) -> bool:
    """Return whether more than half of the first values are distinct. Nested columns are not examined."""
    sample = column.slice(0, _SAMPLE_ROWS)
    return not pa.types.is_nested(column.type) and 2 * len(sample.unique()) > len(sample)


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """The names of the columns in Parquet: `c0`, and `c1.list.element` inside nested ones."""
    if not any(pa.types.is_nested(field.type) for field in schema):
        yield from schema.names
        return
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.ParquetFile(empty).schema
    yield from (columns.column(number).path for number in range(len(columns)))
