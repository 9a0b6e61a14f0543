"""A Delta table that shows each batch in one commit, with the position of the sink in it: exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from wal_sink.errors import ConfigError, HistoryError, StoreError
from wal_sink.sinks.base import CommitPosition, CommitSink
from wal_sink.stores.spec import LOCAL, StoreSpec
from wal_sink.support.arguments import check_bool, one_of
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.changes import OnDelete
from wal_sink_backends.common.options import from_environment, refuse_braces
from wal_sink_backends.common.segment_files import (
    IfRolledBack,
    SegmentFile,
    check_names,
    file_of,
    handle_of,
    refuse_missing,
    refuse_nulls,
    schema_of,
)
from wal_sink_backends.common.sinks import Evolve, ReadySink
from wal_sink_backends.delta.history import LogGoneError, Positions, positions, shown
from wal_sink_backends.delta.schema import (
    Field,
    check_columns,
    check_mergeable,
    check_table,
    columns_with_bounds,
    new_columns,
    table_schema,
)
from wal_sink_backends.delta.table import Table
from wal_sink_backends.delta.upserts import Upserts

if TYPE_CHECKING:
    from wal_sink.sinks.base import BatchCommit, SinkContext, StagedSegment

Mode: TypeAlias = Literal["append", "upsert"]
_STORES = (LOCAL, "s3", "gs", "az", "abfs", "abfss")
_TRIES = 50
"""Looks of one commit. After each one but the last, another writer committed first."""
_PARTS = ("", "/version", "/digest")
"""Of the application ids whose versions are the position: the batch, the table's version, and the batch's digest."""


class DeltaSink(ReadySink, CommitSink):
    """A Delta table that gets each batch in one commit, with the position of the sink in it. Runs anywhere.

    `table`: a local folder (on a cluster one that every machine mounts), `s3://bucket/table`, or a table on `gs://`,
    `az://` or `abfss://`, which were not tried. `storage_options`: as deltalake names them. They travel to the
    executors with the sink, secrets included, but are never shown. `options_from_env` maps names of options to
    environment variables instead, which are read where the sink runs. deltalake also finds credentials itself.

    With `mode="append"` a segment becomes a file of the table as it is, so no row is encoded twice. The table is
    refused if a file of it needs more than a segment has: partitions, column mapping, constraints, computed columns,
    unknown features. Columns are matched by name, and their types must be equal; columns that only the table has are
    NULL. With `evolve="add"` the table gets a column that it lacks, in a commit before that of the batch; never a name
    that differs from another one only in case.

    `mode="upsert"` replaces the row with the same `key`, with `newer_by` (one column or several) only if the new row is
    as new or newer. With `delete_when`, a boolean column, and `on_delete="mark"` it takes a change stream. All rows of
    a batch, one for each key, are in memory, and a file in which a row is replaced is written again.

    `create=True` makes a missing table with the columns of the first batch. `rolled_back="accept"`, meant for one
    start: go on after a RESTORE to a state before the newest batch, without its rows, or if nobody can tell since the
    log's entries are gone.

    Other writers may append, delete, update, compact and vacuum at the same time. Raises `ConfigError` for arguments
    that cannot work.

        sink = DeltaSink("s3://lake/orders", create=True)
    """

    def __init__(
        self,
        table: str,
        *,
        storage_options: Mapping[str, object] | None = None,
        options_from_env: Mapping[str, str] | None = None,
        mode: Mode = "append",
        key: Sequence[str] = (),
        newer_by: Sequence[str] = (),
        delete_when: str | None = None,
        on_delete: OnDelete = "delete",
        create: bool = False,
        evolve: Evolve = "refuse",
        rolled_back: IfRolledBack = "refuse",
    ) -> None:
        refuse_braces("table", table)
        check_bool("create", create)
        one_of("evolve", evolve, get_args(Evolve))
        one_of("rolled_back", rolled_back, get_args(IfRolledBack))
        self._spec = StoreSpec(table, dict(storage_options or {}))
        if self._spec.scheme not in _STORES or "::" in self._spec.url:
            raise ConfigError(
                f"{self._spec.safe_url}: expected a local folder, or the URL of a table that begins with "
                f"{', '.join(f'{scheme}://' for scheme in _STORES[1:])}"
            )
        self.writes_files_to = self._spec.url
        self._options_from_env = dict(options_from_env or {})
        self._create = create
        self._adds = evolve == "add"
        one_of("mode", mode, get_args(Mode))
        self.replaces_rows = mode == "upsert"
        self._upserts = Upserts.of(repr(self), key, newer_by, delete_when, on_delete) if mode == "upsert" else None
        self._never_added = (*self._upserts.key, *self._upserts.newer_by, delete_when) if self._upserts else ()
        if self._upserts is None and (key or newer_by or delete_when):
            raise ConfigError(f"{self!r}: key, newer_by and delete_when need mode='upsert'")
        self._rolled_back = rolled_back
        self._table: Table | None = None
        self._context: SinkContext | None = None
        self._looked: Any = None

    def __repr__(self) -> str:
        return f"DeltaSink({self._spec.safe_url!r})"

    def open(self, context: SinkContext) -> None:
        """Read the environment and load the library. Raises `PermanentError` or `ConfigError` if either is missing."""
        check_names(context.columns, repr(self))
        self._table, self._context = self._new_table(), context
        if self._create:
            self._table.make_folder()

    def close(self) -> None:
        """Forget the table and the values from the environment."""
        if self._table is not None:
            self._table.close()
        self._table = self._context = self._looked = None

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Read the table and compare it with these columns. Nothing is made."""
        state, what = self._new_table().look(), repr(self)
        if schema is not None:
            table_schema(schema, what)
            if self._upserts is not None:
                self._upserts.check(schema, what)
        if state is None:
            refuse_missing(repr(self), create=self._create)
            return [fine("target", f"{what}: the first delivery makes this table")]
        check_table(state, what)
        if self._upserts is not None:
            check_mergeable(state, what)
        added = new_columns(state, [schema], self._never_added, what) if self._adds and schema is not None else []
        if schema is not None:
            check_columns(state, schema, what, added)
        adds = f". The next delivery adds the columns {', '.join(each['name'] for each in added)}" if added else ""
        return [fine("target", f"{what} can be reached, is at version {state.version()} and takes whole files{adds}")]

    def prepare(self, segment: StagedSegment) -> str:
        """Copy the segment into the table's folder, under a name that no other segment and no other sink has."""
        context = self.opened(self._context)
        path = f"wal-sink-{context.wal_id}-{context.sink}-{segment.id}.parquet"
        self.opened(self._table).write(path, segment.data)
        return handle_of(path, segment.data)

    def position(self) -> CommitPosition | None:
        """The position in the newest state of the table.

        Raises `HistoryError` if the log's entries since the newest batch are gone, `StoreError`.
        """
        self._looked = self.opened(self._table).look()
        return self._position_in(self._looked)

    def commit(self, batch: BatchCommit) -> None:
        """Append the files and the position as the version after the one whose position was read.

        Columns that the table gets are the version before it. If another writer makes either version first, look again.
        Raises `PermanentError` for a table that the files do not fit, `StoreError` if a file is gone, if the position
        is another one, and for any failure of the store.
        """
        table, slot, what = self.opened(self._table), self._slot(), f"batch {batch.batch_id}: {self!r}"
        files = [file_of(handle) for handle in batch.handles]
        for _ in range(_TRIES):
            state, self._looked = self._looked or table.look(), None
            found = self._position_in(state)
            if found == batch.position:
                return
            if found != batch.follows:
                raise StoreError(f"{what}: expected {batch.follows} in the table, found {found}. Nothing was committed")
            if state is None:
                refuse_missing(repr(self), create=self._create)
                table.create(table_schema(schema_of(files[0], table.footer), what))
                continue
            new = self._check(table, state, files, what)
            version = state.version()
            numbers = (batch.batch_id, version + 1, int(batch.digest, 16))
            stored = {slot + part: number for part, number in zip(_PARTS, numbers, strict=True)}
            told = {"sink": slot, "batch": batch.batch_id, "rows": batch.rows}
            try:
                if new:
                    table.add_columns(new)
                    continue  # somebody may have altered it since
                if self._upserts is not None:
                    self._upserts.merge(table, [file.path for file in files], stored, told)
                    return
                added = _added(table, files, columns_with_bounds(state), what)
                table.append(added, stored, told)
            except StoreError:
                if (newer := table.look()) is None or newer.version() == version:
                    raise
            else:
                return
        raise StoreError(f"{what}: other writers made the next version {_TRIES} times in a row. Nothing was committed")

    def _new_table(self) -> Table:
        options = from_environment(self._options_from_env, repr(self))
        return Table(StoreSpec(self._spec.url, {**self._spec.options, **options}), repr(self))

    def _slot(self) -> str:
        context = self.opened(self._context)
        return f"wal-sink/{context.wal_id}/{context.sink}"

    def _position_in(self, state: Any) -> CommitPosition | None:
        if state is None:
            return None
        table, newest, names = self.opened(self._table), state.version(), [self._slot() + part for part in _PARTS]
        stored = positions(table, newest, names)
        if not any(number is not None for number in stored):
            return None
        batch_id, version, digest = self._complete(stored)
        if self._rolled_back == "accept":
            return CommitPosition(batch_id, digest)
        try:
            found = shown(table, stored, newest, names)
        except LogGoneError as gone:
            raise HistoryError(
                f"{self!r}: batch {batch_id} was committed as version {version}, but entry {gone} of the log is gone, "
                "or removes files and names no operation. So nobody can tell whether the table was restored to an "
                "older version since. Look at the table. If it has the rows, start once with rolled_back='accept'. "
                "Keep the log (delta.logRetentionDuration) for longer than the stream may stand still"
            ) from gone
        if not found:
            return CommitPosition(batch_id, digest, is_shown=False)
        held, _, its_digest = self._complete(found)
        if held < batch_id:
            return CommitPosition(batch_id, digest, is_shown=False, held_through=held)
        return CommitPosition(held, its_digest)  # a RESTORE may bring back what was there before a catch-up

    def _complete(self, stored: Positions) -> tuple[int, int, str]:
        batch_id, version, digest = stored
        if batch_id is None or version is None or digest is None:
            raise HistoryError(
                f"{self!r}: the position of {self._slot()} is incomplete: batch, version and digest are {stored}. "
                "Another program changed it"
            )
        return batch_id, version, f"{digest:015x}"

    def _check(self, table: Table, state: Any, files: Sequence[SegmentFile], what: str) -> list[Field]:
        """Refuse a table that these files do not fit. Somebody may have altered it since the last look.

        Returns the columns that it has to get first.
        """
        check_table(state, what)
        if self._upserts is not None:
            check_mergeable(state, what)
        alike = {file.columns: file for file in files}.values() if self._adds else ()
        new = new_columns(state, [schema_of(file, table.footer) for file in alike], self._never_added, what)
        refuse_nulls(files, table.footer, what, lambda schema: check_columns(state, schema, what, new))
        return new


def _added(
    table: Table, files: Sequence[SegmentFile], columns: Sequence[str], what: str
) -> list[tuple[str, int, int, str]]:
    """The files as `Table.append` takes them. The library commits a missing one, so each is looked at just before.

    Raises `StoreError`; the next attempt prepares all of them again.
    """
    added = []
    for file, (size, changed_ms) in zip(files, table.found([file.path for file in files]), strict=True):
        if size != file.size:
            raise StoreError(
                f"{what}: {file.path} should have {file.size} bytes, and the table's folder has "
                f"{'no such file' if size is None else f'one of {size}'}. VACUUM must retain files for longer than a "
                "delivery takes"
            )
        added.append((file.path, file.size, changed_ms, _in_table(file.statistics, columns)))
    return added


def _in_table(statistics: str, columns: Iterable[str]) -> str:
    """Statistics as the log gets them: with bounds for all of these columns, which the table has, or for none.

    deltalake takes the missing bound of a column, beside others, for NULL: its `to_pyarrow_dataset` loses the rows of
    the file if a filter names this column.
    """
    told: dict[str, Any] = json.loads(statistics)
    if not told["minValues"].keys() >= {*columns}:
        del told["minValues"], told["maxValues"]
    return json.dumps(told)
