"""Redis for any test: `redis_server` once per session, with a password; `new_redis` for those that are killed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.components import require
from tests.processes import Child

PASSWORD = "hunter2-of-redis"  # noqa: S105 - a test's own


class RedisServer:
    """A server process on 127.0.0.1 with an append-only file, which can be killed and started again.

    It is set up as docs/sinks/redis.md asks for: a file that a kill left torn is repaired by `redis-check-aof`.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        require(shutil.which("redis-server") is not None, "get it: apt-get install redis-server")
        self.folder = folder
        self.options = options
        self.port = _free_port()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Without its password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def append_only_files(self) -> Path:
        return self.folder / "appendonlydir"

    def start(self, *, repair: bool = True) -> None:
        """`repair=False` starts with the files as they are; add the option `--aof-load-truncated yes` to make it do."""
        for manifest in self.append_only_files.glob("*.manifest") if repair else ():
            command = ["redis-check-aof", "--fix", str(manifest)]
            subprocess.run(command, input=b"y\n", check=True, capture_output=True, timeout=30)
        always = ("--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no", "--save", "")
        here = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        socket_file = ("--unixsocket", str(self.folder / "redis.sock"), "--requirepass", PASSWORD)
        command = ["redis-server", *here, *socket_file, *always, *self.options]
        self._child = Child(command, log=self.folder / "redis.log", limit_s=30)
        self._child.wait_until(self._answers, "Redis answers")

    def kill(self) -> None:
        """SIGKILL, by its process id."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stand_still(self) -> None:
        """Connections stay open, and nobody answers."""
        if self._child is not None:
            self._child.send_to_all(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._child is not None:
            self._child.send_to_all(signal.SIGCONT)

    def client(self, **options: Any) -> Any:
        """To look behind the sink's back."""
        given: dict[str, Any] = {"decode_responses": True} | options
        return redis.Redis(port=self.port, password=PASSWORD, **given)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):
                return False


def _free_port() -> int:
    """One that a cluster's bus, 10,000 above it, is possible for too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def new_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts a server with more options."""
    with ExitStack() as stack:

        def start(*options: str) -> RedisServer:
            folder = tmp_path / f"redis-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            server = RedisServer(folder, *options)
            stack.callback(server.kill)
            server.start()
            return server

        yield start
