"""Objects in HDFS. They are whole before they have their name, and only one of two writers can give it.

A file is written under a temporary name below `.wal-sink/` and closed. A rename with Hadoop's option NONE gives it its
real name; the name node refuses this rename if the name is taken. A file that is created under its real name would be
seen half-written, and a plain rename onto a folder would move the file into it.

`HdfsClient` is the few calls of a name node that this needs. Two clients make them: `hdfs_rpc` and `webhdfs`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from wal_sink.errors import ConfigError, StoreError, WalSinkError
from wal_sink.stores.base import (
    HIDDEN,
    ObjectExists,
    ObjectMissing,
    SegmentStream,
    StoreAt,
    check_path,
    folder_of,
    names_below,
)
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.clock import SYSTEM, Runtime

MISSING = frozenset({"FileNotFoundException", "ParentNotDirectoryException"})
"""A name node's answers which say that nothing is there. An error that no name node gave is never among them."""
EXISTS = "FileAlreadyExistsException"
NO_NODE = "NoDataNode"
"""No data node could take the bytes, or none of those that have them answers."""
REFUSED = "ConnectionRefused"
"""Nothing answers at the address: the request was not sent."""
UNREACHABLE = "Unreachable"
"""The same, after the client had repeated the call for half a minute."""
NO_ANSWER = "NoAnswer"
"""The connection ended without an answer. The request may have had its effect."""
TIMEOUT = "TimedOut"
UNKNOWN_HOST = "UnknownHost"
IGNORES_OPTION = "IgnoresRenameOption"
"""The server renamed without Hadoop's option NONE, which another form of its answer tells."""
NO_HDFS = "NotWebHDFS"
"""The answer is none of WebHDFS."""
_RIGHTS = (
    "give this user the right to read and write there, or set the user (for hdfs:// and viewfs:// the environment "
    "variable HADOOP_USER_NAME, for webhdfs:// the option 'user')"
)
_DOWN = "check that the name node and the data nodes run, and that host and port are right"
_NODES = "check that the data nodes run and have room, and that this machine reaches them"
_QUOTA = "raise the quota of this folder, or free space in it"
_NEXT_STEP = {
    "AccessControlException": _RIGHTS,
    "SecurityException": _RIGHTS,
    "AuthorizationException": _RIGHTS,
    "FileNotFoundException": "check the folder's address",
    "ParentNotDirectoryException": "a part of the path is a file: choose another folder",
    "NSQuotaExceededException": _QUOTA,
    "DSQuotaExceededException": _QUOTA,
    "QuotaByStorageTypeExceededException": _QUOTA,
    "SafeModeException": "wait until the name node leaves safe mode by itself, or run `hdfs dfsadmin -safemode leave`",
    "StandbyException": "this name node is not the active one: give the address of the active one",
    "InvalidPathException": "choose a folder without ':' in its name",
    NO_NODE: _NODES,
    REFUSED: _DOWN,
    UNREACHABLE: _DOWN,
    NO_ANSWER: _DOWN,
    TIMEOUT: "check the name node, the data nodes and the network",
    UNKNOWN_HOST: "correct the host of the name node, or the network's names",
    NO_HDFS: "check that host and port are those of the name node's web address",
}
_OTHERWISE = "check the address and the logs of the name node"
_NO_NODE_TEXTS = (
    "could only be written to",
    "All DataNodes failed",
    "All nodes failed for write",
    "No active nodes contain this block",
    "Failed to find datanode",
    "BlockMissingException",
    "Could not obtain block",
    "blocks not found",
    "BlocksNotFound",
)
_T = TypeVar("_T")
_UNFINISHED = f"{HIDDEN}wal-sink"
"""Folder of the temporary files, below the root."""
_TAIL = ".tmp"
_AGAIN = frozenset(
    {
        *("SafeModeException", "StandbyException", "RetriableException"),  # a name node that starts or takes over
        *("EOFException", "ConnectException", "SocketTimeoutException"),  # a data node that lost the name node
        *(NO_NODE, REFUSED, NO_ANSWER),
    }
)
"""Failures that pass by themselves."""
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses between calls that such a failure met: half a minute altogether."""
_ATTEMPTS = 100
_LEFT_BEHIND_MS = 24 * 3600 * 1000
"""Age, by the name node's clock, after which a temporary file was left by a crash: no segment is written for a day."""
_TIDY_EVERY_S = 3600.0


class HdfsError(Exception):
    """A call failed. `kind` is the simple name of the name node's exception, or one of the names above."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        found = " ".join(text.partition("\n\tat ")[0].split())
        if kind == "AccessControlException" and "(is not a directory)" in found:
            kind = "ParentNotDirectoryException"  # as a name node says it of a look below a file
        elif any(part in found for part in _NO_NODE_TEXTS):
            kind = NO_NODE
        self.kind = kind
        self.text = found
        self.step = _NEXT_STEP.get(kind, _OTHERWISE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder."""

    name: str
    is_folder: bool
    modified_ms: int
    """By the name node's clock."""


class HdfsWriter(ABC):
    """A new file that is written from its beginning to its end."""

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    @abstractmethod
    def close(self) -> None:
        """Return once the name node has closed the file, with all its bytes."""

    @abstractmethod
    def drop(self) -> None:
        """Stop writing. The file stays, with any part of its bytes. Never raises."""


class HdfsClient(ABC):
    """Every call raises `HdfsError`, and returns within a limited time. A path begins with `/`."""

    @abstractmethod
    def new_file(self, path: str) -> HdfsWriter:
        """Start a file. Missing parent folders are created."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file with Hadoop's option NONE, so only if no `target` exists. The folder of `target` must exist."""

    @abstractmethod
    def make_folder(self, path: str) -> None:
        """Create a folder and its parents. An existing one is no error."""

    @abstractmethod
    def read(self, path: str) -> bytes: ...

    @abstractmethod
    def length(self, path: str) -> int:
        """The length of a file, as the name node tells it."""

    @abstractmethod
    def list(self, path: str) -> list[Entry]:
        """The entries of a folder. A file has none."""

    @abstractmethod
    def delete(self, path: str) -> bool:
        """Delete a file or an empty folder. Return False if it did not exist."""


class HdfsStore(StoreAt):
    """A `Store` in a folder of HDFS. Any number of processes may use it, through either client, at the same time."""

    def __init__(self, spec: StoreSpec, client: HdfsClient, *, runtime: Runtime = SYSTEM) -> None:
        super().__init__(spec)
        self._base = f"/{spec.location.partition('/')[2]}".rstrip("/")
        self._client = client
        self._runtime = runtime
        self._tidying = threading.Lock()
        self._tidied_s: float | None = None

    @property
    def create_doubt(self) -> str:
        """Reason if reads may be answered by an observer: it may not know yet what another machine has created."""
        return "" if self._spec.scheme == "webhdfs" else _observer_doubt(self._spec)

    def create(self, path: str, data: bytes) -> None:
        check_path(path)
        for _ in range(_ATTEMPTS):
            temporary = self._ask("create", path, lambda: self._written(data))
            if self.name(temporary, path):
                return
        raise StoreError(
            f"{self.url_of(path)}: the temporary file was deleted {_ATTEMPTS} times before it got its name, so "
            "the object was not created. Stop the process that deletes it, then start the query or command again"
        )

    def read(self, path: str) -> bytes:
        target = self._target(path)
        try:
            return self._answer(lambda: self._client.read(target))
        except HdfsError as error:
            if error.kind in MISSING:
                raise ObjectMissing(f"{self.url_of(path)} does not exist") from self._spec.cause(error)
            raise self.failure("read", path, error) from self._spec.cause(error)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        folder = folder_of(prefix)
        try:
            return sorted(names_below(self._entries, f"{self._base}/{folder}".rstrip("/"), after, recursive=recursive))
        except HdfsError as error:
            raise self.failure("list", folder, error) from self._spec.cause(error)

    def delete(self, paths: Iterable[str]) -> None:
        folders = set()
        for path in paths:
            target = self._target(path)
            if self._ask("delete", path, partial(self._client.delete, target)):
                folders.add(target.rpartition("/")[0])
        for folder in folders:
            self._remove_empty(folder)
        if folders:
            self._tidy()

    def segment(self, path: str) -> SegmentStream:
        return HdfsSegment(self, path)

    def start(self, path: str) -> tuple[str, HdfsWriter]:
        """Start a temporary file for the object at `path`. Returns its own path, and its writer."""
        check_path(path)
        temporary = self._new_temporary()
        return temporary, self._ask("write", path, lambda: self._client.new_file(temporary))

    def name(self, temporary: str, path: str) -> bool:
        """Give a closed file its name. Return False if it was deleted before, and nothing has the name.

        Raises `ObjectExists` if the name is taken, and `InDoubtError` if it may have been taken by this file.
        """
        try:
            return self._renamed(temporary, path)
        except WalSinkError:
            self.drop(temporary)
            raise

    def has_length(self, path: str, size: int) -> bool:
        """Return whether an object of this length exists."""
        return self._length("write", path, self._target(path)) == size

    def drop(self, temporary: str) -> None:
        """Delete a temporary file. If that fails it stays hidden, and a later process deletes it."""
        with contextlib.suppress(HdfsError):
            self._client.delete(temporary)

    def failure(self, action: str, path: str, error: HdfsError) -> WalSinkError:
        """The error of wal-sink for a failed call. Only this place translates them."""
        text = self._spec.scrub(error.text or error.kind)
        if error.kind == IGNORES_OPTION:
            return ConfigError(
                f"{self.root} cannot hold a WAL: the server does not rename by Hadoop's option NONE ({text}), so two "
                "writers could both create an object. HttpFS is such a server. Use the web address of the name node "
                "itself, or hdfs://"
            )
        return StoreError(
            f"cannot {action} {self.url_of(path)}: {error.kind} ({text}); {error.step}, then start the query or "
            "command again"
        )

    def _written(self, data: bytes) -> str:
        temporary = self._new_temporary()
        writer = self._client.new_file(temporary)
        try:
            if data:
                writer.write(data)
            writer.close()
        except BaseException:
            writer.drop()
            self.drop(temporary)
            raise
        return temporary

    def _renamed(self, temporary: str, path: str) -> bool:
        target = self._target(path)
        for _ in range(_ATTEMPTS):
            try:
                self._answer(lambda: self._client.rename(temporary, target))
            except HdfsError as error:
                if error.kind == EXISTS:
                    raise ObjectExists(f"{self.url_of(path)} exists already") from self._spec.cause(error)
                if error.kind not in MISSING:
                    raise self.failure("create", path, error) from self._spec.cause(error)
                if self._length("create", path, temporary) is None:
                    return self._is_free(path, target)
                self._ask("create", path, lambda: self._client.make_folder(target.rpartition("/")[0]))
            else:
                return True
        raise StoreError(
            f"{self.url_of(path)}: another process repeatedly deletes the folder of this file, so the file was not "
            "created. Stop that process, then start the query or command again"
        )

    def _is_free(self, path: str, target: str) -> bool:
        if self._length("create", path, target) is None:
            return False
        raise InDoubtError(
            f"{self.url_of(path)} exists, and the answer to its rename was lost: another process may have created it. "
            "Nothing was overwritten. Start the query or command again"
        )

    def _length(self, action: str, path: str, target: str) -> int | None:
        try:
            return self._answer(lambda: self._client.length(target))
        except HdfsError as error:
            if error.kind in MISSING:
                return None
            raise self.failure(action, path, error) from self._spec.cause(error)

    def _entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        try:
            entries = self._answer(lambda: self._client.list(folder or "/"))
        except HdfsError as error:
            if error.kind in MISSING:
                return []
            raise
        return [(entry.name, entry.is_folder) for entry in entries if not entry.name.startswith(HIDDEN)]

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing, and then its empty parents. Listings never show an empty folder."""
        with contextlib.suppress(HdfsError):  # a folder that is not empty, or cannot be removed, stays
            while folder.startswith(f"{self._base}/") and self._client.delete(folder):
                folder = folder.rpartition("/")[0]

    def _tidy(self) -> None:
        """Delete the temporary files that crashes left, at most once an hour. The name node dates all of them."""
        with self._tidying:
            now_s = self._runtime.monotonic_s()
            if self._tidied_s is not None and now_s - self._tidied_s < _TIDY_EVERY_S:
                return
            self._tidied_s = now_s
        folder, mine = f"{self._base}/{_UNFINISHED}", secrets.token_hex(16)
        with contextlib.suppress(HdfsError):  # they stay hidden, and the next hour deletes them
            self._client.make_folder(f"{folder}/{mine}")
            dated = {entry.name: entry.modified_ms for entry in self._client.list(folder)}
            for name, modified_ms in dated.items():
                if name == mine or dated[mine] - modified_ms > _LEFT_BEHIND_MS:
                    self._client.delete(f"{folder}/{name}")

    def _ask(self, action: str, path: str, call: Callable[[], _T]) -> _T:
        try:
            return self._answer(call)
        except HdfsError as error:
            raise self.failure(action, path, error) from self._spec.cause(error)

    def _answer(self, call: Callable[[], _T]) -> _T:
        """`call()`, repeated while its failure is one that passes. A repeated request may have had its effect before:
        a rename then finds its temporary file gone.
        """
        for pause_s in _PAUSES_S:
            try:
                return call()
            except HdfsError as error:
                if error.kind not in _AGAIN:
                    raise
            self._runtime.sleep_s(pause_s)
        return call()

    def _new_temporary(self) -> str:
        return f"{self._base}/{_UNFINISHED}/{secrets.token_hex(16)}{_TAIL}"

    def _target(self, path: str) -> str:
        return f"{self._base}/{check_path(path)}"


class InDoubtError(StoreError):
    """An object has the name after an answer was lost, and it may be the caller's own."""


class HdfsSegment(SegmentStream):
    """A segment in a temporary file, which `commit` closes and names."""

    def __init__(self, store: HdfsStore, path: str) -> None:
        self._store = store
        self._path = path
        self._size = 0
        self._temporary, writer = store.start(path)
        self._writer: HdfsWriter | None = writer

    def write(self, data: bytes | memoryview) -> None:
        piece = memoryview(data).cast("B")
        try:
            self._opened().write(piece)
        except HdfsError as error:
            self.abort()
            raise self._store.failure("write", self._path, error) from error
        self._size += len(piece)

    def commit(self) -> None:
        writer = self._opened()
        try:
            writer.close()
            self._writer = None
            self._name()
        except HdfsError as error:
            raise self._store.failure("write", self._path, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
            self._store.drop(self._temporary)

    def _name(self) -> None:
        try:
            named = self._store.name(self._temporary, self._path)
        except InDoubtError:
            if not self._store.has_length(self._path, self._size):  # nobody else ever has this name
                raise
            return
        if not named:
            raise StoreError(
                f"{self._store.url_of(self._path)} was deleted by a cleaner while it was written. Start the query or "
                "command again"
            )

    def _opened(self) -> HdfsWriter:
        if self._writer is None:
            raise StoreError(f"{self._store.url_of(self._path)} was committed or dropped already; start a new segment")
        return self._writer


def _observer_doubt(spec: StoreSpec) -> str:
    """A doubt if the settings of hdfs-native let observers answer reads, so that they may be late."""
    home = os.environ.get("HADOOP_HOME", "")
    folder = os.environ.get("HADOOP_CONF_DIR", "") or (f"{home}/etc/hadoop" if home else "")
    files = [Path(folder, name) for name in ("core-site.xml", "hdfs-site.xml")] if folder else []
    texts = [str(value) for value in spec.options.values()]
    with contextlib.suppress(FileNotFoundError):
        texts += [file.read_text(errors="replace") for file in files]
    if not any("ObserverRead" in text for text in texts):
        return ""
    return (
        "its settings let observer name nodes answer reads, and an observer may not know yet what another machine has "
        "created. Set dfs.client.failover.proxy.provider to ConfiguredFailoverProxyProvider"
    )
