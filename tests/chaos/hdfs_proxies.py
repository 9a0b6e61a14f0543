"""Proxies in front of HDFS: one for WebHDFS, one for Hadoop's own protocol. Each knows name node and data node.

Over Hadoop's protocol, the data node is met at 127.0.0.2 and the port that it has at 127.0.0.1: see `Hdfs.data_host`.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from tests.chaos.faulty_proxy import Answer, FaultyProxy, Request
from tests.support.servers.hdfs import Hdfs
from tests.support.servers.tcp_proxy import How, TcpProxy

DATA_HOST = "127.0.0.2"
_TO_DATA_NODE = "namenoderpcaddress="
"""The argument that only a redirect to the data node has."""
_GREETING = 7
"""The bytes that begin a connection, before its first message."""
_METHOD = re.compile(rb"\x0a.(\w+)\x12.org\.apache\.hadoop", re.DOTALL)
"""Name and protocol in the header of a call: https://github.com/apache/hadoop, ProtobufRpcEngine.proto."""


class WebHdfsProxy(FaultyProxy):
    """A proxy to which the name node's redirects lead, too."""

    def __init__(self, hdfs: Hdfs) -> None:
        super().__init__(f"http://127.0.0.1:{hdfs.name_node.http_port}")
        self._data_node = f"127.0.0.1:{hdfs.data_node.ports[1]}"

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)

    def upstream_of(self, request: Request) -> str:
        return self._data_node if _TO_DATA_NODE in request.target else self.upstream

    def passed_back(self, answer: Answer) -> Answer:
        location = answer.headers.get("Location", "")
        if _TO_DATA_NODE not in location:
            return answer
        target = location[location.index("/webhdfs/") :]
        return replace(answer, headers={**answer.headers, "Location": self.url + target})


class Cut:
    """One message of a client, as a fault sees it. It is passed on if the fault does not cut the connection."""

    how: How | None = None

    def cut(self, how: How) -> None:
        self.how = how


def pass_on(_: Cut) -> None:
    """Spoil nothing."""


class HadoopProxy:
    """Two proxies with one count of messages: calls of the name node, and pieces of data for the data node."""

    def __init__(self, hdfs: Hdfs) -> None:
        self._lock = threading.Lock()
        self._fault: Callable[[Any], None] = pass_on
        self._at = 0
        self.seen: list[tuple[Request, Answer]] = []
        """The messages since `arm`, in order. Nobody waits for the answers here, so they are empty."""
        self.hit: Request | None = None
        self.problems: list[BaseException] = []
        self._name_node = _Calls(self, hdfs.name_node.port)
        self._proxies: list[TcpProxy] = [self._name_node]
        if hdfs.data_host == DATA_HOST:
            self._proxies.append(_Data(self, hdfs.data_node.port))
        self._stack = ExitStack()

    @property
    def port(self) -> int:
        return self._name_node.port

    def arm(self, fault: Callable[[Any], None] = pass_on, *, at: int = 0) -> None:
        """Count from 1 again, and spoil the message with number `at`."""
        with self._lock:
            self._fault, self._at, self.seen, self.hit = fault, at, [], None

    def settle(self) -> int:
        """Return the number of messages that are still to come: none, for none is kept."""
        return 0

    def due(self, what: str) -> tuple[How, int] | None:
        """Return how to cut the connection of this message, and where in it."""
        with self._lock:
            request = Request(what, "", {}, b"")
            self.seen.append((request, Answer(200)))
            if len(self.seen) != self._at:
                return None
            self.hit, cut = request, Cut()
            self._fault(cut)
        return (cut.how, 0) if cut.how is not None else None

    def __enter__(self) -> Self:
        for proxy in self._proxies:
            self._stack.enter_context(proxy)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Calls(TcpProxy):
    """The proxy of the name node. It passes on call after call."""

    def __init__(self, owner: HadoopProxy, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self._owner = owner

    def requests(self, client: socket.socket) -> Iterator[bytes]:
        with client.makefile("rb") as stream:
            begin = stream.read(_GREETING)
            while len(head := stream.read(4)) == 4:
                yield begin + head + stream.read(struct.unpack(">i", head)[0])
                begin = b""

    def due(self, data: bytes) -> tuple[How, int] | None:
        found = _METHOD.search(data)
        return self._owner.due(found[1].decode() if found else "connection")


class _Data(TcpProxy):
    """The proxy of the data node. It passes on piece after piece, as they come."""

    def __init__(self, owner: HadoopProxy, port: int) -> None:
        super().__init__(port, port, host=DATA_HOST)
        self._owner = owner

    def due(self, data: bytes) -> tuple[How, int] | None:  # noqa: ARG002 - any piece counts
        return self._owner.due("data")
