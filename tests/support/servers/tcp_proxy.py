"""A TCP proxy on 127.0.0.1 that cuts or swallows the traffic between a sink and its target at a chosen moment.

It does not understand the traffic. `kafka_proxy` knows where a request begins.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal, Self

from tests.support.servers.ports import free_port

How = Literal["before", "halfway", "at", "after", "swallow"]
"""The moment of a cut: before the server has the request; when it has half of it; after its answer to everything in
front of the text; after the request had its effect, with the answer lost. `swallow` keeps the connection open and
passes nothing on.
"""
_ANSWER_S = 10.0
_SURE_ANSWER_S = 60.0
"""For the answer to a whole request, which comes unless the server has died."""


class TcpProxy:
    """The proxy. It serves inside a `with` block. `cut(text)` waits for the next request with this text."""

    def __init__(self, upstream_port: int, listen: int = 0, *, host: str = "127.0.0.1") -> None:
        self.upstream_port = upstream_port
        self._listener = socket.create_server((host, listen or free_port()), reuse_port=bool(listen))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self._rule: tuple[Callable[[bytes], int], How] | None = None
        self.cuts = 0
        self.on_cut: Callable[[], None] = lambda: None
        self.instead: tuple[bytes, bytes] | None = None
        """The beginning of an answer, and what its client gets in its place before the connection ends. Used once."""

    def cut(self, text: bytes, how: How) -> None:
        self.cut_at(lambda data: data.find(text), how)

    def cut_at(self, find: Callable[[bytes], int], how: How) -> None:
        """Cut at the next request in which `find` finds a place: an index, or -1 for none."""
        self._rule = (find, how)

    def requests(self, client: socket.socket) -> Iterator[bytes]:
        """Yield what a client sends, in pieces that `find` looks at."""
        while data := client.recv(1 << 20):
            yield data

    def lead_to(self, port: int) -> None:
        """Lead new connections to another server, and end all present ones."""
        self.upstream_port = port
        links, self._links = self._links, []
        for link in links:
            link.end()

    def due(self, data: bytes) -> tuple[How, int] | None:
        """Return the fault of a request and the place of the text in it. Each rule is used once."""
        if self._rule is None or (at := self._rule[0](data)) < 0:
            return None
        (_, how), self._rule = self._rule, None
        self.cuts += 1
        return how, at

    def replacement(self, answer: bytes) -> bytes:
        """Return what is sent in place of an answer of the server. Empty if the answer stays."""
        if self.instead is None or not answer.startswith(self.instead[0]):
            return b""
        (_, found), self.instead = self.instead, None
        return found

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        for link in self._links:
            link.end()

    def hang_up(self) -> None:
        """End all connections, and new ones at once, until `lead_to` names another server."""
        self.lead_to(0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.upstream_port))
                except OSError:
                    _end(client)
                    continue
                self._links.append(_Link(self, client, server))


class _Link:
    """The connection of a client, and the connection to the server for it."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._silent = threading.Event()
        self._answered = threading.Event()
        """Set once the server has answered after the text came."""
        for way in (self._requests, self._answers):
            threading.Thread(target=way, daemon=True).start()

    def end(self) -> None:
        _end(self._client)
        _end(self._server)

    def _requests(self) -> None:
        how: How | None = None
        with contextlib.suppress(OSError):
            for data in self._proxy.requests(self._client):
                how, at = self._proxy.due(data) or (None, 0)
                self._answered.clear()
                if how not in (None, "at"):
                    self._silent.set()
                passing = {None: len(data), "after": len(data), "halfway": len(data) // 2, "at": at}
                self._server.sendall(data[: passing.get(how, 0)])
                if how is not None:
                    break
            if how is None:  # the client has sent everything, and may wait for answers
                self._server.shutdown(socket.SHUT_WR)
                return
            if how in ("after", "at"):
                self._answered.wait(_SURE_ANSWER_S if how == "after" else _ANSWER_S)
        if how is not None:
            self._proxy.on_cut()
        if how != "swallow":
            self.end()

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 20):
                replacement = self._proxy.replacement(data)
                if not self._silent.is_set():
                    self._client.sendall(replacement or data)
                self._answered.set()
                if replacement:
                    break
        if not self._silent.is_set():
            self.end()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
