"""Every segment as one file that appears at once: prepared while its batch is staged, committed with the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import OnGone, TwoPhaseSink
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.stores.local import LocalStore
from wal_sink.stores.spec import LOCAL, S3, StoreSpec
from wal_sink.support.arguments import one_of
from wal_sink_backends.common.sinks import ReadySink, name_of
from wal_sink_backends.files.folder import Folder
from wal_sink_backends.files.formats import Format, RowsFile, new_file, written_as
from wal_sink_backends.files.local import LocalHolder
from wal_sink_backends.files.names import SEGMENT_TEMPLATE, SegmentNames, check_columns

if TYPE_CHECKING:
    from wal_sink.sinks.base import SinkContext, Transaction
    from wal_sink.sinks.chunk import Chunk
    from wal_sink.stores.base import Store
    from wal_sink.support.texts import Finding
    from wal_sink_backends.files.folder import FileHolder, HeldFile

PART_BYTES = 8 << 20
MIN_PART_BYTES = 5 << 20
MAX_PART_BYTES = 1 << 30
_NO_ROWS = ""
"""The handle of a transaction without rows: there is nothing to commit."""


class TwoPhaseFilesSink(ReadySink, TwoPhaseSink):
    """A local folder, or a prefix of an S3 bucket, in which each segment becomes one file, under a name you choose.

    `url`: a local folder (on a cluster one that every machine mounts) or `s3://…`.
    `format`, `storage_options`, `options_from_env`: see `FilesSink`.
    `name_template`: a `str.format` text of `batch_id`, `partition` and `file_index` (all three required, with something
    other than a digit between them), `wal_id`, `sink`, `ext`, and `date`, the day in UTC on which the file was begun.
    Numbers may be padded, `{batch_id:06d}`; a date may be written as `{date:%Y/%m/%d}`.
    `part_bytes`: the size of each part of a multipart upload to S3. An open file takes so much memory, plus one chunk.
    At least 5 MiB.

    `keep_segments`, `on_gone`: see `TwoPhaseSink`.

    `held_folder`: for local folders, the absolute path of another folder that holds files until they are committed. It
    lies outside the first folder and on the same file system. Set it if readers show hidden files, as fsspec's `**` and
    `Path.rglob` do.

    On a local file system a file is held in the folder `.wal-sink-held`, and its commit is a rename. On S3 it is a
    multipart upload, and its commit completes the upload. A file of another writer is never replaced. Chunks without
    rows write nothing. Columns are refused as by `FilesSink`. Raises `ConfigError` for arguments that cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        format: Format = "jsonl",  # noqa: A002 - what Spark and pandas call it
        name_template: str = SEGMENT_TEMPLATE,
        storage_options: Mapping[str, object] | None = None,
        options_from_env: Mapping[str, str] | None = None,
        part_bytes: int = PART_BYTES,
        maps: Maps = "object",
        held_folder: str | None = None,
        keep_segments: bool = True,
        on_gone: OnGone = "halt",
    ) -> None:
        one_of("format", format, get_args(Format))
        check_maps(maps)
        self._names = SegmentNames(name_template, ext=format)
        self._folder = Folder(url, storage_options, options_from_env)
        self.writes_files_to = url
        self._format: Format = format
        self._part_bytes = part_bytes
        self._maps: Maps = maps
        self._held_folder = held_folder
        self.keep_segments = keep_segments
        self.on_gone = on_gone
        self._writing: _Writing | None = None
        self._check_place()

    def __repr__(self) -> str:
        return f"TwoPhaseFilesSink({self._folder.spec.safe_url!r}, format={self._format!r})"

    def open(self, context: SinkContext) -> None:
        """Read the environment and open the store. Raises `PermanentError` if either lacks something."""
        self._folder.open(repr(self), context)

    def examine(self, schema: Any) -> Sequence[Finding]:  # noqa: ARG002 - files take any columns
        """Look into the folder, and write nothing."""
        return [self._folder.examine(repr(self))]

    def close(self) -> None:
        """Forget the values from the environment, and a file that was not prepared."""
        self._leave()
        self._folder.close()

    def begin(self, transaction: Transaction) -> str:
        """Begin an invisible file. Raises `StoreError`."""
        self._leave()
        self._writing = _Writing.begun(transaction, self._holder(), self._names.name_of(transaction), self._format)
        return self._writing.held.token

    def write(self, chunk: Chunk) -> None:
        """Append a chunk.

        Raises `ConfigError` for a column that has the name of a folder, `PermanentError` for a column the format cannot
        carry, `StoreError`.
        """
        writing = self._begun()
        if not chunk.num_rows:
            return
        what = name_of(chunk)
        check_columns(chunk.table.column_names, writing.name, what)
        writing.rows += chunk.num_rows
        try:
            writing.file.add(written_as(self._format, chunk, self._maps))
        except (ConfigError, pa.ArrowException) as error:
            raise PermanentError(f"{what} as {self._format}: {error}") from error

    def prepare(self) -> str:
        """Make the file whole and durable, still invisible. Raises what `write` raises."""
        writing = self._begun()
        if not writing.rows:
            token = writing.held.token
            self._leave()
            self._holder().drop(writing.transaction.id, token)
            return _NO_ROWS
        try:
            writing.file.finish()
        except (ConfigError, pa.ArrowException) as error:
            given = writing.transaction
            raise PermanentError(
                f"batch {given.batch_id}, segment {given.partition}-{given.file_index} as {self._format}: {error}"
            ) from error
        handle = writing.held.prepare()
        self._writing = None
        return handle

    def commit(self, transaction: Transaction, handle: str) -> None:
        """Give the file its name. Raises `HandleGoneError`, `StoreError`, `PermanentError` if the name is taken."""
        if handle != _NO_ROWS:
            self._holder().commit(transaction.id, handle)

    def abort(self, transaction: Transaction, token: str) -> None:
        """Remove the held file, or abort the upload that `token` names. Raises `StoreError`."""
        if self._writing is not None and self._writing.transaction.id == transaction.id:
            token = token or self._writing.held.token
            self._leave()
        self._holder().drop(transaction.id, token)

    def _leave(self) -> None:
        """Stop writing; the held part stays until it is aborted."""
        if self._writing is not None:
            self._writing.file.drop()
            self._writing.held.close()
        self._writing = None

    def _begun(self) -> _Writing:
        if self._writing is None:
            raise RuntimeError(f"{self!r}: no transaction is under way: call begin() first")
        return self._writing

    def _holder(self) -> FileHolder:
        store: Store = self._folder.store(repr(self))
        if isinstance(store, LocalStore):
            return LocalHolder(store, Path(self._folder.spec.location), self._held_folder or "")
        from wal_sink.stores.s3 import S3Store  # noqa: PLC0415 - an optional dependency
        from wal_sink_backends.files.s3 import S3Holder  # noqa: PLC0415

        if not isinstance(store, S3Store):
            raise TypeError(f"{self!r}: expected a store on S3, found {type(store).__name__}")
        return S3Holder(store, self._part_bytes)

    def _check_place(self) -> None:
        spec = self._folder.spec
        if spec.scheme not in {LOCAL, S3} or "::" in spec.url:
            raise ConfigError(
                f"{spec.safe_url}: two-phase commit of files works on a local file system and on S3 only. Use "
                "FilesSink: it writes each chunk once in effect on any store"
            )
        if self._held_folder is not None:
            _check_held_folder(self._held_folder, spec)
        given: object = self._part_bytes
        if not isinstance(given, int) or isinstance(given, bool) or not MIN_PART_BYTES <= given <= MAX_PART_BYTES:
            raise ConfigError(
                f"part_bytes={given!r}: expected a whole number from {MIN_PART_BYTES} (S3 accepts no smaller parts) to "
                f"{MAX_PART_BYTES} (a part is held in memory)"
            )


def _check_held_folder(given: str, spec: StoreSpec) -> None:
    if spec.scheme != LOCAL:
        raise ConfigError(
            f"{spec.safe_url}: held_folder is only for local folders, because S3 shows nothing of an unfinished "
            "upload. Omit held_folder"
        )
    folder, held = Path(spec.location).resolve(), Path(given).resolve()
    if not Path(given).is_absolute() or folder in [held, *held.parents]:
        raise ConfigError(
            f"held_folder={given!r}: expected the absolute path of a local folder outside of {spec.location}, and on "
            "its file system. Otherwise readers of the folder would find the held files"
        )


@dataclass(slots=True)
class _Writing:
    """A file under construction."""

    transaction: Transaction
    name: str
    """The path that its file will have in the folder."""
    held: HeldFile
    file: RowsFile
    rows: int = 0

    @classmethod
    def begun(cls, transaction: Transaction, holder: FileHolder, name: str, form: Format) -> _Writing:
        held = holder.hold(transaction.id, name)
        return cls(transaction, name, held, new_file(form, held.write))
