"""The batches that a sink lacks: how many, since when, and how large. Bounded, however many there are.

The number of batches is exact, from one listing. Rows and bytes stand in the manifests. Only those of the oldest
batches are read, so with a long backlog the sums are lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from wal_sink.inspection.batches import StagedBatch

MOST_READ = 64
"""The most batches whose manifest is read, shared by all sinks."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Batches that a sink lacks."""

    batches: int = 0
    """Exact. A batch that is being staged does not count."""
    rows: int = 0
    bytes: int = 0
    is_exact: bool = True
    """Whether rows and bytes are those of all batches; otherwise there are at least as many."""
    oldest: int | None = None
    oldest_staged: str | None = None
    """When the oldest batch was staged; None if this is unknown, or if there is none."""
    missing: int | None = None
    """The first batch that the sink must get and that the WAL does not hold, or not readably."""


def backlog_of(
    batches: Sequence[int], *, expected: int, committed: int | None, most: int, look: Callable[[int], StagedBatch]
) -> Backlog:
    """The backlog of a sink whose next batch is `expected`. `batches`: those from there on that have any object.

    `committed`: Spark's newest commit, if known. `most`: how many batches may be read with `look`.
    """
    if not batches:
        missing = expected if committed is not None and committed >= expected else None
        return Backlog(missing=missing)
    read = [look(batch_id) for batch_id in batches[:most]]
    read += [look(batches[-1])] if len(batches) > most else []
    if _is_being_staged(read[-1], committed):
        batches, read = batches[:-1], read[:-1]
        if not batches:
            return Backlog()
    oldest = next((each for each in read if each.batch_id == batches[0]), None)
    manifests = [each.manifest for each in read if each.manifest is not None]
    first = oldest.manifest if oldest else None
    return Backlog(
        batches=len(batches),
        rows=sum(manifest.rows for manifest in manifests),
        bytes=sum(manifest.bytes for manifest in manifests),
        is_exact=len(manifests) == len(batches),
        oldest=batches[0],
        oldest_staged=first.created if first else None,
        missing=_first_missing(batches, read, expected=expected, committed=committed),
    )


def _is_being_staged(newest: StagedBatch, committed: int | None) -> bool:
    """Whether the newest batch has no manifest yet. Spark completes no batch before that."""
    return newest.manifest is None and newest.error is None and (committed is None or committed < newest.batch_id)


def _first_missing(
    batches: Sequence[int], read: Sequence[StagedBatch], *, expected: int, committed: int | None
) -> int | None:
    present = set(batches)
    gaps = (batch_id for batch_id in range(expected, batches[-1]) if batch_id not in present)
    unfit = (each.batch_id for each in read if each.manifest is None)
    beyond = (batches[-1] + 1,) if committed is not None and committed > batches[-1] else ()
    return min((*islice(gaps, 1), *islice(unfit, 1), *beyond), default=None)
