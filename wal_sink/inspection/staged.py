"""The manifest that counts for a batch, for people who look at a WAL while others write to it and collect from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Release

_RELEASE = "release.json"


class Found(StrEnum):
    """The state of a batch's records."""

    STAGED = "staged"
    UNSTAGED = "unstaged"
    """It has no manifest: it is being staged, it was collected meanwhile, or its manifest was lost."""
    UNREADABLE = "unreadable"
    """Its records are damaged, or a newer version wrote them."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch as its folder shows it, with the manifest that counts."""

    batch_id: int
    found: Found
    manifest: Manifest | None = None
    release: Release | None = None
    attempts: int = 0


def find_staged(log: Log, batch_id: int) -> StagedBatch:
    """A batch with the released manifest, else its highest one. One listing and one or two reads. Raises `StoreError`.

    It may be collected between the requests. Damaged records are an answer, so that the other batches can be shown.
    """
    names = log.store.list(paths.batch(batch_id))
    manifests = sorted(name for name in map(paths.parse_manifest, names) if name is not None)
    try:
        release = log.find(Release, paths.release(batch_id)) if _RELEASE in names else None
        counts = (release.term, release.attempt) if release else max(manifests, default=None)
        manifest = log.find(Manifest, paths.manifest(batch_id, *counts)) if counts else None
    except (CorruptError, ConfigError):
        return StagedBatch(batch_id, Found.UNREADABLE, attempts=len(manifests))
    found = Found.UNSTAGED if manifest is None else Found.STAGED
    return StagedBatch(batch_id, found, manifest, release, len(manifests))
