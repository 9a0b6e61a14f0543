"""A segment for stores that take an object only as a whole. A local temporary file collects it until `commit`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import IO

from wal_sink.errors import StoreError
from wal_sink.stores.base import SegmentStream


class SpooledSegment(SegmentStream):
    """A segment on local disk. `commit` sends it with `put`, which creates the object; nothing is sent earlier."""

    def __init__(self, url: str, put: Callable[[bytes], None]) -> None:
        self._url = url
        self._put = put
        self._spool: IO[bytes] | None = _new_spool(url)

    def write(self, data: bytes | memoryview) -> None:
        spool, rest = self._opened(), memoryview(data).cast("B")
        try:
            while rest:  # a disk that is nearly full takes a part of the bytes, and the error comes with the next
                rest = rest[spool.write(rest) :]
        except OSError as error:
            self.abort()
            raise _failure(self._url, error) from error

    def commit(self) -> None:
        spool = self._opened()
        try:
            spool.seek(0)
            data = spool.read()
        except OSError as error:
            raise _failure(self._url, error) from error
        try:
            self._put(data)
        finally:
            self.abort()

    def abort(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    def _opened(self) -> IO[bytes]:
        if self._spool is None:
            raise StoreError(f"{self._url} was committed or dropped already; start a new segment")
        return self._spool


def _new_spool(url: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(prefix="wal-sink-", buffering=0)
    except OSError as error:
        raise _failure(url, error) from error


def _failure(url: str, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {url} to a local temporary file: {error.strerror or error}; free space, or set TMPDIR to "
        "another disk"
    )
