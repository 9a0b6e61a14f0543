"""Entries: the calls of `stage`. Each batch has one call, and no batch gets past one that was not staged.

Spark does not learn of an error that the user's `foreachBatch` swallows: it completes the batch and goes on. So each
call is remembered here, and the next batch is refused after a failed one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wal_sink.errors import ConfigError, UndeliveredError

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
            run, stager = _stagers.get((query_id, self._wal), ("", self._token))
            if run != run_id:
                _stagers[query_id, self._wal] = (run_id, self._token)
                return self._token
            return stager

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
