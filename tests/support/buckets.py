"""A stand-in for the clouds and clusters: fsspec's memory file system under their schemes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

SCHEMES = ("gs", "gcs", "az", "abfs", "abfss", "hdfs", "webhdfs", "viewfs")


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """Everything behind `scheme://` is a key, host and account included: so two clusters are two places."""

    protocol = SCHEMES

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        scheme, found, rest = path.partition("://")
        bare = rest if found and scheme in SCHEMES else path
        return str(super()._strip_protocol("memory://" + bare.lstrip("/")))


@contextmanager
def buckets() -> Iterator[None]:
    """All of `SCHEMES` lead to one empty memory."""
    Bucket.store, Bucket.pseudo_dirs = {}, [""]
    before = {scheme: _registry.get(scheme) for scheme in SCHEMES}
    for scheme in SCHEMES:
        fsspec.register_implementation(scheme, Bucket, clobber=True)
    try:
        yield
    finally:
        for scheme, kind in before.items():
            _registry.pop(scheme, None)
            if kind is not None:
                _registry[scheme] = kind
