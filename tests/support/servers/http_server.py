"""The common part of HTTP servers on 127.0.0.1 that may leave a client in the middle of an answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.support.servers.ports import free_port
from tests.support.waiting import wait_until

_IDLE_S = 60.0


class HttpServer(ABC):
    """A server in threads of this process. It serves in a `with` block, or from `start()` to `stop()`."""

    def __init__(self, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", port or free_port()), self)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @abstractmethod
    def handle(self, request: HttpRequest, body: bytes) -> None:
        """Handle one request, on the thread of its connection."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        for client in list(self._server.clients):
            with contextlib.suppress(OSError):  # the client has left already
                client.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def wait_until_alone(self) -> None:
        """Wait until every client has left: the last request of a killed process may be handled after its end."""
        wait_until(lambda: not self._server.clients, "every client has left")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class HttpRequest(BaseHTTPRequestHandler):
    """One request, with the ways to answer it. A connection has several requests, one after the other."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    disable_nagle_algorithm = True  # head and body are sent separately, which would cost 40 ms each

    def answer(self, status: int, body: bytes, headers: dict[str, str], *, announced: int | None = None) -> None:
        """Answer the client. With `announced`, promise that many bytes of body, whatever the body has."""
        self.send_response_only(status)
        length = str(len(body) if announced is None else announced)
        for name, value in {"Content-Length": length, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def drop(self) -> None:
        """End the connection in the orderly way."""
        self.close_connection = True

    def reset(self) -> None:
        """End the connection with a reset (RST), which discards everything in transit."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.drop()

    def setup(self) -> None:
        super().setup()
        self._ours.clients.add(self.connection)

    def finish(self) -> None:
        self._ours.clients.discard(self.connection)
        super().finish()

    @property
    def _ours(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def _serve(self) -> None:
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._ours.owner.handle(self, self._chunks() if chunked else self.rfile.read(self._length()))

    def _length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def _chunks(self) -> bytes:
        """Read a body that comes in chunks. Raise `ConnectionError` if the client leaves before its end."""
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0] or b"-1", 16):
            if size < 0 or len(piece := self.rfile.read(size + 2)) < size + 2:
                raise ConnectionError("the client left amid its request")
            body += piece[:size]
        self.rfile.readline()
        return body

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names that http.server looks up

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: HttpServer) -> None:
        super().__init__(address, HttpRequest)
        self.owner = owner
        self.clients: set[socket.socket] = set()

    def shutdown_request(self, request: Any) -> None:
        """Close as usual, but without an orderly end before a reset."""
        if struct.unpack("ii", request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0]:
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients may leave in the middle of a request."""
