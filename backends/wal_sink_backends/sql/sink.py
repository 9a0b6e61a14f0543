"""Rows and position in one transaction of an SQL database: exactly once.

The ledger is the table `wal_sink_ledger`, with one row per slot, in the same schema as the target table:

    slot TEXT PRIMARY KEY, term, batch_id, segment_id, rows

This module is the same for every database; code that knows a driver is in its `Dialect`.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.failures import ForgottenError
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import check_bool, check_count, one_of
from wal_sink.support.secrets import mask_url
from wal_sink.support.texts import Finding, counted, fine
from wal_sink_backends.common.changes import Changes, OnDelete
from wal_sink_backends.common.columns import is_text
from wal_sink_backends.common.options import Options, refuse_braces
from wal_sink_backends.common.sinks import Evolve, IfRecreated, LedgerSink, name_of, reached
from wal_sink_backends.sql.base.changes import ChangeStream, Part, deleted_table, replacing_in
from wal_sink_backends.sql.base.dialect import (
    LEDGER,
    ColumnsMissing,
    Connection,
    Dialect,
    Limits,
    RowsRefused,
    TableAltered,
    TableMissing,
)
from wal_sink_backends.sql.base.server import BLANK, address_in, shown_scheme
from wal_sink_backends.sql.base.table import TargetTable
from wal_sink_backends.sql.base.values import kind_of, refuse_nulls, refuse_repeated_keys, tell_repeated_keys

if TYPE_CHECKING:
    from wal_sink.sinks.base import SinkContext
    from wal_sink.sinks.chunk import Chunk, Position
    from wal_sink_backends.sql.base.values import Rows

_TEXT = (str,)
OF_LIBPQ: Options = dict.fromkeys(
    (
        *("application_name", "channel_binding", "gssencmode", "krbsrvname", "passfile", "require_auth", "service"),
        *("sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"),
    ),
    _TEXT,
)
"""Options that the URL of a PostgreSQL database may hold, under libpq's names."""
OF_PYMYSQL: Options = dict.fromkeys(
    ("read_default_file", "ssl_ca", "ssl_cert", "ssl_disabled", "ssl_key", "unix_socket"), _TEXT
)
"""The same of MariaDB, under PyMySQL's names. With `ssl_ca` the server has to prove its name. Without it, TLS is used
if the server offers it.
"""


def dialect_of(url: str, limits: Limits, *, schema: str | None, password_env: str | None) -> Dialect:
    """The dialect for a URL, which is not shown in messages: it may hold a password. `ConfigError` if there is none."""
    make = _DIALECTS.get(url.partition("://")[0])
    if make is None:
        raise ConfigError(
            f"SqlSink cannot reach {shown_scheme(url)!r} databases: expected sqlite:///file.db, "
            "sqlite:////folder/file.db, postgresql://user@host/database or mariadb://user@host/database"
        )
    return make(url, limits, schema, password_env)


def _sqlite(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.sqlite import Sqlite  # noqa: PLC0415 - a sink loads only its own database's driver

    rest = url.partition("://")[2]
    path = rest.removeprefix("/")
    shown = "sqlite://…" if BLANK.search(url) else mask_url(url)  # a file's name may have blanks
    if rest == path or path in ("", ":memory:") or "?" in path:
        raise ConfigError(f"{shown}: expected sqlite:///relative.db or sqlite:////absolute.db, a file without options")
    refuse_braces("url", url)
    if schema or password_env:
        raise ConfigError(f"{shown}: SQLite has neither schema nor password_env. Omit these options")
    return Sqlite(str(Path(path).absolute()), socket.gethostname(), limits.busy_timeout_s)


def _postgresql(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.postgresql.dialect import Postgresql  # noqa: PLC0415 - as above

    address = address_in(url, "postgresql", OF_LIBPQ, schema=schema, password_env=password_env)
    return Postgresql(address, limits)


def _mariadb(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.mariadb.dialect import Mariadb  # noqa: PLC0415 - as above

    address = address_in(url, "mariadb", OF_PYMYSQL, schema=schema, password_env=password_env)
    if len(address.hosts) > 1 or not address.database:
        raise ConfigError(f"{mask_url(url)}: expected one host and a database, mariadb://user@host/database")
    if address.options.get("ssl_disabled", "true") != "true":
        raise ConfigError(f"{mask_url(url)}: expected ssl_disabled=true. To use TLS, omit this option")
    return Mariadb(address, limits)


_Make = Callable[[str, Limits, "str | None", "str | None"], Dialect]
_DIALECTS: dict[str, _Make] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mariadb,
}


_TRIES = 4
"""The first one may find no table, the second one a table that another process made without a column, the third one no
table of deletes.
"""
Mode: TypeAlias = Literal["append", "upsert"]


class SqlSink(LedgerSink):
    """A table of an SQL database as a target that is delivered to exactly once.

    `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user:password@host:port/database` or
    `mariadb://…` (`mysql://…`). A password in it travels to the executors with the sink and is never shown;
    `password_env` names an environment variable instead, read where the sink runs, and the drivers' own ways
    (PGPASSWORD, pgpass, an option file) work too. `schema`: the schema of table and ledger; `public` by default
    (MariaDB: the URL's database).

    A missing table is made from the chunk's columns, unless `create_table=False`. A missing ledger is made in any case;
    `docs/sinks/sql.md` has its DDL, the rights that are needed, and the type for each column. A table that is missing
    although the ledger says that it got rows is an error; with `recreated_table="accept"` it is made again.

    `mode="upsert"` replaces the row with the same `key` columns, which need a primary key or unique index (a table made
    here has it). Of two rows with one key in one batch, the last one wins within a segment; across segments either
    may win, unless the `Delivery` has `max_concurrency=1`. With `newer_by`, columns of numbers or moments that are
    compared in their order, a row replaces another only if it is as new or newer, whatever their segments. NULL is the
    oldest.

    `operation` (a column with Debezium's c, r, u, d) or `delete_when` (a boolean column) make the rows a change stream,
    which needs `key` and `newer_by`: the newest version of a key wins, and at equality a delete. Deletes are remembered
    for `deletes_kept` batches, in a separate table; rows of older batches are refused. `on_delete="mark"` sets the
    column of `delete_when` and the version instead, and remembers nothing. One delivery task writes at a time.

    Columns are matched by name. With `evolve="add"` the table gets a column that it lacks, which may be NULL; never one
    of the key, `newer_by`, or a name that differs from another one only in case. Values that a column would alter are
    refused before anything is written. `Rejected` names rows that the database refuses one by one (a constraint, a
    value out of range), strings that are no UTF-8, and NULLs in a key or in a column for which the database would
    generate a value; nothing is committed then. It also names rows that the table drops without an error (a trigger of
    PostgreSQL that returns NULL, RAISE(IGNORE) of SQLite). With `may_drop_rows=True` such rows count as delivered, and
    the log tells their number.

    No call hangs: `connect_timeout_s`, `statement_timeout_s` for each statement and `busy_timeout_s` for a lock bound
    them, in seconds. Runs on the driver or on executors, in any number of processes; SQLite on one machine only, with
    one writer at a time. Rows survive a loss of power once `write` has returned, if the server is configured so.

    Raises `ConfigError` for arguments that cannot work.

        sink = SqlSink("postgresql://etl@db/shop", "orders", mode="upsert", key=("id",), password_env="SHOP_PASSWORD")
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Mode = "append",
        key: Sequence[str] = (),
        newer_by: Sequence[str] | str | None = None,
        operation: str | None = None,
        delete_when: str | None = None,
        on_delete: OnDelete = "delete",
        deletes_kept: int = 1000,
        schema: str | None = None,
        create_table: bool = True,
        may_drop_rows: bool = False,
        recreated_table: IfRecreated = "refuse",
        evolve: Evolve = "refuse",
        password_env: str | None = None,
        busy_timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        statement_timeout_s: float = 60.0,
        maps: Maps = "object",
    ) -> None:
        check_maps(maps)
        refuse_braces("table", table)
        self._maps: Maps = maps
        limits = Limits(busy_timeout_s, connect_timeout_s, statement_timeout_s)
        self._dialect = dialect_of(url, limits, schema=schema, password_env=password_env)
        self._table = self.target_name = table
        self._mode = mode
        self.replaces_rows = mode == "upsert"
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._newer_by = (newer_by,) if isinstance(newer_by, str) else tuple(newer_by or ())
        check_bool("may_drop_rows", may_drop_rows)
        self._may_drop_rows = may_drop_rows
        one_of("recreated_table", recreated_table, get_args(IfRecreated))
        self._recreated_table: IfRecreated = recreated_table
        one_of("evolve", evolve, get_args(Evolve))
        self._target = TargetTable(
            self._dialect,
            table,
            self._key,
            create=create_table,
            adds=evolve == "add",
            never_adds=(*self._newer_by, *filter(None, [delete_when])),
        )
        self._connection: Connection | None = None
        self._opened = False
        self._check_arguments()
        changes = Changes.of(
            "SqlSink",
            key=self._key,
            newer_by=self._newer_by,
            operation=operation,
            delete_when=delete_when,
            on_delete=on_delete,
        )
        self._stream = (
            ChangeStream(self._dialect, table, changes, deletes_kept, create=create_table) if changes else None
        )
        self.max_concurrency = 1 if self._stream else self._dialect.most_writers
        check_count("deletes_kept", deletes_kept)
        self._check_length(deleted_table(table) if self._stream and self._stream.deleted else table)

    def __repr__(self) -> str:
        key = f", key={self._key!r}" if self._key else ""
        return f"SqlSink({self._dialect.address!r}, {self._table!r}, mode={self._mode!r}{key})"

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the ledger needs no context
        """Connect; make the ledger if it is missing. `PermanentError`, or the driver's error if a retry may help."""
        self.close()
        self._connection = self._connect()
        self._opened = True

    def close(self) -> None:
        """Close the connection; a transaction under way is rolled back."""
        self._opened = False
        self._disconnect()

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Connect and compare the table with these columns, without making the ledger or the table."""
        at = self._dialect.address
        what = f"table {self._table!r} in {at}"
        if schema is not None:
            self._check_schema(schema, what)
        connection = self._dialect.connect_to_look()
        if connection is None:
            return [fine("target", f"{at}: the first delivery makes this database")]
        try:
            with self._dialect.translated(f"looking at {what}"), self._dialect.reading(connection):
                found = [self._target.examine(connection, self._stored(schema), what)]
                if self._stream:
                    found += self._stream.examine(connection, schema, what)
                has_ledger = bool(self._dialect.columns(connection, LEDGER))
        finally:
            connection.close()
        return [reached(at, has_ledger=has_ledger), *found]

    def positions_in_ledger(self, slots: Sequence[str]) -> Mapping[str, Position]:
        """The positions, in one statement; MariaDB takes 1,000 slots in each, SQLite 500.

        On a server, the statement runs in a transaction that may write: a proxy that splits reads from writes sends
        such a transaction to the primary. An answer of a read-only server is refused, and may be tried again
        (`ConnectionError`).
        """
        connection, found = self._connected(), dict[str, LedgerEntry]()
        if not slots:
            return {}
        step = self._dialect.slots_at_once or max(1, len(slots))
        what = f"{LEDGER} in {self._dialect.address}, {counted(len(slots), 'slot')} from {slots[0]!r} on"
        with self._dialect.translated(what), self._dialect.reading(connection):
            for first in range(0, len(slots), step):
                found |= self._dialect.stored(connection, slots[first : first + step])
        return {slot: entry.position for slot, entry in found.items()}

    def has_table(self) -> bool:
        """Whether the table exists. The ledger is common to all tables of a schema, and may outlive this one."""
        connection = self._connected()
        what = f"table {self._table!r} in {self._dialect.address}"
        with self._dialect.translated(what), self._dialect.reading(connection):
            return bool(self._dialect.columns(connection, self._table))

    def write(self, chunk: Chunk) -> Rejected | None:
        """Insert the rows and move the ledger on, in one transaction; nothing if the ledger is there already.

        Returns `Rejected` for rows that the database refuses for good, with nothing committed. Raises `FencedError` for
        a lower term than the ledger's, `HistoryError` for other rows than the ledger records, `PermanentError` if
        table and rows do not fit; anything else may be tried again.
        """
        what = f"{name_of(chunk)}: table {self._table!r} in {self._dialect.address}"
        connection, chunk = self._connected(), chunk.maps_as(self._maps)
        self._check_schema(chunk.table.schema, what)
        with self._dialect.translated(what, _range_of(chunk)):
            try:
                self._write_and_make_table(connection, chunk, what)
            except RowsRefused as refused:
                return Rejected(refused.reasons)
        return None

    def _write_and_make_table(self, connection: Connection, chunk: Chunk, what: str) -> None:
        """Write. Make the table or columns if they are missing, and write again, also if it was altered meanwhile."""
        for _ in range(_TRIES - 1):
            try:
                return self._write(connection, chunk, what)
            except TableMissing as missing:
                missing.make()
            except ColumnsMissing as lacking:
                with suppress(TableAltered):
                    self._target.add(connection, lacking.columns, what)
            except TableAltered:
                continue
        return self._write(connection, chunk, what)

    def _write(self, connection: Connection, chunk: Chunk, what: str) -> None:
        """One transaction, committed or without a trace."""
        stream, deleted = self._stream, None
        with self._dialect.transaction(connection):
            stored = self._dialect.lock(connection, chunk.position.slot, chunk.term)
            try:
                if LedgerEntry.is_known(stored, chunk, f"{LEDGER} in {self._dialect.address}"):
                    return
            except ForgottenError:
                self._target.oid = None  # of a server with an older state, perhaps another one
                raise
            covered = stream.lock(connection, chunk) if stream else None
            refuse_lost = partial(self._refuse_lost_table, connection, chunk, what)
            known = self._target.fit(connection, self._stored(chunk.table.schema), what, refuse_lost)
            if stream:
                stream.refuse_old(chunk, covered, what)
                deleted = stream.fit(connection, chunk.table.schema, covered, what, self._recreated_table)
                parts = stream.parts(connection, chunk, known, deleted, covered)
            else:
                if self._key and not self._newer_by:
                    tell_repeated_keys(chunk.table, self._key, repr(self))
                replacing = replacing_in(chunk.table.schema, self._key, self._newer_by)
                putting = partial(self._dialect.putting, connection, self._table, replacing=replacing)
                parts = iter([Part(chunk.table, range(chunk.num_rows), known, putting)])
            refused: dict[int, str] = {}
            for part in parts:
                refused |= self._put(connection, part, what)
            if refused:
                self._target.confirm(connection, known, what)  # the table may have changed since it refused them
                raise RowsRefused(refused)
            if stream:
                stream.advance(connection, chunk, covered)
            self._dialect.move_ledger(connection, LedgerEntry.of(chunk))
            self._target.confirm(connection, known, what)
            if stream and stream.deleted and deleted:
                stream.deleted.confirm(connection, deleted, what)
        self._target.remember(known)
        if stream and stream.deleted and deleted:
            stream.deleted.remember(deleted)

    def _put(self, connection: Connection, part: Part, what: str) -> dict[int, str]:
        """Write rows, or return the refused ones by row of the chunk."""
        if not part.numbers and self._stream:
            return {}
        try:
            rows = self._dialect.encode(connection, part.table, self._key, part.known.declared)
        except (ConfigError, PermanentError) as error:  # a type that the database cannot hold: no retry will help
            raise PermanentError(f"{what}: {error}") from error
        refused = self._refused_by_value(part, rows)
        if len(refused) == len(rows.refused):
            rows = self._dialect.in_key_order(connection, rows, part.table, self._key, part.known.collations)
            put = part.putting(rows.columns)
            refused |= self._dialect.insert(connection, rows, put, may_drop=self._may_drop_rows, what=what)
        return {part.numbers[row]: reason for row, reason in refused.items()}

    def _refuse_lost_table(self, connection: Connection, chunk: Chunk, what: str) -> None:
        """Refuse to make a table that the ledger says had rows. Called in the writing transaction; one statement.

        Every batch has a segment 0. The entry of another segment of the same batch proves nothing: its process may have
        made the table in between.
        """
        slot = chunk.position.slot
        slots = sorted({slot, f"{slot.rpartition('/')[0]}/0"})
        found = [entry.position for entry in self._dialect.stored(connection, slots).values()]
        before = [at for at in found if at.batch_id < chunk.batch_id or (at.slot == slot and at.rows > 0)]
        if before and self._recreated_table != "accept":
            newest = max(at.batch_id for at in before)
            raise PermanentError(
                f"{what}: the table is gone, but {LEDGER} says that it got rows up to batch {newest}. Restore the "
                "table. To write to another table, give the sink a new name. Or pass recreated_table='accept', if the "
                "earlier rows may be missing from the table"
            )

    def _refused_by_value(self, part: Part, rows: Rows) -> dict[int, str]:
        """Rows that are refused before they are sent: a generated value could equal a later row's, a row without age
        replace another.
        """
        refused, known = dict(rows.refused), part.known
        for name, column in zip(part.table.column_names, part.table.columns, strict=True):
            declared = known.declared.get(self._dialect.fold(name), "")
            if self._dialect.fold(name) in known.replaces_nulls:
                refuse_nulls(column, f"column {name!r} is NULL, but the database would replace the NULL", refused)
            if declared.lower() in self._dialect.documents and kind_of(column.type) == "text":
                refuse_repeated_keys(column, name, refused, declared)
            if name in self._newer_by:
                self._dialect.refuse_ageless(column, name, refused)
        return refused

    def _check_arguments(self) -> None:
        one_of("mode", self._mode, get_args(Mode))
        if (self._mode == "upsert") != bool(self._key):
            raise ConfigError(
                f"mode={self._mode!r} with key={self._key!r}: expected key columns for 'upsert', and only there"
            )
        if (ages := self._newer_by) and (not self._key or {*ages} & {"", *self._key} or len({*ages}) < len(ages)):
            raise ConfigError(
                f"newer_by={ages!r}: expected names of columns, only with mode='upsert', other than the key's"
            )
        if not self._table or "\0" in self._table or self._table.lower() == LEDGER:
            raise ConfigError(f"table={self._table!r}: expected the name of a table other than {LEDGER}")

    def _check_length(self, name: str) -> None:
        if self._dialect.too_long([name]):
            size = len(name.encode("utf-8", "replace"))
            raise ConfigError(
                f"table={name!r}: expected at most {self._dialect.longest_name} bytes, found {size}. Choose a "
                "shorter name"
            )

    def _stored(self, schema: Any) -> Any:
        """The columns that are stored; None if none are known."""
        return self._stream.stored(schema) if self._stream and schema is not None else schema

    # The connection.

    def _connected(self) -> Connection:
        """The open connection, or a new one if that was lost."""
        if not self._opened:
            raise RuntimeError(f"{self!r} is not open: call open() first")
        if self._connection is not None and not self._dialect.is_usable(self._connection):
            self._disconnect()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Connection:
        """A new connection to a database that has a ledger."""
        self._target.forget()
        if self._stream and self._stream.deleted:
            self._stream.deleted.forget()
        connection = self._dialect.connect()
        try:
            with self._dialect.translated(f"opening {self._dialect.address}"):
                self._dialect.make_ledger(connection, self._table)
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _check_names(self, names: Sequence[str], what: str) -> None:
        folded = Counter(self._dialect.fold(name) for name in names)
        twice = [name for name in names if folded[self._dialect.fold(name)] > 1]
        if twice or not names or "" in names:
            raise PermanentError(
                f"{what}: expected columns with names that differ, found {twice or names}; rename them"
            )
        if unfit := self._dialect.too_long(names):
            longest = self._dialect.longest_name
            raise PermanentError(f"{what}: expected names of at most {longest} bytes, found {unfit}; rename them")
        missing = [name for name in self._key if name not in names]
        if missing:
            raise PermanentError(f"{what}: key column {missing[0]!r} is not among the columns {list(names)}")

    def _check_schema(self, schema: Any, what: str) -> None:
        self._check_names(schema.names, what)
        if self._stream:
            self._stream.changes.check(schema, what)
        for name in self._newer_by:
            if name not in schema.names:
                raise PermanentError(f"{what}: newer_by column {name!r} is not among the columns {schema.names}")
            kind = schema.field(name).type
            if not self._dialect.tells_age(kind) and not (self._stream and is_text(kind)):
                raise PermanentError(
                    f"{what}: newer_by column {name!r} is {kind} in the query. {self._dialect.address} keeps such "
                    "values as texts or without an order, so their age cannot be compared. Cast the column to a number "
                    "or a timestamp"
                )


def _range_of(chunk: Chunk) -> str:
    """The range of a chunk's rows, for messages. Some rows between may have been refused before."""
    return f"rows {chunk.rows[0]} to {chunk.rows[-1]} of the segment" if chunk.rows else "no rows of the segment"
