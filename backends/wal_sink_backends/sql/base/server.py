"""A database server: its address, its sessions, and the part of a dialect that is the same on every server."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import Options, from_environment, options_in
from wal_sink_backends.common.sinks import warn_of
from wal_sink_backends.sql.base.dialect import (
    LEDGER,
    LEDGER_COLUMNS,
    Connection,
    Dialect,
    Limits,
    Replacing,
    entry_in,
    ledger_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from wal_sink.sinks.ledger import LedgerEntry
    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.types import ServerTypes

BLANK = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is and which user connects.

    It travels to executors with the URL's password, which is never shown.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    """Host and port; PostgreSQL takes several, one after the other. Empty: the driver's own default."""
    database: str
    user: str | None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the driver, under its own names."""

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" if port else host for host, port in self.hosts)
        return f"{self.scheme}://{hosts}/{self.database}"


def address_in(url: str, scheme: str, of_driver: Options, *, schema: str | None, password_env: str | None) -> Address:
    """The address in a URL `scheme://user:password@host:port/database?option=value`.

    `of_driver` are the options that may follow. Raises `ConfigError` for a URL that cannot work.
    """
    refuse_blanks(url)
    refuse_at_behind_host(url, scheme)
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, database = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    if colon and password_env:
        raise ConfigError(
            f"{mask_url(url)}: the URL holds a password, but password_env={password_env!r} is given too. Use only one "
            "of them"
        )
    if "/" in database or "#" in url.rpartition("@")[2]:
        raise ConfigError(f"{mask_url(url)}: expected {scheme}://user@host:port/database?option=value")
    return Address(
        scheme=scheme,
        hosts=tuple(_host(host, url) for host in hosts.split(",") if host),
        database=unquote(database),
        user=unquote(user) if at and user else None,
        password=unquote(password) if colon else None,
        password_env=password_env,
        schema=schema,
        options=options_in(query, url, of_driver),
    )


def refuse_blanks(url: str) -> None:
    """Raise `ConfigError` for a URL with blanks, before any part of it is shown: masking a password ends at a blank."""
    if BLANK.search(url):
        raise ConfigError(
            f"{shown_scheme(url)}://…: the URL has blanks or line breaks; write %20 for a blank, or drop them"
        )


def refuse_at_behind_host(url: str, scheme: str) -> None:
    """Raise `ConfigError` for an `@` that may end a password. The message shows nothing of the URL."""
    authority, _, behind = url.partition("://")[2].partition("/")
    if "@" in behind or "?" in authority.rpartition("@")[0]:
        raise ConfigError(
            f"{scheme}://…: write /, ? and @ in a password, and @ in an option, as %2F, %3F and %40; expected "
            f"{scheme}://user@host:port/database?option=value"
        )


def shown_scheme(url: str) -> str:
    """The scheme of a URL for messages; `?` in place of text that is no scheme."""
    scheme = url.partition("://")[0]
    return scheme if re.fullmatch(r"[\w+.-]+", scheme) else "?"


def _host(text: str, url: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[::1]:port`, or a percent-encoded folder of a socket."""
    if "%2f" in text.lower():
        folder, _, port = text.partition(":")
        return unquote(folder), int(port) if port.isdecimal() else None
    try:
        parts = urlsplit(f"//{text}")
        return unquote(parts.hostname or ""), parts.port
    except ValueError:  # its message shows what may be a part of a password
        raise ConfigError(f"{mask_url(url)}: expected host:port, with a number from 1 to 65535 as the port") from None


_EMPTY = -1
"""The batch id of a ledger's row that was only made to be locked."""


class ServerSession(ABC):
    """One connection to a server, which commits by itself outside of transactions. Not for use by two threads."""

    @property
    @abstractmethod
    def usable(self) -> bool:
        """False once it is known to be lost."""

    @abstractmethod
    def close(self) -> None:
        """Close it; a transaction under way is rolled back."""

    def give_up(self) -> None:
        """Close it in any state."""
        self.close()

    @abstractmethod
    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> Any:
        """Run a statement. Returns the driver's cursor (DB-API) with the whole answer."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction in READ COMMITTED: after waiting for the ledger row, it sees the changes there."""

    @abstractmethod
    def commit(self) -> None:
        """Commit. Raises unless everything was committed."""

    def roll_back(self) -> None:
        """Roll back in any state. A connection that fails to is given up, which rolls back as well."""
        try:
            if self.usable:
                self.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - the caller raises the first error
            self.give_up()

    def release(self, savepoint: str) -> None:
        """Forget a savepoint, where a new one of its name would not take its place."""


@dataclass(frozen=True, slots=True)
class ServerDialect(Dialect):
    """A dialect whose connections are `ServerSession`s over a DB-API driver."""

    at: Address
    limits: Limits
    default_schema: ClassVar[str | None] = None
    schema_is: ClassVar[str | None] = "a schema"
    is_read_only: ClassVar[str]
    """An SQL expression (for statements with placeholders): whether the server that computes it is read only."""
    ledger_ddl: ClassVar[str]
    """The DDL of the ledger, with {} for its name. `docs/sinks/sql.md` repeats it."""
    types: ClassVar[ServerTypes]

    def __post_init__(self) -> None:
        self.driver_error()
        if self.at.schema is not None and ("\0" in self.at.schema or not self.at.schema):
            raise ConfigError(f"schema={self.at.schema!r}: expected the name of {self.schema_is}")
        if unfit := self.too_long([self.at.schema or "", self.at.database]):  # the server would cut it
            size = len(unfit[0].encode("utf-8", "replace"))
            raise ConfigError(
                f"{unfit[0]!r} has {size} bytes; expected at most {self.longest_name} in the name of a database or "
                "schema. Choose a shorter name"
            )

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"{self.at}/{self.at.schema}" if self.at.schema else str(self.at)

    @abstractmethod
    def refuses_creation(self, error: Any) -> bool:
        """Whether this user may not make a table here."""

    # Connections.

    def password(self) -> str | None:
        """The password: from the environment where the sink runs if `password_env` is set, else from the URL."""
        name = self.at.password_env
        if name is None:
            return self.at.password
        return from_environment({"password": name}, str(self.address))["password"]

    def is_usable(self, connection: ServerSession) -> bool:
        return connection.usable

    def warn_of_losses(self, session: ServerSession, losses: Callable[[ServerSession], Iterable[str]]) -> None:
        """Warn of what the server may lose. Closes the session if the check fails with a passing error.

        A server that refuses to tell its settings is only warned of, because it can still take rows.
        """
        try:
            found = list(losses(session))
        except self.driver_error() as refused:
            if self.passes(refused):
                session.close()
                raise
            found = [UNREADABLE.format(refused)]
        except BaseException:
            session.close()
            raise
        warn_of(found, self.address)

    @contextmanager
    def transaction(self, connection: ServerSession) -> Iterator[None]:
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            connection.roll_back()
            raise

    # The ledger.

    def refuse_elsewhere(self, connection: Connection, table: str) -> None:
        """Raise `PermanentError` if the table may be meant to be in another schema."""

    def make_ledger(self, connection: ServerSession, table: str) -> None:
        with self.reading(connection):
            if self.columns(connection, LEDGER):
                return
            self.refuse_elsewhere(connection, table)
        ddl = self.ledger_ddl.format(self.named(LEDGER))
        try:
            self.create_table(connection, LEDGER, ddl)
        except self.driver_error() as error:
            if not self.refuses_creation(error):
                raise
            raise PermanentError(
                f"{self.address}: the ledger does not exist yet, and this user has no right to create it: "
                f"{self.shown(error)}. Run as another user: {ddl}; GRANT SELECT, INSERT, UPDATE ON "
                f"{self.named(LEDGER)} TO this user"
            ) from error

    def reading(self, connection: ServerSession) -> AbstractContextManager[None]:
        """A transaction that may write: a proxy that splits reads from writes sends all of it to the primary."""
        return self.transaction(connection)

    def stored(self, connection: ServerSession, slots: Sequence[str]) -> dict[str, LedgerEntry]:
        """The answer itself tells whether its server is read only: a proxy may send this statement to a replica."""
        condition, values = self.is_one_of("slot", slots)
        columns, ledger = self.listed(LEDGER_COLUMNS), self._in_query(LEDGER)
        found = connection.execute(
            f"SELECT {self.is_read_only}, {columns} FROM (SELECT 1) AS answer "  # noqa: S608 - quoted
            f"LEFT JOIN {ledger} AS ledger ON {condition}",
            values,
        ).fetchall()
        if not found or any(row[0] for row in found):
            connection.give_up()
            raise ConnectionError(
                f"{self.address}: a read-only server, perhaps a replica that lags behind, answered the query for "
                "positions. Connect the sink to the primary"
            )
        asked = frozenset(slots)
        entries = {row[1]: entry_in(row[1:], asked) for row in found if row[1] is not None}
        return {slot: entry for slot, entry in entries.items() if entry.position.batch_id != _EMPTY}

    @abstractmethod
    def is_one_of(self, column: str, texts: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
        """The condition that a column holds one of some texts, and its values."""

    def lock(self, connection: Connection, slot: str, term: int) -> LedgerEntry | None:  # noqa: ARG002 - the row is enough
        return self.lock_row(connection, slot)

    def lock_row(self, connection: ServerSession, slot: str) -> LedgerEntry | None:
        """Lock the slot's row until the transaction ends. Returns its entry, None for a slot without one.

        If there is no row, an empty one is inserted and locked. All others wait for it: at the end of the transaction
        it is either filled or rolled back.
        """
        if (entry := self._locked_entry(connection, slot)) is not None:
            return entry
        connection.execute(
            f"INSERT INTO {self._in_query(LEDGER)} ({self.listed(LEDGER_COLUMNS)}) "  # noqa: S608 - quoted
            f"VALUES (%s, 0, {_EMPTY}, '', 0) {self.on_conflict(('slot',), Replacing(('slot',)))}",
            (slot,),
        )
        return self._locked_entry(connection, slot)

    def move_ledger(self, connection: ServerSession, entry: LedgerEntry) -> None:
        slot, *moved = ledger_values(entry)
        changes = ", ".join(f"{self.quote(name)} = %s" for name in LEDGER_COLUMNS[1:])
        update = f"UPDATE {self._in_query(LEDGER)} SET {changes} WHERE slot = %s"  # noqa: S608 - quoted
        count = connection.execute(update, (*moved, slot)).rowcount
        if count != 1:
            raise PermanentError(f"slot {slot!r} of {LEDGER}: {count} rows moved, expected 1")

    def _locked_entry(self, connection: ServerSession, slot: str) -> LedgerEntry | None:
        found = connection.execute(f"{self._entries} WHERE slot = %s FOR UPDATE", (slot,)).fetchone()
        entry = None if found is None else entry_in(found, [slot])
        return None if entry is None or entry.position.batch_id == _EMPTY else entry

    @property
    def _entries(self) -> str:
        return f"SELECT {self.listed(LEDGER_COLUMNS)} FROM {self._in_query(LEDGER)}"  # noqa: S608 - quoted

    # The target table.

    def type_name(self, kind: ArrowType, *, key: bool = False) -> str:
        return self.types.name_of(kind, key)

    def fits(self, kind: ArrowType, declared: str) -> bool:
        return self.types.fits(kind, declared)

    def release(self, connection: ServerSession, savepoint: str) -> None:
        connection.release(savepoint)

    # Names.

    @property
    def namespace(self) -> str:
        """The schema of table and ledger (MariaDB: the database). Each statement names it."""
        return self.at.schema or self.default_schema or self.at.database

    def named(self, table: str) -> str:
        return f"{self.quote(self.namespace)}.{self.quote(table)}"

    def _in_query(self, table: str) -> str:
        """The quoted name in a statement with placeholders."""
        return self.named(table).replace("%", "%%")


UNREADABLE = "the settings of the server cannot be read ({}). Check the list in docs/sinks/sql.md by hand"
