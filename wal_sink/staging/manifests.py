"""The manifest of a staged batch, and the rows of a released one. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from wal_sink.checkpoint.reader import Offsets
from wal_sink.errors import FencedError
from wal_sink.reporting.logs import logger_of
from wal_sink.telemetry.measures import OperationTimes
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Release, SegmentRef
from wal_sink.wal.timings import StagingTiming

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to stage one batch. No other attempt has its folder."""

    batch_id: int
    term: int
    number: int
    """Number among all attempts of the run: a later attempt at a batch always has a higher one."""
    folder: str
    offsets: Offsets
    began: str = ""
    """When it began, ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of one Spark job over a batch, on the store."""

    segments: Sequence[SegmentRef]
    columns: tuple[str, ...]
    spark_schema: str = ""
    prepared: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """By two-phase sink: the handle of each segment."""
    timing: StagingTiming | None = None
    """How long its tasks took; None if they did not tell."""
    requests: tuple[OperationTimes, ...] = ()
    """Requests of the job's tasks, if they are measured."""
    time_zone: str = ""
    """As in the manifest."""


def create_manifest(log: Log, attempt: Attempt, staged: Staged, *, chunk_rows: int) -> Manifest:
    """Create the manifest of an attempt whose rows are staged: the batch is then known to the WAL. One create.

    Raises `FencedError` if another process stages under the same term.
    """
    manifest = Manifest(
        batch_id=attempt.batch_id,
        term=attempt.term,
        attempt=attempt.number,
        run_id=log.run_id,
        fingerprint=attempt.offsets.fingerprint,
        offsets=attempt.offsets.text,
        columns=staged.columns,
        spark_schema=staged.spark_schema,
        chunk_rows=chunk_rows,
        segments=tuple(staged.segments),
        prepared=dict(staged.prepared),
        timing=_timing(attempt, staged),
        time_zone=staged.time_zone,
        **log.stamp(),
    )
    if not log.create(paths.manifest(attempt.batch_id, attempt.term, attempt.number), manifest):
        raise FencedError(
            f"batch {attempt.batch_id}: manifest of term {attempt.term} on {log.store.root} was written by another "
            "process under the same term. Stop one of the two processes"
        )
    return manifest


def _timing(attempt: Attempt, staged: Staged) -> StagingTiming:
    """How long staging took. A batch without rows may have had no task."""
    tasks = staged.timing or StagingTiming(tasks=0, task_seconds=0.0)
    return msgspec.structs.replace(tasks, began=attempt.began)


def compare_replay(log: Log, batch_id: int, found: int, *, what: str) -> None:
    """Warn if a replay has another number of rows than the release. The replay's rows are dropped in any case.

    Two reads. `what` names the batch in the warning.
    """
    released = released_row_count(log, batch_id)
    if released is None:
        _logger.warning(
            "%s: the replay had %d rows. They were not compared with the released rows, because all sinks had this "
            "batch and the WAL deleted it in the meantime",
            what,
            found,
        )
    elif released != found:
        _logger.warning(
            "%s: the replay had %d rows, but %d rows were released. The sinks receive the released rows. Either the "
            "source did not replay the same rows (was a file overwritten in place?), or the query is not "
            "deterministic",
            what,
            found,
            released,
        )


def released_row_count(log: Log, batch_id: int) -> int | None:
    """How many rows a released batch has; None if it was collected meanwhile."""
    release = log.find(Release, paths.release(batch_id))
    if release is None:
        return None
    manifest = log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    return None if manifest is None else manifest.rows
