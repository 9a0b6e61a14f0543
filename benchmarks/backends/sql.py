"""SQL databases: `SqlSink` compared with their drivers. Whole queries write to them too."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql

from benchmarks.backends.backend import Backend, Tables, Way, rows_of, written
from benchmarks.clock import Stopwatch
from benchmarks.measure import NAME
from tests.support.servers.databases import (
    PASSWORD,
    USER,
    DatabaseServer,
    MariadbServer,
    PostgresqlServer,
)
from tests.support.servers.server import program
from wal_sink_backends.sql import SqlSink

TABLE = "orders"
EXECUTEMANY = "sqlite3's executemany"
INSERTS = "PyMySQL's executemany"
COPY_ROWS = "psycopg's COPY, row by row"
COPY_TEXT = "psycopg's COPY, text made in one loop"
_ESCAPES = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))


class SqlBackend(Backend[str]):
    """A backend with one database per measurement, with the table `orders`. A target is the name of a database."""

    def ways(self) -> Mapping[str, Way[str]]:
        return {NAME: lambda name, tables: written(SqlSink(self.url(name), TABLE), tables), **self.rivals()}

    @abstractmethod
    def url(self, target: str) -> str:
        """Return the database's URL for `SqlSink`."""

    @abstractmethod
    def rivals(self) -> Mapping[str, Way[str]]:
        """Return the ways of the database's own drivers, by name."""


class Sqlite(SqlBackend):
    """A database file on the checkout's disk, synced with each transaction."""

    key = "sqlite"
    title = "Chunks to an SQLite table"

    def url(self, target: str) -> str:
        return f"sqlite:///{target}"

    def rivals(self) -> Mapping[str, Way[str]]:
        return {EXECUTEMANY: _by_executemany}

    def empty(self, folder: Path) -> str:
        target = str(folder / "out.db")
        with closing(sqlite3.connect(target)) as database:
            database.execute("PRAGMA journal_mode = WAL")  # once, before several tasks open it at the same time
            database.execute(f"CREATE TABLE {TABLE} (id INTEGER, amount REAL, name TEXT, digest TEXT, at TEXT)")
        return target

    def count(self, target: str) -> int:
        with closing(sqlite3.connect(target)) as database:
            return int(database.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0])  # noqa: S608 - a constant


def _by_executemany(target: str, tables: Tables) -> float:
    with closing(sqlite3.connect(target)) as database:
        database.execute("PRAGMA synchronous = FULL")
        watch = Stopwatch()
        for table in tables:
            with database:
                database.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?)", rows_of(table))  # noqa: S608
        return watch.seconds()


class SqlServerBackend(SqlBackend):
    """A database server of the tests, with its files in memory."""

    program: tuple[str, str]
    """The server's program, and the package that has it."""
    columns: str

    def require(self) -> None:
        program(*self.program)

    @cached_property
    def server(self) -> DatabaseServer:
        return self._stack.enter_context(self.new_server())

    @abstractmethod
    def new_server(self) -> DatabaseServer:
        """Return a new server, which is not started yet."""

    def url(self, target: str) -> str:
        return self.server.url(target, password=True)

    def empty(self, folder: Path) -> str:  # noqa: ARG002 - the database lies in the server
        target = self.server.new_database()
        self.server.query(target, f"CREATE TABLE {TABLE} ({self.columns})")
        return target

    def count(self, target: str) -> int:
        ((count,),) = self.server.query(target, f"SELECT count(*) FROM {TABLE}")  # noqa: S608 - a constant
        return int(count)


class Postgresql(SqlServerBackend):
    """A PostgreSQL server of the tests."""

    key = "postgresql"
    title = "Chunks to a PostgreSQL table"
    program = ("initdb", "postgresql")
    columns = "id bigint, amount double precision, name text, digest text, at timestamptz"

    def new_server(self) -> DatabaseServer:
        return PostgresqlServer(self._folder / self.key)

    def rivals(self) -> Mapping[str, Way[str]]:
        return {COPY_TEXT: self._copy_text, COPY_ROWS: self._copy_rows}

    def empty(self, folder: Path) -> str:
        target = super().empty(folder)
        self.server.query(target, f"ALTER TABLE {TABLE} OWNER TO {USER}")
        return target

    def remove(self, target: str) -> None:
        self.server.query("postgres", f"DROP DATABASE {target} WITH (FORCE)")

    def _copy_text(self, target: str, tables: Tables) -> float:
        with psycopg.connect(self.url(target)) as connection:
            watch = Stopwatch()
            for table in tables:
                with connection.cursor() as cursor, cursor.copy(f"COPY {TABLE} FROM STDIN") as copy:
                    copy.write(_copy_text(table))
                connection.commit()
            return watch.seconds()

    def _copy_rows(self, target: str, tables: Tables) -> float:
        with psycopg.connect(self.url(target)) as connection:
            watch = Stopwatch()
            for table in tables:
                with connection.cursor() as cursor, cursor.copy(f"COPY {TABLE} FROM STDIN") as copy:
                    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                        copy.write_row(row)
                connection.commit()
            return watch.seconds()


def _copy_text(table: pa.Table) -> str:
    """Return the lines of a COPY. The code fits this one table, so it looks up no types of values."""
    return "".join(
        f"{number}\t{amount}\t{_escaped(name)}\t{_escaped(digest)}\t{at}+00\n"
        for number, amount, name, digest, at in rows_of(table)
    )


def _escaped(text: str) -> str:
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


class Mariadb(SqlServerBackend):
    """A MariaDB server of the tests."""

    key = "mariadb"
    title = "Chunks to a MariaDB table"
    share = 1 / 3
    program = ("mariadbd", "mariadb-server")
    columns = "id bigint, amount double, name longtext, digest longtext, at datetime(6)"

    def new_server(self) -> DatabaseServer:
        return MariadbServer(self._folder / self.key)

    def rivals(self) -> Mapping[str, Way[str]]:
        return {INSERTS: self._by_inserts}

    def remove(self, target: str) -> None:
        self.server.query("mysql", f"DROP DATABASE {target}")

    def _by_inserts(self, target: str, tables: Tables) -> float:
        place: dict[str, Any] = {"host": "127.0.0.1", "port": self.server.port, "database": target}
        with pymysql.connect(user=USER, password=PASSWORD, charset="utf8mb4", ssl_disabled=True, **place) as connection:
            watch = Stopwatch()
            for table in tables:
                with connection.cursor() as cursor:
                    cursor.executemany(f"INSERT INTO {TABLE} VALUES (%s, %s, %s, %s, %s)", list(rows_of(table)))  # noqa: S608
                connection.commit()
            return watch.seconds()
