"""An HTTP proxy on 127.0.0.1 that spoils one chosen request, and passes on every other.

A fault is a function of an `Exchange`: one request, the way to the real server, and several ways to answer it.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from tests.support.servers.http_server import HttpRequest, HttpServer

_NOT_PASSED_ON = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
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

    def __init__(self, proxy: FaultyProxy, client: HttpRequest, request: Request, number: int) -> None:
        self._proxy = proxy
        self._client = client
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

    def forward_part(self, size: int) -> None:
        """Send the head of the request and so many bytes of its body to the real server, and end that connection."""
        self._proxy.forward_part(self.request, size)

    def answer(self, answer: Answer, *, announced: int | None = None) -> None:
        """Answer the client. With `announced`, promise that many bytes of body, whatever the body has."""
        self._client.answer(answer.status, answer.body, dict(answer.headers), announced=announced)

    def drop(self) -> None:
        """End the connection in the orderly way."""
        self._client.drop()

    def reset(self) -> None:
        """End the connection with a reset (RST), which discards everything in transit."""
        self._client.reset()

    def keep_silent(self) -> None:
        """Answer nothing until the client gives up and closes the connection."""
        readable, _, _ = select.select([self._client.connection], [], [], _LEAVES_WITHIN_S)
        if not readable:
            raise AssertionError(f"{self.request}: the client waits without a time limit")
        self.drop()


Fault = Callable[[Exchange], None]


def pass_on(exchange: Exchange) -> None:
    exchange.answer(exchange.forward())


class FaultyProxy(HttpServer):
    """The proxy, on a free port. `arm` begins a new count of requests."""

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self.upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._fault: Fault = pass_on
        self._at = 0
        self._kept: list[tuple[int, Request]] = []
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

    def arm(self, fault: Fault = pass_on, *, at: int = 0) -> None:
        """Count from 1 again, and spoil the request with number `at`."""
        with self._lock:
            self._fault, self._at = fault, at
            self.seen, self.count, self.hit, self._kept = [], 0, None, []

    def upstream_of(self, request: Request) -> str:  # noqa: ARG002 - most servers have one address
        """Return host and port of the server for a request."""
        return self.upstream

    def passed_back(self, answer: Answer) -> Answer:
        """Return an answer as the client gets it."""
        return answer

    def forward(self, request: Request) -> Answer:
        with contextlib.closing(self._connection(request)) as connection:
            connection.request(request.method, request.target, request.body, dict(request.headers))
            response = connection.getresponse()
            headers = dict(_passed_on(response.getheaders()))
            if request.method == "HEAD" and (length := response.getheader("Content-Length")):
                headers["Content-Length"] = length
            answer = self.passed_back(Answer(response.status, response.read(), headers))
        self.seen.append((request, answer))
        if request.method == "PUT" and answer.status in {200, 201}:
            self.stored.append(request.target)
        return answer

    def forward_part(self, request: Request, size: int) -> None:
        with contextlib.closing(self._connection(request)) as connection:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in {**request.headers, "Content-Length": str(len(request.body))}.items():
                connection.putheader(name, value)
            connection.endheaders()
            connection.send(request.body[:size])

    def _connection(self, request: Request) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.upstream_of(request), timeout=_UPSTREAM_S)

    def keep(self, request: Request, *, due: int) -> None:
        """Forward a request just before the request with number `due`."""
        with self._lock:
            self._kept.append((due, request))

    def settle(self) -> int:
        """Forward all requests that are still kept. Return how many."""
        return self._forward_due(None)

    def handle(self, request: HttpRequest, body: bytes) -> None:
        with self._lock:
            self.count += 1
            number = self.count
        self._forward_due(number)
        given = Request(request.command, request.path, _passed_on(request.headers.items()), body)
        if number == self._at:
            self.hit = given
        try:
            (self._fault if number == self._at else pass_on)(Exchange(self, request, given, number))
        except (BrokenPipeError, ConnectionResetError):
            request.drop()  # the client left, which it may
        except Exception as error:  # noqa: BLE001 - nothing above catches it; the scenario looks at `problems`
            self.problems.append(error)
            request.drop()

    def _forward_due(self, number: int | None) -> int:
        with self._lock:
            due = [request for at, request in self._kept if number is None or at <= number]
            self._kept = [(at, request) for at, request in self._kept if number is not None and at > number]
        for request in due:
            self.forward(request)
        return len(due)


def _passed_on(headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    return {name: value for name, value in headers if name.lower() not in _NOT_PASSED_ON}
