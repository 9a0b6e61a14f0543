"""One store per process and address. Each process opens its own store; a store is never sent elsewhere."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import fsspec.asyn

from wal_sink.errors import ConfigError, StoreError
from wal_sink.stores.base import Store
from wal_sink.stores.fsspec_store import GenericStore, connected
from wal_sink.stores.local import LocalStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import LOCAL, MEMORY, S3, StoreSpec

_stores: dict[tuple[int, StoreSpec], Store] = {}
"""Stores by process id and address. A forked child inherits its parent's entries but must not use them (event loops,
sockets).
"""
_lock = threading.Lock()
_HDFS = {
    "hdfs": "hdfs_native.fsspec.HdfsFileSystem",
    "viewfs": "hdfs_native.fsspec.ViewfsFileSystem",
    "webhdfs": "fsspec.implementations.webhdfs.WebHDFS",
}
"""Implementations that `HdfsStore` knows, by scheme. Any other stays a `GenericStore`, with its doubt."""
_ATTEMPTS = {"dfs.client.failover.max.attempts": "5"}
"""Attempts of hdfs-native to reach a name node: half a minute. Its own default is three minutes."""


def _renew_after_fork() -> None:
    """Renew what a forked child must not use: the lock, which may be held, and fsspec's loop, whose thread is gone."""
    global _lock  # noqa: PLW0603 - another thread held it, and never releases it here
    _lock = threading.Lock()
    if hasattr(fsspec.asyn, "reset_lock"):  # fsspec does the same by itself since 2025.3.1
        fsspec.asyn.reset_lock()


os.register_at_fork(after_in_child=_renew_after_fork)


def open_store(spec: StoreSpec) -> Store:
    """The store of this process for `spec`, created at the first call; on driver and executors, from any thread.

    Sends no request yet: see `wal_sink.stores.creation.probe`. Raises `ConfigError` if the package for the scheme is
    missing or the options do not fit it.
    """
    key = (os.getpid(), spec)
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = _new_store(spec)
        return store


def _new_store(spec: StoreSpec) -> Store:
    if spec.scheme == S3 and "::" not in spec.url:
        return _new_s3_store(spec)
    if spec.scheme == LOCAL and "::" not in spec.url:
        return LocalStore(spec)
    if spec.scheme == MEMORY and "::" not in spec.url:
        return MemoryStore(spec)
    if spec.scheme in _HDFS and "::" not in spec.url:
        return _new_hdfs_store(spec)
    return GenericStore(spec)


def _new_s3_store(spec: StoreSpec) -> Store:
    try:
        from wal_sink.stores.s3 import S3Store  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError(
            f"{spec.safe_url} needs s3fs, on the executors too. Install wal-sink with its extra s3, or: pip install "
            f"s3fs. Python's answer here: {error}"
        ) from error
    return S3Store(spec)


def _new_hdfs_store(spec: StoreSpec) -> Store:
    try:
        kind = fsspec.get_filesystem_class(spec.scheme)
        if f"{kind.__module__}.{kind.__qualname__}" != _HDFS[spec.scheme]:
            return _other_hdfs(spec)
        from wal_sink.stores.hdfs import HdfsStore  # noqa: PLC0415 - its clients are optional dependencies

        return HdfsStore(spec, _hdfs_client(spec))
    except ImportError as error:
        raise ConfigError(
            f"{spec.safe_url} needs hdfs-native and requests, on the executors too. Install wal-sink with its extra "
            f"hdfs, or: pip install hdfs-native requests. Python's answer here: {error}"
        ) from error


def _hdfs_client(spec: StoreSpec) -> Any:
    if spec.scheme == "webhdfs":
        from wal_sink.stores.webhdfs import WebHdfs  # noqa: PLC0415

        return WebHdfs(connected(spec)[0])
    from wal_sink.stores.hdfs_rpc import HdfsRpc  # noqa: PLC0415

    if "@" in spec.location.partition("/")[0]:
        raise ConfigError(
            f"{spec.safe_url}: hdfs-native takes no user from an address. Remove the user from it, and set the "
            "environment variable HADOOP_USER_NAME on driver and executors"
        )
    return HdfsRpc(lambda: connected(replace(spec, options={**_ATTEMPTS, **spec.options}))[0].client)


def _other_hdfs(spec: StoreSpec) -> Store:
    try:
        return GenericStore(spec)
    except StoreError as error:
        raise ConfigError(
            f"{error}. A client that needs neither Java nor libhdfs comes with wal-sink's extra hdfs, or: pip install "
            "hdfs-native"
        ) from error
