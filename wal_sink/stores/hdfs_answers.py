"""The few calls of a name node that `HdfsStore` is made of, and what their failures mean. Two clients make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

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
    "SafeModeException": "let the name node leave safe mode: it does so by itself after a start, otherwise with "
    "`hdfs dfsadmin -safemode leave`",
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
