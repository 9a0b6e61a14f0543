"""A TCP proxy on 127.0.0.1 in front of a Kafka broker. It knows the beginning and the kind of each request.

With it, an answer can get lost: the broker carries out a request, and its client never receives the answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Literal, Self

END_TXN, ADD_PARTITIONS, PRODUCE = 26, 24, 0
"""Kinds of requests: https://kafka.apache.org/protocol#protocol_api_keys"""
Fault = Literal["lose the request", "lose the answer"]


class KafkaProxy:
    """The proxy, which passes everything on. `arm` makes it cut the connection at the next request of a kind."""

    def __init__(self, listen: int, broker: int) -> None:
        self.address = f"127.0.0.1:{listen}"
        self.refuse = False
        """True if every client is refused."""
        self.fired = threading.Event()
        self._broker = broker
        self._armed: tuple[int, Fault, bool] | None = None
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", listen), reuse_port=True)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def arm(self, kind: int, fault: Fault, *, then_refuse: bool = False) -> None:
        """Lose the next request of this kind, or the answer to it. With `then_refuse`, then refuse all clients."""
        self.fired.clear()
        self._armed = (kind, fault, then_refuse)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self._server)  # this wakes the thread that waits for clients
        self._thread.join(10)
        self._cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                if self.refuse:
                    client.close()
                    continue
                try:
                    broker = socket.create_connection(("127.0.0.1", self._broker), timeout=10)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                self._sockets += [client, broker]
                link = _Link(client, broker)
                threading.Thread(target=self._pass_on, args=(link,), daemon=True).start()
                threading.Thread(target=link.pass_back, daemon=True).start()

    def _pass_on(self, link: _Link) -> None:
        with contextlib.suppress(OSError, struct.error):
            while head := _exactly(link.client, 4):
                request = _exactly(link.client, struct.unpack(">i", head)[0])
                if self._armed is None or struct.unpack(">h", request[:2])[0] != self._armed[0]:
                    link.broker.sendall(head + request)
                    continue
                _, fault, self.refuse = self._armed
                self._armed = None
                if fault == "lose the answer":
                    link.muted = True
                    link.broker.sendall(head + request)
                    link.answered.wait(10)
                self._cut()
                self.fired.set()
                return
        _close(link.client, link.broker)

    def _cut(self) -> None:
        cut, self._sockets = self._sockets, []
        _close(*cut)


class _Link:
    """The connection of a client, and the proxy's connection to the broker for it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self.muted = False
        """True if the client receives nothing any more."""
        self.answered = threading.Event()
        """Set once the broker has answered after that."""

    def pass_back(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.broker.recv(1 << 16):
                if self.muted:
                    self.answered.set()
                else:
                    self.client.sendall(data)
        _close(self.client, self.broker)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            return b""
        data += part
    return data


def _close(*sockets: socket.socket) -> None:
    for some in sockets:
        with contextlib.suppress(OSError):
            some.shutdown(socket.SHUT_RDWR)
        some.close()
