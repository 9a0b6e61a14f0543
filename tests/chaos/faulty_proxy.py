"""An HTTP proxy on 127.0.0.1 that spoils one chosen request, and passes on every other.

A fault is a function of an `Exchange`: one request, the way to the real server, and several ways to answer it.
"""

from __future__ import annotations

import http.client
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_NOT_PASSED_ON = {"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}
_IDLE_S = 60.0
_UPSTREAM_S = 60.0
_LEAVES_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """One request, as a fault sees it. The connection ends if the fault does not answer."""

    def __init__(self, proxy: FaultyProxy, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
        self._proxy = proxy
        self._handler = handler
        self.request = request
        self.number = number
        """The number of this request since `FaultyProxy.arm`, counted from 1."""

    def forward(self, request: Request | None = None) -> Answer:
        """Let the real server carry out the request."""
        return self._proxy.forward(request or self.request)

    def forward_mixed_up(self, pick: Callable[[Sequence[str]], str]) -> Answer:
        """Return the real server's answer to a read of another object. If there is none, that object does not exist."""
        others = [target for target in dict.fromkeys(self._proxy.stored) if target != self.request.target]
        return self.forward(replace(self.request, target=pick(others or [f"{self.request.target}.other"])))

    def forward_later(self, after: int) -> None:
        """Let the real server carry out the request (again) after so many more requests."""
        self._proxy.keep(self.request, due=self.number + after)

    def answer(self, answer: Answer, *, announced: int | None = None) -> None:
        """Answer the client. With `announced`, promise that many bytes of body, whatever the body has."""
        handler = self._handler
        handler.send_response_only(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer.body) if announced is None else announced))
        handler.end_headers()
        if self.request.method != "HEAD":
            handler.wfile.write(answer.body)

    def drop(self) -> None:
        """End the connection in the orderly way."""
        self._handler.close_connection = True

    def reset(self) -> None:
        """End the connection with a reset (RST), which discards everything in transit."""
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.close_connection = True

    def keep_silent(self) -> None:
        """Answer nothing until the client gives up and closes the connection."""
        connection = self._handler.connection
        readable, _, _ = select.select([connection], [], [], _LEAVES_WITHIN_S)
        if not readable:
            raise AssertionError(f"{self.request}: the client waits without a time limit")
        self.drop()


Fault = Callable[[Exchange], None]


def pass_on(exchange: Exchange) -> None:
    exchange.answer(exchange.forward())


class FaultyProxy:
    """The proxy, which serves on a free port until `stop`. `arm` begins a new count of requests."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._at = 0
        self._kept: list[tuple[int, Request]] = []
        self._clients: set[socket.socket] = set()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.seen: list[tuple[Request, Answer]] = []
        """The requests that were forwarded since `arm`, in order."""
        self.stored: list[str] = []
        """The targets of all PUTs that had success. Empty it together with the server."""
        self.count = 0
        """Requests since `arm`."""
        self.hit: Request | None = None
        """The request that the fault spoilt."""
        self.problems: list[BaseException] = []
        """The errors of the proxy itself. The scenario looks at them."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            _hang_up(client)
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def arm(self, fault: Fault | None = None, *, at: int = 0) -> None:
        """Count from 1 again, and spoil the request with number `at`."""
        with self._lock:
            self._fault, self._at = fault, at
            self.seen, self.count, self.hit, self._kept = [], 0, None, []

    def forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(self._upstream, timeout=_UPSTREAM_S)
        try:
            connection.request(request.method, request.target, request.body, dict(request.headers))
            response = connection.getresponse()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in _NOT_PASSED_ON}
            answer = Answer(response.status, response.read(), headers)
        finally:
            connection.close()
        self.seen.append((request, answer))
        if request.method == "PUT" and answer.status == 200:
            self.stored.append(request.target)
        return answer

    def keep(self, request: Request, *, due: int) -> None:
        """Forward a request just before the request with number `due`."""
        with self._lock:
            self._kept.append((due, request))

    def settle(self) -> int:
        """Forward all requests that are still kept. Return how many."""
        return self._forward_due(None)

    def serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """Handle one request, on the thread of its connection."""
        with self._lock:
            self.count += 1
            number = self.count
        self._forward_due(number)
        spoilt = number == self._at and self._fault is not None
        if spoilt:
            self.hit = request
        act = self._fault if spoilt and self._fault is not None else pass_on
        try:
            act(Exchange(self, handler, request, number))
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True  # the client left, which it may
        except Exception as error:  # noqa: BLE001 - nothing above catches it; the scenario looks at `problems`
            self.problems.append(error)
            handler.close_connection = True

    def note_client(self, client: socket.socket, *, gone: bool) -> None:
        with self._lock:
            (self._clients.discard if gone else self._clients.add)(client)

    def _forward_due(self, number: int | None) -> int:
        with self._lock:
            due = [request for at, request in self._kept if number is None or at <= number]
            self._kept = [(at, request) for at, request in self._kept if number is not None and at > number]
        for request in due:
            self.forward(request)
        return len(due)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def shutdown_request(self, request: Any) -> None:
        """Close as usual, but without an orderly end before a reset."""
        if struct.unpack("ii", request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0]:
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients may leave in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    disable_nagle_algorithm = True  # head and body are sent separately, which would cost 40 ms each

    def setup(self) -> None:
        super().setup()
        self._proxy.note_client(self.connection, gone=False)

    def finish(self) -> None:
        self._proxy.note_client(self.connection, gone=True)
        super().finish()

    @property
    def _proxy(self) -> FaultyProxy:
        assert isinstance(self.server, _Server)
        return self.server.proxy

    def _serve(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_PASSED_ON}
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._proxy.serve(self, Request(self.command, self.path, headers, body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names that http.server looks up

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: the proxy counts."""


def _hang_up(client: socket.socket) -> None:
    try:
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client has left already
