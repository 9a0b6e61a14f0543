"""Places of bytes: opening one, its errors, the memory store."""

from __future__ import annotations

from wal_sink.stores import opening
from wal_sink.stores.base import ObjectExists, ObjectMissing, SegmentStream, Store
from wal_sink.stores.creation import create_once, probe
from wal_sink.stores.fsspec_store import GenericStore
from wal_sink.stores.local import LocalStore
from wal_sink.stores.measured import MeasuredStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.opening import open_store
from wal_sink.stores.s3 import S3Store
from wal_sink.stores.spec import StoreSpec

__all__ = [
    "GenericStore",
    "LocalStore",
    "MeasuredStore",
    "MemoryStore",
    "ObjectExists",
    "ObjectMissing",
    "S3Store",
    "SegmentStream",
    "Store",
    "StoreSpec",
    "create_once",
    "open_store",
    "opening",
    "probe",
]
