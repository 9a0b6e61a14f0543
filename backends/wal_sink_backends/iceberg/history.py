"""The position of a sink in a table, and whether the table still shows it: walks from the newest snapshot to its
parents.

A rollback moves the branch `main` to an older snapshot, and keeps the table's properties. Every other commit has the
snapshot before it as its parent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wal_sink.sinks.base import CommitPosition


class UnknownHistoryError(Exception):
    """Snapshots are gone, so nobody can tell what the table shows."""


class Stored(msgspec.Struct):
    """The position, as it lies in a property of the table. The snapshot's summary has it, too."""

    batch: int
    digest: str
    snapshot: int
    """The id of the snapshot with the batch's rows."""


def stored_in(metadata: Any, key: str) -> Stored | None:
    """The position under this property; None if it has none. Raises `ValueError` if it is not as the sink stores it."""
    text = metadata.properties.get(key)
    return None if text is None else msgspec.json.decode(text, type=Stored)


def position_of(metadata: Any, key: str, stored: Stored) -> CommitPosition:
    """The stored position, and whether the table still shows its snapshot.

    The newest batch that the table shows is that of the nearest snapshot with a mark. If it is a later one than that of
    the position, a rollback was undone after a catch-up had begun. A snapshot whose parent expired keeps that parent's
    id, or has none (pyiceberg), as the first snapshot has none. Raises `UnknownHistoryError` if a snapshot is gone that
    had to be read.
    """
    at = head_of(metadata)
    while at is not None:
        snapshot = metadata.snapshot_by_id(at)
        if snapshot is None:
            raise UnknownHistoryError(at)
        if text := snapshot.summary and snapshot.summary[key]:
            mark = msgspec.json.decode(text, type=Stored)
            if mark.batch >= stored.batch:
                return CommitPosition(mark.batch, mark.digest)
            return CommitPosition(stored.batch, stored.digest, is_shown=False, held_through=mark.batch)
        if snapshot.parent_snapshot_id is None and snapshot.sequence_number != 1:
            raise UnknownHistoryError(at)
        at = snapshot.parent_snapshot_id
    return CommitPosition(stored.batch, stored.digest, is_shown=False)


def head_of(metadata: Any) -> int | None:
    """The newest snapshot of the branch `main`; None if it has none."""
    head = metadata.refs.get("main")
    return None if head is None else head.snapshot_id
