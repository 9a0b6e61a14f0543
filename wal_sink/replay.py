"""Sending dead letters again, under the keys they have: exactly once, where the sink can.

A row belongs to the newest refusal of its chunk that holds it. What a sink refuses once more becomes such a newer one,
which names the one it came from. A record beside the dead letter tells that it was sent again. For a transactional sink
every dead letter has a separate slot, and terms are those of replaying alone: nobody who delivers is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from wal_sink.arguments.values import check_options, check_seconds, check_text, spelled_class
from wal_sink.dead_letters.files import DeadLetter, read_dead_letter
from wal_sink.dead_letters.rejections import RefusalTakenError, Rejections
from wal_sink.errors import ConfigError, DeliveryError
from wal_sink.recovery.inventory import find_wal, newest_marked, require_wal
from wal_sink.recovery.location import refuse_copy
from wal_sink.recovery.sink_names import read_names
from wal_sink.reporting.texts import name_of
from wal_sink.runtime.clock import SYSTEM
from wal_sink.sinks.base import (
    BatchSink,
    Lookup,
    Rejected,
    SegmentSink,
    Sink,
    SinkContext,
    TransactionalSink,
    TwoPhaseSink,
    as_sink,
)
from wal_sink.sinks.chunk import Chunk, Position, refusal_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError, failure_error
from wal_sink.sinks.held import holding
from wal_sink.sinks.ledger import described
from wal_sink.sinks.positions import stored_position
from wal_sink.sinks.session import SinkSession, ask_applied, handed, rejected_of
from wal_sink.sinks.urls import sink_from_url
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal import paths
from wal_sink.wal.fencing import MARGIN, Term, claim, claim_above
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.log import Log
from wal_sink.wal.paths import DeadLetterName
from wal_sink.wal.records import Replayed


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """One dead letter in a listing."""

    letter: DeadLetter
    replayed: bool
    """Whether it was sent again."""
    own: tuple[int, ...]
    """Indices of its rows that no newer dead letter holds: a row belongs to the newest refusal of its chunk."""

    @property
    def name(self) -> DeadLetterName:
        """Which chunk its rows are of."""
        return self.letter.name

    @property
    def chunk(self) -> Chunk:
        """The rows that are its own."""
        return self.letter.chunk.without(set(range(self.letter.chunk.num_rows)) - set(self.own))

    @property
    def reasons(self) -> list[str]:
        """Why its own rows are here, a row each."""
        return [self.letter.reasons[index] for index in self.own]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What became of the dead letters that were sent again."""

    letters: int
    rows: int
    """Rows that the sink has now."""
    rejected: int
    """Rows that it refused once more: they are in new dead letters."""


@spelled_class
class DeadLetters:
    """The dead letters of one sink of a WAL. Runs wherever the WAL can be reached; needs no Spark.

        letters = DeadLetters("s3://lake/wal/orders", name="default")
        letters.replay(post)

    Raises `ConfigError` if the WAL has no such sink, and `ObjectLost` if its own record is gone.
    """

    def __init__(
        self, wal: str | Log, *, name: str = "default", storage_options: Mapping[str, object] | None = None
    ) -> None:
        """`wal` is a URL (or an open log, which is for tests)."""
        check_options("storage_options", storage_options)
        self._log = wal if isinstance(wal, Log) else _open(StoreSpec(check_text("wal", wal), storage_options or {}))
        find_wal(self._log)  # raises `ObjectLost`
        names = read_names(self._log)
        folder = names.folder_of(name)
        if folder is None:
            raise ConfigError(f"{self._log.store.root} has no sink {name!r}; it has {names.present}")
        self._name = folder

    def all(self, *, batch_id: int | None = None) -> Iterator[KeptLetter]:
        """Every dead letter that has rows of its own, oldest batch first; of one batch, if one is named. So each row
        comes once. Raises `CorruptError`.
        """
        return (kept for kept in self._found(self._batches() if batch_id is None else [batch_id]) if kept.own)

    def due(self, *, unknown: bool = False) -> Iterator[KeptLetter]:
        """What `replay` would send: of batches that are delivered, not sent again yet, refused unless `unknown`."""
        newest = newest_marked(self._log, self._name)
        wanted = {"rejected", "unknown"} if unknown else {"rejected"}
        # One without rows of its own may lack only the record that it was sent again.
        for kept in self._found(self._batches()):
            if not kept.replayed and kept.letter.kept in wanted and kept.letter.chunk.batch_id <= newest:
                yield kept

    def _found(self, batches: Iterable[int]) -> Iterator[KeptLetter]:
        """Every dead letter with rows. Refusals of one chunk follow each other in a listing, and are read together."""
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
        attempt_timeout_s: float = 120.0,
        take_over: TakeOver = TakeOver.ALWAYS,
    ) -> ReplayResult:
        """Send them again, to a function of one `Chunk`, a `Sink` or the URL of a backend, one after the other.

        `unknown`: those too that an at-most-once delivery may have sent. Each goes under a key that derives from its
        rows and never changes. Stops at the first failure with `DeliveryError`; repeating goes on from there, and
        repeats what a plain sink was just being sent. Raises `FencedError` if somebody else began to replay, and
        `HeldError` if somebody else replays, or may do so, whom `take_over` does not let fence.
        """
        check_seconds("attempt_timeout_s", attempt_timeout_s, above_0=True)
        sink = sink_from_url(to) if isinstance(to, str) else as_sink(to)
        if isinstance(sink, (BatchSink, SegmentSink, TwoPhaseSink)):
            raise ConfigError(f"{name_of(sink)} cannot be given single rows: replay to a function of one Chunk")
        with holding(sink, f"the replay of sink {self._name!r} of {self._log.store.root}"):
            return self._replay(sink, unknown=unknown, attempt_timeout_s=attempt_timeout_s, take_over=take_over)

    def _replay(self, sink: Sink, *, unknown: bool, attempt_timeout_s: float, take_over: TakeOver) -> ReplayResult:
        refuse_copy(self._log)
        self._log.store.begin(is_there=True)
        role = paths.replayer_role(self._name)
        term = claim(self._log, role, take_over=take_over)  # first: what another sent by then shows as sent
        letters = rows = rejected = 0
        try:
            if term.number == 1 and self._has_replayed():
                term = claim_above(self._log, term.role, MARGIN)  # the terms of those who did so were lost
            for kept in self.due(unknown=unknown):
                done = _Replay(self._log, self._name, term, kept, attempt_timeout_s).send(sink)
                letters, rows, rejected = letters + 1, rows + done.rows, rejected + done.rejected
        finally:
            note_end(self._log, role, term.number)
        return ReplayResult(letters, rows, rejected)

    def _has_replayed(self) -> bool:
        """Whether a dead letter of this sink was sent again before. A listing, and one a batch that has any."""
        folders = (paths.dead_letter_folder(self._name, batch_id) for batch_id in self._batches())
        return any(name.endswith(paths.REPLAYED) for folder in folders for name in self._log.store.list(folder))

    def _batches(self) -> list[int]:
        return self._log.numbers(paths.dead_letter_batches(self._name))


def _chunk_of(found: tuple[str, DeadLetterName]) -> tuple[int, int, int]:
    """Ordinal of the segment, first and end row: the same for all refusals of a chunk, whatever their number."""
    return found[1][:3]


def _each_row_once(refusals: list[DeadLetter], files: Sequence[str]) -> list[KeptLetter]:
    """The refusals of one chunk that have rows, oldest first, each with the rows that no newer one holds."""
    found: list[KeptLetter] = []
    newer: set[int] = set()
    for letter in sorted(refusals, key=_age, reverse=True):
        rows = letter.chunk.rows
        own = tuple(index for index, row in enumerate(rows) if row not in newer)
        newer.update(rows)
        if rows:
            found.append(KeptLetter(letter, paths.replayed(letter.path.rpartition("/")[2]) in files, own))
    return found[::-1]


def _age(refusal: DeadLetter) -> int:
    """The place of a dead letter among those of its chunk.

    A dead letter of unknown outcome has no number; the refusals of its replay come after it.
    """
    number = refusal.name.number
    return -1 if number is None else number


def _open(spec: StoreSpec) -> Log:
    return Log(open_store(spec), SYSTEM, SYSTEM.new_id())


class _Replay:
    """One dead letter on its way."""

    def __init__(self, log: Log, sink: str, term: Term, kept: KeptLetter, timeout_s: float) -> None:
        self._log = log
        self._sink = sink
        self._term = term
        self._letter = kept.letter
        self._timeout_s = timeout_s
        self._rejections = Rejections(log, sink, kept.name.ordinal, kept.letter.chunk, replayed=kept.letter)
        self._owned_by_newer: set[int] = set()
        self._rejected = 0
        self._answered = False
        self._read_newer()

    def send(self, sink: Sink) -> Replayed:
        """Raises `DeliveryError`, `FencedError`, or what the store does."""
        session = SinkSession(sink, self._log.runtime.new_timed_call(), self._context(), timeout_s=self._timeout_s)
        what = f"dead letter {self._log.store.url_of(self._letter.path)}: {name_of(sink)}"
        try:
            self._term.check(self._log.store)
            session.open()
            if self._answered:
                pass  # an earlier replay came so far that only its record is missing
            elif isinstance(sink, TransactionalSink):
                self._in_transaction(session, sink, what)
            else:
                self._once(session, what)
        except RefusalTakenError as error:
            self._term.check(self._log.store)
            raise DeliveryError(f"{error.where} was written by another replay: start again") from error
        except SinkFailedError as error:
            raise failure_error(error.failure, what) from error
        finally:
            session.close()
        return self._record()

    def _once(self, session: SinkSession, what: str) -> None:
        """To a sink that has taken every other row when it refuses some."""
        chunk, sink = self._chunk(), session.sink
        known = isinstance(sink, Lookup) and ask_applied(session, sink, chunk.key)
        rejected = None if known else self._call(session, chunk, what)
        if rejected is not None:
            self._keep(chunk, rejected, answered=True)

    def _in_transaction(self, session: SinkSession, sink: TransactionalSink, what: str) -> None:
        """To a sink that commits nothing when it refuses rows; a predecessor cannot keep more from here on."""
        rest = self._chunk()
        if self._is_there(session, sink, rest.position):
            return
        self._rejections.close(rest)
        while (rejected := self._call(session, rest, what)) is not None:
            self._keep(rest, rejected, answered=False)
            rest = rest.without(rejected.reasons)
            self._term.check(self._log.store)

    def _is_there(self, session: SinkSession, sink: TransactionalSink, due: Position) -> bool:
        """Whether an earlier replay committed it. Nothing else is ever written to its slot."""
        what = f"last({due.slot!r})"
        found = stored_position(what, due.slot, session.call(what, sink.last, due.slot, nothing_sent=True))
        if found is None or found == due:
            return found is not None
        raise SinkFailedError(
            FailureKind.HISTORY,
            f"{what}: the slot of this dead letter is at {described(found)} of segment {found.segment_id}, expected "
            f"nothing, or {described(due)} of segment {due.segment_id}: the target does not keep its slots apart. "
            "Nothing was sent",
        )

    def _call(self, session: SinkSession, chunk: Chunk, what: str) -> Rejected | None:
        return rejected_of(what, session.call(what, session.sink.write, handed(chunk)), chunk.num_rows)

    def _keep(self, sent: Chunk, rejected: Rejected, *, answered: bool) -> None:
        self._rejections.keep(sent, rejected, answered=answered)
        self._rejected += len(rejected.reasons)

    def _read_newer(self) -> None:
        """Refusals after this one: their rows are theirs; those of its own replays tell how far these came."""
        for newer in self._rejections.read():
            self._owned_by_newer.update(newer.chunk.rows)
            if newer.replay_of == self._letter.path:
                self._rejected += newer.chunk.num_rows
                self._answered = self._answered or newer.answered

    def _chunk(self) -> Chunk:
        """What is sent: under the key of its rows, and in a slot of its own."""
        whole = self._letter.chunk
        gone = [index for index, row in enumerate(whole.rows) if row in self._owned_by_newer]
        stem = self._letter.path.rpartition("/")[2].removesuffix(".parquet")
        slot = f"{whole.position.slot}/{whole.batch_id}/{stem}"
        position = Position(slot, whole.batch_id, whole.position.rows, whole.segment_id)
        rest = whole.without(gone)
        number = self._letter.name.number
        key = rest.key if number is None else refusal_key(whole.position, rest.rows, number)
        # In a slot that nobody else writes to, it follows nothing.
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

    def _record(self) -> Replayed:
        record = Replayed(
            dead_letter=self._letter.path,
            rows=self._letter.chunk.num_rows - self._rejected,
            rejected=self._rejected,
            term=self._term.number,
            run_id=self._log.run_id,
            **self._log.stamp(),
        )
        self._log.create(paths.replayed(self._letter.path), record)
        return record
