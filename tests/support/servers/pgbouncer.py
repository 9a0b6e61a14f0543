"""A real PgBouncer on 127.0.0.1 that pools transactions, in front of any server at a port."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.support.processes import Child
from tests.support.servers.databases import PASSWORD, START_S, USER, PostgresqlServer, as_user, free_port, program

HOW_TO_GET_IT = "this needs PgBouncer: apt-get install pgbouncer"

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


class PgBouncer:
    """The pooler. It serves inside a `with` block. While its server is unreachable, clients wait without an answer."""

    def __init__(self, folder: Path, upstream_port: int) -> None:
        self.port = free_port()
        self._folder = folder
        folder.mkdir()
        settings = _SETTINGS.format(upstream=upstream_port, port=self.port, folder=folder)
        (folder / "pgbouncer.ini").write_text(settings)
        (folder / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
        if as_user(PostgresqlServer.user):  # PgBouncer refuses to run as root, too
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, PostgresqlServer.user, PostgresqlServer.user)

    def __enter__(self) -> Self:
        bouncer = program("pgbouncer")
        assert bouncer is not None
        command: list[str | Path] = [*as_user(PostgresqlServer.user), bouncer, self._folder / "pgbouncer.ini"]
        self.child = Child(command, log=self._folder.with_name("pgbouncer.log"), limit_s=START_S)
        try:
            self.child.wait_until(self._answers, "PgBouncer answered")
        except BaseException:
            self.child.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.kill()

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.connect("postgres") as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
        return False

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, connect_timeout=2
        )
