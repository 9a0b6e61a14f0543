"""The common part of moto's servers: one service over HTTP on 127.0.0.1, between the start and the stop of a test."""

from __future__ import annotations

import io
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

from moto.server import ThreadedMotoServer

from tests.support.servers.ports import free_port

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class MotoServer(ABC):
    """A running server. It serves in a `with` block, or from `start()` to `stop()`."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        """Held while moto handles a request. It reads first and writes then, so requests come one at a time."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)

    def start(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs every request
        self._server.start()
        running = self._server._server
        assert running is not None
        running.app = partial(self.handle, running.app)
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"

    def stop(self) -> None:
        running = self._server._server
        self._server.stop()
        if running is not None:
            running.server_close()

    @abstractmethod
    def handle(self, app: Wsgi, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Handle a request, usually by `app`, which is moto. Many threads call this at the same time."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def body_of(environ: dict[str, Any]) -> bytes:
    """Return the body of a request, which can be read again."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    set_body(environ, body)
    return body


def set_body(environ: dict[str, Any], body: bytes) -> None:
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
