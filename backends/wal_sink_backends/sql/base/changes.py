"""A change stream in an SQL database: the table of remembered deletes, and the batches that it covers.

The newest version of a key wins, whatever the order of chunks. An upsert finds the stored row, or else the delete that
is remembered: in the table `wal_sink_deleted_…`, with the key, the version, and the batch that remembers it. Deletes
are kept for some batches. The ledger has a slot that every writer of the stream locks first, so that a row and the
delete of its key are never looked at by two transactions at once. Its entry tells the newest batch that wrote, and in
place of rows the oldest batch that is covered: a chunk of an older batch might bring deleted rows back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink_backends.common.columns import is_text
from wal_sink_backends.common.newest import too_old
from wal_sink_backends.common.sinks import IfRecreated
from wal_sink_backends.sql.base.dialect import DELETED_COLUMNS, Connection, Dialect, Replacing, RowsRefused
from wal_sink_backends.sql.base.table import Known, TargetTable

if TYPE_CHECKING:
    from wal_sink.sinks.chunk import Chunk
    from wal_sink.support.texts import Finding
    from wal_sink_backends.common.changes import Changes
    from wal_sink_backends.sql.base.dialect import Put


_TYPES = dict(zip(DELETED_COLUMNS, (pa.int64(), pa.string()), strict=True))


def deleted_table(table: str) -> str:
    """The name of the table with the remembered deletes of a table."""
    return f"wal_sink_deleted_{table}"


def replacing_in(schema: Any, key: Sequence[str], newer_by: Sequence[str], **more: Any) -> Replacing:
    """The rows that a row replaces, with the columns of a chunk."""
    texts = frozenset(name for name in newer_by if is_text(schema.field(name).type))
    return Replacing(key, newer_by, texts, **more)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a chunk that are written in one way."""

    table: pa.Table
    numbers: Sequence[int]
    """The index of each row in the chunk."""
    known: Known
    """The table that they go to."""
    putting: Callable[[Sequence[str]], Put]
    """Makes the function that writes them, from the names of the columns."""


class DeletedTable(TargetTable):
    """The table of remembered deletes, whose key and version are as the target table has them."""

    def __init__(self, dialect: Dialect, table: str, replacing: Replacing, *, create: bool) -> None:
        super().__init__(dialect, deleted_table(table), replacing.key, create=create)
        self._table, self._replacing = table, replacing

    def make(self, connection: Connection, schema: Any) -> None:  # noqa: ARG002
        for statement in self._dialect.remembering(connection, self._table, self._name, self._replacing):
            self._dialect.create_table(connection, self._name, statement)

    def _refuse_missing(self, what: str) -> None:
        if not self.creates:
            raise PermanentError(
                f"{what}: the table {self._name!r} of remembered deletes does not exist. Create it as "
                "docs/sinks/sql.md shows, or pass create_table=True"
            )


class ChangeStream:
    """The changes of one table. Plain data, pickled with the sink."""

    def __init__(self, dialect: Dialect, table: str, changes: Changes, kept: int, *, create: bool) -> None:
        self._dialect, self._table, self.changes, self._kept = dialect, table, changes, kept
        self._replacing = Replacing(changes.key, changes.newer_by)
        self._marks = changes.on_delete == "mark"
        self.deleted = None if self._marks else DeletedTable(dialect, table, self._replacing, create=create)

    def stored(self, schema: Any) -> Any:
        """The columns of a table, or of a schema, that are stored."""
        if self._marks:
            return schema
        names = [name for name in schema.names if name != self.changes.flag]
        return pa.schema([schema.field(name) for name in names])

    def lock(self, connection: Connection, chunk: Chunk) -> LedgerEntry | None:
        """Lock out every other writer of the stream. Returns the entry that tells which batches are covered."""
        return self._dialect.lock(connection, self._slot(chunk), chunk.term) if self.deleted else None

    def _slot(self, chunk: Chunk) -> str:
        """The slot of all sinks of a WAL that write to the table: a new sink that starts earlier is refused, too."""
        token = hashlib.blake2b(self._table.encode(), digest_size=8).hexdigest()
        return f"{_wal_of(chunk)}/{token}/deletes"

    def refuse_old(self, chunk: Chunk, found: LedgerEntry | None, what: str) -> None:
        """Raise `PermanentError` for a chunk of a batch from before the oldest that is covered."""
        if found and chunk.batch_id < found.position.rows:
            raise too_old(what, chunk.batch_id, found.position.rows)

    def fit(
        self, connection: Connection, schema: Any, found: LedgerEntry | None, what: str, if_recreated: IfRecreated
    ) -> Known | None:
        """Make or check the table of remembered deletes, within the transaction that writes to it."""

        def refuse_lost() -> None:
            if found and if_recreated != "accept":
                raise PermanentError(
                    f"{what}: the table {deleted_table(self._table)!r} of remembered deletes is gone. Restore it with "
                    "the table and the ledger, or pass recreated_table='accept', if older rows may bring deleted rows "
                    "back"
                )

        if self.deleted is None:
            return None
        return self.deleted.fit(connection, self._deleted_schema(schema), what, refuse_lost)

    def examine(self, connection: Connection, schema: Any, what: str) -> list[Finding]:
        """Compare the table of remembered deletes with the columns of some rows, and make nothing."""
        return [self.deleted.examine(connection, schema and self._deleted_schema(schema), what)] if self.deleted else []

    def parts(
        self, connection: Connection, chunk: Chunk, known: Known, deleted: Known | None, found: LedgerEntry | None
    ) -> Iterator[Part]:
        """The rows that are written: the newest row of each key, deletes first. Raises `RowsRefused`."""
        changes, table = self.changes, chunk.table
        if refused := changes.refused(table):
            raise RowsRefused(refused)
        deletes, newest = changes.deletes(table), changes.newest(table)
        gone, kept = ([row for row in newest if deletes[row] is gone] for gone in (True, False))
        name = None if deleted is None else deleted_table(self._table)
        replacing = replacing_in(table.schema, changes.key, changes.newer_by, strict=True, deleted=name)
        dialect, target = self._dialect, self._table
        stored = table.select(self.stored(table.schema).names)
        if deleted is None:
            marks = [changes.flag, *changes.newer_by]
            mark = partial(dialect.marking, connection, target, replacing=replacing, marks=marks)
            yield Part(stored.take(pa.array(gone, pa.int64())), gone, known, mark)
        else:
            rows = stored.take(pa.array(gone, pa.int64())).select(self._deleted_schema(table.schema).names[:-2])
            batch = max(chunk.batch_id, found.position.batch_id if found else 0)
            for column, value in zip(DELETED_COLUMNS, (batch, _wal_of(chunk)), strict=True):
                rows = rows.append_column(column, pa.array([value] * len(gone), _TYPES[column]))
            yield Part(rows, gone, deleted, partial(dialect.deleting, connection, target, replacing=replacing))
        yield Part(
            stored.take(pa.array(kept, pa.int64())),
            kept,
            known,
            partial(dialect.putting, connection, target, replacing=replacing),
        )

    def advance(self, connection: Connection, chunk: Chunk, found: LedgerEntry | None) -> None:
        """Forget deletes that are too old and move the entry on, once a batch."""
        at = found.position if found else None
        if self.deleted is None or (at is not None and at.batch_id >= chunk.batch_id):
            return
        oldest = max(chunk.batch_id - self._kept + 1, at.rows if at else 0, 0)
        batch, wal = DELETED_COLUMNS
        connection.execute(
            f"DELETE FROM {self._dialect.named(deleted_table(self._table))} "  # noqa: S608 - ids of a WAL have no quotes
            f"WHERE {batch} < {oldest} AND {wal} = '{_wal_of(chunk)}'"
        )
        position = Position(self._slot(chunk), chunk.batch_id, oldest, "")
        self._dialect.move_ledger(connection, LedgerEntry(chunk.term, position))

    def _deleted_schema(self, schema: Any) -> Any:
        fields = [schema.field(name) for name in (*self.changes.key, *self.changes.newer_by)]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in _TYPES.items())])


def _wal_of(chunk: Chunk) -> str:
    return chunk.position.slot.partition("/")[0]
