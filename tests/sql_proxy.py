"""A TCP proxy on 127.0.0.1 between a client and a server.

It cuts, or swallows, what goes between them at a chosen moment; and it leads one address to another server. It knows
nothing of what passes, and so stands in front of Redis as well.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

How = Literal["before", "halfway", "at", "after", "swallow"]
"""Cut before the server has the request; when it has half of it; when its answer to what comes before the text has
passed; when it has done all of it, and its answer is lost. Or pass nothing on any more, and stay.
"""
_ANSWER_S = 10.0


class SqlProxy:
    """Serves inside a `with` block. `cut(text)` waits for the next request with this text, on any connection."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port: int | None = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self._rule: tuple[bytes, How] | None = None
        self._said: tuple[bytes, bytes] | None = None
        self.cuts = 0
        self.on_cut: Callable[[], None] = lambda: None

    def cut(self, text: bytes, how: How) -> None:
        self._rule = (text, how)

    def hang_up(self) -> None:
        """End every connection, and accept none until `switch`."""
        self._upstream_port = None
        for link in self._links:
            link.end()
        self._links.clear()

    def switch(self, upstream_port: int) -> None:
        """From now on new connections lead there, under the same address."""
        self._upstream_port = upstream_port

    def lead_to(self, upstream_port: int) -> None:
        """Another server takes the place of this one: all connections end, new ones lead there."""
        self.hang_up()
        self.switch(upstream_port)

    def answer(self, first: bytes, data: bytes) -> None:
        """Say this instead of the next answer that begins so; then cut."""
        self._said = (first, data)

    def said_instead(self, answer: bytes) -> bytes | None:
        """What to say instead of an answer; each rule counts once."""
        if self._said is None or not answer.startswith(self._said[0]):
            return None
        (_, data), self._said = self._said, None
        return data

    def due(self, data: bytes) -> tuple[How, int] | None:
        """What to do with a request, and where the text begins in it; each rule counts once."""
        if self._rule is None or self._rule[0] not in data:
            return None
        (text, how), self._rule = self._rule, None
        self.cuts += 1
        return how, data.index(text)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._listener)
        for link in self._links:
            link.end()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        port = self._upstream_port
        if port is None:
            _end(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            _end(client)
            return
        link = _Link(self, client, server)
        self._links.append(link)
        if self._upstream_port is None:  # it hung up meanwhile
            link.end()


class _Link:
    """One connection of a client, and that to the server which stands for it."""

    def __init__(self, proxy: SqlProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._silent = threading.Event()
        self._answered = threading.Event()
        """Since the text came."""
        for way in (self._requests, self._answers):
            threading.Thread(target=way, daemon=True).start()

    def end(self) -> None:
        _end(self._client)
        _end(self._server)

    def _requests(self) -> None:
        how: How | None = None
        with contextlib.suppress(OSError):
            while how is None and (data := self._client.recv(1 << 20)):
                how, at = self._proxy.due(data) or (None, 0)
                self._answered.clear()
                if how not in (None, "at"):
                    self._silent.set()
                passing = {None: len(data), "after": len(data), "halfway": len(data) // 2, "at": at}
                self._server.sendall(data[: passing.get(how, 0)])
            if how in ("after", "at"):
                self._answered.wait(_ANSWER_S)
        if how is not None:
            self._proxy.on_cut()
        if how != "swallow":
            self.end()

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 20):
                if self._silent.is_set():
                    self._answered.set()
                    continue
                if other := self._proxy.said_instead(data):
                    self._client.sendall(other)
                    break
                self._client.sendall(data)
                self._answered.set()
        if not self._silent.is_set():
            self.end()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
