"""Which batches of a WAL Spark has certainly completed, by the WAL alone. For a WAL whose checkpoint is lost.

A batch is released only after Spark completed it, and Spark runs a batch only once the one before it is complete. So
everything before the batch that ran last is complete. Of that one nobody knows.

A checkpoint that was restored makes Spark run earlier batches again, under a later term of the stager. Batches after
these that have an earlier term belong to a history that was given up.

Every run of a batch that is not released stages it again. So along one history, the terms never fall, and the attempts
at one batch have one input. If it is otherwise, a history was given up in between, and it may have come back: an older
checkpoint was restored, the query ran, and then a newer checkpoint took its place. Only a checkpoint tells then which
attempt at a batch counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from wal_sink.errors import ConfigError, CorruptError
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
    unclear: tuple[int, ...] = ()
    """Batches of which the WAL does not show which attempt counts: two histories ran them, and either may be the one
    that goes on.
    """


@dataclass(frozen=True, slots=True)
class _Ran:
    """The newest run of a batch."""

    batch_id: int
    term: int
    """The stager's term of the newest attempt, or of the released one; 0: no attempt is there."""
    is_staged: bool
    is_released: bool
    has_two_inputs: bool
    """Whether its attempts were staged from different inputs, as far as this cannot be excluded."""


def ending_of(log: Log, held: Sequence[int], *, marked: int, first_batch: int) -> Ending:
    """The end of a WAL. `held`: its batches above low water. `marked`: the newest batch that any sink has.

    A few requests, and a listing for each batch after the newest one that was released. One read more for each manifest
    of a batch that has several.
    """
    through, term = before = _newest_released(log, max(marked, first_batch - 1))
    ran = log.runtime.side_by_side(lambda batch_id: _ran(log, batch_id), [each for each in held if each > through])
    for each in ran:  # the release of a batch before may be lost
        if each.is_released:
            through, term = each.batch_id, each.term or term
    live = [each for each in ran if each.batch_id > through and each.term >= max(term, 1)]
    last = max(live, key=lambda each: (each.term, each.batch_id), default=None)
    newest = through if last is None else last.batch_id
    unclear = tuple(_unclear([each for each in ran if each.batch_id <= newest], before[1]))
    if last is None:
        return Ending(through, None, _numbers(ran, after=through), unclear)
    undecided = last.batch_id if last.is_staged else None
    abandoned = _numbers(ran, after=last.batch_id if last.is_staged else last.batch_id - 1)
    return Ending(last.batch_id - 1, undecided, abandoned, unclear)


def _numbers(ran: Sequence[_Ran], *, after: int) -> tuple[int, ...]:
    return tuple(each.batch_id for each in ran if each.batch_id > after)


def _unclear(ran: Sequence[_Ran], term: int) -> Iterator[int]:
    """The batches that are not released and have two inputs, or before or behind which the terms fall.

    `term`: that of the released batch before them. A batch without an attempt was not run by Spark.
    """
    with_term = [each for each in ran if each.term]
    highest = accumulate((each.term for each in with_term), max, initial=term)
    lowest = [*accumulate((each.term for each in reversed(with_term)), min)]
    falls = {
        each.batch_id
        for each, before, after in zip(with_term, highest, reversed(lowest), strict=False)
        if before > each.term or after < each.term
    }
    yield from (
        each.batch_id for each in ran if not each.is_released and (each.has_two_inputs or each.batch_id in falls)
    )


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
    if paths.release(batch_id).rpartition("/")[2] in names and (release := log.find(Release, paths.release(batch_id))):
        return _Ran(batch_id, release.term, is_staged=True, is_released=True, has_two_inputs=False)
    attempts = [found for found in map(paths.parse_attempt, names) if found is not None]
    staged = [found for found in map(paths.parse_manifest, names) if found is not None]
    term = max((found.term for found in attempts), default=0)
    is_staged = any(found.term == term for found in staged)
    return _Ran(batch_id, term, is_staged, is_released=False, has_two_inputs=_have_two_inputs(log, batch_id, staged))


def _have_two_inputs(log: Log, batch_id: int, staged: Sequence[paths.ManifestName]) -> bool:
    """Whether the manifests of a batch may be of different inputs. A manifest that cannot be read may be of any."""
    if len(staged) < 2:
        return False
    try:
        manifests = [log.find(Manifest, paths.manifest(batch_id, *name)) for name in staged]
    except (CorruptError, ConfigError):
        return True
    there = [manifest for manifest in manifests if manifest is not None]
    return len({manifest.fingerprint for manifest in there}) > 1
