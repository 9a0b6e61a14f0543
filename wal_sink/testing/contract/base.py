"""Base of `SinkContract`: what its user writes, the helpers that call a sink, and the tests of each of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pytest

from wal_sink.protocol.two_phase import MAX_HANDLE
from wal_sink.settings import GuaranteeName
from wal_sink.sinks.base import CommitSink, Lookup, Sink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.support.texts import name_of
from wal_sink.testing.contract.calls import (
    chunks_of,
    deliver,
    fail,
    lines_of,
    opened,
    send_meanwhile,
    shown_error,
)
from wal_sink.testing.data.rows import Row, Rows, same_value
from wal_sink.testing.data.tables import COLUMN_NAMES, COLUMN_TYPES, three_batches
from wal_sink.testing.matrix.crash_matrix import crash_matrix
from wal_sink.testing.matrix.takeover import Beside
from wal_sink.testing.matrix.verdict import CrashMatrix, Point, What, chosen
from wal_sink.testing.simulation.process import promise_of, resolve


class ContractBase:
    """See `SinkContract`."""

    every: ClassVar[int] = 1
    """One of n points of failure is tried, chosen at random: a number above 1 makes slow targets faster to test."""
    each_line: ClassVar[bool] = True
    """True: each line of the sink's code, each of its calls and each kind of operation of the log is tried at least
    once, for any value of `every`. Set it to False if your target is too slow for that.
    """
    expected_guarantee: ClassVar[GuaranteeName | None] = None
    """`"exactly_once"`, `"at_least_once"` or `"at_most_once"`. A sink with any other guarantee fails, for example one
    that lacks `idempotent = True`.
    """
    key: ClassVar[Sequence[str]] = ()
    """The columns by which a later row replaces an earlier one in the target, if it does that. A process that wakes up
    late must then bring no old row back. Needs `another`, with an empty target for each run.
    """
    column_types: ClassVar[Sequence[str]] = tuple(COLUMN_TYPES)
    """The types to try, from `wal_sink.testing.data.tables.COLUMN_TYPES`. Leave out types that your queries never use.
    """
    column_names: ClassVar[Sequence[str]] = tuple(COLUMN_NAMES)
    """The odd names to try, from `wal_sink.testing.data.tables.COLUMN_NAMES`."""

    # Methods that you must write.

    def make_sink(self, target: Any) -> object:
        """The sink under test, new at each call: anything that `WalSink` accepts as a sink. Called once a process."""
        raise NotImplementedError("make_sink(target): return the sink under test, a new one at each call")

    def rows_in(self, target: Any) -> Iterable[Row]:
        """The rows in the target, one mapping from column to value for each row. Additional columns are ignored."""
        raise NotImplementedError("rows_in(target): return the rows in the target, one mapping for each row")

    # Methods that you may write.

    def tables(self) -> Sequence[pa.Table]:
        """The rows to send, one table per batch, all with the same columns. No row may appear twice."""
        return three_batches()

    def another(self, target: Any) -> Any:
        """An empty target for another run of the crash matrix.

        The default returns the same target, which works if a row under another key is another row: only the rows that
        a run adds are checked. A target with its own business keys must be a new or an emptied one.
        """
        return target

    def snapshot(self, target: Any) -> Any:
        """The contents of a transactional or commit sink's target, rows and ledger, read by a separate client, for
        `restore` and `roll_back`.

        Write the methods if you can. Then the same target forgets its newest commits, and the sink keeps its connection
        and its memory. Without them, another target takes the place of a transactional one, to which the sink wrote
        everything except the newest commits; that of a commit sink loses nothing.
        """
        raise NotImplementedError("snapshot(target): return the target's contents, for restore(target, saved)")

    def restore(self, target: Any, saved: Any) -> None:
        """Set a target back to the contents that `snapshot` returned."""
        raise NotImplementedError("restore(target, saved): set the target back to the contents of snapshot(target)")

    def roll_back(self, target: Any, saved: Any) -> None:
        """Bring the rows of a commit sink's target back to those of a snapshot, and leave its positions, as RESTORE
        does.
        """
        raise NotImplementedError("roll_back(target, saved): bring back the rows of snapshot(target), and no position")

    def same_value(self, sent: Any, found: Any) -> bool:
        """Whether a value of `rows_in`, in an odd column, equals the value that was sent.

        Called with the Python value, and with the value that `Chunk.to_json` writes; one match is enough. By default,
        another form of the same value is equal (`testing.data.rows.same_value`); a value that was cut, rounded or
        replaced by NULL is not. Override it if your target is known to change values. With `return True`, only the
        number of rows is checked.
        """
        return same_value(sent, found)

    def secrets(self) -> Sequence[str]:
        """Texts that must never be shown, such as the password that `make_sink` uses or `open` reads."""
        return ()

    def data_frame(self, table: pa.Table) -> Any:
        """The DataFrame for a writer of whole batches: `return spark.createDataFrame(table)`."""
        raise NotImplementedError("data_frame(table): a writer of whole batches needs it; see its documentation")

    # Helpers.

    def _check_matrix(self, target: Any, disturb: Sequence[What], key: Sequence[str] = ()) -> None:
        self._judge(self._matrix(target, disturb, key), disturb)

    def _matrix(self, target: Any, disturb: Sequence[What], key: Sequence[str] = ()) -> CrashMatrix:
        return crash_matrix(
            self.make_sink,
            self.rows_in,
            lambda: self.another(target),
            tables=self.tables(),
            key=key,
            disturb=disturb,
            every=self.every,
            each_line=self.each_line,
            data_frame=self.data_frame,
            snapshot=self.snapshot if self._is_own("snapshot") else None,
            restore=self.restore if self._is_own("restore") else None,
            roll_back=self.roll_back if self._is_own("roll_back") else None,
        )

    def _judge(self, matrix: CrashMatrix, disturb: Sequence[What]) -> None:
        if matrix.violations and disturb and not matrix.violations[0].at:
            self._fail(
                expected="an undisturbed run without errors, before any disturbance is tried",
                found=f"the undisturbed run fails: {matrix.violations[0]}",
                next_step="see test_an_undisturbed_run_brings_every_row_once; if that test passes, the sink or its "
                "module remembers something from an earlier process",
            )
        if matrix.violations:
            pytest.fail(matrix.report(), pytrace=False)

    def _is_own(self, name: str) -> bool:
        """Whether the user wrote this method."""
        return getattr(type(self), name) is not getattr(ContractBase, name)

    def _expect_rows(self, target: Any, act: Callable[[], object], when: str, wanted: Rows) -> None:
        before = self._rows_of(target)
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            self._fail(expected=f"no error when {when}", found=shown_error(error), next_step="fix open() and close()")
        if difference := wanted.difference(self._rows_of(target).added_since(before)):
            self._fail(expected=f"every row once when {when}", found=str(difference), next_step="see write()")

    def _expect_applied(self, target: Any, chunk: Chunk, *, expected: bool) -> None:
        sink, lookup = self._lookup(target)
        with opened(sink, chunk):
            found: object = lookup.was_applied(chunk.key)
        if found is not expected:
            self._fail(
                expected=f"was_applied({chunk.key!r}) is {expected}",
                found=repr(found),
                next_step="query the target; return True only if it has the whole chunk",
            )

    def _expect_last(self, target: Any, chunk: Chunk, expected: object) -> None:
        found = self._last(target, chunk)
        if found != expected:
            self._fail(
                expected=f"last({chunk.position.slot!r}) is {expected}",
                found=str(found),
                next_step="store chunk.position in the transaction of its rows, by slot, and read it back in last()",
            )

    def _last(self, target: Any, chunk: Chunk) -> Position | None:
        sink = self._ledger(target)
        with opened(sink, chunk):
            return sink.last(chunk.position.slot)

    def _sink(self, target: Any) -> Sink:
        """The sink under test. Skips the test for a writer of whole batches, which is not called chunk by chunk."""
        sink = resolve(self.make_sink(target))[1]
        if not isinstance(sink, Sink):
            pytest.skip(f"{name_of(sink)} is called with whole batches")
        return sink

    def _lookup(self, target: Any) -> tuple[Sink, Lookup]:
        sink = self._sink(target)
        if not isinstance(sink, Lookup):
            pytest.skip(f"{name_of(sink)} has no was_applied(key)")
        return sink, sink

    def _ledger(self, target: Any) -> TransactionalSink:
        sink = self._sink(target)
        if not isinstance(sink, TransactionalSink):
            pytest.skip(f"{name_of(sink)} is no TransactionalSink")
        return sink

    def _two_phase(self, target: Any) -> TwoPhaseSink:
        sink = self._sink(target)
        if not isinstance(sink, TwoPhaseSink):
            pytest.skip(f"{name_of(sink)} is no TwoPhaseSink")
        return sink

    def _commit_sink(self, target: Any) -> CommitSink:
        sink = self._sink(target)
        if not isinstance(sink, CommitSink):
            pytest.skip(f"{name_of(sink)} is no CommitSink")
        return sink

    def _again(self, repeat: Callable[[], object], next_step: str) -> None:
        try:
            repeat()
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            self._fail(expected="no error from a repeated commit", found=shown_error(error), next_step=next_step)

    def _expect_added(self, target: Any, before: Rows, wanted: Rows, when: str, next_step: str) -> None:
        if difference := wanted.difference(self._rows_of(target).added_since(before)):
            self._fail(
                expected=f"{len(wanted)} rows in the target when {when}", found=str(difference), next_step=next_step
            )

    def _expect_handle(self, what: str, found: object, next_step: str) -> None:
        if not isinstance(found, str) or len(found) > MAX_HANDLE:
            self._fail(
                expected=f"text of at most {MAX_HANDLE} characters from {what}",
                found=f"{len(found)} characters" if isinstance(found, str) else f"a {type(found).__name__}",
                next_step=next_step,
            )
        if any(secret in found for secret in self.secrets()):
            self._fail(
                expected="no secret in the WAL",
                found=f"one of secrets() in what {what} returned",
                next_step="return an id, and read the secret in open()",
            )

    def _ignores_repetition(self, target: Any) -> Sink:
        sink = self._sink(target)
        if ability_of(sink) is not Ability.TRANSACTIONAL and not sink.idempotent:
            pytest.skip(f"{name_of(sink)} does not claim to ignore repeated chunks")
        return sink

    def _chunks(self) -> list[Chunk]:
        """The first table as one segment."""
        return chunks_of(self.tables()[0])

    def _two(self) -> tuple[pa.Table, pa.Table]:
        tables = self.tables()
        if len(tables) < 2 or not all(table.num_rows for table in tables[:2]):
            self._fail(
                expected="two tables with rows, or more",
                found=f"tables() returned tables of {[table.num_rows for table in tables]} rows",
                next_step="return the rows of several batches: some tests write two segments in parallel",
            )
        return tables[0], tables[1]

    def _two_segments(self) -> tuple[list[Chunk], list[Chunk]]:
        """Two tables as two segments of one batch."""
        first, second = self._two()
        return chunks_of(first), chunks_of(second, ordinal=1)

    def _rows_of(self, target: Any) -> Rows:
        return Rows.sent(self.tables()).found(self.rows_in(target))

    def _count(self, target: Any) -> int:
        return len(list(self.rows_in(target)))

    def _fail(self, *, expected: str, found: str, next_step: str) -> NoReturn:
        pytest.fail(f"expected: {expected}\nfound:    {found}\nnext:     {next_step}", pytrace=False)


def rows_of(chunks: Iterable[Chunk]) -> Rows:
    """The rows of some chunks."""
    return Rows.sent(chunk.table for chunk in chunks)


_MOST_LINES = 200
_MOST_INTERRUPTED = 12


class LinesContract(ContractBase):
    """Tests with failing requests and with interfering tasks, at each line of the sink's own code."""

    def test_a_failure_inside_write_is_not_hidden(self, target: Any) -> None:
        """If write returns, every row is in the target."""
        for _, chunk, added, place, error in self._each_line_failing(target):
            missing = rows_of([chunk]).difference(added).lost
            if error is None and missing:
                self._fail(
                    expected="an exception from write, or every row in the target",
                    found=f"a request failed just before {place}; write returned, and {len(missing)} rows are missing",
                    next_step="do not catch the exception in write(): the chunk is then sent again",
                )

    def test_another_one_may_write_in_the_middle_of_a_write(self, target: Any) -> None:
        """Another task delivers another segment at some lines of the sink: they may share no name, file or buffer."""
        for line in self._some_lines(target):
            fresh = self.another(target)
            mine, its = (chunks_of(table.slice(0, 2), batch_id=line, ordinal=n) for n, table in enumerate(self._two()))
            before = self._rows_of(fresh)
            place, again = self._interrupted(fresh, mine, its, at_line=line)
            difference = rows_of([*mine, *its]).difference(self._rows_of(fresh).added_since(before))
            exact = promise_of(self.make_sink(fresh)).guarantee == "exactly_once"
            if difference.lost or difference.foreign or (difference.repeated and (exact or not again)):
                self._fail(
                    expected=f"every row of two segments, if another task delivers the second one just before {place}",
                    found=str(difference),
                    next_step="put the chunk's key or the segment's id into every name that tasks could share",
                )

    def _each_line_failing(self, target: Any) -> Iterator[tuple[Any, Chunk, Rows, str, BaseException | None]]:
        """Write a chunk repeatedly; each time another line of the sink's own code fails.

        Yields the target, the chunk, the rows that the write added, the line, and the error that `write` raised, if
        any.
        """
        for number in range(1, _MOST_LINES):
            fresh = self.another(target)
            before = self._rows_of(fresh)
            (chunk,) = chunks_of(self.tables()[0].slice(0, 2), batch_id=number)
            place, error = send_meanwhile(self._sink(fresh), [chunk], fail, at_line=number)
            if not place:
                return
            yield fresh, chunk, self._rows_of(fresh).added_since(before), place, error

    def _some_lines(self, target: Any) -> list[int]:
        """Numbers of executed lines of the sink's own code, each line once, limited in count."""
        fresh = self.another(target)
        places = lines_of(self._sink(fresh), chunks_of(self.tables()[0].slice(0, 2)))
        first = {place: number for number, place in reversed(list(enumerate(places, 1)))}
        points = [Point("stands still", number, f"inside {place}") for place, number in reversed(first.items())]
        every = max(self.every, -(-len(points) // _MOST_INTERRUPTED))
        return sorted(point.number for point in chosen(points, every=every, each_line=False))

    def _interrupted(
        self, target: Any, mine: list[Chunk], its: list[Chunk], *, at_line: int
    ) -> tuple[str, list[list[Chunk]]]:
        """Let one task send, and another one deliver before a line of the first.

        A task that fails delivers again, because one may lock out the other. Returns the line, and the chunks that were
        delivered again.
        """
        other = Beside(lambda: deliver(self._sink(target), its), lambda: 0, 0.0)
        place, error = send_meanwhile(self._sink(target), mine, other.goes_through, at_line=at_line)
        if not other.ends():
            self._fail(
                expected="two tasks that end",
                found=f"one waits for ever for the other, which paused just before {place} and has ended since",
                next_step="release in close() everything that write() locked",
            )
        again = [chunks for chunks, failed in ((mine, error), (its, other.error)) if failed]
        for chunks in again:
            deliver(self._sink(target), chunks)
        return place, again
