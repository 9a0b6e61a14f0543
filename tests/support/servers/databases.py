"""PostgreSQL and MariaDB servers for the tests: on 127.0.0.1, a free port, in a temporary folder."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
import pymysql

from tests.support.processes import KILL_WAIT_S, is_running
from tests.support.servers.server import START_S, Server, program, version_of
from tests.support.waiting import wait_until

PASSWORD = "correct horse / battery? staple@"  # noqa: S105 - only for tests, with all that has to be masked and escaped
PASSWORD_VARIABLE = "WAL_SINK_TEST_SQL_PASSWORD"  # noqa: S105 - its name
USER = "etl"
_UNREACHABLE = (psycopg.OperationalError, pymysql.err.OperationalError)
_numbers = itertools.count()


@contextmanager
def servers_folder() -> Iterator[Path]:
    """Yield a folder for a server's files. Other users may enter it, unlike pytest's folders. In memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of an unforgeable name is made in it
    with tempfile.TemporaryDirectory(prefix="wal-sink-sql-", dir=memory if memory.is_dir() else None) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def postgresql_program(name: str) -> Path:
    """Return a program of PostgreSQL. Skip or fail the test if it is not installed."""
    return program(name, "postgresql")


def as_user(user: str) -> list[str]:
    """Return the prefix that runs a command as this user if this process is root, as which no database server runs."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if os.geteuid() == 0 else []


class DatabaseServer(Server):
    """A server of databases. `USER` owns each new database and has a password."""

    scheme: str
    options = ""
    """The options that each URL of a database has."""
    user: str
    """The user that runs the server if root starts it."""
    own_database: str
    """A database that every such server has."""

    program: Path
    """The program of the server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._admin: tuple[str, Any] | None = None

    def start(self) -> None:
        is_new = not self.data.exists()
        super().start()
        if is_new:
            self.create_user()

    def kill(self) -> None:
        """End at once, as in a crash. Committed rows are kept."""
        self._leave()
        super().kill()

    def prepare(self) -> None:
        super().prepare()
        if not self.data.exists():
            if os.geteuid() == 0:
                shutil.chown(self.folder, self.user, self.user)
            self.create_files()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str, *, options: str = "", port: int | None = None, password: bool = False) -> str:
        secret = f":{quote(PASSWORD, safe='')}" if password else ""
        query = "&".join(option for option in (self.options, options) if option)
        return f"{self.scheme}://{USER}{secret}@127.0.0.1:{port or self.port}/{database}{'?' if query else ''}{query}"

    def new_database(self) -> str:
        name = f"db{next(_numbers)}"
        self.create_database(name)
        return name

    def run(self, *command: str | Path) -> None:
        done = subprocess.run(
            [*as_user(self.user), *command], capture_output=True, text=True, timeout=START_S, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr

    def release(self) -> str:
        return version_of(self.program)

    @abstractmethod
    def create_files(self) -> None:
        """Make the files of a new server."""

    @abstractmethod
    def create_user(self) -> None:
        """Let `USER` in, once the new server answers."""

    @abstractmethod
    def create_database(self, name: str) -> None: ...

    @abstractmethod
    def connect(self, database: str) -> Any:
        """Return a connection of the administrator that commits every statement."""

    def answers(self) -> bool:
        try:
            return bool(self.query(self.own_database, "SELECT 1"))
        except _UNREACHABLE:
            return False

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator, and commit it."""
        if self._admin is None or self._admin[0] != database:
            self._leave()
            self._admin = (database, self.connect(database))
        cursor = self._admin[1].cursor()
        try:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
        except _UNREACHABLE:
            self._leave()
            raise
        finally:
            cursor.close()

    def _leave(self) -> None:
        if self._admin is not None:
            with suppress(pymysql.err.Error):  # the connection is gone already
                self._admin[1].close()
            self._admin = None


class PostgresqlServer(DatabaseServer):
    product = "PostgreSQL"
    scheme = "postgresql"
    user = "postgres"
    own_database = "postgres"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = postgresql_program("postgres")

    def kill(self) -> None:
        """Kill the server and each of its backends with SIGKILL, by id, as in a loss of power.

        A backend has a separate session and outlives its server for a moment. It could still acknowledge a commit then,
        and the server would not start again beside it.
        """
        backends = self._backends() if self._child is not None and self._child.running else []
        super().kill()
        for backend in backends:
            with suppress(psutil.NoSuchProcess):  # it ended by itself
                backend.kill()
        wait_until(lambda: not any(is_running(backend.pid) for backend in backends), "its backends ended", KILL_WAIT_S)

    def _backends(self) -> list[psutil.Process]:
        """Stop the server, so that it starts no other backend. Return those that it has."""
        self.child.send(signal.SIGSTOP)
        try:
            return psutil.Process(self.child.pid).children()
        except psutil.NoSuchProcess:
            return []

    def create_files(self) -> None:
        initdb = postgresql_program("initdb")
        self.run(initdb, "-D", self.data, "-U", "admin", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        rules = [f"host all {USER},limited,crowd all md5", "host all,replication admin all trust"]
        (self.data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    def create_user(self) -> None:
        self.query("postgres", f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")

    def settings(self) -> dict[str, object]:
        """Return the settings with which the server is started."""
        return {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "password_encryption": "md5",  # a test connects a thousand times, and SCRAM is slow by design
            "max_connections": 60,
            "shared_buffers": "32MB",
            "deadlock_timeout": "200ms",
        }

    def command(self) -> Sequence[str | Path]:
        options = [text for name, value in self.settings().items() for text in ("-c", f"{name}={value}")]
        return [*as_user(self.user), self.program, "-D", self.data, *options]

    def create_database(self, name: str) -> None:
        self.query("postgres", f"CREATE DATABASE {name} OWNER {USER} STRATEGY file_copy")

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(host="127.0.0.1", port=self.port, user="admin", dbname=database, autocommit=True)


class MariadbServer(DatabaseServer):
    product = "MariaDB"
    scheme = "mariadb"
    options = "ssl_disabled=true"  # otherwise PyMySQL reads all certificates of the machine each time
    user = "mysql"
    own_database = "mysql"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = program("mariadbd", "mariadb-server")

    def create_files(self) -> None:
        own = ["--no-defaults", *self._own_folders(), "--auth-root-authentication-method=normal"]
        install = program("mariadb-install-db", "mariadb-server")
        self.run(install, *own, "--skip-test-db", "--innodb-flush-log-at-trx-commit=0")

    def create_user(self) -> None:
        self.query("mysql", f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")

    def command(self) -> Sequence[str | Path]:
        return [
            *as_user(self.user),
            *(self.program, "--no-defaults"),
            *self._own_folders(),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder / 's'}"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"),
            "--max-allowed-packet=4M",
            *("--performance-schema=OFF", "--innodb-fast-shutdown=2", "--skip-log-bin", "--skip-name-resolve"),
        ]

    def _own_folders(self) -> list[str]:
        """Return the options for its folders. A server that starts deletes the temporary tables that others have in its
        `tmpdir`, and their statements fail.
        """
        return [f"--datadir={self.data}", f"--tmpdir={self.folder}"]

    def create_database(self, name: str) -> None:
        self.query("mysql", f"CREATE DATABASE {name}")
        self.query("mysql", f"GRANT ALL ON {name}.* TO {USER}@'%'")

    def connect(self, database: str) -> pymysql.connections.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=int(START_S),
            ssl_disabled=True,
        )
