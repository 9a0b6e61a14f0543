"""Finds out, when a WAL is opened, that its store keeps the one promise everything rests on: create-if-absent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from wal_sink.errors import ConfigError, StoreError
from wal_sink.runtime import Runtime
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store

_FOLDER = "probe"
_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{32}\.json")
_LEFT_BEHIND = timedelta(hours=1)
"""A probe lasts seconds; what is older than this was left by a crash."""


def probe(store: Store, *, runtime: Runtime, single_writer: bool) -> None:
    """Create, create again, read, list and delete one object, with what crashes left of earlier ones: five requests.

    Raises `ConfigError` if the store breaks a promise or is known to (unless `single_writer` accepts that), and
    `StoreError` if it cannot be reached, written or read; both say what to do, without secrets.
    """
    _check_doubt(store, single_writer=single_writer)
    path, data = new_object(runtime)
    with contextlib.suppress(ObjectExists):  # a retried request that met its own object: what is read below decides
        store.create(path, data)
    try:
        _check_create_again(store, path)
        _check_read(store, path, data)
        names = store.list(_FOLDER)
        if path.removeprefix(f"{_FOLDER}/") not in names:
            raise _broken(store, "an object that was just created is missing in the listing")
    except (ConfigError, StoreError):
        with contextlib.suppress(StoreError):
            store.delete([path])
        raise
    store.delete([path, *_left_behind(names, runtime.now())])


def new_object(runtime: Runtime) -> tuple[str, bytes]:
    """Path and content of an object to try a store with. Its name tells its age, so that no leftover has to be read."""
    name = f"{_stamp(runtime.now())}-{runtime.new_id()}.json"
    return f"{_FOLDER}/{name}", f'{{"probe": "{name}"}}'.encode()


def _left_behind(names: Iterable[str], now: datetime) -> list[str]:
    """Paths of the objects that only a crash can have left."""
    eldest = _stamp(now - _LEFT_BEHIND)
    return [f"{_FOLDER}/{name}" for name in names if _NAME.fullmatch(name) and name < eldest]


def _stamp(instant: datetime) -> str:
    """Such as `20260101T000000Z`: text that sorts by time."""
    digits = instant.astimezone(UTC).isoformat(timespec="seconds").replace("-", "").replace(":", "")
    return f"{digits[:15]}Z"


def _check_doubt(store: Store, *, single_writer: bool) -> None:
    if store.create_doubt and not single_writer:
        raise ConfigError(
            f"{store.root} cannot hold a WAL that several processes may write: {store.create_doubt}. Use a local "
            "folder, s3://, gs:// or abfs:// instead; or set Settings(single_writer=True) if never more than one "
            "process writes this WAL, not even after a crash or restart"
        )


def _check_create_again(store: Store, path: str) -> None:
    try:
        store.create(path, b'{"probe": "second"}')
    except ObjectExists:
        return
    raise _broken(store, "a second create of the same object succeeded, so that writers would overwrite each other")


def _check_read(store: Store, path: str, data: bytes) -> None:
    try:
        found = store.read(path)
    except ObjectMissing as error:
        raise _broken(store, "an object that was just created cannot be found") from error
    if found != data:
        raise _broken(store, f"an object of {len(data)} bytes came back as {len(found)} other bytes")


def _broken(store: Store, what: str) -> ConfigError:
    return ConfigError(
        f"{store.root} cannot hold a WAL: {what}. Use a store with conditional writes (AWS S3, MinIO since 2024, "
        "a local disk), or take caching proxies out of the way"
    )
