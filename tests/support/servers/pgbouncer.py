"""A real PgBouncer on 127.0.0.1 that pools transactions, in front of any server at a port."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psycopg

from tests.support.servers.databases import PASSWORD, USER, PostgresqlServer, as_user
from tests.support.servers.server import Server, program, version_of

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={upstream}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users.txt
pool_mode = transaction
server_login_retry = 0.05
server_connect_timeout = 2
"""


class PgBouncer(Server):
    """The pooler. While its server is unreachable, clients wait without an answer."""

    product = "PgBouncer"

    def __init__(self, folder: Path, upstream_port: int) -> None:
        super().__init__(folder)
        self._program = program("pgbouncer", "pgbouncer")
        self._upstream_port = upstream_port

    def prepare(self) -> None:
        super().prepare()
        settings = _SETTINGS.format(upstream=self._upstream_port, port=self.port, folder=self.folder)
        (self.folder / "pgbouncer.ini").write_text(settings)
        (self.folder / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
        if as_user(PostgresqlServer.user):  # PgBouncer refuses to run as root, too
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, PostgresqlServer.user, PostgresqlServer.user)

    def command(self) -> Sequence[str | Path]:
        return [*as_user(PostgresqlServer.user), self._program, self.folder / "pgbouncer.ini"]

    def release(self) -> str:
        return version_of(self._program)

    def answers(self) -> bool:
        place = {"host": "127.0.0.1", "port": self.port, "dbname": "postgres", "connect_timeout": 2}
        with suppress(psycopg.OperationalError), psycopg.connect(user=USER, password=PASSWORD, **place) as connection:  # type: ignore[arg-type]
            return connection.execute("SELECT 1").fetchone() == (1,)
        return False
