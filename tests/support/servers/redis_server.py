"""A Redis server with a password and an append-only file, as docs/sinks/redis.md sets it up."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from tests.support.servers.server import Server, program, version_of

PASSWORD = "hunter2-of-redis"  # noqa: S105 - a test's own


class RedisServer(Server):
    """A server that listens on a port and on the file `redis.sock` of its folder. `options` override its setup."""

    product = "Redis"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._program = program("redis-server", "redis-server")
        self._options = options
        self._repair = True

    @property
    def url(self) -> str:
        """The URL without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def append_only_files(self) -> Path:
        return self.folder / "appendonlydir"

    def start(self, *, repair: bool = True) -> None:
        """Start. `repair=False` leaves a torn file as it is; the option `--aof-load-truncated yes` then accepts it."""
        self._repair = repair
        super().start()

    def prepare(self) -> None:
        """Repair an append-only file that a kill left torn."""
        super().prepare()
        for manifest in self.append_only_files.glob("*.manifest") if self._repair else ():
            command = ["redis-check-aof", "--fix", str(manifest)]
            subprocess.run(command, input=b"y\n", check=True, capture_output=True, timeout=120)

    def command(self) -> Sequence[str | Path]:
        always = ("--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no", "--save", "")
        here = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        socket_file = ("--unixsocket", str(self.folder / "redis.sock"), "--requirepass", PASSWORD)
        return [self._program, *here, *socket_file, *always, *self._options]

    def release(self) -> str:
        return version_of(self._program)

    def answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):
                return False

    def stand_still(self) -> None:
        """Stop the process: connections stay open, but the server does not answer."""
        self.child.send_to_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send_to_all(signal.SIGCONT)

    def client(self, **options: Any) -> Any:
        """Return a client that looks at the server without the sink."""
        given: dict[str, Any] = {"decode_responses": True} | options
        return redis.Redis(port=self.port, password=PASSWORD, **given)
