"""A PostgreSQL primary and a streaming standby that is held back, so that a fail-over loses acknowledged commits.

Clients use one address, that of a proxy, which leads to the primary. The standby receives the primary's log through a
second proxy. `hold_back` cuts that one: the standby keeps its present log and receives nothing more, as over a slow or
broken line. `fail_over` kills every process of the primary and promotes the standby.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.support.servers.databases import PostgresqlServer, postgresql_program
from tests.support.servers.server import START_S
from tests.support.servers.tcp_proxy import TcpProxy


class Standby(PostgresqlServer):
    """A standby of a primary, in a separate folder. It receives the primary's log through a proxy's port."""

    def __init__(self, folder: Path, primary: PostgresqlServer, line: TcpProxy) -> None:
        super().__init__(folder)
        self._primary = primary
        self._line_port = line.port

    def create_files(self) -> None:
        at = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "admin"]
        backup = postgresql_program("pg_basebackup")
        self.run(backup, *at, "-D", self.data, "-X", "stream", "-c", "fast", "--no-sync")
        (self.data / "standby.signal").touch()
        if os.geteuid() == 0:
            shutil.chown(self.data / "standby.signal", self.user, self.user)

    def create_user(self) -> None:
        """Do nothing: it has the primary's users."""

    def settings(self) -> dict[str, object]:
        line = f"host=127.0.0.1 port={self._line_port} user=admin"
        return {**super().settings(), "primary_conninfo": line, "wal_retrieve_retry_interval": "100ms"}

    def received(self) -> int:
        """Return the end of its copy of the primary's log, as a number of bytes."""
        ((bytes_,),) = self.query("postgres", "SELECT coalesce(pg_last_wal_receive_lsn(), '0/0') - '0/0'::pg_lsn")
        return int(bytes_)

    def promote(self) -> None:
        ((done,),) = self.query("postgres", f"SELECT pg_promote(true, {int(START_S)})")
        assert done, f"the standby in {self.folder} was not promoted within {START_S} s"


class PostgresPair:
    """A primary and its standby. After a fail-over, `renew` gives the new primary a new standby."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._stack = ExitStack()
        self.primary = PostgresqlServer(folder / "server-0")
        self.standby: Standby | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.primary)
            self._front = stack.enter_context(TcpProxy(self.primary.port))
            self._line = stack.enter_context(TcpProxy(self.primary.port))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def port(self) -> int:
        """The port at which clients find the present primary."""
        return self._front.port

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the primary directly."""
        return self.primary.query(database, statement)

    def renew(self) -> None:
        """Make a standby that has everything the primary has. Do nothing if there is one."""
        if self.standby is None:
            self._number += 1
            self._line.lead_to(self.primary.port)
            standby = Standby(self._folder / f"server-{self._number}", self.primary, self._line)
            self.standby = self._stack.enter_context(standby)
        self._wait_until_received(self.standby)

    def hold_back(self) -> None:
        """Let the standby receive everything committed until now, and nothing after it."""
        assert self.standby is not None
        self._wait_until_received(self.standby)
        self._line.hang_up()

    def fail_over(self) -> None:
        """Kill the primary, and lead clients to the standby as it is."""
        standby, dead = self.standby, self.primary
        assert standby is not None
        self._line.hang_up()
        dead.kill()
        standby.promote()
        self._front.lead_to(standby.port)
        self.primary, self.standby = standby, None
        shutil.rmtree(dead.folder)

    def _wait_until_received(self, standby: Standby) -> None:
        ((due,),) = self.query("postgres", "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        standby.child.wait_until(lambda: standby.received() >= int(due), "it received the primary's log", START_S)
