"""Objects as files of a local file system. They are durable when a call returned.

A file is written under a temporary name in its own folder, then fsynced. A hard link gives it its real name; only one
of two writers can create that link. `pipe_file(mode="create")` of fsspec checks first and writes then: two writers can
both succeed.

`doubt_of` finds out which file system holds a folder: some remember absent files, and so hide objects of other
machines. A process checks whether a newer process claimed its term by reading a file that is normally absent. An NFS
client may answer this read from memory for up to a minute (`acdirmax`), an SMB client for a second. On Linux,
`/proc/self/mountinfo` lists every mount with its options.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError
from wal_sink.stores.base import (
    HIDDEN,
    ObjectExists,
    ObjectMissing,
    SegmentStream,
    StoreAt,
    check_path,
    folder_of,
    holds_object,
    names_below,
)
from wal_sink.stores.spec import StoreSpec

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NEXT_STEP = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "raise the user's quota or free space",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EROFS: "mount it writable or choose another folder",
    errno.ENOTDIR: "a part of the path is a file: choose another folder",
    errno.EMFILE: "raise the limit of open files",
    errno.ENAMETOOLONG: "choose a shorter folder",
}
_MAKE_ATTEMPTS = 100
_TEMPORARY_HEAD, _TEMPORARY_TAIL = f"{HIDDEN}wal-sink-", ".tmp"
_T = TypeVar("_T")
MOUNTS = Path("/proc/self/mountinfo")
_NFS = frozenset({"nfs", "nfs4"})
_SMB = frozenset({"cifs", "smb3", "smbfs"})
_LOCAL_FUSE = frozenset(
    {
        *("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs"),
        *("fuse.ntfs-3g", "fuse.exfat", "fuse.ext4", "fuse.zfs-fuse", "fuse.unionfs"),
    }
)
"""FUSE file systems over a disk of this machine: all processes share one cache."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_OF_NFS = (
    "its client remembers for up to a minute that a file is absent, so a process would not notice a newer one. "
    "Mount it with lookupcache=none (or noac), and without nocto, on every machine"
)
_OF_SMB = (
    "its client remembers for a second that a file is absent, so a process would not notice a newer one. No mount "
    "option changes that (actimeo=0 and cache=none do not): use NFS, a local disk or an object store"
)
_OF_FUSE = (
    "a program serves this file system, and it is not known for how long it remembers that a file is absent (by "
    "default sshfs 20 s, rclone 5 min, gcsfuse 5 s)"
)
_OF_AUTOMOUNT = "the file system that will be mounted there is not known yet. Mount it before the start"


class LocalStore(StoreAt):
    """A `Store` in a folder. Any number of processes may use it; over NFS, only through `create_once`."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self._folder = Path(spec.location)
        self._durable: set[Path] = set()
        """Folders whose own entry this store has fsynced. Only `delete` removes folders."""
        self._has_begun = False
        self._device: int | None = None
        """Device of the root, once `begin` ran and the root exists. Not the inode: on some mounts it changes."""

    @property
    def create_doubt(self) -> str:
        """Reason for a folder on a network: its client may remember that a file is absent which another machine
        created.
        """
        return doubt_of(str(self._folder))

    def begin(self, *, is_there: bool = False) -> None:
        self._has_begun, self._device = True, self._found_device()
        if is_there and self._device is None:
            raise self._lost_root()

    def create(self, path: str, data: bytes) -> None:
        for _ in range(_MAKE_ATTEMPTS):
            with contextlib.suppress(SweptAwayError):
                return self._create(path, data)
        raise StoreError(
            f"{self.url_of(path)}: another process repeatedly deletes the folder of this file, so the file was not "
            "created. Stop that process, then start the query or command again"
        )

    def _create(self, path: str, data: bytes) -> None:
        with self.segment(path) as stream:
            stream.write(data)
            stream.commit()

    def read(self, path: str) -> bytes:
        try:
            return self._file(path).read_bytes()
        except _ABSENT as error:
            self.refuse_lost_root()
            raise ObjectMissing(f"{self.url_of(path)} does not exist") from error
        except OSError as error:
            raise self.failure("read", self.url_of(path), error) from error

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        folder = folder_of(prefix)
        try:
            names = sorted(names_below(_entries, str(self._folder / folder), after, recursive=recursive))
        except OSError as error:
            raise self.failure("list", self.url_of(folder), error) from error
        if not names:
            self.refuse_lost_root()
        return names

    def delete(self, paths: Iterable[str]) -> None:
        folders = set()
        for path in paths:
            file = self._file(path)
            try:
                file.unlink()
            except _ABSENT:
                continue
            except OSError as error:
                raise self.failure("delete", self.url_of(path), error) from error
            folders.add(file.parent)
        for folder in folders:
            self._remove_empty(folder)

    def segment(self, path: str) -> SegmentStream:
        return LocalSegment(self, path, self._file(path))

    def in_folder(self, folder: Path, action: Callable[[], _T]) -> _T:
        """Create `folder` durably, then run `action` in it. Repeat both if a cleaner removed the folder meanwhile."""
        for _ in range(_MAKE_ATTEMPTS):
            self.refuse_lost_root()
            try:
                self._make(folder)
                self.refuse_lost_root()  # the root may have been created just now: from here on its device is known
                return action()
            except FileNotFoundError:
                self._durable -= {folder, *folder.parents}
        raise FileNotFoundError(errno.ENOENT, "another process repeatedly deletes the folder", str(folder))

    def failure(self, action: str, url: str, error: OSError) -> StoreError:
        """The `StoreError` for an error of the operating system. Only this place translates them."""
        step = _NEXT_STEP.get(error.errno or 0, "check the disk and the mount")
        return StoreError(
            f"cannot {action} {url}: {error.strerror or type(error).__name__}; {step}, then start the query or command "
            "again"
        )

    def refuse_lost_root(self) -> None:
        """Raise `StoreError` if the root was lost since `begin`.

        An empty folder in place of the root proves nothing absent, and nothing may be created in it.
        """
        if not self._has_begun or (found := self._found_device()) == self._device:
            return
        if self._device is not None:
            raise self._lost_root()
        self._device = found  # the root was created after `begin`

    def _found_device(self) -> int | None:
        try:
            return self._folder.stat().st_dev
        except _ABSENT:
            return None
        except OSError as error:
            raise self.failure("find", self._root, error) from error

    def _lost_root(self) -> StoreError:
        return StoreError(
            f"{self._root}: this folder is gone, or it is on another disk now. It may have been moved or deleted, or "
            "a mount may be lost. Nothing is read or written until the folder is back: otherwise this process could "
            "miss a newer process, and write rows to a wrong place. Put the folder back, or mount it again, then "
            "start the query or command again"
        )

    def _file(self, path: str) -> Path:
        return self._folder / check_path(path)

    def _make(self, folder: Path) -> None:
        if folder in self._durable:
            return
        inside = folder != self._folder and self._folder in folder.parents
        if inside or not folder.parent.exists():
            self._make(folder.parent)
        made = _mkdir(folder)
        if inside or made:
            sync_folder(folder.parent)
        self._durable.add(folder)

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder without objects, including temporary files left by crashes, and then its empty parents."""
        with contextlib.suppress(OSError):  # an unreadable folder stays, and no listing shows it
            _sweep(folder)
        while folder != self._folder:
            self._durable.discard(folder)
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already; a listing never shows a remaining folder
                return
            folder = folder.parent


class SweptAwayError(StoreError):
    """A cleaner took this temporary file for one left by a crash and removed it, as no object was beside it. Nothing
    was created.
    """


class LocalSegment(SegmentStream):
    """A segment file without a visible name before `commit`."""

    def __init__(self, store: LocalStore, path: str, file: Path) -> None:
        self._store = store
        self._url = store.url_of(path)
        self._file = file
        self._temporary = file.with_name(f"{_TEMPORARY_HEAD}{secrets.token_hex(12)}{_TEMPORARY_TAIL}")
        try:
            self._descriptor: int | None = store.in_folder(file.parent, self._open)
        except OSError as error:
            raise store.failure("write", self._url, error) from error

    def write(self, data: bytes | memoryview) -> None:
        descriptor = self._opened()
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            self.abort()
            raise self._store.failure("write", self._url, error) from error

    def commit(self) -> None:
        descriptor = self._opened()
        try:
            os.fsync(descriptor)
            self._link()
        except OSError as error:
            raise self._store.failure("write", self._url, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        # Only a temporary file may remain, which no listing shows. An error here must not hide an error of `commit`,
        # and must not turn its success into a failure.
        with contextlib.suppress(OSError):
            os.close(descriptor)
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    def _open(self) -> int:
        return os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _opened(self) -> int:
        if self._descriptor is None:
            raise StoreError(f"{self._url} was committed or dropped already; start a new segment")
        return self._descriptor

    def _link(self) -> None:
        try:
            os.link(self._temporary, self._file)
        except FileExistsError as error:
            self._sync_name()  # the caller acts on the other writer's object, so it must survive a crash
            raise ObjectExists(f"{self._url} exists already") from error
        except FileNotFoundError as error:
            raise SweptAwayError(
                f"{self._url} was deleted by a cleaner while it was written. Start the query or command again"
            ) from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise ConfigError(
                    f"cannot create {self._url}: this file system refuses hard links ({error.strerror}), so two "
                    "writers could both create it; use a folder on a local disk (ext4, xfs), NFS, or an object store"
                ) from error
            raise
        self._sync_name()

    def _sync_name(self) -> None:
        try:
            sync_folder(self._file.parent)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{self._url} exists, but its folder could not be synced ({error.strerror}): the file may be lost in a "
                "crash. Nothing was deleted. Check the disk, then start the query or command again"
            ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mkdir(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        return False
    return True


def _sweep(folder: Path) -> None:
    """Remove temporary files and empty folders below a folder without objects. An entry that cannot be removed
    stays.
    """
    if holds_object(_entries, str(folder)):
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    _sweep(Path(entry.path))
                    Path(entry.path).rmdir()
                elif entry.name.startswith(_TEMPORARY_HEAD) and entry.name.endswith(_TEMPORARY_TAIL):
                    Path(entry.path).unlink()


def _entries(folder: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(HIDDEN)]
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str
    """File system type, such as `ext4`, `nfs4`, `fuse.sshfs`."""
    options: frozenset[str]
    """Options of the mount and of the file system."""


def doubt_of(
    folder: str,
    *,
    table: Callable[[], str] = MOUNTS.read_text,
    system: str = sys.platform,
) -> str:
    """Reason why a file that another machine creates in `folder` may become visible too late; empty if it is visible at
    once.

    The folder need not exist. On systems other than Linux nothing reports this, and the folder counts as local.
    """
    if system != "linux":
        return ""
    path = os.path.realpath(folder)
    with contextlib.suppress(OSError):  # triggers an automount; a missing path lies on its parent's file system
        os.stat(f"{path}/.")  # noqa: PTH116 - Path drops the dot, which triggers the automount
    try:
        mount = mount_of(path, table())
    except (OSError, ValueError) as error:
        return (
            f"{MOUNTS} cannot be read ({type(error).__name__}: {error}), so {path} may lie on a network file system, "
            "and the client of such a file system may remember for a minute that a file is absent"
        )
    found = _forgets(mount)
    return f"{path} lies on {mount.kind} (mounted at {mount.point}): {found}" if found else ""


def mount_of(path: str, table: str) -> Mount:
    """The mount that holds an absolute path without links: the one with the longest mount point, of equal ones the
    last.

    Raises `ValueError` if the table holds no such mount or is not a `mountinfo` table.
    """
    found = [mount for mount in _mounts(table) if _is_below(path, mount.point)]
    if not found:
        raise ValueError(f"no mount in this table contains {path}")
    return max(enumerate(found), key=lambda one: (len(one[1].point), one[0]))[1]


def _mounts(table: str) -> Iterator[Mount]:
    """Mounts in lines such as `36 35 98:0 /root /point mount-options tags … - kind source options`. A bind mount is
    an ordinary line.
    """
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, behind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(behind) < 3:
            raise ValueError(f"expected a line of a mount table, found {line!r}")
        options = frozenset(",".join((fields[5], behind[2])).split(","))
        yield Mount(_unescaped(fields[4]), behind[0], options)


def _unescaped(text: str) -> str:
    r"""Text without the octal numbers by which the table writes blanks, tabs, line feeds, backslashes: `\040`."""
    raw = os.fsencode(text).decode("latin-1")
    return os.fsdecode(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), raw).encode("latin-1"))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point.rstrip('/')}/")


def _forgets(mount: Mount) -> str:
    """Reason why a client of this mount may remember absent files, with a remedy; empty if it does not."""
    if mount.kind in _NFS:
        # lookupcache=none looks up names anew. Listings are fresh since opening a folder sends a request, unless nocto
        # is set.
        looks_up = "lookupcache=none" in mount.options and "nocto" not in mount.options
        return "" if looks_up or "noac" in mount.options else _OF_NFS
    if mount.kind in _SMB:
        return _OF_SMB
    if mount.kind.partition(".")[0] in {"fuse", "fuseblk"} and mount.kind not in _LOCAL_FUSE:
        return _OF_FUSE
    return _OF_AUTOMOUNT if mount.kind == "autofs" else ""
