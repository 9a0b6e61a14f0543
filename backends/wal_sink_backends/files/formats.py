"""Rows as a file of JSON lines, a JSON array, CSV or Parquet, chunk by chunk. Equal rows give equal bytes."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import ConfigError
from wal_sink.sinks.json_rows import Maps, decimal_texts, plain_values
from wal_sink.stores.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS, parquet_writer
from wal_sink_backends.common.columns import array_of, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow.parquet as pq

    from wal_sink.sinks.chunk import Chunk

Format: TypeAlias = Literal["jsonl", "json", "csv", "parquet"]
Write: TypeAlias = "Callable[[bytes], object]"
"""Takes the next bytes of a file."""


class RowsFile(ABC):
    """One file under construction, of chunks with the same columns. Holds little more than a chunk in memory.

    Every method raises `ConfigError` or pyarrow's own errors for rows the format cannot carry, naming the column, and
    whatever `Write` raises.
    """

    def __init__(self, write: Write) -> None:
        self._write = write

    @abstractmethod
    def add(self, chunk: Chunk) -> None:
        """Append the rows of a chunk. They may be written later, `finish` at the latest."""

    def finish(self) -> None:
        """Write what is left."""

    def drop(self) -> None:
        """Write nothing any more."""


def new_file(format: Format, write: Write) -> RowsFile:  # noqa: A002 - what Spark and pandas call it
    """A file of this format that hands its bytes to `write`, in order."""
    return _FILES[format](write)


def encoded(format: Format, chunk: Chunk) -> bytes:  # noqa: A002
    """A chunk as one whole file."""
    parts: list[bytes] = []
    file = new_file(format, parts.append)
    file.add(chunk)
    file.finish()
    return b"".join(parts)


def written_as(format: Format, chunk: Chunk, maps: Maps) -> Chunk:  # noqa: A002
    """The chunk with its maps in the form that JSON takes. Parquet has maps, and CSV refuses nested values."""
    return chunk.maps_as(maps) if format in ("json", "jsonl") else chunk


class _JsonLines(RowsFile):
    def add(self, chunk: Chunk) -> None:
        self._write(chunk.to_json(lines=True))


class _JsonArray(RowsFile):
    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._before = b"["

    def add(self, chunk: Chunk) -> None:
        rows = memoryview(chunk.to_json())[1:-1]
        if rows:
            self._write(self._before + bytes(rows))
            self._before = b","

    def finish(self) -> None:
        self._write(b"[]" if self._before == b"[" else b"]")


class _Csv(RowsFile):
    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._has_header = False

    def add(self, chunk: Chunk) -> None:
        table = chunk.table
        _refuse_equal_names(table)
        columns = [_csv_cells(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
        if len(columns) == 1 and table.columns[0].null_count:
            raise ConfigError(
                f"column {table.column_names[0]!r} is the only one and holds a NULL, but readers of CSV skip the empty "
                "line that it would be. Select one more column, replace the NULL with coalesce, or write jsonl"
            )
        if not self._has_header:
            self._write((",".join(_quoted(name) for name in table.column_names) + "\n").encode())
        compute: Any = pc
        lines = compute.binary_join_element_wise(*columns, _large(",")) if len(columns) > 1 else columns[0]
        self._write(b"".join(line + b"\n" for line in lines.cast(pa.large_binary()).to_pylist()))
        self._has_header = True


class _Parquet(RowsFile):
    """Chunks are collected until they make a row group worth its footer."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._file = _Output(write)
        self._parquet: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []

    def add(self, chunk: Chunk) -> None:
        _refuse_equal_names(chunk.table)
        self._pending.append(chunk.table)
        rows = sum(table.num_rows for table in self._pending)
        if rows >= ROW_GROUP_ROWS or sum(table.nbytes for table in self._pending) >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        if self._parquet is not None:
            self._parquet.close()

    def drop(self) -> None:
        self._file.dropped = True

    def _flush(self) -> None:
        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        self._pending.clear()
        if self._parquet is None:
            self._parquet = parquet_writer(self._file, table, encoded=False)
        self._parquet.write_table(table, row_group_size=max(1, table.num_rows))


class _Output:
    """A file object for pyarrow. A `ParquetWriter` writes its footer even when it is collected as garbage."""

    closed = False

    def __init__(self, write: Write) -> None:
        self._write = write
        self.dropped = False

    def write(self, data: bytes) -> int:
        if not self.dropped:
            self._write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: the owner of `write` makes the bytes durable."""

    def close(self) -> None:
        """Nothing to do: the owner of `write` ends the file."""


def _refuse_equal_names(table: pa.Table) -> None:
    """Arrow and Spark write such a file and cannot read it. Of rows without columns they read none."""
    if not table.num_columns:
        raise ConfigError("the rows have no columns: CSV and Parquet cannot hold them. Select a column in the query")
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"column {twice!r} occurs {names.count(twice)} times. Give each column a different name in the query"
        )


def _csv_cells(column: Any, name: str) -> Any:
    """A column as cells of a CSV file: numbers and booleans bare, all else in quotes, NULL as nothing.

    A quote within quotes is doubled, as in RFC 4180; pandas, Arrow and DuckDB read it so.
    """
    types: Any = pa.types
    column = array_of(column)
    kind = column.type
    if types.is_nested(kind):
        raise ConfigError(
            f"column {name!r} has the type {kind}, but CSV has no nested values. Write jsonl or parquet, or use "
            "to_json in the query"
        )
    if types.is_integer(kind) or types.is_boolean(kind):
        return _cells(column)
    if types.is_floating(kind):
        return _float_cells(column)
    if is_text(kind):
        return _in_quotes(column)
    if types.is_decimal(kind):
        texts = decimal_texts(column)
    else:
        texts = [_base64(value) if isinstance(value, bytes) else value for value in plain_values(column, name)]
    return _in_quotes(pa.array(texts, pa.string()))


def _cells(texts: Any) -> Any:
    compute: Any = pc
    return compute.fill_null(texts.cast(pa.large_string()), "")


def _float_cells(column: Any) -> Any:
    """Spark reads NaN and Infinity, in this spelling, and takes others for NULL; so do pandas, Arrow and DuckDB."""
    compute: Any = pc
    numbers = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    bare = _cells(numbers)
    if compute.all(compute.is_finite(numbers), min_count=0).as_py():
        return bare
    return compute.replace_substring_regex(compute.replace_substring_regex(bare, "^-?nan$", "NaN"), "inf$", "Infinity")


def _in_quotes(texts: Any) -> Any:
    compute: Any = pc
    quote = _large('"')
    doubled = compute.replace_substring(texts.cast(pa.large_string()), '"', '""')
    return _cells(compute.binary_join_element_wise(quote, doubled, quote, _large("")))


def _large(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_FILES: Mapping[str, type[RowsFile]] = {"jsonl": _JsonLines, "json": _JsonArray, "csv": _Csv, "parquet": _Parquet}
