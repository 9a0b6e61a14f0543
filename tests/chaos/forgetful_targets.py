"""Scenarios with real servers that lose acknowledged commits: PostgreSQL fails over, Redis restarts."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from urllib.parse import quote

from tests.chaos.forgetting import ForgetfulTarget, forgetting
from tests.chaos.scenario import Scenario
from tests.support.processes import POLL_S
from tests.support.servers.databases import PASSWORD as SQL_PASSWORD
from tests.support.servers.databases import USER, servers_folder
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres_pair import PostgresPair
from tests.support.servers.redis_server import PASSWORD as REDIS_PASSWORD
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.tcp_proxy import TcpProxy

LAW = (
    "each row is once in the surviving target or among the dead letters; if rows of a marked batch are gone, an error "
    "says so"
)
REPLICA_S = 10.0
_numbers = itertools.count()


class FailedOver(ForgetfulTarget):
    """A PostgreSQL primary and its standby. Each place is a schema with its own ledger."""

    def __init__(self, pair: PostgresPair, database: str, port: int) -> None:
        self._pair, self._database, self._port = pair, database, port

    def begin(self, name: str) -> str:
        for statement in (
            f"CREATE SCHEMA {name} AUTHORIZATION {USER}",
            f"CREATE TABLE {name}.orders (id bigint, word text, place text NOT NULL)",
            f"ALTER TABLE {name}.orders OWNER TO {USER}",
        ):
            self._pair.query(self._database, statement)
        self._pair.renew()
        login = f"{USER}:{quote(SQL_PASSWORD, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self._port}/{self._database}?table=orders&schema={name}"

    def hold_back(self) -> None:
        self._pair.hold_back()

    def fail_over(self) -> None:
        self._pair.fail_over()

    def ids(self, name: str) -> Sequence[int]:
        return [int(row) for (row,) in self._pair.query(self._database, f"SELECT id FROM {name}.orders")]


@contextmanager
def postgresql_pair(folder: Path, *, pooled: bool = False) -> Iterator[ForgetfulTarget]:  # noqa: ARG001 - has its own
    with servers_folder() as place, PostgresPair(place) as pair, ExitStack() as stack:
        database = pair.primary.new_database()
        port = stack.enter_context(PgBouncer(place / "bouncer", pair.port)).port if pooled else pair.port
        yield FailedOver(pair, database, port)


class ForgetfulRedis(ForgetfulTarget):
    """A Redis that loses its newest writes in one way. Each place is a separate stream."""

    server: RedisServer
    """The server that is alive."""

    @property
    def port(self) -> int:
        """The port at which clients find the present server."""
        return self.server.port

    def begin(self, name: str) -> str:  # noqa: ARG002 - each row names its stream
        login = quote(REDIS_PASSWORD, safe="")
        return f"redis://:{login}@127.0.0.1:{self.port}/0?kind=stream&key={{place}}"

    def ids(self, name: str) -> Sequence[int]:
        with self.server.client() as client:
            return [int(row["id"]) for _, row in client.xrange(name)]


class FromSnapshot(ForgetfulRedis):
    """A Redis without an append-only file. It is killed some writes after its last snapshot."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server = stack.enter_context(RedisServer(folder, "--appendonly", "no"))

    def hold_back(self) -> None:
        with self.server.client() as client:
            client.save()

    def fail_over(self) -> None:
        self.server.kill()
        self.server.start()


class FromTornFile(ForgetfulRedis):
    """A Redis that loses the part of its append-only file that the system had not written before a loss of power."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server = stack.enter_context(RedisServer(folder, "--appendfsync", "no"))
        self._bytes = 0

    def hold_back(self) -> None:
        self._bytes = self._file().stat().st_size

    def fail_over(self) -> None:
        self.server.kill()
        os.truncate(self._file(), self._bytes)
        self.server.start()

    def _file(self) -> Path:
        (newest,) = self.server.append_only_files.glob("*.incr.aof")
        return newest


class ToReplica(ForgetfulRedis):
    """A Redis whose lagging replica takes over from a dead server. Clients reach the present one through a proxy."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.server = self._started()
        self._replica: RedisServer | None = None
        self._front = stack.enter_context(TcpProxy(self.server.port))
        self._line = stack.enter_context(TcpProxy(self.server.port))

    @property
    def port(self) -> int:
        return self._front.port

    def begin(self, name: str) -> str:
        if self._replica is None:
            self._line.lead_to(self.server.port)
            self._replica = self._started("--replicaof", f"127.0.0.1 {self._line.port}")
        self._wait_until_received(self._replica)
        return super().begin(name)

    def hold_back(self) -> None:
        assert self._replica is not None
        self._wait_until_received(self._replica)
        self._line.hang_up()

    def fail_over(self) -> None:
        assert self._replica is not None
        self._line.hang_up()
        self.server.kill()
        with self._replica.client() as client:
            client.replicaof("NO", "ONE")
        self._front.lead_to(self._replica.port)
        self.server, self._replica = self._replica, None

    def _started(self, *options: str) -> RedisServer:
        folder = self._folder.with_name(f"{self._folder.name}-{next(_numbers)}")
        own = ("--appendonly", "no", "--repl-diskless-sync-delay", "0", "--masterauth", REDIS_PASSWORD)
        return self._stack.enter_context(RedisServer(folder, *own, *options))

    def _wait_until_received(self, replica: RedisServer) -> None:
        deadline = time.monotonic() + REPLICA_S
        with self.server.client() as here, replica.client() as there:
            due = here.info("replication")["master_repl_offset"]
            while True:
                found = there.info("replication")
                if found["master_link_status"] == "up" and found["slave_repl_offset"] >= due:
                    return
                assert time.monotonic() < deadline, f"the replica is not up to date within {REPLICA_S} s: {found}"
                time.sleep(POLL_S)


class Redis(ForgetfulTarget):
    """Three Redis servers, used in turn. Each loses its newest writes in another way."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ways = (FromSnapshot, FromTornFile, ToReplica)
        self._ways: Iterator[ForgetfulTarget] = cycle([way(folder / way.__name__, stack) for way in ways])
        self._target: ForgetfulTarget = next(self._ways)

    def begin(self, name: str) -> str:
        self._target = next(self._ways)
        return self._target.begin(name)

    def hold_back(self) -> None:
        self._target.hold_back()

    def fail_over(self) -> None:
        self._target.fail_over()

    def ids(self, name: str) -> Sequence[int]:
        return self._target.ids(name)


@contextmanager
def redis_servers(folder: Path) -> Iterator[ForgetfulTarget]:
    with ExitStack() as stack:
        yield Redis(folder, stack)


TARGETS: Mapping[str, tuple[str, Callable[[Path], AbstractContextManager[ForgetfulTarget]]]] = {
    "PostgreSQL failed over to a lagging standby": ("fail-over", postgresql_pair),
    "PostgreSQL failed over behind PgBouncer": ("fail-over", partial(postgresql_pair, pooled=True)),
    "Redis restarted without its newest writes": ("restart", redis_servers),
}
SCENARIOS = [
    Scenario(name=name, law=LAW, unit=unit, run=partial(forgetting, target_in))
    for name, (unit, target_in) in TARGETS.items()
]
