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
    sequence: int
    """Its sequence number, which every later snapshot exceeds; 0 in a table of format version 1."""


def stored_in(metadata: Any, key: str) -> Stored | None:
    """The position under this property; None if it has none. Raises `ValueError` if it is not as the sink stores it."""
    text = metadata.properties.get(key)
    return None if text is None else msgspec.json.decode(text, type=Stored)


def position_of(metadata: Any, key: str, stored: Stored) -> CommitPosition:
    """The stored position, and whether the table still shows its snapshot.

    Raises `UnknownHistoryError` if a snapshot is gone that had to be read.
    """
    at, held_through, is_shown = head_of(metadata), None, None
    while at is not None and (is_shown is None or held_through is None):
        snapshot = metadata.snapshot_by_id(at)
        if at == stored.snapshot:
            return CommitPosition(stored.batch, stored.digest)
        if snapshot is None:
            raise UnknownHistoryError(at)
        if is_shown is None and 0 < (snapshot.sequence_number or 0) < stored.sequence:
            is_shown = False
        if held_through is None and (mark := snapshot.summary and snapshot.summary[key]):
            held_through = msgspec.json.decode(mark, type=Stored).batch
        at = snapshot.parent_snapshot_id
    return CommitPosition(
        stored.batch, stored.digest, is_shown=False, held_through=-1 if held_through is None else held_through
    )


def head_of(metadata: Any) -> int | None:
    """The newest snapshot of the branch `main`; None if it has none."""
    head = metadata.refs.get("main")
    return None if head is None else head.snapshot_id
