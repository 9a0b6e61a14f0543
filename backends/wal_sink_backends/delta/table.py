"""A Delta table as the sink reaches it: its state, its log and its files, through one store with one set of options.

Errors of the library become `StoreError`, or `PermanentError` if no retry helps; none shows a secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink.stores.spec import LOCAL, StoreSpec
from wal_sink.support.secrets import Redactor, named_secrets
from wal_sink_backends.common.sinks import client_library
from wal_sink_backends.delta.upserts import SOURCE, TARGET, quoted

_PACKAGE = "'deltalake>=1.6,<1.7'"
_LASTING = re.compile(r"[Uu]nsupported|not supported|catalog-managed")
"""Of an error that no retry helps against."""
_WRITING: Mapping[str, str] = MappingProxyType({"timeout": "20s", "retry_timeout": "10s"})
"""Limits where the options have none: the library opens a file on S3 for writing while it holds Python's lock."""
_KEPT: dict[tuple[object, ...], tuple[Any, tuple[int, int] | None]] = {}
"""By address and options, a state that no object uses now, and what its newest entry of the log was."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Table:
    """A table at an address. It may be absent. Used by one thread.

    Raises `ConfigError` if deltalake is not installed, or is another version than those that were tried.
    """

    def __init__(self, spec: StoreSpec, who_needs_it: str) -> None:
        lake = client_library("deltalake", f"{who_needs_it} needs deltalake", "delta", _PACKAGE)
        if not lake.__version__.startswith("1.6."):
            raise ConfigError(
                f"{who_needs_it} was tried with deltalake 1.6 only, and {lake.__version__} is installed: whether a "
                f"commit can land on another version than expected depends on it. pip install {_PACKAGE}"
            )
        self._lake, self._errors = lake, lake.exceptions
        self._url, self._is_local = spec.safe_url, spec.scheme == LOCAL
        self._address = spec.location if self._is_local else spec.url
        self._options = {name: str(value) for name, value in spec.options.items()}
        self._redactor = Redactor(named_secrets(self._options))
        self._key = (self._address, tuple(sorted(self._options.items())))
        self._state: Any = None
        self._newest: tuple[int, int] | None = None
        self._entries: dict[int, bytes] = {}

    def look(self) -> Any:
        """The newest state; None if there is no table.

        A known state is brought up to date, also one of an earlier object: a state costs a request for each entry of
        the log since its last checkpoint. The library's update does not notice that a table was deleted or made anew,
        so the newest known entry must still be the same file.
        """
        known, entry = (self._state, self._newest) if self._state is not None else _KEPT.pop(self._key, (None, None))
        self._state, self._entries = None, {}
        with self._translated("reading the table"), suppress(self._errors.TableNotFoundError):
            if known is not None and entry is not None and entry == self._info(known.version()):
                known.update_incremental()
            else:
                known = self._lake.DeltaTable(self._address, storage_options=self._options)
            self._state, self._newest = known, self._info(known.version())
        return self._state

    def close(self) -> None:
        """Keep the state for another object in this process."""
        if self._state is not None:
            _KEPT[self._key] = self._state, self._newest
            self._state = None

    def _info(self, version: int) -> tuple[int, int] | None:
        """Size and time of an entry of the log; None if it is gone."""
        (info,) = self._files(self._options).get_file_info([_entry(version)])
        return None if info.size is None else (info.size, info.mtime_ns)

    def positions(self, names: Sequence[str]) -> list[int | None]:
        """The versions of these application ids in the state of the last look: a request for each entry since the last
        checkpoint, for each of them.
        """
        with self._translated("reading positions"):
            return [self._state.transaction_version(name) for name in names]

    def make_folder(self) -> None:
        """Make a missing local folder, which the library does not do for files. Stores have none."""
        if self._is_local:
            Path(self._address).mkdir(parents=True, exist_ok=True)

    def create(self, schema: Mapping[str, Any]) -> None:
        """Make the table, unless another process was faster. Its first batch may be there then, so look again."""
        with self._translated("making the table"), suppress(self._errors.CommitFailedError):
            self._lake.DeltaTable.create(
                self._address,
                self._lake.Schema.from_json(json.dumps(schema)),
                mode="ignore",
                storage_options=self._options,
                commit_properties=self._lake.CommitProperties(max_commit_retries=0),  # else it makes it a second time
            )

    def entry(self, version: int) -> bytes | None:
        """The log's entry of a version; None if it is gone."""
        with self._translated(f"reading entry {version} of the log"), suppress(FileNotFoundError):
            if version not in self._entries:
                self._entries[version] = self._opened(_entry(version)).read()
        return self._entries.get(version)

    def append(
        self, files: Sequence[tuple[str, int, int, str]], positions: Mapping[str, int], told: Mapping[str, object]
    ) -> None:
        """Commit files (path, size, milliseconds, statistics) and positions as the version after that of the last look.

        Raises `StoreError` if another writer made this version, or if it is not known whether this commit did.
        """
        state, lake = self._state, self._lake
        version = state.version() + 1
        with self._translated(f"committing version {version}"):
            properties = lake.CommitProperties(
                custom_metadata={"isBlindAppend": True, "walSink": told},
                max_commit_retries=0,  # else the library rebases: it lands on a later version, which nobody looked at
                app_transactions=[lake.Transaction(name, number) for name, number in positions.items()],
            )
            adds = [
                lake.transaction.AddAction(path, size, {}, changed_ms, data_change=True, stats=statistics)
                for path, size, changed_ms, statistics in files
            ]
            state.create_write_transaction(adds, "append", state.schema(), commit_properties=properties)
            self._sync(_entry(version))

    def merge(
        self,
        rows: pa.Table,
        same_key: str,
        updates: Sequence[tuple[str, Mapping[str, str]]],
        positions: Mapping[str, int],
        told: Mapping[str, object],
    ) -> bool:
        """Apply rows, one for each key, and commit them with positions as the version after that of the last look.

        False if they alter nothing: then nothing is committed, no position either. Raises `StoreError` as `append`.
        """
        state, lake = self._state, self._lake
        version = state.version() + 1
        with self._translated(f"merging into version {version}"):
            properties = lake.CommitProperties(
                custom_metadata={"walSink": told},
                max_commit_retries=0,
                app_transactions=[lake.Transaction(name, number) for name, number in positions.items()],
            )
            merging = state.merge(
                rows, same_key, source_alias=SOURCE, target_alias=TARGET, commit_properties=properties
            )
            for condition, values in updates:
                merging = merging.when_matched_update(dict(values), condition)
            inserted = {quoted(name): f"{SOURCE}.{quoted(name)}" for name in rows.column_names}
            merging.when_not_matched_insert(inserted).execute()
            if state.version() < version:
                return False
            self._sync(_entry(version))
            return True

    def read(self, path: str) -> pa.Table:
        """The rows of a file."""
        with self._translated(f"reading {path}"):
            return pq.ParquetFile(pa.BufferReader(self._opened(path).read())).read()

    def add_columns(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """Commit columns as the version after that of the last look. Raises `StoreError` as `append` does."""
        state, lake = self._state, self._lake
        version = state.version() + 1
        with self._translated(f"adding columns as version {version}"):
            schema = lake.Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))
            state.alter.add_columns(schema.fields, commit_properties=lake.CommitProperties(max_commit_retries=0))
            self._sync(_entry(version))

    def write(self, path: str, data: bytes) -> None:
        """Write a file as a whole. A file of this name is replaced."""
        with self._translated(f"writing {path}"):
            stream = self._files({**_WRITING, **self._options}).open_output_stream(path)
            stream.write(data)
            stream.close()
            self._sync(path)

    def found(self, paths: Sequence[str]) -> list[tuple[int | None, int]]:
        """The size of each file, None if it is absent, and the milliseconds of its last change."""
        with self._translated("looking at files"):
            infos = self._files(self._options).get_file_info(list(paths))
            return [(info.size, (info.mtime_ns or 0) // 1_000_000) for info in infos]

    def footer(self, path: str) -> tuple[Any, pa.Schema]:
        """Footer and Arrow schema of a Parquet file."""
        with self._translated(f"reading the footer of {path}"):
            file = pq.ParquetFile(pa.PythonFile(self._opened(path), mode="r"))
            return file.metadata, file.schema_arrow

    def _opened(self, path: str) -> Any:
        """A file to read. Raises `FileNotFoundError`."""
        info = self._files(self._options).get_file_info([path])[0]
        if info.size is None:
            raise FileNotFoundError(path)
        return self._files(self._options, {path: info.size}).open_input_file(path)

    def _files(self, options: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Any:
        """The library's own way to files. Without the size of a file, it asks for it while it holds Python's lock.

        This class is behind `deltalake.fs.DeltaStorageHandler`, whose streams refuse the buffers of pyarrow 26.
        """
        return self._lake._internal.DeltaFileSystemHandler(self._address, options, sizes)  # noqa: SLF001

    def _sync(self, path: str) -> None:
        """Make a local file durable. The library does not: a power cut may keep an entry and lose a file it names."""
        for place in (Path(self._address, path), Path(self._address, path).parent) if self._is_local else ():
            opened = os.open(place, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._errors.DeltaError, OSError, pa.ArrowException, ValueError, RuntimeError) as error:
            text = " ".join(_COLOURS.sub("", self._redactor(str(error))).split())
            lasting = isinstance(error, self._errors.DeltaProtocolError) or _LASTING.search(text)
            kind = PermanentError if lasting else StoreError
            raise kind(f"{self._url}: {doing}: {text}") from self._redactor.cause(error)


def _entry(version: int) -> str:
    return f"_delta_log/{version:020}.json"
