"""Every chunk as one object in a folder of any store: once in effect, since a name always means the same rows."""

from __future__ import annotations

import base64
import io
import os
import string
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink.json_rows import decimal_texts, plain_values
from wal_sink.sink import Sink
from wal_sink.stores.base import ObjectExists
from wal_sink.stores.naming import check_path
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wal_sink.chunk import Chunk
    from wal_sink.sink import SinkContext
    from wal_sink.stores.base import Store

Format: TypeAlias = Literal["jsonl", "json", "csv", "parquet"]
NAME_TEMPLATE = "batch={batch:019d}/{ordinal:06d}-{rows:012d}-{key}.{ext}"
"""Zero-padded, so that a listing is in the order of batches, of their segments, of the rows in them."""
_FIELDS = {"batch": 0, "ordinal": 0, "rows": 1, "key": "key", "ext": "ext"}


class FilesSink(Sink):
    """A folder on any fsspec store, to which each chunk is written as one object, whole or not at all.

    `url`: a local folder (on a cluster one that every machine mounts), `s3://…`, or any that fsspec knows.
    `storage_options`: for fsspec, as it names them. They travel to the executors with the sink, secrets included, but
    are never shown; `options_from_env` maps names of options to environment variables instead, which are read in
    `open`, where the sink runs.
    `name_template`: a `str.format` text of `batch`, `ordinal` (of the segment in the batch), `rows` (where the chunk
    ends in the segment), `key` (required) and `ext`. `batch=…` in the default is a partition column to Spark and Arrow.

    - `jsonl`, `json`: an object a line, or an array of objects, as `Chunk.to_json` writes them.
    - `csv`: a header in each file; numbers and booleans bare, all else in quotes (binary as base64, the rest as in
      JSON), NULL as nothing at all where an empty text is `""`; lists, maps and structs are refused. With a single
      column a NULL is an empty line, which many readers skip.
    - `parquet`: zstd, with page checksums.

    Columns of equal names are refused by all of them. Repeating a chunk leaves the object that is there. Chunks without
    rows write nothing. Change format, template or folder only between batches: a chunk repeated across the change is
    there under both names. Raises `ConfigError` for arguments that cannot work.
    """

    idempotent = True

    def __init__(
        self,
        url: str,
        *,
        format: Format = "jsonl",  # noqa: A002 - what Spark and pandas call it
        storage_options: Mapping[str, object] | None = None,
        options_from_env: Mapping[str, str] | None = None,
        name_template: str = NAME_TEMPLATE,
    ) -> None:
        if format not in _ENCODERS:
            raise ConfigError(f"format={format!r}: expected one of {', '.join(map(repr, _ENCODERS))}")
        _check_template(name_template)
        self._spec = StoreSpec(url, dict(storage_options or {}))
        self._format = format
        self._options_from_env = dict(options_from_env or {})
        self._name_template = name_template
        self._opened: StoreSpec | None = None

    def describe(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"FilesSink({self._spec.safe_url!r}, format={self._format!r})"

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - names come from the chunk alone
        """Read the environment and open the store. Raises `PermanentError` if either lacks something."""
        missing = [name for name in self._options_from_env.values() if name not in os.environ]
        if missing:
            raise PermanentError(
                f"{self!r}: the environment variable {missing[0]} is not set where the sink runs; set it"
            )
        options = {option: os.environ[name] for option, name in self._options_from_env.items()}
        self._opened = StoreSpec(self._spec.url, {**self._spec.options, **options})
        self._store()

    def close(self) -> None:
        """Forget what came from the environment."""
        self._opened = None

    def write(self, chunk: Chunk) -> None:
        """Create the chunk's object, or leave the one that is there.

        Raises `PermanentError` for a column the format cannot carry, `StoreError` if the store failed.
        """
        if not chunk.num_rows:
            return
        try:
            data = _ENCODERS[self._format](chunk)
        except (ConfigError, pa.ArrowException) as error:
            raise PermanentError(f"batch {chunk.batch_id}, chunk {chunk.key} as {self._format}: {error}") from error
        store, name = self._store(), self.name_of(chunk)
        try:
            store.create(name, data)
        except ObjectExists:
            _mend(store, name, data)

    def name_of(self, chunk: Chunk) -> str:
        """The path of the chunk's object in the folder."""
        ordinal = chunk.position.slot.rpartition("/")[2]
        return self._name_template.format(
            batch=chunk.batch_id,
            ordinal=int(ordinal) if ordinal.isdecimal() else 0,
            rows=chunk.position.rows,
            key=chunk.key.replace(":", "="),  # HDFS and Windows refuse a colon; no key holds "="
            ext=self._format,
        )

    def _store(self) -> Store:
        if self._opened is None:
            raise RuntimeError(f"{self!r} is not open: call open() first")
        try:
            return open_store(self._opened)
        except ConfigError as error:
            raise PermanentError(str(error)) from error


def _check_template(template: str) -> None:
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        check_path(template.format(**_FIELDS))
    except (StoreError, ValueError, LookupError) as error:
        raise ConfigError(f"name_template={template!r}: {error}; expected something like {NAME_TEMPLATE!r}") from error
    if "key" not in fields:
        raise ConfigError(f"name_template={template!r}: expected {{key}} in it, since only the key tells chunks apart")


def _mend(store: Store, name: str, data: bytes) -> None:
    """An object that exists is whole where creating is atomic; elsewhere a crash may have left a part of it."""
    if store.create_doubt and store.read(name) != data:
        with store.segment(name) as stream:
            stream.write(data)
            stream.commit()


# The formats. Equal rows give equal bytes.


def _jsonl(chunk: Chunk) -> bytes:
    return chunk.to_json(lines=True)


def _json(chunk: Chunk) -> bytes:
    return chunk.to_json()


def _parquet(chunk: Chunk) -> bytes:
    _refuse_equal_names(chunk.table)
    sink = io.BytesIO()
    pq.write_table(chunk.table, sink, compression="zstd", compression_level=1, write_page_checksum=True)
    return sink.getvalue()


def _csv(chunk: Chunk) -> bytes:
    table = chunk.table
    _refuse_equal_names(table)
    columns = [_csv_column(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.Table.from_arrays(columns, names=table.column_names), sink)
    return sink.getvalue()


def _refuse_equal_names(table: pa.Table) -> None:
    """Arrow and Spark write such a file and cannot read it."""
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"column {twice!r} stands {names.count(twice)} times; rename it in the query")


def _csv_column(column: Any, name: str) -> Any:
    types: Any = pa.types
    kind = column.type
    if types.is_nested(kind):
        raise ConfigError(
            f"column {name!r} is {kind}: CSV has no nested values; write jsonl or parquet, or use to_json in the query"
        )
    if types.is_float16(kind):
        return column.cast(pa.float32())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_string(kind):
        return column
    if types.is_decimal(kind):
        return pa.array([text for part in column.chunks for text in decimal_texts(part)], pa.string())
    values = plain_values(column, name)
    return pa.array([_base64(value) if isinstance(value, bytes) else value for value in values], pa.string())


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_ENCODERS: dict[str, Callable[[Chunk], bytes]] = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet}
