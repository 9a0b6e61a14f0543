"""A TCP proxy in front of a Kafka broker that knows the beginning and the kind of each request.

With it, an answer can get lost: the broker carries out a request, and its client never receives the answer.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Literal

from tests.support.servers.tcp_proxy import TcpProxy

END_TXN, ADD_PARTITIONS, PRODUCE = 26, 24, 0
"""Kinds of requests: https://kafka.apache.org/protocol#protocol_api_keys"""
Fault = Literal["lose the request", "lose the answer"]


class KafkaProxy(TcpProxy):
    """The proxy, which passes everything on. `arm` makes it cut all connections at the next request of a kind."""

    def __init__(self, listen: int, broker: int) -> None:
        super().__init__(broker, listen)
        self.address = f"127.0.0.1:{self.port}"
        self.fired = threading.Event()

    def arm(self, kind: int, fault: Fault, *, then_refuse: bool = False) -> None:
        """Lose the next request of this kind, or the answer to it. With `then_refuse`, then refuse all clients."""

        def fire() -> None:
            self.lead_to(0 if then_refuse else self.upstream_port)
            self.fired.set()

        self.fired.clear()
        self.on_cut = fire
        self.cut_at(lambda request: 0 if _kind_of(request) == kind else -1, "after" if "answer" in fault else "before")

    def requests(self, client: socket.socket) -> Iterator[bytes]:
        """Yield each request as a whole, with its length in front."""
        with client.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                yield head + stream.read(struct.unpack(">i", head)[0])


def _kind_of(request: bytes) -> int:
    kind: int = struct.unpack(">h", request[4:6])[0]
    return kind
