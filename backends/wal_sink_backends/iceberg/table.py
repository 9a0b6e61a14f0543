"""An Iceberg table as the sink reaches it: its catalogue, its metadata and its files.

Errors of the library become `StoreError`, or `ConfigError` if no retry helps; none shows a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import update as typed_update

from wal_sink.errors import ConfigError, StoreError
from wal_sink.stores.base import ObjectExists
from wal_sink.stores.local import LocalStore, sync_folder
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.secrets import Redactor, named_secrets
from wal_sink_backends.iceberg.history import head_of
from wal_sink_backends.iceberg.schema import NAME_MAPPING, name_mapping
from wal_sink_backends.iceberg.snapshot import new_snapshot

if TYPE_CHECKING:
    from wal_sink.sinks.base import CommitPosition
    from wal_sink_backends.common.segment_files import SegmentFile

update: Any = typed_update  # its types know the names of JSON only
_FILES = "pyiceberg.io.pyarrow.PyArrowFileIO"


class Table:
    """A table of a catalogue. It may be absent. Used by one thread.

    Raises `ConfigError` if pyiceberg is another version than those that were tried, or cannot make a catalogue of these
    properties; `StoreError` if the catalogue cannot be reached.
    """

    def __init__(self, name: str, catalog: Mapping[str, object], who_needs_it: str) -> None:
        if not pyiceberg.__version__.startswith("0.12."):
            raise ConfigError(
                f"{who_needs_it} was tried with pyiceberg 0.12 only, and {pyiceberg.__version__} is installed: whether "
                "the library tries a commit a second time depends on it. pip install 'pyiceberg>=0.12,<0.13'"
            )
        properties = {key: str(value) for key, value in catalog.items()}
        password = properties.get("credential", "").partition(":")[2]  # of id:password, which is sent in two parts
        self._name, self._what = name, who_needs_it
        self._redactor = Redactor({*named_secrets(properties), password})
        with self._translated("opening the catalogue", (ValueError, ImportError)):
            self._catalog = load_catalog(properties.pop("name", "default"), **{"py-io-impl": _FILES, **properties})
        self._state: Any = None

    def look(self) -> Any:
        """The newest metadata; None if there is no table."""
        self._state = None
        with self._translated("reading the table"), suppress(NoSuchNamespaceError, NoSuchTableError):
            self._state = self._catalog.load_table(self._name)
        return None if self._state is None else self._state.metadata

    @property
    def is_known(self) -> bool:
        """Whether the last look found the table."""
        return self._state is not None

    def close(self) -> None:
        """Close the connections to the catalogue. Errors of the catalogue pass through."""
        self._catalog.close()

    def create(self, schema: Mapping[str, Any]) -> None:
        """Make the table and its namespace, unless another process was faster."""
        namespace = self._name.rpartition(".")[0]
        with self._translated("making the table"):
            if not self._catalog.namespace_exists(namespace):
                with suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(namespace)
            with suppress(TableAlreadyExistsError):
                self._catalog.create_table(self._name, Schema.model_validate(schema))

    def write_data(self, name: str, data: bytes) -> str:
        """Write a file of the table of the last look as a whole. Returns its path."""
        path = f"{self._state.location_provider().data_path}/{name}"
        self._write(path, data)
        return path

    def size(self, path: str) -> int | None:
        """The size of a file; None if it is absent."""
        with self._translated(f"looking at {path}"), suppress(FileNotFoundError):
            return len(self._state.io.new_input(path))
        return None

    def footer(self, path: str) -> tuple[Any, pa.Schema]:
        """Footer and Arrow schema of a Parquet file."""
        with self._translated(f"reading the footer of {path}"), self._state.io.new_input(path).open() as stream:
            file = pq.ParquetFile(stream)
            return file.metadata, file.schema_arrow

    def append(self, files: Sequence[SegmentFile], key: str, position: CommitPosition) -> None:
        """Commit files and the position under `key` on top of the snapshot of the last look.

        Raises `StoreError` if another writer committed, or if it is not known whether this commit was made.
        """
        metadata = self._state.metadata
        with self._translated("committing"):
            snapshot, mark = new_snapshot(self._state, files, key, position, self._write)
            properties = {key: mark}
            if NAME_MAPPING not in metadata.properties:
                properties[NAME_MAPPING] = name_mapping(metadata)
            made = self._catalog.commit_table(  # once: `Table.commit` of the library tries again, and appends twice
                self._state,
                (
                    update.AssertTableUUID(uuid=metadata.table_uuid),
                    update.AssertRefSnapshotId(ref="main", snapshot_id=head_of(metadata)),
                    update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
                    update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
                ),
                (
                    update.AddSnapshotUpdate(snapshot=snapshot),
                    update.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot.snapshot_id),
                    update.SetPropertiesUpdate(updates=properties),
                ),
            )
            if (place := _local(made.metadata_location)) is not None:
                _sync(place)

    def _write(self, path: str, data: bytes) -> None:
        """Write a file as a whole. The same bytes go under the same name, so a file that is there stays or is replaced
        at once.
        """
        with self._translated(f"writing {path}"):
            if (place := _local(path)) is not None:
                with suppress(ObjectExists):
                    LocalStore(StoreSpec(str(place.parent))).create(place.name, data)
                return
            stream = self._state.io.new_output(path).create(overwrite=True)
            stream.write(data)
            stream.close()  # not after an error: it would complete a part of the file

    @contextmanager
    def _translated(self, doing: str, lasting: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each catalogue has its own
            text = " ".join(self._redactor(f"{type(error).__name__}: {error}").split())
            kind = ConfigError if isinstance(error, lasting) else StoreError
            raise kind(f"{self._what}: {doing}: {text}") from self._redactor.cause(error)


def _local(location: str) -> Path | None:
    """The path of a local file; None for a file on a store."""
    parts = urlsplit(location)
    return Path(parts.path if parts.scheme else location) if parts.scheme in {"", "file"} else None


def _sync(place: Path) -> None:
    """Make a local file durable, which the library does not."""
    with place.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(place.parent)
