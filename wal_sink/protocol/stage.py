"""Staging a batch: whether it is new, a replay or an error, and the manifest that makes it known. On the driver.

`Entries` are the calls of `stage`. Each batch has one call, and no batch gets past one that was not staged.

Spark does not learn of an error that the user's `foreachBatch` swallows: it completes the batch and goes on. So each
call is remembered here, and the next batch is refused after a failed one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from wal_sink.errors import ConfigError, FencedError, HistoryError, UndeliveredError
from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, Release, SegmentRef, StagingTiming
from wal_sink.log.terms import Term
from wal_sink.protocol.checkpoint import Checkpoint, Gate, Offsets
from wal_sink.protocol.history import History, MissingBatchError, divergence, pass_over
from wal_sink.protocol.inventory import Lost, lost
from wal_sink.support import events
from wal_sink.support.clock import epoch_s
from wal_sink.support.logs import logger_of
from wal_sink.support.measures import OperationTimes

_logger = logger_of(__name__)

_stagers: dict[tuple[str, str], tuple[str, object]] = {}
"""By query and WAL in this process: the newest run, and the token of the `Entries` that it entered first."""
_stagers_lock = threading.Lock()


@dataclass(slots=True)
class RunEntry:
    """One run of a query that calls `stage`, and the batch it entered last."""

    run_id: str
    has_term: bool = False
    """Whether the stager's term was claimed for it."""
    batch_id: int | None = None
    """None before its first batch."""
    busy: bool = False
    """The batch is being staged."""
    staged: bool = False


@dataclass(frozen=True, slots=True)
class Unstaged:
    """A call of `stage` that failed."""

    batch_id: int
    error: BaseException
    beside: str | None = None
    """The run in which another call has the batch, so that staging it does not repair this failure."""


class Entries:
    """The batches that one `WalSink` was called for. Safe to share between threads."""

    def __init__(self, owner: str, wal: str) -> None:
        """`owner`: the name of the `WalSink` in errors, without secrets. `wal`: the URL of its log."""
        self._owner = owner
        self._wal = wal
        self._token = object()
        self._lock = threading.Lock()
        self._run: RunEntry | None = None
        self._unstaged: dict[str, Unstaged] = {}
        """By query id; under "" a call whose query is unknown."""

    @property
    def run(self) -> RunEntry | None:
        """The run that entered a batch last; None before the first."""
        return self._run

    @property
    def unstaged(self) -> list[Unstaged]:
        """The failed calls whose batches were not staged later."""
        with self._lock:
            return list(self._unstaged.values())

    @contextmanager
    def unknown(self, batch_id: int) -> Iterator[None]:
        """The time in which the calling query is determined. An error is remembered without a query."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._unstaged.setdefault("", Unstaged(batch_id, error))
            raise

    @contextmanager
    def entered(
        self, query_id: str, run_id: str, batch_id: int, *, on_enter: Callable[[], None] = lambda: None
    ) -> Iterator[RunEntry]:
        """The time in which a batch is staged. `on_enter` is called once the call is admitted, before any other one is.

        Raises `ConfigError` for a second call for a batch, and the error of an earlier batch that was not staged.
        """
        with self._lock:
            entry = self._enter(query_id, run_id, batch_id)
            on_enter()
        try:
            yield entry
        except BaseException as error:
            with self._lock:
                self._leave(entry, query_id, Unstaged(batch_id, error))
            raise
        with self._lock:
            self._leave(entry, query_id, None)

    def _enter(self, query_id: str, run_id: str, batch_id: int) -> RunEntry:
        if self._run is None or self._run.run_id != run_id:
            self._run = RunEntry(run_id)
        entry = self._run
        self._refuse_overtaking(query_id, batch_id)
        is_stager = self._claim_run(query_id, run_id) is self._token
        problem, beside = _problem(entry, batch_id, is_stager=is_stager)
        if problem:
            error = ConfigError(f"batch {batch_id} of {self._owner} {problem}")
            self._unstaged[query_id] = Unstaged(batch_id, error, run_id if beside else None)
            raise error
        entry.batch_id, entry.busy, entry.staged = batch_id, True, False
        return entry

    def _refuse_overtaking(self, query_id: str, batch_id: int) -> None:
        """Refuse a batch after one that was not staged: Spark completed that one, or it would run it again."""
        known = self._unstaged.get(query_id)
        if known is not None and batch_id > known.batch_id:
            raise again(known, self._owner)
        unknown = self._unstaged.get("")
        if unknown is not None and batch_id != unknown.batch_id:
            raise again(unknown, self._owner)

    def _claim_run(self, query_id: str, run_id: str) -> object:
        """Make this `WalSink` the stager of the run, unless another of this process is. The token of the stager."""
        with _stagers_lock:
            known = _stagers.get((query_id, self._wal))
            if known is None or known[0] != run_id:
                known = _stagers[query_id, self._wal] = (run_id, self._token)
            return known[1]

    def _leave(self, entry: RunEntry, query_id: str, unstaged: Unstaged | None) -> None:
        entry.busy, entry.staged = False, unstaged is None
        if entry is not self._run:
            return  # a newer run stages the batch, or has staged it
        known = self._unstaged.get(query_id)
        if known is not None and known.beside == entry.run_id:
            return
        if unstaged is not None:
            self._unstaged[query_id] = unstaged
        else:
            for each in {query_id, ""}:
                if each in self._unstaged and self._unstaged[each].batch_id == entry.batch_id:
                    del self._unstaged[each]


def _problem(entry: RunEntry, batch_id: int, *, is_stager: bool) -> tuple[str, bool]:
    """The reason why the call is refused, and whether another call has the batch; "" if it is admitted.

    `is_stager`: whether no other `WalSink` of this process stages the run into this WAL.
    """
    if not is_stager:
        return _ANOTHER_SINK, True
    if entry.batch_id == batch_id and (entry.busy or entry.staged):
        return _SECOND_CALL, True
    if entry.busy:
        return _STILL_BUSY.format(entry.batch_id), False
    return "", False


def again(unstaged: Unstaged, owner: str) -> Exception:
    """The error of the failed call, to be raised again with the reason."""
    why = (
        f"wal-sink: batch {unstaged.batch_id} of {owner} was not staged because of this error, but foreachBatch "
        "returned, so Spark may have completed it. No later batch is staged. In foreachBatch, do not catch the errors "
        "of stage(). To get the rows of this batch, restore the checkpoint to its state before this batch, then start "
        "the query again"
    )
    if not isinstance(unstaged.error, Exception):
        error = UndeliveredError(why)
        error.__cause__ = unstaged.error
        return error
    if why not in getattr(unstaged.error, "__notes__", ()):
        unstaged.error.add_note(why)
    return unstaged.error


_SECOND_CALL = (
    "is already staged, or is being staged: one stage() call stages a whole batch. Union the DataFrames first, or use "
    "a separate WAL and WalSink for each DataFrame"
)
_STILL_BUSY = (
    "follows batch {}, but another thread is still staging that batch, although foreachBatch returned. In "
    "foreachBatch, wait for the threads that call stage(), and raise their errors"
)
_ANOTHER_SINK = (
    "belongs to a run of a query that another WalSink of this process stages into the same WAL. Create one WalSink "
    "before the query starts, not in foreachBatch, and close it after the query ended"
)


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
    began_s: float = 0.0
    """The same by the monotonic clock."""


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


class Stager:
    """The staging role of one query of a run. Runs on Spark's stream thread, in the driver."""

    def __init__(
        self, log: Log, checkpoint: Checkpoint, gate: Gate, history: History, term: Term, *, chunk_rows: int
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._gate = gate
        self._history = history
        self._term = term
        self._chunk_rows = chunk_rows
        self._attempts = 0

    def begin(self, batch_id: int, *, planned_ms: int) -> Attempt | None:
        """Begin an attempt to stage a batch; None if it is a replay of a released one.

        Write the rows of an attempt into its folder, then call `end`. Evaluate a replay without staging it.
        `planned_ms` is the time at which the running query planned the batch, as `Offsets.planned_ms`.

        Raises `HistoryError` before anything is written if the batch contradicts the WAL, `FencedError` if another
        query has taken over the checkpoint.
        """
        began, began_s = self._log.runtime.timestamp(), self._log.runtime.monotonic_s()
        offsets = self._checkpoint.require_offsets(batch_id)
        self._refuse_foreign(batch_id, offsets, planned_ms)
        if self._history.wal is None:
            self._refuse_completed(batch_id)  # before the WAL's record is made
        is_made = self._history.bind(batch_id)
        # Spark chose a query's first batch after the WAL was read: others may have staged and released it meanwhile. Of
        # a WAL that was made just now, nobody can have.
        if not is_made and (batch_id <= self._history.newest_known or not self._attempts):
            if self._is_replay(batch_id, offsets):
                self._log.events.tell(events.Replayed, batch=batch_id)
                return None
            self._refuse_completed(batch_id)
        self._refuse_gap(batch_id)
        self._attempts += 1
        folder = paths.attempt_folder(batch_id, self._term.number, self._attempts)
        return Attempt(batch_id, self._term.number, self._attempts, folder, offsets, began, began_s)

    def end(self, attempt: Attempt, staged: Staged) -> Manifest:
        """Create the manifest of an attempt whose rows are staged: the batch is then known to the WAL.

        Raises `FencedError` if another process stages under the same term.
        """
        batch_id = attempt.batch_id
        manifest = create_manifest(self._log, attempt, staged, chunk_rows=self._chunk_rows)
        self._gate.close_from(batch_id)  # a batch that Spark runs is not complete, even if it once was
        if batch_id <= self._history.newest_known:
            self._tell_of_other_rows(manifest)
        self._history.note_staged(manifest)
        self._tell_staged(manifest, staged, began_s=attempt.began_s)
        return manifest

    @property
    def term(self) -> Term:
        """The term under which it stages."""
        return self._term

    def _tell_staged(self, manifest: Manifest, staged: Staged, *, began_s: float) -> None:
        self._log.events.tell(
            events.Staged,
            batch=manifest.batch_id,
            attempt=manifest.attempt,
            rows=manifest.rows,
            bytes=manifest.bytes,
            segments=len(manifest.segments),
            took_s=self._log.runtime.monotonic_s() - began_s,
            staged_at=epoch_s(manifest.created),
            requests=staged.requests,
        )

    def refuse_superseded(self) -> None:
        """Raise `FencedError` if a newer process stages into this WAL. One read."""
        self._term.check(self._log.store)

    def _refuse_foreign(self, batch_id: int, offsets: Offsets, planned_ms: int) -> None:
        """Refuse an entry of the checkpoint that another query wrote: it does not describe the rows at hand.

        Spark writes the time of planning into every entry. One without it was not written for this batch either.
        """
        if planned_ms != offsets.planned_ms:
            found = "at an unknown time" if offsets.planned_ms is None else f"at {offsets.planned_ms}"
            raise FencedError(
                f"batch {batch_id}: {self._checkpoint.root}/offsets/{batch_id} was planned {found}, but the running "
                f"query planned this batch at {planned_ms}. Another query runs on this checkpoint, or the checkpoint "
                "was restored to another state. Nothing was written; stop this query"
            )

    def _refuse_completed(self, batch_id: int) -> None:
        """Refuse a batch that `commits/` has as complete: its gate would be open before Spark completes it.

        No query is refused that could continue: Spark never runs such a batch, and cannot complete it either.
        """
        if self._gate.ask_now(batch_id):
            self._refuse_collected(batch_id)
            self._term.check(self._log.store)
            raise FencedError(
                f"batch {batch_id}: {self._checkpoint.root}/commits has an entry for this batch or for a later batch, "
                "but this batch is running now. Another query runs on this checkpoint, 'offsets' was restored to an "
                "older state without 'commits', or foreachBatch did not wait for the thread that calls stage(). "
                "Nothing was written; stop this query, and if no other query runs, restore the whole checkpoint"
            )

    def _is_replay(self, batch_id: int, offsets: Offsets) -> bool:
        release = self._log.find(Release, paths.release(batch_id))
        self._refuse_collected(batch_id)  # only now: a collection deletes the release after it has moved low water
        if release is None:
            self._refuse_marked(batch_id)
            return False
        if release.fingerprint != offsets.fingerprint:
            raise divergence(self._log, self._checkpoint, batch_id, release.fingerprint, offsets.fingerprint,
                             held=(release.term, release.attempt))  # fmt: skip
        return True

    def _refuse_marked(self, batch_id: int) -> None:
        """Raise `CorruptError` if a sink has the batch: then it was released, and the release is gone.

        Without the release, a replay cannot be told from another history.
        """
        if batch_id <= (marked := self._history.newest_marked):
            because = f"a sink has every batch up to {marked}"
            raise lost(self._log, Lost.RELEASE, paths.release(batch_id), because)

    def _refuse_collected(self, batch_id: int) -> None:
        if batch_id <= (low_water := self._log.low_water()):
            self._term.check(self._log.store)  # raises if this query was superseded
            if self._checkpoint.is_completed(batch_id):  # Spark never runs such a batch
                raise FencedError(
                    f"batch {batch_id}: the batch is complete in {self._checkpoint.root}, and the WAL "
                    f"{self._log.store.root} delivered and deleted the batch (low water {low_water}) after this query "
                    "chose it. So another query runs on this checkpoint. Nothing was written; stop this query"
                )
            raise HistoryError(
                f"batch {batch_id} of {self._log.store.root}: this batch was delivered and then deleted from the "
                f"WAL (low water {low_water}), but the checkpoint {self._checkpoint.root} makes Spark run it again. "
                "Restore a newer checkpoint, or deliver what this WAL still holds (wal-sink settle WAL FOLDER, then "
                "a drain) and start a new WAL"
            )

    def _refuse_gap(self, batch_id: int) -> None:
        if batch_id > self._history.accounted_through + 1:
            self._history.load_batches()  # an older process may have staged since
        before = self._history.accounted_through
        if all(pass_over(self._log, self._checkpoint, missing) for missing in range(before + 1, batch_id)):
            return
        follows = (
            f"follows batch {before} in {self._log.store.root}"
            if self._history.has_batches
            else f"cannot be staged into {self._log.store.root}, because this WAL begins with batch {before + 1} and "
            "holds no batch"
        )
        first, last = before + 1, batch_id - 1
        between = f"batch {first} is" if first == last else f"batches {first} to {last} are"
        raise MissingBatchError(
            f"batch {batch_id} {follows}: {between} missing in between. They were run "
            "without this WAL, their error was caught in foreachBatch and not raised again, or they were deleted from "
            f"the WAL. Restore these batches, restore the checkpoint to its state before batch {before + 1}, or start "
            "a new WAL"
        )

    def _tell_of_other_rows(self, manifest: Manifest) -> None:
        """Warn if an earlier, unreleased attempt at the same input had another number of rows.

        Spark replays a batch without a file that was deleted since. Nothing else shows that.
        """
        before = self._history.staged(manifest.batch_id) or self._attempt_before(manifest)
        # Another input may have another number of rows.
        if before is None or before.fingerprint != manifest.fingerprint:
            return
        if before.rows != manifest.rows:
            _logger.warning(
                "batch %d of %s was staged again with %d rows. The sinks receive these rows. An earlier attempt had "
                "%d rows from the same input (%s), but Spark did not complete that attempt. Possible causes: the "
                "source did not return the same rows again (for example, a file was deleted or overwritten), or the "
                "query is not deterministic",
                manifest.batch_id,
                self._log.store.root,
                manifest.rows,
                before.rows,
                paths.manifest(before.batch_id, before.term, before.attempt),
            )

    def _attempt_before(self, manifest: Manifest) -> Manifest | None:
        """The newest manifest of the batch before this one; None if there is none. A listing and a read."""
        names = (paths.parse_manifest(name) for name in self._log.store.list(paths.batch(manifest.batch_id)))
        own = (manifest.term, manifest.attempt)
        found = max((name for name in names if name is not None and name < own), default=None)
        if found is None:
            return None
        return self._log.find(Manifest, paths.manifest(manifest.batch_id, found.term, found.attempt))


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
