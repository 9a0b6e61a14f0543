"""A TCP proxy on 127.0.0.1 that replaces an answer of the server, and then ends the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Interrupter:
    """The proxy. It serves inside a `with` block."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.instead: tuple[bytes, bytes] | None = None
        """The beginning of the answer to replace, and its replacement. It is used once."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._ends:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream_port))
                self._ends += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                server.sendall(data)
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if self.instead is not None and data.startswith(self.instead[0]):
                    (_, data), self.instead = self.instead, None
                    client.sendall(data)
                    break
                client.sendall(data)
        _end(client)
        _end(server)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
