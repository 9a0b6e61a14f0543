"""Which batches of a WAL Spark has certainly completed, by the WAL alone. For a WAL whose checkpoint is lost.

A batch is released only after Spark completed it, and Spark runs a batch only once the one before it is complete. So
everything before the batch that ran last is complete. Of that one nobody knows.

A checkpoint that was restored makes Spark run earlier batches again, under a later term of the stager. Batches after
these that have an earlier term belong to a history that was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Release


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a WAL whose query does not go on."""

    through: int
    """Spark completed every batch up to this one; -1: none."""
    undecided: int | None
    """The batch after it, if it is staged: nobody knows whether Spark completed it."""
    abandoned: tuple[int, ...] = ()
    """Later batches, of a history that was given up, or that were not staged whole."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """The newest run of a batch that is not released."""

    batch_id: int
    term: int
    """The stager's term of the newest attempt; 0: no attempt is there."""
    is_staged: bool


def ending_of(log: Log, held: Sequence[int], *, marked: int, first_batch: int) -> Ending:
    """The end of a WAL. `held`: its batches above low water. `marked`: the newest batch that any sink has.

    A few requests. One listing more for each batch that is not released, if a later run of the query has not staged
    the newest batch again.
    """
    through, term = _newest_released(log, max(marked, first_batch - 1))
    later = [batch_id for batch_id in held if batch_id > through]
    if not later:
        return Ending(through, None)
    newest = _ran(log, later[-1])
    if newest.term < max(log.numbers(paths.terms(paths.STAGER_ROLE)), default=0):
        ran = [*log.runtime.side_by_side(lambda batch_id: _ran(log, batch_id), later[:-1]), newest]
    else:
        ran = [newest]  # no later run could begin another history
    live = [each for each in ran if each.term >= max(term, 1)]
    if not live:
        return Ending(through, None, tuple(later))
    last = max(live, key=lambda each: (each.term, each.batch_id))
    if not last.is_staged:
        return Ending(last.batch_id - 1, None, tuple(number for number in later if number >= last.batch_id))
    return Ending(last.batch_id - 1, last.batch_id, tuple(number for number in later if number > last.batch_id))


def manifest_of(log: Log, batch_id: int) -> Manifest | None:
    """The manifest that is delivered, or would be; None if there is none. A listing and one or two reads.

    Raises `CorruptError`.
    """
    release = log.find(Release, paths.release(batch_id))
    if release is not None:
        return log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    names = map(paths.parse_manifest, log.store.list(paths.batch(batch_id)))
    highest = max((name for name in names if name is not None), default=None)
    return None if highest is None else log.find(Manifest, paths.manifest(batch_id, *highest))


def _newest_released(log: Log, marked: int) -> tuple[int, int]:
    """The newest batch that was released or marked, and the term of its manifest; 0 if no record tells it.

    A batch that Spark wrote without running it has no term, so the one before it tells.
    """
    through, term = marked, 0
    while (release := log.find(Release, paths.release(through + 1))) is not None:
        through, term = through + 1, release.term or term
    earlier = marked
    while term == 0 and (release := log.find(Release, paths.release(earlier)) if earlier > NOTHING else None):
        earlier, term = earlier - 1, release.term
    return through, term


def _ran(log: Log, batch_id: int) -> _Ran:
    names = log.store.list(paths.batch(batch_id))
    attempts = [found for found in map(paths.parse_attempt, names) if found is not None]
    staged = [found for found in map(paths.parse_manifest, names) if found is not None]
    term = max((found.term for found in attempts), default=0)
    return _Ran(batch_id, term, any(found.term == term for found in staged))
