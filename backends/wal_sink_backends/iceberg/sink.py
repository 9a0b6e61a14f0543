"""An Iceberg table that shows each batch in one commit, with the position of the sink in it: exactly once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from wal_sink.errors import ConfigError, HistoryError, StoreError
from wal_sink.sinks.base import CommitPosition, CommitSink
from wal_sink.support.arguments import check_bool, one_of
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.options import from_environment
from wal_sink_backends.common.segment_files import (
    IfRolledBack,
    SegmentFile,
    check_names,
    file_of,
    handle_of,
    refuse_missing,
    refuse_nulls,
    schema_of_segment,
)
from wal_sink_backends.common.sinks import ReadySink, client_library
from wal_sink_backends.iceberg.history import UnknownHistoryError, head_of, position_of, stored_in
from wal_sink_backends.iceberg.schema import check_columns, check_table, table_schema

if TYPE_CHECKING:
    from wal_sink.sinks.base import BatchCommit, SinkContext, StagedSegment
    from wal_sink_backends.iceberg.table import Table

_NAME = re.compile(r"[^\s./?#]+(\.[^\s./?#]+)+")
_TRIES = 50
"""Looks of one commit. After each one but the last, another writer committed first."""


class IcebergSink(ReadySink, CommitSink):
    """An Iceberg table to which each batch is appended in one commit, with the position of the sink in it. Runs
    anywhere.

    `table`: its namespace and name, such as `lake.orders`. `catalog`: the catalogue's properties and those of its
    files, as pyiceberg names them; `name` is the catalogue's name, `default` without it. They travel to the executors
    with the sink, secrets included, but are never shown. `options_from_env` maps names of properties to environment
    variables instead, which are read where the sink runs. pyiceberg also reads its own configuration.

    A segment becomes a file of the table as it is, so no row is encoded twice. The table is refused if a file of it
    needs more than a segment has: partitions, identifier columns, default values, another format version than 1 and 2.
    Columns are matched by name, and their types must be equal; columns that only the table has are NULL.

    `create=True` makes a missing table with the columns of the first batch. `rolled_back="accept"`, meant for one
    start: go on after a rollback to a snapshot before the newest batch, without its rows, or if nobody can tell since
    snapshots expired.

    Other writers may append, delete, update, compact and expire snapshots at the same time. Raises `ConfigError` for
    arguments that cannot work.

        sink = IcebergSink("lake.orders", catalog={"type": "rest", "uri": "https://catalog"}, create=True)
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, object] | None = None,
        options_from_env: Mapping[str, str] | None = None,
        create: bool = False,
        rolled_back: IfRolledBack = "refuse",
    ) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigError(f"table={table!r}: expected a namespace and a name, such as 'lake.orders'")
        check_bool("create", create)
        one_of("rolled_back", rolled_back, get_args(IfRolledBack))
        self._name = table
        self._catalog = dict(catalog or {})
        self._options_from_env = dict(options_from_env or {})
        self._create = create
        self._rolled_back = rolled_back
        self._table: Table | None = None
        self._context: SinkContext | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self._name!r})"

    def open(self, context: SinkContext) -> None:
        """Read the environment, load the library and open the catalogue. Raises `PermanentError`, `ConfigError` or
        `StoreError`.
        """
        check_names(context.columns, repr(self))
        self._table, self._context = self._new_table(), context

    def close(self) -> None:
        """Forget the table and the values from the environment."""
        if self._table is not None:
            self._table.close()
        self._table = self._context = None

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Read the table and compare it with these columns. No table is made."""
        what = repr(self)
        with closing(self._new_table()) as table:
            metadata = table.look()
        if schema is not None:
            table_schema(schema, what)
        if metadata is None:
            refuse_missing(repr(self), create=self._create)
            return [fine("target", f"{what}: the first delivery makes this table")]
        check_table(metadata, what)
        if schema is not None:
            check_columns(metadata, what, schema)
        return [fine("target", f"{what} can be reached, is at snapshot {head_of(metadata)} and takes whole files")]

    def prepare(self, segment: StagedSegment) -> str:
        """Copy the segment into the table's folder, under a name that no other segment and no other sink has.

        Makes a missing table, since the catalogue decides where its files are.
        """
        table, context = self.opened(self._table), self.opened(self._context)
        if not table.is_known and table.look() is None:
            refuse_missing(repr(self), create=self._create)
            table.create(table_schema(schema_of_segment(segment.data)[1], repr(self)))
            table.look()
        path = table.write_data(f"wal-sink-{context.wal_id}-{context.sink}-{segment.id}.parquet", segment.data)
        return handle_of(path, segment.data)

    def position(self) -> CommitPosition | None:
        """The position in the newest metadata of the table.

        Raises `HistoryError` if snapshots since the newest batch are gone, `StoreError`.
        """
        return self._position_in(self.opened(self._table).look())

    def commit(self, batch: BatchCommit) -> None:
        """Append the files and the position on top of the snapshot whose position was read.

        If another writer commits first, look again. Raises `PermanentError` for a table that the files do not fit,
        `StoreError` if a file is gone, if the position is another one, and for any failure of the catalogue.
        """
        table, what = self.opened(self._table), f"batch {batch.batch_id}: {self!r}"
        files = [file_of(handle) for handle in batch.handles]
        for _ in range(_TRIES):
            metadata = table.look()
            found = self._position_in(metadata)
            if found == batch.position:
                return
            if found != batch.follows:
                raise StoreError(f"{what}: expected {batch.follows} in the table, found {found}. Nothing was committed")
            if metadata is None:
                raise StoreError(f"{what}: the table is gone since its files were written. Nothing was committed")
            check_table(metadata, what)
            refuse_nulls(files, table.footer, what, partial(check_columns, metadata, what))
            _check_files(table, files, what)
            try:
                table.append(files, self._key(), batch.position)
            except StoreError:
                newer = table.look()
                if newer is None or _state(newer) == _state(metadata):
                    raise
            else:
                return
        raise StoreError(f"{what}: other writers committed first {_TRIES} times in a row. Nothing was committed")

    def _new_table(self) -> Table:
        options = from_environment(self._options_from_env, repr(self))
        module = client_library(
            "wal_sink_backends.iceberg.table",
            f"{self!r} needs pyiceberg",
            "iceberg",
            "'pyiceberg[sql-sqlite]>=0.12,<0.13'",
        )
        found: Table = module.Table(self._name, {**self._catalog, **options}, repr(self))
        return found

    def _key(self) -> str:
        context = self.opened(self._context)
        return f"wal-sink.{context.wal_id}.{context.sink}"

    def _position_in(self, metadata: Any) -> CommitPosition | None:
        if metadata is None:
            return None
        key = self._key()
        try:
            stored = stored_in(metadata, key)
        except ValueError as error:
            raise HistoryError(
                f"{self!r}: the property {key} of the table is not as this sink stores it. Another program changed it"
            ) from error
        if stored is None:
            return None
        if self._rolled_back == "accept":
            return CommitPosition(stored.batch, stored.digest)
        try:
            return position_of(metadata, key, stored)
        except UnknownHistoryError as gone:
            raise HistoryError(
                f"{self!r}: batch {stored.batch} was committed as snapshot {stored.snapshot}, but snapshot {gone} or "
                "the one before it is expired. So nobody can tell whether the table was rolled back since. Look at the "
                "table. If it has the rows, start once with rolled_back='accept'. Keep snapshots "
                "(history.expire.max-snapshot-age-ms) for longer than the stream may stand still"
            ) from gone


def _state(metadata: Any) -> tuple[object, ...]:
    return metadata.table_uuid, head_of(metadata), metadata.current_schema_id, metadata.default_spec_id


def _check_files(table: Table, files: Sequence[SegmentFile], what: str) -> None:
    """Look at each file, since the catalogue commits a missing one.

    Raises `StoreError`; the next attempt prepares all of them again.
    """
    for file in files:
        if (size := table.size(file.path)) != file.size:
            raise StoreError(
                f"{what}: {file.path} should have {file.size} bytes, and there is "
                f"{'no such file' if size is None else f'one of {size}; remove it'}. Orphan files must be retained for "
                "longer than a delivery takes"
            )
