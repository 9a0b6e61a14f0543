"""An API on 127.0.0.1 that keeps rows in SQLite: the target for tests of HTTP sinks.

It honours idempotency keys or not, depending on the path. It refuses rows, cuts connections before or after the effect,
and gives any answer that a test sets. As a program (`python http_target.py DATABASE PORT`) it can be killed and started
again.

    POST /keys/NAME            rows, once for each Idempotency-Key
    POST /plain/NAME           rows, as often as they come
    GET  /keys/NAME/chunks/KEY 200 if a request of that key was applied, else 404
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Fault:
    """A fault of the next request for which `meets` holds."""

    status: int = 0
    """The status of an answer that replaces the effect. 0: no such answer."""
    headers: dict[str, str] = field(default_factory=dict)
    body: str | bytes = ""
    cut: str = ""
    """The connection ends without an answer, `before` or `after` the effect."""
    delay_s: float = 0.0
    """The delay before the effect."""
    times: int = 1
    meets: Callable[[str, bytes], bool] = lambda _path, _body: True


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


class RowStore:
    """The rows and keys of every name, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._transaction() as database:
            database.execute("CREATE TABLE IF NOT EXISTS keys (name TEXT, key TEXT, PRIMARY KEY (name, key))")
            database.execute("CREATE TABLE IF NOT EXISTS rows (name TEXT, row TEXT)")
            database.execute("CREATE INDEX IF NOT EXISTS by_name ON rows (name)")

    def apply(self, name: str, key: str | None, rows: list[str], *, once: bool) -> None:
        with self._transaction() as database:
            known = database.execute("SELECT 1 FROM keys WHERE name = ? AND key = ?", (name, key)).fetchone()
            if once and known:
                return
            database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (name, key))
            database.executemany("INSERT INTO rows VALUES (?, ?)", [(name, row) for row in rows])

    def knows(self, name: str, key: str) -> bool:
        with self._transaction() as database:
            return bool(database.execute("SELECT 1 FROM keys WHERE name = ? AND key = ?", (name, key)).fetchone())

    def rows(self, name: str) -> list[Any]:
        with self._transaction() as database:
            found = database.execute("SELECT row FROM rows WHERE name = ? ORDER BY rowid", (name,)).fetchall()
        return [json.loads(row) for (row,) in found]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as database:
            database.execute("PRAGMA synchronous = OFF")  # writes of a killed process survive without it
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")


class HttpTarget:
    """A running server, in a thread of this process."""

    def __init__(self, path: Path, port: int = 0, *, tls: Any = None) -> None:
        self.store = RowStore(path)
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []
        self.refuse: Callable[[dict[str, Any]], str] = lambda _row: ""
        """Returns why a row is refused. One refused row refuses the whole request, with status 422."""
        self._server = _Server(("127.0.0.1", port), _Handler, self)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault_for(self, path: str, body: bytes) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.meets(path, body):
                fault.times -= 1
                return fault
        return None

    def forget(self) -> None:
        """Forget all faults and requests, but keep the rows."""
        self.faults.clear()
        self.requests.clear()
        self.refuse = lambda _row: ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], target: HttpTarget) -> None:
        super().__init__(address, handler)
        self.target = target

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients of these tests leave in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""

    def do_POST(self) -> None:
        self._handle()

    do_PUT = do_POST  # noqa: N815 - the names http.server calls
    do_GET = do_POST  # noqa: N815

    @property
    def _target(self) -> HttpTarget:
        server = self.server
        assert isinstance(server, _Server)
        return server.target

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        target = self._target
        headers = {name.lower(): value for name, value in self.headers.items()}
        target.requests.append(Seen(self.command, self.path, headers, body))
        fault = target.fault_for(self.path, body) or Fault()
        time.sleep(fault.delay_s)
        if fault.cut == "before":
            return self._hang_up()
        if fault.status:
            return self._respond(fault.status, fault.body, fault.headers)
        status, text = self._carry_out(body)
        if fault.cut == "after":
            return self._hang_up()
        return self._respond(status, text, {})

    def _carry_out(self, body: bytes) -> tuple[int, str]:
        store = self._target.store
        kind, name, *rest = self.path.partition("?")[0].strip("/").split("/")
        if self.command == "GET":
            return (200, "yes") if store.knows(name, rest[1]) else (404, "no")
        if kind not in ("keys", "plain"):
            return 404, "no such path"
        rows = _rows(self.headers.get("Content-Type", ""), body)
        for row in rows:
            if reason := self._target.refuse(row):
                return 422, reason
        key = self.headers.get("Idempotency-Key")
        store.apply(name, key, [json.dumps(row) for row in rows], once=kind == "keys")
        return 201, "created"

    def _respond(self, status: int, text: str | bytes, headers: dict[str, str]) -> None:
        content = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for header, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _rows(content_type: str, body: bytes) -> list[dict[str, Any]]:
    if content_type == "application/x-ndjson":
        return [json.loads(line) for line in body.splitlines()]
    given = json.loads(body)
    return given if isinstance(given, list) else [given]


if __name__ == "__main__":
    server = HttpTarget(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"serving {server.url}", flush=True)  # noqa: T201
    server.start()
    threading.Event().wait()
