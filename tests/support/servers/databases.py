"""PostgreSQL and MariaDB servers for the tests: on 127.0.0.1, a free port, in a temporary folder."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pymysql

from tests.support.processes import Child

PASSWORD = "correct horse / battery? staple@"  # noqa: S105 - only for tests, with all that has to be masked and escaped
PASSWORD_VARIABLE = "WAL_SINK_TEST_SQL_PASSWORD"  # noqa: S105 - its name
USER = "etl"
START_S = 60.0
HOW_TO_GET_THEM = "this needs database servers: apt-get install postgresql mariadb-server"
_numbers = itertools.count()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def program(name: str) -> Path | None:
    """Find a server's program. Debian keeps them outside of PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec")
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return Path(found) if found else next(reversed(newest), None)


@contextmanager
def servers_folder() -> Iterator[Path]:
    """Yield a folder for a server's files. Other users may enter it, unlike pytest's folders. In memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of an unforgeable name is made in it
    with tempfile.TemporaryDirectory(prefix="wal-sink-sql-", dir=memory if memory.is_dir() else None) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_user(user: str) -> list[str]:
    """Return the prefix that runs a command as this user if this process is root, as which no database server runs."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if os.geteuid() == 0 else []


class Server(ABC):
    """A server that can be stopped and started again. `USER` owns each new database and has a password."""

    scheme: str
    options = ""
    """The options that each URL of a database has."""
    user: str
    """The user that runs the server if root starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.child: Child | None = None
        self._admin: tuple[str, Any] | None = None
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, self.user, self.user)

    def start(self) -> None:
        """Start, and return when the server answers. If another process has taken the port meanwhile, try another."""
        self.child = Child(self.command(), log=self.folder.with_name(f"{self.folder.name}-{next(_numbers)}.log"))
        self.child.wait_until(self.answers, "it answered", START_S)

    def stop(self) -> None:
        """Stop at once, as in a crash. Committed rows are kept."""
        self._leave()
        if self.child is not None:
            self.child.kill()

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

    @abstractmethod
    def command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    @abstractmethod
    def create_database(self, name: str) -> None: ...

    @abstractmethod
    def connect(self, database: str) -> Any:
        """Return a connection of the administrator that commits every statement."""

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator, and commit it."""
        if self._admin is None or self._admin[0] != database:
            self._leave()
            self._admin = (database, self.connect(database))
        cursor = self._admin[1].cursor()
        try:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
        except (psycopg.OperationalError, pymysql.err.OperationalError):
            self._leave()
            raise
        finally:
            cursor.close()

    def _leave(self) -> None:
        if self._admin is not None:
            with suppress(pymysql.err.Error):  # the connection is gone already
                self._admin[1].close()
            self._admin = None


class PostgresqlServer(Server):
    scheme = "postgresql"
    user = "postgres"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.make()

    def make(self) -> None:
        """Make the files of a new server, and start it."""
        initdb, data = program("initdb"), self.folder / "data"
        assert initdb is not None
        self.run(initdb, "-D", data, "-U", "admin", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        rules = [f"host all {USER},limited,crowd all md5", "host all,replication admin all trust"]
        (data / "pg_hba.conf").write_text("\n".join(rules) + "\n")
        self.start()
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
        postgres = program("postgres")
        assert postgres is not None
        options = [text for name, value in self.settings().items() for text in ("-c", f"{name}={value}")]
        return [*as_user(self.user), postgres, "-D", self.folder / "data", *options]

    def answers(self) -> bool:
        try:
            return bool(self.query("postgres", "SELECT 1"))
        except psycopg.OperationalError:
            time.sleep(0.02)
            return False

    def create_database(self, name: str) -> None:
        self.query("postgres", f"CREATE DATABASE {name} OWNER {USER} STRATEGY file_copy")

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(host="127.0.0.1", port=self.port, user="admin", dbname=database, autocommit=True)


class MariadbServer(Server):
    scheme = "mariadb"
    options = "ssl_disabled=true"  # otherwise PyMySQL reads all certificates of the machine each time
    user = "mysql"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        install = program("mariadb-install-db")
        assert install is not None
        own = ["--no-defaults", f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal"]
        self.run(install, *own, "--skip-test-db", "--innodb-flush-log-at-trx-commit=0")
        self.start()
        self.query("mysql", f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")

    def command(self) -> Sequence[str | Path]:
        mariadbd = program("mariadbd")
        assert mariadbd is not None
        return [
            *as_user(self.user),
            *(mariadbd, "--no-defaults", f"--datadir={self.folder / 'data'}", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.folder / 's'}", "--innodb-flush-log-at-trx-commit=0"),
            *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--max-allowed-packet=4M"),
            *("--performance-schema=OFF", "--innodb-fast-shutdown=2", "--skip-log-bin", "--skip-name-resolve"),
        ]

    def answers(self) -> bool:
        try:
            return bool(self.query("mysql", "SELECT 1"))
        except pymysql.err.OperationalError:
            time.sleep(0.02)
            return False

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
            ssl_disabled=True,
        )
