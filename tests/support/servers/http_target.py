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
import sqlite3
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers.http_server import HttpRequest, HttpServer
from tests.support.waiting import PATIENCE_S


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
    until: threading.Event | None = None
    """The effect comes when this is set, or after a minute."""
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


class HttpTarget(HttpServer):
    """A running server, in a thread of this process."""

    def __init__(self, path: Path, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port, tls=tls)
        self.store = RowStore(path)
        self._turn = threading.Lock()
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []
        self.refuse: Callable[[dict[str, Any]], str] = lambda _row: ""
        """Returns why a row is refused. One refused row refuses the whole request, with status 422."""

    def forget(self) -> None:
        """Forget all faults and requests, but keep the rows."""
        self.faults.clear()
        self.requests.clear()
        self.refuse = lambda _row: ""

    def handle(self, request: HttpRequest, body: bytes) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.command, request.path, headers, body)
        self.requests.append(seen)
        fault = self._fault_for(request.path, body) or Fault()
        time.sleep(fault.delay_s)
        if fault.until is not None:
            fault.until.wait(PATIENCE_S)
        if fault.cut == "before":
            return request.drop()
        if fault.status:
            text = fault.body.encode() if isinstance(fault.body, str) else fault.body
            return request.answer(fault.status, text, fault.headers)
        status, text = self._carry_out(seen)
        return request.drop() if fault.cut == "after" else request.answer(status, text, {})

    def _fault_for(self, path: str, body: bytes) -> Fault | None:
        with self._turn:  # requests come side by side, and a fault is that of one of them
            for fault in self.faults:
                if fault.times > 0 and fault.meets(path, body):
                    fault.times -= 1
                    return fault
        return None

    def _carry_out(self, seen: Seen) -> tuple[int, bytes]:
        kind, name, *rest = seen.path.partition("?")[0].strip("/").split("/")
        if seen.method == "GET":
            return (200, b"yes") if self.store.knows(name, rest[1]) else (404, b"no")
        if kind not in ("keys", "plain"):
            return 404, b"no such path"
        rows = _rows(seen.headers.get("content-type", ""), seen.body)
        for row in rows:
            if reason := self.refuse(row):
                return 422, reason.encode()
        self.store.apply(name, seen.key, [json.dumps(row) for row in rows], once=kind == "keys")
        return 201, b"created"


def _rows(content_type: str, body: bytes) -> list[dict[str, Any]]:
    if content_type == "application/x-ndjson":
        return [json.loads(line) for line in body.splitlines()]
    given = json.loads(body)
    return given if isinstance(given, list) else [given]


if __name__ == "__main__":
    with HttpTarget(Path(sys.argv[1]), int(sys.argv[2])) as server:
        print(f"serving {server.url}", flush=True)  # noqa: T201
        threading.Event().wait()
