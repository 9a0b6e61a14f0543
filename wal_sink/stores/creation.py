"""Create-if-absent, the one promise that everything else needs: kept although answers are lost, and checked at a start.

A failed create does not say whether the object was made: a lost answer, a retry that met its own object and a true
loss look the same. Every object holds its writer's unique id, so reading it back decides.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.support.clock import Runtime

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_FOLDER = "probe"
_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{32}\.json")
LEFT_BEHIND_S = 3600.0
"""Age after which a probe was left by a crash, measured by a process's own monotonic clock. A probe lasts only
seconds.
"""


def create_once(store: Store, path: str, data: bytes, *, runtime: Runtime, attempts: int = 5) -> bool:
    """Create `path` with `data`, which must hold an id that no other writer uses.

    Returns True if the object there is the caller's, False if it is another's; it never overwrites or deletes anything.
    Raises `StoreError` if there is still no object after `attempts` tries, `OutcomeUnknownError` if it cannot be read
    back after a failed create. Errors that no repetition can change (`ConfigError`) pass through.
    """
    for attempt in range(1, attempts + 1):
        try:
            store.create(path, data)
        except StoreError as error:
            found = _read_back(store, path, error)
            if found is not None:
                return found == data
            if attempt == attempts:
                raise StoreError(
                    f"{store.url_of(path)} could not be created in {attempts} attempts and is absent; the last answer "
                    f"was: {error}. Correct the cause of this answer, then start the query or command again"
                ) from error
            runtime.sleep_s(min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S))
        else:
            return True
    raise ValueError(f"attempts={attempts}: expected at least 1")


def _read_back(store: Store, path: str, cause: StoreError) -> bytes | None:
    try:
        return store.read(path)
    except ObjectMissing:
        return None
    except StoreError as error:
        raise OutcomeUnknownError(
            f"{store.url_of(path)} may or may not have been created: the create answered “{cause}”, and the object "
            f"could not be read back: “{error}”. Nothing was deleted. Make the store reachable, then start the query "
            "or command again: it reads the object"
        ) from error


def probe(store: Store, *, runtime: Runtime, single_writer: bool) -> Leftovers:
    """Create, create again, read, list and delete one object: five requests. Returns the probes of other processes.

    Raises `ConfigError` if the store breaks a promise or is known to break one (unless `single_writer` accepts that),
    and `StoreError` if it cannot be reached, written or read. Both messages name the remedy and contain no secrets.
    """
    _check_doubt(store, single_writer=single_writer)
    path, data = new_object(runtime)
    with contextlib.suppress(ObjectExists):  # a retried request may meet its own object; the read below decides
        store.create(path, data)
    try:
        _check_create_again(store, path, data, single_writer=single_writer)
        _check_read(store, path, data)
        found = [f"{_FOLDER}/{name}" for name in store.list(_FOLDER) if _NAME.fullmatch(name)]
        if path not in found:
            raise _broken(store, "an object that was just created is missing in the listing")
    except (ConfigError, StoreError):
        with contextlib.suppress(StoreError):
            store.delete([path])
        raise
    store.delete([path])
    return Leftovers(store, [other for other in found if other != path], runtime)


class Leftovers:
    """Probes of other processes, seen when this process opened the WAL. A living process deletes its probe within
    seconds.

    Their names contain the time of day, but clocks differ between machines. A machine whose clock is an hour ahead
    would delete a probe in use, and its owner would then report a broken store. So this process measures their age
    itself.
    """

    def __init__(self, store: Store, paths: Iterable[str], runtime: Runtime) -> None:
        self._store = store
        self._paths = list(paths)
        self._runtime = runtime
        self._seen_s = runtime.monotonic_s()

    def delete_old(self) -> None:
        """Delete them after `LEFT_BEHIND_S`. Sends no request before that, nor if there are none.

        Raises `StoreError`; the next call then deletes them.
        """
        if self._paths and self._runtime.monotonic_s() - self._seen_s >= LEFT_BEHIND_S:
            self._store.delete(self._paths)
            self._paths.clear()


def new_object(runtime: Runtime) -> tuple[str, bytes]:
    """Path and content of an object to test a store with. The time in its name is for people."""
    name = f"{_stamp(runtime.now())}-{runtime.new_id()}.json"
    return f"{_FOLDER}/{name}", f'{{"probe": "{name}"}}'.encode()


def _stamp(instant: datetime) -> str:
    """The instant as text, such as `20260101T000000Z`."""
    digits = instant.astimezone(UTC).isoformat(timespec="seconds").replace("-", "").replace(":", "")
    return f"{digits[:15]}Z"


def _check_doubt(store: Store, *, single_writer: bool) -> None:
    if store.create_doubt and not single_writer:
        raise ConfigError(
            f"{store.root} cannot hold a WAL that several processes may write: {store.create_doubt}. Use a local "
            "folder, s3://, hdfs://, gs:// or abfs:// instead. Or set Settings(single_writer=True), but only if never "
            "more than one process writes this WAL, not even after a crash or restart"
        )


def _check_create_again(store: Store, path: str, data: bytes, *, single_writer: bool) -> None:
    with contextlib.suppress(ObjectExists):
        store.create(path, data if single_writer else b'{"probe": "second"}')
        if not single_writer:
            found = "the store accepted a second create of the same object, so writers would overwrite each other"
            raise _broken(store, f"{found} (one writer alone may pass Settings(single_writer=True))")


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
        "a local disk), or bypass caching proxies"
    )
