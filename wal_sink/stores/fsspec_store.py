"""Any other store that fsspec supports, with the semantics that `pipe_file(mode="create")` has there.

Several processes may write only if that call is known to be atomic. Otherwise fsspec first checks and then writes, so
two processes can both believe that they created an object. `create_doubt` then says so, and `probe` refuses the store
unless the user promises a single writer. A lock keeps threads of one process apart in any case. A crash in the middle
of a write may leave a partial object in such a store. Records and segments carry checksums, so it is detected.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import fsspec

from wal_sink.errors import ConfigError, StoreError
from wal_sink.stores.base import (
    ObjectExists,
    ObjectMissing,
    SegmentStream,
    SpooledSegment,
    StoreAt,
    check_path,
    folder_of,
    is_hidden,
    shown,
)
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.texts import told

ATOMIC_CREATE = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""Packages whose file system hands `mode="create"` to the server as a precondition, by protocol. The protocol alone is
not enough: other packages register themselves for it, and some of them check first and write then, or overwrite.
"""

_GCS = ("gs", "gcs")
_PACKAGES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(_GCS, ("gcsfs", "gcs")),
    **dict.fromkeys(["abfs", "abfss", "az"], ("adlfs", "azure")),
}
"""The package of a scheme, and the extra that brings it."""

_FOREIGN_ERRORS = {
    "aiohttp": ("ClientError",),
    "azure.core.exceptions": ("AzureError",),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "paramiko.ssh_exception": ("SSHException",),
    "requests.exceptions": ("RequestException",),
}
"""Error classes of implementations that do not derive from `OSError`. They are looked up in modules that are already
imported.
"""


class GenericStore(StoreAt):
    """A `Store` over an fsspec file system for which this package has no implementation."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self._fs, self._base = connected(spec)
        package = type(self._fs).__module__.partition(".")[0]
        self._atomic = ATOMIC_CREATE.get(spec.scheme) == package and "::" not in spec.url
        self._create_lock = threading.Lock()
        self._listing = {"refresh": True} if _takes(self._fs.ls, "refresh") else {}

    @property
    def create_doubt(self) -> str:
        if self._atomic:
            return ""
        kind = type(self._fs)
        return (
            f"fsspec's {kind.__name__} (of {kind.__module__}) is not known to create atomically: it checks whether a "
            "path is free and writes afterwards"
        )

    def create(self, path: str, data: bytes) -> None:
        target = self._target(path)
        with self._create_lock if not self._atomic else contextlib.nullcontext():
            try:
                self._make_parent(target)
                self._fs.pipe_file(target, data, mode="create")
            except FileExistsError as error:
                raise ObjectExists(f"{self.url_of(path)} exists already") from self._spec.cause(error)
            except _failures() as error:
                raise self._failure("create", path, error) from self._spec.cause(error)

    def read(self, path: str) -> bytes:
        try:
            return bytes(self._fs.cat_file(self._target(path)))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectMissing(f"{self.url_of(path)} does not exist") from self._spec.cause(error)
        except _failures() as error:
            raise self._failure("read", path, error) from self._spec.cause(error)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        folder = folder_of(prefix)
        try:
            found = self._found_flat(folder) if self._atomic else [*self._below(folder)]
        except _failures() as error:
            raise self._failure("list", folder, error) from self._spec.cause(error)
        names = {shown(path.removeprefix(folder), recursive=recursive) for path in found}
        return sorted(name for name in names if name > after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._fs.rm_file(self._target(path))
            except FileNotFoundError:
                continue
            except _failures() as error:
                raise self._failure("delete", path, error) from self._spec.cause(error)

    def segment(self, path: str) -> SegmentStream:
        check_path(path)
        return SpooledSegment(self.url_of(path), partial(self._put, path))

    def _put(self, path: str, data: bytes) -> None:
        target = self._target(path)
        try:
            self._make_parent(target)
            self._fs.pipe_file(target, data)
        except _failures() as error:
            raise self._failure("write", path, error) from self._spec.cause(error)

    def _target(self, path: str) -> str:
        return f"{self._base}/{check_path(path)}"

    def _make_parent(self, target: str) -> None:
        if not self._atomic:  # an object store has no folders, and some file systems would create a bucket here
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)

    def _found_flat(self, folder: str) -> Sequence[str]:
        """All objects below a folder, by path from the root, from one listing of keys. To enter each folder would cost
        Azure two requests a folder.
        """
        self._fs.invalidate_cache()
        start = f"{self._base}/{folder}"
        found = self._fs.find(start.rstrip("/"), detail=True)
        if found == [start.rstrip("/")]:  # adlfs: the path is that of an object, which is in no folder of this name
            return []
        paths = [path for path, entry in found.items() if entry["type"] != "directory" and path.startswith(start)]
        names = (path.removeprefix(start) for path in paths)
        return [folder + name for name in names if not is_hidden(name)]

    def _below(self, folder: str) -> Iterator[str]:
        """All objects below a folder, by path from the root. Folders are entered, so empty ones never appear."""
        self._fs.invalidate_cache()
        target = f"{self._base}/{folder}".rstrip("/")
        try:
            entries = self._fs.ls(target, detail=True, **self._listing)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            path = str(entry["name"]).rstrip("/")
            name = path.rpartition("/")[2]
            if not name or is_hidden(name) or path.strip("/") == target.strip("/"):  # an object is in no folder
                continue
            if entry["type"] == "directory":
                yield from self._below(f"{folder}{name}/")
            else:
                yield folder + name

    def _failure(self, action: str, path: str, error: Exception) -> StoreError:
        """The `StoreError` for an error of fsspec or the libraries below it. Only this place translates them."""
        text = self._spec.scrub(told(error))
        return StoreError(
            f"cannot {action} {self.url_of(path)}: {text}; check address, credentials and rights, then start the query "
            "or command again"
        )


def connected(spec: StoreSpec) -> tuple[Any, str]:
    """The file system of fsspec for an address, and the path in it. Its listings are never cached."""
    _refuse_secrets_in_paths(spec)
    options = {**spec.options, "skip_instance_cache": True}
    try:
        fs, base = _file_system(spec, options)
    except ImportError as error:
        text = spec.scrub(str(error))
        package = _PACKAGES.get(spec.scheme)
        way = f". Install wal-sink with its extra {package[1]}, or: pip install {package[0]}" if package else ""
        raise ConfigError(f"{spec.safe_url} needs a package that is not installed: {text}{way}") from spec.cause(error)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{spec.safe_url} cannot be opened with these storage_options: {spec.scrub(str(error))}"
        ) from spec.cause(error)
    except _failures() as error:
        raise StoreError(
            f"{spec.safe_url} cannot be opened: {spec.scrub(str(error))}; check address and credentials"
        ) from spec.cause(error)
    fs.dircache.use_listings_cache = False  # as an option it would reach constructors that reject it (sftp)
    return fs, base.rstrip("/")


def _file_system(spec: StoreSpec, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system that is registered for an address, except for gcsfs.

    gcsfs registers a class that first asks over gRPC for the type of a bucket. Where gRPC does not get through, as with
    emulators and proxies, it logs errors for a minute and goes on. A log needs only objects, which the class below it
    reads and writes over HTTP, in buckets with folders too. On executors nothing has to be set for this.
    """
    if spec.scheme in _GCS and "::" not in spec.url:
        registered = fsspec.get_filesystem_class(spec.scheme)
        if registered.__module__.partition(".")[0] == "gcsfs":
            kind = importlib.import_module("gcsfs.core").GCSFileSystem
            return kind(**options), str(kind._strip_protocol(spec.url))  # noqa: SLF001 - url_to_fs calls it too
    fs, base = fsspec.core.url_to_fs(spec.url, **options)
    return fs, str(base)


def _refuse_secrets_in_paths(spec: StoreSpec) -> None:
    """Refuse an address with a secret if its file system keeps the whole address as a path (in fsspec itself: http).

    Such a file system shows the secret in its own logs, which are not redacted. Other file systems pass the secret only
    to their client.
    """
    for link in spec.url.split("::"):
        scheme, found, _ = link.partition("://")
        if found and _shows_secret(_kept_as_path(scheme, link)):
            raise ConfigError(
                f"{spec.safe_url}: the address holds a user, a password or a query, and the debug log of fsspec's "
                f"{scheme} shows the whole address. Remove this part from the address, and pass the secret as a "
                "storage option; for http and https {'client_kwargs': {'headers': {'Authorization': 'Basic …'}}}, "
                f"nested under {scheme!r} in a chained URL"
            )


def _kept_as_path(scheme: str, url: str) -> str:
    """The path that a file system makes of an address. The whole address if that cannot be determined."""
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return ""  # nothing is opened: url_to_fs raises the same error, which gets its explanation there
    try:
        return str(kind._strip_protocol(url))  # noqa: SLF001 - the function that url_to_fs calls
    except (TypeError, ValueError):
        return url


def _shows_secret(path: str) -> bool:
    """Return whether a path shows a secret: a user or a query in a URL, a user with a password in any other path."""
    _, found, rest = path.partition("://")
    user, at, _ = (rest if found else path).partition("/")[0].rpartition("@")
    if not found:
        return bool(at) and ":" in user
    return bool(at) or "?" in rest


def _failures() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [OSError, ValueError, RuntimeError, NotImplementedError]
    found += [AttributeError, KeyError, TypeError]  # of clients at an answer without the fields that they expect
    for module, names in _FOREIGN_ERRORS.items():
        if module in sys.modules:
            loaded = importlib.import_module(module)
            found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(found)


def _takes(function: Any, name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
