"""A proxy on 127.0.0.1 that delays every answer of an HTTP server and counts the requests; in a separate process.

The delay is latency, not bandwidth: bytes of an answer that follow one another arrive as close together as they were
sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from typing import TYPE_CHECKING, Any

from tests.support.servers.ports import free_port

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
_PIECE = 1 << 18
_START_S = 60.0


class SlowProxy:
    """The running proxy. Use it on the driver; executors may connect to its `port`."""

    def __init__(self, upstream_port: int, delay_s: float) -> None:
        """Start it. `upstream_port`: the server's, on 127.0.0.1."""
        context = multiprocessing.get_context("spawn")
        self.port = free_port()
        self._requests: Synchronized[int] = context.Value("q", 0)
        ready: Any = context.Event()
        given = (self.port, upstream_port, delay_s, self._requests, ready)
        self._process = context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        if not ready.wait(_START_S):
            self.close()
            raise RuntimeError("the proxy of the object store did not start")

    @property
    def requests(self) -> int:
        """The number of requests so far. A connection sends its next one after the answer (HTTP/1.1 as S3 clients do
        it)."""
        return self._requests.value

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _run(port: int, upstream_port: int, delay_s: float, requests: Synchronized[int], ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the benchmark, which ends this process
    asyncio.run(_serve(port, upstream_port, delay_s, requests, ready))


async def _serve(port: int, upstream_port: int, delay_s: float, requests: Synchronized[int], ready: Any) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", upstream_port, limit=_PIECE)
            link = _Link(delay_s, requests)
            ways = (link.pass_requests(reader, server_writer), link.pass_answers(server_reader, writer))
            await asyncio.gather(*ways, return_exceptions=True)

    server = await asyncio.start_server(connect, "127.0.0.1", port, limit=_PIECE)
    ready.set()
    async with server:
        await server.serve_forever()


class _Link:
    """One connection of a client."""

    def __init__(self, delay_s: float, requests: Synchronized[int]) -> None:
        self._delay_s = delay_s
        self._requests = requests
        self._is_new = True
        """Whether nothing of the next request has come yet."""

    async def pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE):
                if self._is_new and data.startswith(_METHODS):
                    with self._requests.get_lock():
                        self._requests.value += 1
                self._is_new = False
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)
        sending = asyncio.create_task(self._send(pieces, writer))
        try:
            while data := await reader.read(_PIECE):
                await pieces.put((loop.time() + self._delay_s, data))
        finally:
            await pieces.put((loop.time() + self._delay_s, b""))
            await sending

    async def _send(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                at_s, data = await pieces.get()
                if at_s > loop.time():
                    await asyncio.sleep(at_s - loop.time())
                if not data:
                    return
                self._is_new = True
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
