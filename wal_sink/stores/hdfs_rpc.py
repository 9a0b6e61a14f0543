"""HDFS by Hadoop's own protocol, through hdfs-native: `hdfs://` and `viewfs://`.

Its close asks the name node to complete the file before the data node's report arrived there, gets a no, and sleeps for
half a second. Meanwhile `_Closing` asks until the last block is complete, then lets the name node close the file.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from hdfs_native import WriteOptions

from wal_sink.errors import ConfigError
from wal_sink.stores.hdfs import (
    EXISTS,
    MISSING,
    NO_ANSWER,
    TIMEOUT,
    UNKNOWN_HOST,
    UNREACHABLE,
    Entry,
    HdfsClient,
    HdfsError,
    HdfsWriter,
)
from wal_sink.support.calls import CallTimedOutError, ThreadCall
from wal_sink.support.clock import SYSTEM
from wal_sink.support.exit_hooks import Owner, at_exit

_T = TypeVar("_T")
_LIMIT_S = 90.0
"""Longest time of one call. hdfs-native itself waits for ever for a name node that stopped in the middle."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02
_AT_EXIT_S = 5.0
_REMOTE = re.compile(r'(?:Fatal)?RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, NotImplementedError)


_owners: list[Owner] = []
"""The process that made the first client. A forked child inherits this, and with it Rust's locks as they were: a call
of hdfs-native may then never return there (measured).
"""


class HdfsRpc(HdfsClient):
    """Calls of `hdfs_native.Client`, each with a time limit."""

    def __init__(self, new_client: Callable[[], Any]) -> None:
        """Raises `ConfigError` in a forked child of a process that made a client."""
        if not _owners:
            _owners.append(Owner())
        if not _owners[0].is_here:
            raise ConfigError(
                "hdfs-native was used in the parent process before the fork, so its calls may never return here. "
                "Start this process in another way, for example by multiprocessing's 'spawn', or use webhdfs://"
            )
        self._new_client = new_client
        self._connect()
        self._idle: deque[ThreadCall] = deque()
        self._closing: set[threading.Thread] = set()
        at_exit(self._wait_for_closing)

    def _connect(self) -> None:
        self._client = client = self._new_client()
        self._raw = client.inner
        """It gives writers that only end when they are dropped. Those of `client` are closed then, by Python's `io`: an
        aborted file would be completed, and a name node that is down waited for without a limit.
        """

    def new_file(self, path: str) -> HdfsWriter:
        options = WriteOptions(overwrite=False, create_parent=True)
        return _RpcWriter(self, path, self.call(lambda: self._raw.create(path, options)))

    def rename(self, source: str, target: str) -> None:
        self.call(lambda: self._client.rename(source, target, overwrite=False))

    def make_folder(self, path: str) -> None:
        self.call(lambda: self._client.mkdirs(path, 0o755, create_parent=True))

    def read(self, path: str) -> bytes:
        return bytes(self.call(lambda: self._client.read(path).read()))

    def complete_length(self, path: str) -> int:
        """The length of a file without its last block, as long as the name node does not know this block's end."""
        return int(self.call(lambda: len(self._client.read(path))))

    def recover_lease(self, path: str) -> bool:
        """Let the name node close a file. Return whether it is closed."""
        return bool(self.call(lambda: self._client.recover_lease(path)))

    def length(self, path: str) -> int:
        return int(self.call(lambda: self._client.get_file_info(path)).length)

    def list(self, path: str) -> list[Entry]:
        found = self.call(lambda: [*self._client.list_status(path)])
        return [
            Entry(status.path.rpartition("/")[2], bool(status.isdir), int(status.modification_time))
            for status in found
            if status.path != path  # a file's listing is the file itself
        ]

    def delete(self, path: str) -> bool:
        try:
            return bool(self.call(lambda: self._client.delete(path, recursive=False)))
        except HdfsError as error:
            if error.kind in MISSING:
                return False
            raise

    def call(self, function: Callable[[], _T]) -> _T:
        """`function()` on another thread, which is left behind if it does not return in time."""
        try:
            caller = self._idle.pop()
        except IndexError:
            caller = ThreadCall()
        try:
            return caller.call(function, timeout_s=_LIMIT_S)
        except CallTimedOutError as error:
            self._connect()  # all calls of a client share a connection, and this one may stay silent for ever
            raise HdfsError(TIMEOUT, f"no answer within {_LIMIT_S:g} s") from error
        except _FAILURES as error:
            raise _error_of(error) from error
        finally:
            if not caller.busy:
                self._idle.append(caller)

    def close_aside(self, close: Callable[[], None]) -> None:
        """Run `close` on a separate thread. The end of the process waits for it a while."""

        def run() -> None:
            try:
                close()
            finally:
                self._closing.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="wal-sink-hdfs-close", daemon=True)
        self._closing.add(thread)
        thread.start()

    def _wait_for_closing(self) -> None:
        """Let no thread return from hdfs-native while the interpreter ends. Every such file is closed already."""
        end_s = SYSTEM.monotonic_s() + _AT_EXIT_S
        for thread in [*self._closing]:
            thread.join(max(0.0, end_s - SYSTEM.monotonic_s()))


class _RpcWriter(HdfsWriter):
    def __init__(self, client: HdfsRpc, path: str, writer: Any) -> None:
        self._client = client
        self._path = path
        self._writer: Any = writer
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        piece = bytes(data)
        self._client.call(lambda: self._writer.write(piece))
        self._size += len(piece)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        closing = _Closing(writer.close)
        self._client.close_aside(closing.run)
        pause_s = _FIRST_PAUSE_S
        end_s = SYSTEM.monotonic_s() + _LIMIT_S  # by the clock: a name node that stopped makes each question as long
        while not closing.wait(pause_s):
            if SYSTEM.monotonic_s() > end_s:
                raise HdfsError(TIMEOUT, f"the file was not closed within {_LIMIT_S:g} s")
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
            if self._size and self._is_closed_by_name_node():
                return
        closing.check()

    def drop(self) -> None:
        self._writer = None  # whose lease is not renewed from now on

    def _is_closed_by_name_node(self) -> bool:
        """Close the file if its last block is complete. Its length is that of all its bytes only then."""
        try:
            return self._client.complete_length(self._path) == self._size and self._client.recover_lease(self._path)
        except HdfsError:
            return False  # the close that runs aside tells the error, if it is one


class _Closing:
    """A close of hdfs-native on another thread."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._done = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def check(self) -> None:
        if self._error is not None:
            raise _error_of(self._error) from self._error


def _error_of(error: Exception) -> HdfsError:
    """The failure behind an error of hdfs-native, which gives most of Java's exceptions as text."""
    text = str(error)
    remote = _REMOTE.match(text)
    if remote is not None:
        return HdfsError(remote[1].rpartition(".")[2], remote[2].replace("\\n", "\n").replace("\\t", "\t"))
    if isinstance(error, FileExistsError):
        return HdfsError(EXISTS, text)
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return HdfsError("FileNotFoundException", text)
    if "failed to lookup address" in text or "could not resolve" in text:
        return HdfsError(UNKNOWN_HOST, text)
    if "Connection refused" in text:
        return HdfsError(UNREACHABLE, text)
    return HdfsError(NO_ANSWER if isinstance(error, OSError) else type(error).__name__, text)
