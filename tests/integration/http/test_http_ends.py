"""Servers that break off, go on too long, or answer in place of the API: on a bare socket, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import httpx
import pytest

from tests.house.sinks import Rejected
from tests.support.http_collection import CONTEXT, chunk, opened, write
from tests.support.servers.ports import listening
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink_backends.http.api import doubt_of_end
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, TargetFailedError

DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REFUSED = b"HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n"
ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
WAIT_S = 60.0

Head = list[bytes]
"""The lines of a request before its body."""


class BareServer:
    """Answers each request with the bytes that `answer` makes of its head and body. With `hangs_up` the connection
    ends then.
    """

    def __init__(self, answer: Callable[[Head, bytes], bytes], *, hangs_up: bool = False) -> None:
        self._answer, self._hangs_up = answer, hangs_up
        self._listener = listening()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.heads: list[Head] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.address}/x"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends accept()
        self._listener.close()
        self._thread.join(WAIT_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(WAIT_S)
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as requests:
            while head := [*iter(lambda: requests.readline().strip(), b"")]:
                self.heads.append(head)
                lengths = [int(line.partition(b":")[2]) for line in head if line.lower().startswith(b"content-length")]
                connection.sendall(self._answer(head, requests.read(sum(lengths))))
                if self._hangs_up:
                    return


@contextlib.contextmanager
def answering(*answers: bytes, hangs_up: bool = False) -> Iterator[BareServer]:
    """The answers one after the other, the last one again and again."""
    left = list(answers)
    with BareServer(lambda *_: left.pop(0) if len(left) > 1 else left[0], hangs_up=hangs_up) as server:
        yield server


class Seen:
    """A check that takes everything, and keeps what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, _status: int, _headers: Any, body: bytes) -> None:
        self.bodies.append(body)


@pytest.mark.parametrize(
    "first",
    [
        DONE + DONE,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" + DONE,
        b"HTTP/1.1 204 No Content\r\n\r\n" + DONE,
        DONE + b"{}",
    ],
    ids=["twice", "length too small", "body of a 204", "no answer at all"],
)
def test_what_follows_an_answer_is_not_the_answer_to_the_next_request(first: bytes) -> None:
    with answering(first, REFUSED, DONE) as server:
        assert write(HttpSink(server.url, body="rows"), chunk(1, 2, 3)) == Rejected({1: "422 No"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b'{"s":"\xc3\xa9"}',
            "more bytes followed than its headers announce",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\n[200, 2",
            "neither Content-Length nor chunks: if the connection is cut, the cut looks like the end of the body",
        ),
        (
            b"HTTP/1.0 200 OK\r\n\r\n",
            "neither Content-Length nor chunks: if the connection is cut, the cut looks like the end of the body",
        ),
    ],
    ids=["length in characters", "cut", "nothing came"],
)
def test_a_check_gets_no_body_whose_end_nobody_tells(answer: bytes, message: str) -> None:
    seen = Seen()
    with answering(answer, hangs_up=True) as server:
        with pytest.raises(
            PermanentError, match=f"the response body may be incomplete, because .*{message}. The response check needs"
        ):
            write(HttpSink(server.url, check=seen))
        assert write(HttpSink(server.url)) is None  # without a check only the status counts
    assert seen.bodies == []


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-More: 1\r\n\r\n", b"abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\nContent-Encoding: deflate\r\n\r\nx\x9c\x4b\x4c\x4a\x06\x00\x02\x4d\x01\x27", b"abc"),
    ],
    ids=["chunks", "204", "compressed"],
)
def test_a_check_gets_a_body_that_is_surely_whole(answer: bytes, body: bytes) -> None:
    seen = Seen()
    with answering(answer, hangs_up=True) as server:
        assert write(HttpSink(server.url, check=seen)) is None
    assert seen.bodies == [body]


def test_an_answer_that_is_cut_is_no_answer() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
    message = "without sending complete message body"
    with answering(half, hangs_up=True) as server, pytest.raises(OutcomeUnknownError, match=message):
        write(HttpSink(server.url))


def test_where_httpx_hides_what_follows_the_connection_is_closed() -> None:
    """A later version may hide it. Then nothing is known, and each request gets a new connection."""
    closed: list[bool] = []

    class Stream:
        def close(self) -> None:
            closed.append(True)

    response = httpx.Response(200, headers={"Content-Length": "0"}, extensions={"network_stream": Stream()})
    assert doubt_of_end(response) == ""
    assert closed == [True]


def test_a_200_for_what_nobody_sent_is_no_chunk() -> None:
    """A page for a login, or a fallback that answers any path: the chunk would be lost."""
    with answering(DONE) as server:
        sink = HttpLookupSink(server.url, lookup_url=f"{server.url}/{{key}}")
        with (
            opened(sink),
            pytest.raises(
                PermanentError, match=r"answered 200 for this chunk, but also for [0-9a-f]{32}\. That key was"
            ),
        ):
            sink.was_applied("k")


def test_a_lookup_passes_by_caches_and_asks_twice_only_where_the_chunk_is_there() -> None:
    there, absent = (f"/x/{CONTEXT.own_key(key)}".encode() for key in ("there", "absent"))
    with BareServer(lambda head, _: DONE if there in head[0] else ABSENT) as server:
        sink = HttpLookupSink(server.url, lookup_url=f"{server.url}/{{key}}")
        with opened(sink):
            assert sink.was_applied("there")
            assert not sink.was_applied("absent")
    asked, never_sent, other = [head[0].split()[1] for head in server.heads]
    assert (asked, len(never_sent), other) == (there, len(there), absent)
    assert all(b"Cache-Control: no-cache" in head for head in server.heads)


def test_a_proxy_that_makes_no_tunnel_is_told_apart_from_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n") as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{server.address}")
        monkeypatch.setenv("NO_PROXY", "")
        with pytest.raises(TargetFailedError, match="cannot be reached, and nothing was sent: 407 Login"):
            write(HttpSink("https://api.example.invalid/x"))


def test_a_proxy_that_nothing_speaks_to_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # a library that httpx does not come with
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(PermanentError, match="the client cannot be made: ImportError"):
        HttpSink("https://api.example.invalid/x").open(None)  # type: ignore[arg-type]
