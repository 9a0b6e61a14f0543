"""Files held under hidden names of a local file system, and committed by one rename that replaces nothing.

While the held file exists, its rows were never committed. So a reader that removes new files at once gets no second
one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from wal_sink.errors import ConfigError, HandleGoneError, PermanentError, StoreError
from wal_sink.stores.base import check_path
from wal_sink.stores.local import LocalStore, sync_folder
from wal_sink_backends.files.folder import handle_of, handle_text

HELD_FOLDER = ".wal-sink-held"
"""Hidden from Spark, Arrow and `LocalStore`, on the same file system as the files that are committed from it.

The files in it are hidden by their own names too: a glob of Hadoop (`folder/*`) matches hidden folders, and Spark then
reads every file in them that is not hidden itself.
"""

_BUFFER_BYTES = 1 << 20
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_NO_SUCH_RENAME = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of kernels and file systems (NFS, for one) that cannot rename without replacing."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_T = TypeVar("_T")


class _Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Identifies one held file. Name and content do not, since other queries may have written the same."""

    name: str
    bytes: int
    inode: int
    mtime_ns: int
    held_in: str = ""
    """The folder where it is held, if that is not the hidden one of the folder."""

    def is_of(self, file: os.stat_result) -> bool:
        return (file.st_ino, file.st_size, file.st_mtime_ns) == (self.inode, self.bytes, self.mtime_ns)


class LocalHolder:
    """A `FileHolder` in a folder: `folder` is the path that `store` has.

    `held_folder` is where new files are held; empty means `HELD_FOLDER` in the folder. Handles and tokens name the
    folders of older files.
    """

    def __init__(self, store: LocalStore, folder: Path, held_folder: str = "") -> None:
        self._store = store
        self._folder = folder
        self._held_folder = held_folder

    def hold(self, transaction_id: str, name: str) -> HeldLocalFile:
        return HeldLocalFile(self._store, self._hidden(transaction_id, self._held_folder), name, self._held_folder)

    def commit(self, transaction_id: str, handle: str) -> None:
        given = handle_of(_Handle, handle)
        self._store.refuse_lost_root()  # without its disk, the folder would show no held file
        held, final = self._hidden(transaction_id, given.held_in), self._folder / check_path(given.name)
        try:
            self._commit(held, final, given)
        except _NameTakenError as error:
            raise PermanentError(
                f"{final} exists, but it is not the file of transaction {transaction_id}: another query, another sink "
                "or a user wrote it. Move that file elsewhere, or use another folder or name_template for this sink "
                f"({{wal_id}} in it distinguishes queries). Nothing was replaced; the rows are held in {held}"
            ) from error
        except OSError as error:
            raise self._failure("commit", final, error) from error

    def drop(self, transaction_id: str, token: str) -> None:
        if token and not Path(token).is_absolute():
            raise ConfigError(f"{token[:80]!r} is not a token of a held file: expected the absolute path of a folder")
        self._store.refuse_lost_root()  # without its disk, the folder would show no held file
        for folder in dict.fromkeys(
            ("", self._held_folder, token)
        ):  # a process may have died before it recorded its token
            self._unlink(self._hidden(transaction_id, folder))

    def _commit(self, held: Path, final: Path, given: _Handle) -> None:
        found = _stat(held)
        if found is not None and not given.is_of(found):
            raise HandleGoneError(
                f"{held} is not the file that was prepared for {final}, or was altered: expected {given.bytes} bytes, "
                f"with inode and time of change as in the handle, found {found.st_size} bytes",
                never_committed=True,
            )
        if found is None or not self._store.in_folder(final.parent, lambda: _move(held, final)):
            self._check_committed(held, final, given)

    def _check_committed(self, held: Path, final: Path, given: _Handle) -> None:
        found = _stat(final)
        if found is None or not given.is_of(found):
            there = (
                "no file has that name" if found is None else "the file with that name is another file, or was altered"
            )
            raise HandleGoneError(
                f"{held}, prepared for {final}, is gone, and {there}: the held file was removed before its commit, "
                "or the committed file was removed or altered since"
            )
        sync_folder(final.parent)  # the process that moved it may have died before it synced the folder

    def _unlink(self, held: Path) -> None:
        try:
            held.unlink(missing_ok=True)
        except NotADirectoryError:
            return  # nothing can be held where no folder is
        except OSError as error:
            raise self._failure("drop", held, error) from error

    def _hidden(self, transaction_id: str, held_folder: str) -> Path:
        return (Path(held_folder) if held_folder else self._folder / HELD_FOLDER) / f".{check_path(transaction_id)}"

    def _failure(self, action: str, file: Path, error: OSError) -> Exception:
        if error.errno == errno.EXDEV:
            return ConfigError(
                f"cannot commit {file}: this file lies on another file system than the folder for held files "
                f"({self._held_folder or self._folder / HELD_FOLDER}), so a rename cannot move it. Mount nothing "
                "inside the folder, and choose a held_folder on the same file system"
            )
        return self._store.failure(action, str(file), error)


class HeldLocalFile:
    """A file that is being written under a hidden name. Its token is the folder that holds it, "" for `HELD_FOLDER`."""

    def __init__(self, store: LocalStore, held: Path, name: str, held_folder: str) -> None:
        self.token = held_folder
        self._store = store
        self._held = held
        self._name = name
        self._file: IO[bytes] | None = None
        self._file = self._do(lambda: store.in_folder(held.parent, self._open))

    def write(self, data: bytes) -> int:
        file = self._opened()
        return self._do(lambda: file.write(data))

    def prepare(self) -> str:
        file = self._opened()
        found = self._do(lambda: self._sync(file))
        return handle_text(_Handle(self._name, found.st_size, found.st_ino, found.st_mtime_ns, self.token))

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # only of a file that was not prepared, on which nothing relies
                file.close()

    def _open(self) -> IO[bytes]:
        return self._held.open("xb", buffering=_BUFFER_BYTES)

    def _sync(self, file: IO[bytes]) -> os.stat_result:
        file.flush()
        os.fsync(file.fileno())
        self._file = None
        file.close()
        sync_folder(self._held.parent)
        if self.token:
            sync_folder(self._held.parent.parent)  # another process that made it may have died before
        return self._held.stat()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise StoreError(f"{self._held} was prepared or closed already; begin a new transaction")
        return self._file

    def _do(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except OSError as error:
            self.close()
            raise self._store.failure("write", str(self._held), error) from error


class _NameTakenError(Exception):
    """Another file has the name."""


def _move(held: Path, final: Path) -> bool:
    """Give a held file its name, durably. False if it is no longer held: another process was faster, or dropped it.

    Raises `FileNotFoundError` if the folder is gone, `_NameTakenError` if another file has the name.
    """
    try:
        _rename(held, final)
    except FileNotFoundError:
        if _stat(held) is not None:
            raise
        return False
    except FileExistsError as error:
        mine, found = _stat(held), _stat(final)
        if mine is None:
            return False
        if found is None or not os.path.samestat(mine, found):
            raise _NameTakenError from error
    sync_folder(final.parent)
    held.unlink(
        missing_ok=True
    )  # its hidden name, after a hard link gave it the other: now, or by a process that died here
    return True


def _rename(held: Path, final: Path) -> None:
    """Rename in one step without replacing a file; by a hard link where the system cannot rename so."""
    if _renameat2 is not None:
        if _renameat2(_AT_FDCWD, os.fsencode(held), _AT_FDCWD, os.fsencode(final), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_SUCH_RENAME:
            raise OSError(code, os.strerror(code), str(final))
    try:
        os.link(held, final)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise ConfigError(
                f"cannot commit {final}: this file system neither renames without replacing nor makes hard links "
                f"({error.strerror}); use a folder on a local disk (ext4, xfs), NFS, or an object store"
            ) from error
        raise


def _find_renameat2() -> Any:
    """The system call of Linux, which Python does not offer; None where it does not exist."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_renameat2 = _find_renameat2()


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
