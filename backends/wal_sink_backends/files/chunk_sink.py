"""Every chunk as one object in a folder of any store: once in effect, because a name always means the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.stores.base import ObjectExists, ObjectMissing
from wal_sink.stores.fsspec_store import GenericStore
from wal_sink.stores.local import LocalStore
from wal_sink.support.arguments import one_of
from wal_sink_backends.common.sinks import ReadySink, name_of, warn_once
from wal_sink_backends.files.folder import Folder
from wal_sink_backends.files.formats import Format, encoded, written_as
from wal_sink_backends.files.names import CHUNK_TEMPLATE, check_chunk_template, check_columns

if TYPE_CHECKING:
    from wal_sink.sinks.base import SinkContext
    from wal_sink.sinks.chunk import Chunk
    from wal_sink.stores.base import Store
    from wal_sink.support.texts import Finding


class FilesSink(ReadySink):
    """A folder on any fsspec store, to which each chunk is written as one object. A warning names a store that may
    show parts of it to readers.

    `url`: a local folder (on a cluster one that every machine mounts), `s3://…`, or any that fsspec knows.
    `storage_options`: for fsspec, as it names them. They travel to the executors with the sink, secrets included, but
    are never shown; `options_from_env` maps names of options to environment variables instead, which are read in
    `open`, where the sink runs.
    `name_template`: a `str.format` text of `batch`, `ordinal` (of the segment in the batch), `rows` (where the chunk
    ends in the segment), `key` (required; `SinkContext.own_key` of the chunk's key) and `ext`. `batch=…` in the default
    is a partition column to Spark and Arrow.

    - `jsonl`, `json`: an object a line, or an array of objects, as `Chunk.to_json` writes them.
    - `csv`: a header in each file; numbers and booleans bare, all else in quotes (binary as base64, the rest as in
      JSON), NULL as nothing at all where an empty text is `""`; lists, maps and structs are refused. With a single
      column a NULL is an empty line, which many readers skip. Quotes are doubled, as in RFC 4180: by default Spark
      damages quotes, backslashes and newlines; docs/sinks/files.md says with which options it does not.
    - `parquet`: zstd, with page checksums.

    Columns of equal names are refused by all of them, as is a column that has the name of a folder `name=…`: readers
    would take the folder's value for the column's. Repeating a chunk leaves the object that is there. Chunks without
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
        name_template: str = CHUNK_TEMPLATE,
        maps: Maps = "object",
    ) -> None:
        one_of("format", format, get_args(Format))
        check_maps(maps)
        check_chunk_template(name_template)
        self._folder = Folder(url, storage_options, options_from_env)
        self.writes_files_to = url
        self._format: Format = format
        self._name_template = name_template
        self._maps: Maps = maps
        self._own_key: Callable[[str], str] = str

    def __repr__(self) -> str:
        return f"FilesSink({self._folder.spec.safe_url!r}, format={self._format!r})"

    def open(self, context: SinkContext) -> None:
        """Read the environment and open the store. Raises `PermanentError` if either lacks something."""
        store = self._folder.open(repr(self), context)
        if isinstance(store, GenericStore) and store.create_doubt:
            warn_once(
                f"{store.root}: readers may see a part of a file while it is written, or after a crash until its "
                f"chunk is sent again: {store.create_doubt}. If this is a problem, use a local folder, S3, HDFS, gs "
                "or abfs"
            )
        self._own_key = context.own_key

    def examine(self, schema: Any) -> Sequence[Finding]:  # noqa: ARG002 - files take any columns
        """Look into the folder, and write nothing."""
        return [self._folder.examine(repr(self))]

    def close(self) -> None:
        """Forget the values from the environment."""
        self._folder.close()

    def write(self, chunk: Chunk) -> None:
        """Create the chunk's object, or leave the one that is there.

        Raises `ConfigError` for a column that has the name of a folder, `PermanentError` for a column the format cannot
        carry, `StoreError` if the store failed.
        """
        if not chunk.num_rows:
            return
        store, name = self._folder.store(repr(self)), self.name_of(chunk)
        what = name_of(chunk)
        check_columns(chunk.table.column_names, name, what)
        try:
            data = encoded(self._format, written_as(self._format, chunk, self._maps))
        except (ConfigError, pa.ArrowException) as error:
            raise PermanentError(f"{what} as {self._format}: {error}") from error
        try:
            store.create(name, data)
        except ObjectExists:
            _check_there(store, name, data, what)

    def name_of(self, chunk: Chunk) -> str:
        """The path of the chunk's object in the folder, once the sink was opened."""
        ordinal = chunk.position.slot.rpartition("/")[2]
        return self._name_template.format(
            batch=chunk.batch_id,
            ordinal=int(ordinal) if ordinal.isdecimal() else 0,
            rows=chunk.position.rows,
            key=self._own_key(chunk.key),
            ext=self._format,
        )


def _check_there(store: Store, name: str, data: bytes, what: str) -> None:
    """Check the object of a taken name, which is normally the repeated chunk's own.

    It may be another object: a crash leaves a part of it if creating is not atomic, and on a local file system a
    folder, a link or an emptied file may have the name.
    """
    if not (store.create_doubt or isinstance(store, LocalStore)):
        return
    try:
        found = store.read(name)
    except ObjectMissing as error:
        raise StoreError(
            f"{what}: the name {store.url_of(name)} exists, but no file can be read there: expected no file, or the "
            "file of this chunk. If a folder has this name, move it elsewhere. If a broken link has this name, remove "
            "it"
        ) from error
    if store.create_doubt and found != data:
        with store.segment(name) as stream:
            stream.write(data)
            stream.commit()
    elif not found:
        raise PermanentError(
            f"{what}: {store.url_of(name)} exists and is empty: expected no file, or the file of this chunk. wal-sink "
            "writes a file as a whole or not at all, so another program created or emptied this file. Move it "
            "elsewhere"
        )
