"""Replaying dead letters: sending them again under their own keys, exactly once where the sink can.

A row belongs to the newest refusal of its chunk that holds it. Rows that a sink refuses again become such a newer
refusal, which names the dead letter they came from. A record beside a dead letter says that it was sent again. In a
transactional target every dead letter has a separate slot. Replaying has terms of its kind, and fences no committer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Literal

from wal_sink.errors import ConfigError, DeliveryError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end
from wal_sink.log.log import Log
from wal_sink.log.paths import DeadLetterName
from wal_sink.log.records import Replayed
from wal_sink.log.terms import MARGIN, Term, claim, claim_above
from wal_sink.protocol.inventory import find_wal, newest_marked, require_wal
from wal_sink.protocol.letters import DeadLetter, RefusalTakenError, Rejections, read_dead_letter
from wal_sink.protocol.location import refuse_copy
from wal_sink.protocol.retry import AttemptFailedError, Budget
from wal_sink.protocol.sinks import read_names
from wal_sink.settings import Retry, check_columns, check_retry
from wal_sink.sinks.base import (
    BatchSink,
    CommitSink,
    Lookup,
    SegmentSink,
    Sink,
    SinkContext,
    TransactionalSink,
    TwoPhaseSink,
    as_sink,
)
from wal_sink.sinks.calls import SinkSession, ask_applied
from wal_sink.sinks.chunk import Chunk, Position, refusal_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError, failure_error
from wal_sink.sinks.held import holding
from wal_sink.sinks.ledger import described, stored_position
from wal_sink.sinks.renaming import Renaming
from wal_sink.sinks.urls import sink_from_url
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.arguments import check_options, check_text
from wal_sink.support.calls import CallTimedOutError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import counted, name_of


@dataclass(frozen=True, slots=True, repr=False)
class KeptLetter:
    """One dead letter in a listing. `repr` shows none of its rows."""

    letter: DeadLetter
    replayed: bool
    """Whether it was sent again."""
    own: tuple[int, ...]
    """Indices of the rows that belong to it: those that no newer dead letter holds."""

    def __repr__(self) -> str:
        file, chunk, kept = self.letter.path.rpartition("/")[2], self.letter.chunk, self.letter.kept
        shown = f"batch_id={chunk.batch_id}, rows={len(self.own)}, kept={kept!r}, replayed={self.replayed}"
        return f"KeptLetter({file!r}, {shown})"

    @property
    def name(self) -> DeadLetterName:
        """The chunk of its rows."""
        return self.letter.name

    @property
    def chunk(self) -> Chunk:
        """The rows that belong to it."""
        return self.letter.chunk.without(set(range(self.letter.chunk.num_rows)) - set(self.own))

    @property
    def reasons(self) -> list[str]:
        """Why these rows were kept, one reason a row."""
        return [self.letter.reasons[index] for index in self.own]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay."""

    letters: int
    """Dead letters that were sent."""
    rows: int
    """Rows that the sink has now."""
    rejected: int
    """Rows that it refused again: they are in new dead letters."""


class DeadLetters:
    """The dead letters of one sink of a WAL. Runs wherever the WAL can be reached; needs no Spark.

        letters = DeadLetters("s3://lake/wal/orders", name="default")
        letters.replay(post)

    Raises `ConfigError` if the WAL has no such sink, and `CorruptError` if the WAL's record is gone.
    """

    def __init__(
        self, wal: str | Log, *, name: str = "default", storage_options: Mapping[str, object] | None = None
    ) -> None:
        """`wal` is a URL (or an open log, which is for tests)."""
        check_options("storage_options", storage_options)
        self._log = wal if isinstance(wal, Log) else _open(StoreSpec(check_text("wal", wal), storage_options or {}))
        find_wal(self._log)  # raises `CorruptError`
        names = read_names(self._log)
        folder = names.folder_of(name)
        if folder is None:
            raise ConfigError(f"{self._log.store.root} has no sink {name!r}; it has {names.present}")
        self._name = folder

    def all(self, *, batch_id: int | None = None) -> Iterator[KeptLetter]:
        """Every dead letter that rows belong to, oldest batch first. So each row comes once.

        Each has its `chunk` of rows, their `reasons`, and whether it was `replayed`. `batch_id` limits them to one
        batch. Raises `CorruptError`.
        """
        return (kept for kept in self._found(self._batches() if batch_id is None else [batch_id]) if kept.own)

    def due(self, *, unknown: bool = False, only: Callable[[KeptLetter], bool] | None = None) -> Iterator[KeptLetter]:
        """The dead letters that `replay` would send: those of delivered batches that were not sent again yet.

        Only refused rows; with `unknown`, also those of unknown outcome. With `only`, those for which it returns True.
        """
        newest = newest_marked(self._log, self._name)
        wanted = {"rejected", "unknown"} if unknown else {"rejected"}
        # A dead letter that no row belongs to may still lack the record that it was sent again.
        for kept in self._found(self._batches()):
            is_due = not kept.replayed and kept.letter.kept in wanted and kept.letter.chunk.batch_id <= newest
            if is_due and (only is None or only(kept)):
                yield kept

    def _found(self, batches: Iterable[int]) -> Iterator[KeptLetter]:
        """Every dead letter that has rows. The refusals of a chunk lie together in a listing, and are read together."""
        for batch_id in batches:
            folder = paths.dead_letter_folder(self._name, batch_id)
            files = self._log.store.list(folder)
            named = [(file, name) for file in files if (name := paths.parse_dead_letter(file)) is not None]
            for _, refusals in groupby(named, key=_chunk_of):
                read = [read_dead_letter(self._log.store, f"{folder}/{file}") for file, _ in refusals]
                yield from _each_row_once(read, files)

    def replay(
        self,
        to: object,
        *,
        unknown: bool = False,
        only: Callable[[KeptLetter], bool] | None = None,
        columns: Mapping[str, str | None] | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        take_over: TakeOver | Literal["always", "if_gone", "unless_running"] = "always",
    ) -> ReplayResult:
        """Send the due dead letters again, one after the other: to a function of one `Chunk`, a `Sink` or a URL.

        Returns how many `letters` were sent, and how many `rows` the sink has now or `rejected` again.
        `unknown`: also those that an at-most-once delivery may have sent. `only`: just those for which it returns True.
        `columns`: as in `Delivery`, since dead letters have the names of the query.
        The key of each derives from its rows and never changes. A failure that may pass is retried, as in delivery:
        `retry` holds for each of them. Any other ends the replay with `DeliveryError`, which tells how many were sent.
        The next call continues there; a plain sink then gets the dead letter in hand again. Raises `FencedError` if
        another process began to replay. Raises `HeldError` if another process replays, or may replay, that `take_over`
        does not allow to fence.
        """
        sink = sink_from_url(to) if isinstance(to, str) else as_sink(to)
        check_retry(retry)
        check_columns(columns)
        if isinstance(sink, (BatchSink, CommitSink, SegmentSink, TwoPhaseSink)):
            raise ConfigError(f"{name_of(sink)} cannot receive single rows. Replay to a function of one Chunk")
        with holding(sink, f"the replay of sink {self._name!r} of {self._log.store.root}"):
            due = self.due(unknown=unknown, only=only)
            return self._replay(sink, due, Renaming.of(columns), retry, TakeOver(take_over))

    def _replay(
        self, sink: Sink, due: Iterator[KeptLetter], renaming: Renaming, retry: Retry, take_over: TakeOver
    ) -> ReplayResult:
        refuse_copy(self._log)
        self._log.store.begin(is_there=True)
        role = paths.replayer_role(self._name)
        term = claim(self._log, role, take_over=take_over)  # first: whatever another process sent by then is recorded
        letters = rows = rejected = 0
        try:
            refuse_copy(self._log)  # again: it may have been moved before the claim
            if term.number == 1 and self._has_replayed():
                term = claim_above(self._log, term.role, MARGIN)  # the terms of earlier replays were lost
            for kept in due:
                try:
                    done = Budget.of(retry, self._log.runtime).call(
                        partial(self._send, sink, kept, renaming, term, retry.attempt_timeout_s),
                        AttemptFailedError,
                        sleep=self._log.runtime.sleep_s,
                        what=f"dead letter {kept.letter.path}",
                    )
                except (AttemptFailedError, DeliveryError) as error:
                    told = f"{counted(letters, 'dead letter')} ({counted(rows, 'row')}) sent before this one"
                    raise DeliveryError(f"{error}. {told}. Repeat the replay to send the rest") from error
                letters, rows, rejected = letters + 1, rows + done.rows, rejected + done.rejected
        finally:
            note_end(self._log, role, term.number)
        return ReplayResult(letters, rows, rejected)

    def _send(self, sink: Sink, kept: KeptLetter, renaming: Renaming, term: Term, timeout_s: float) -> Replayed:
        return _Replay(self._log, self._name, term, kept, timeout_s).send(sink, renaming)

    def _has_replayed(self) -> bool:
        """Whether any dead letter of this sink was sent again before. A listing, and one for each batch with any."""
        folders = (paths.dead_letter_folder(self._name, batch_id) for batch_id in self._batches())
        return any(name.endswith(paths.REPLAYED) for folder in folders for name in self._log.store.list(folder))

    def _batches(self) -> list[int]:
        return self._log.numbers(paths.dead_letter_batches(self._name))


def _chunk_of(found: tuple[str, DeadLetterName]) -> tuple[int, int, int]:
    """Ordinal of the segment, first and end row: the same for all refusals of a chunk."""
    return found[1][:3]


def _each_row_once(refusals: list[DeadLetter], files: Sequence[str]) -> list[KeptLetter]:
    """The refusals of one chunk that have rows, oldest first. Each row belongs to the newest one that holds it."""
    found: list[KeptLetter] = []
    newer: set[int] = set()
    for letter in sorted(refusals, key=_age, reverse=True):
        rows = letter.chunk.rows
        own = tuple(index for index, row in enumerate(rows) if row not in newer)
        newer.update(rows)
        if rows:
            found.append(KeptLetter(letter, paths.replayed(letter.path.rpartition("/")[2]) in files, own))
    return found[::-1]


def _age(refusal: DeadLetter) -> tuple[int, ...]:
    """The place of a dead letter among those of its chunk, for sorting.

    A dead letter of unknown outcome has no number; the refusals of its replay come after it.
    """
    number = refusal.name.number
    return () if number is None else (number,)


def _open(spec: StoreSpec) -> Log:
    return Log(open_store(spec), SYSTEM, SYSTEM.new_id())


def letter_slot(slot: str, batch_id: int, file: str) -> str:
    """The separate slot of a dead letter in a transactional target. `slot`: that of its segment."""
    return f"{slot}/{batch_id}/{file.removesuffix('.parquet')}"


class _Replay:
    """The replay of one dead letter."""

    def __init__(self, log: Log, sink: str, term: Term, kept: KeptLetter, timeout_s: float) -> None:
        self._log = log
        self._sink = sink
        self._term = term
        self._letter = kept.letter
        self._timeout_s = timeout_s
        self._rejections = Rejections(log, sink, kept.name.ordinal, kept.letter.chunk, replayed=kept.letter)
        newer = list(self._rejections.read())
        own = [refusal for refusal in newer if refusal.replay_of == self._letter.path]  # of earlier replays
        self._owned_by_newer = {row for refusal in newer for row in refusal.chunk.rows}
        self._rejected = sum(refusal.chunk.num_rows for refusal in own)
        self._answered = any(refusal.answered for refusal in own)

    def send(self, sink: Sink, renaming: Renaming) -> Replayed:
        """Send the dead letter, and record that. Raises `AttemptFailedError` for a failure that may pass, else
        `DeliveryError`, `FencedError`, and what the store raises.
        """
        timed_call, context, limit_s = self._log.runtime.new_timed_call(), self._context(), self._timeout_s
        session = SinkSession(sink, timed_call, context, timeout_s=limit_s, renaming=renaming)
        what = f"dead letter {self._log.store.url_of(self._letter.path)}: {name_of(sink)}"
        try:
            self._term.check(self._log.store)
            session.open()
            if self._answered:
                pass  # an earlier replay sent it; only the record is missing
            elif isinstance(sink, TransactionalSink):
                self._in_transaction(session, sink, what)
            else:
                self._once(session, what)
        except RefusalTakenError as error:
            self._term.check(self._log.store)
            raise DeliveryError(f"{error.where} was written by another replay") from error
        except SinkFailedError as error:
            failed, kind = failure_error(error.failure, what), error.failure.kind
            may_pass = kind in (FailureKind.RETRIABLE, FailureKind.UNKNOWN)
            if not may_pass or isinstance(error.__cause__, CallTimedOutError):  # such a call may still use the sink
                raise failed from error
            raise AttemptFailedError(str(failed), retry_after_s=error.failure.retry_after_s, kind=kind) from error
        finally:
            session.close()
        return self._record(redacted(name_of(sink)) if isinstance(sink, TransactionalSink) else "")

    def _once(self, session: SinkSession, what: str) -> None:
        """Send to a sink that takes every other row when it refuses some."""
        chunk, sink = self._chunk(), session.sink
        known = isinstance(sink, Lookup) and ask_applied(session, sink, chunk.key)
        rejected = None if known else session.write(what, chunk)
        if rejected is not None:
            self._rejections.keep(chunk, rejected, answered=True)
            self._rejected += len(rejected.reasons)

    def _in_transaction(self, session: SinkSession, sink: TransactionalSink, what: str) -> None:
        """Send to a sink that commits nothing when it refuses rows. From now on no older process keeps more."""
        rest = self._chunk()
        if self._is_there(session, sink, rest.position):
            return
        self._rejections.close(rest)
        for refused in self._rejections.each_refusal(rest, partial(session.write, what)):
            self._rejected += refused
            self._term.check(self._log.store)

    def _is_there(self, session: SinkSession, sink: TransactionalSink, due: Position) -> bool:
        """Whether an earlier replay committed the dead letter. Nothing else is ever written to its slot."""
        what = f"last({due.slot!r})"
        found = stored_position(what, due.slot, session.call(what, sink.last, due.slot))
        if found is None or found == due:
            return found is not None
        raise SinkFailedError(
            FailureKind.HISTORY,
            f"{what}: the slot of this dead letter is at {described(found)} of segment {found.segment_id}; expected "
            f"nothing, or {described(due)} of segment {due.segment_id}. The target mixes up positions of different "
            "slots. Nothing was sent",
        )

    def _chunk(self) -> Chunk:
        """The chunk that is sent: the rows that belong to it, under their key, and in a separate slot."""
        whole = self._letter.chunk
        gone = [index for index, row in enumerate(whole.rows) if row in self._owned_by_newer]
        slot = letter_slot(whole.position.slot, whole.batch_id, self._letter.path.rpartition("/")[2])
        position = Position(slot, whole.batch_id, whole.position.rows, whole.segment_id)
        rest = whole.without(gone)
        number = self._letter.name.number
        key = rest.key if number is None else refusal_key(whole.position, rest.rows, number)
        # Nothing else is written to this slot, so the chunk follows nothing.
        return replace(rest, key=key, position=position, term=self._term.number, start=0, follows=None)

    def _context(self) -> SinkContext:
        chunk = self._letter.chunk
        return SinkContext(
            wal_id=require_wal(self._log, self._letter.path).wal_id,
            sink=self._sink,
            term=self._term.number,
            batch_id=chunk.batch_id,
            columns=tuple(chunk.table.column_names),
            on_executor=False,
        )

    def _record(self, target: str) -> Replayed:
        record = Replayed(
            dead_letter=self._letter.path,
            rows=self._letter.chunk.num_rows - self._rejected,
            rejected=self._rejected,
            term=self._term.number,
            run_id=self._log.run_id,
            target=target,
            **self._log.stamp(),
        )
        self._log.create(paths.replayed(self._letter.path), record)
        return record
