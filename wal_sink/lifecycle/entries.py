"""Which batches `stage` was called for: each by one call, and none after one that was not staged.

Spark does not learn of an error that the user's `foreachBatch` swallows: it completes the batch and goes on. So what
was entered is remembered here, and the next batch does not get past it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wal_sink.errors import ConfigError, UndeliveredError

_stagers: dict[tuple[str, str], tuple[str, object]] = {}
"""Of each query and WAL in this process: the newest run, and the token of the `Entries` that it entered first."""
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
    beside: str = ""
    """The run in which another call has the batch, so that staging it does not make up for this one."""


class Entries:
    """What one `WalSink` was asked to stage. Safe to share between threads."""

    def __init__(self, owner: str, wal: str) -> None:
        """`owner`: what errors call the `WalSink`, without secrets. `wal`: the URL of its log."""
        self._owner = owner
        self._wal = wal
        self._token = object()
        self._lock = threading.Lock()
        self._run: RunEntry | None = None
        self._unstaged: dict[str, Unstaged] = {}
        """By query id; under "" a call whose query could not be told."""

    @property
    def run(self) -> RunEntry | None:
        """The run that entered a batch last; None before the first."""
        return self._run

    @property
    def unstaged(self) -> list[Unstaged]:
        """The calls that failed, and were not made up for."""
        with self._lock:
            return list(self._unstaged.values())

    @contextmanager
    def unknown(self, batch_id: int) -> Iterator[None]:
        """The time in which the calling query is found out. An error is remembered, though not whose batch it is."""
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
        """The time in which a batch is staged. `on_enter` is called for a call that was let in, before any other is.

        Raises `ConfigError` for a second call for a batch, and what an earlier batch failed with that was not staged.
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
            self._unstaged[query_id] = Unstaged(batch_id, error, run_id if beside else "")
            raise error
        entry.batch_id, entry.busy, entry.staged = batch_id, True, False
        return entry

    def _refuse_overtaking(self, query_id: str, batch_id: int) -> None:
        """Spark runs a batch again that it did not complete: a later one means that it completed this one."""
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
            return  # a newer run has the batch, or had it
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
    """Why the call is not let in, and whether another call has the batch; "" if it is let in.

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
    """What the call failed with, to be raised again, and why."""
    why = (
        f"wal-sink: batch {unstaged.batch_id} of {owner} was not staged because of this, and foreachBatch returned all "
        "the same, so Spark may have completed it. No later batch is staged. Let foreachBatch raise what stage() "
        f"raises; to get its rows, restore the checkpoint to before that batch, then start again"
    )
    if not isinstance(unstaged.error, Exception):
        error = UndeliveredError(why)
        error.__cause__ = unstaged.error
        return error
    if why not in getattr(unstaged.error, "__notes__", ()):
        unstaged.error.add_note(why)
    return unstaged.error


_SECOND_CALL = (
    "is staged already, or right now: a batch is staged by one stage() call. Union the DataFrames first, or give each "
    "a WAL (and a WalSink) of its own"
)
_STILL_BUSY = (
    "follows batch {}, which another thread still stages, though foreachBatch returned: let foreachBatch wait for the "
    "threads that call stage(), and raise what they raise"
)
_ANOTHER_SINK = (
    "belongs to a run of a query that another WalSink of this process stages into the same WAL: make one WalSink "
    "before the query starts, not in foreachBatch, and close it when the query has ended"
)
