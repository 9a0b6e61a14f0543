"""What the tests of `SinkContract` stand on: the methods its user writes, and how calls are made and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pytest

from wal_sink.reporting.texts import name_of
from wal_sink.settings import GuaranteeName
from wal_sink.sinks.base import Lookup, Sink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.testing.contract.calls import chunks_of, opened, shown_error
from wal_sink.testing.data.rows import Row, Rows
from wal_sink.testing.data.tables import COLUMN_NAMES, COLUMN_TYPES, three_batches
from wal_sink.testing.data.values import same_value
from wal_sink.testing.matrix.crash_matrix import crash_matrix
from wal_sink.testing.matrix.verdict import What
from wal_sink.testing.simulation.served import resolve


class ContractBase:
    """See `SinkContract`."""

    every: ClassVar[int] = 1
    """Of the points at which something goes wrong, one of n is tried, chosen by chance: for slow targets."""
    each_line: ClassVar[bool] = True
    """Whatever `every` says, each line of the sink's code, each of its calls and each kind of operation of the log is
    tried at least once. False for targets that are too slow for that.
    """
    expected_guarantee: ClassVar[GuaranteeName | None] = None
    """`"exactly_once"`, `"at_least_once"` or `"at_most_once"`: a sink that promises anything else fails, as one does
    whose `idempotent = True` was forgotten.
    """
    column_types: ClassVar[Sequence[str]] = tuple(COLUMN_TYPES)
    """The types to try, of `wal_sink.testing.data.tables.COLUMN_TYPES`: leave out what your queries never have."""
    column_names: ClassVar[Sequence[str]] = tuple(COLUMN_NAMES)
    """The odd names to try, of `wal_sink.testing.data.tables.COLUMN_NAMES`."""

    # What you write.

    def make_sink(self, target: Any) -> object:
        """The sink under test, new each time: whatever `WalSink` takes for one sink. Called once per process."""
        raise NotImplementedError("make_sink(target): return the sink under test, new each time")

    def rows_in(self, target: Any) -> Iterable[Row]:
        """What the target holds, one mapping from column to value for each row; further columns do no harm."""
        raise NotImplementedError("rows_in(target): return what the target holds, a mapping for each row")

    # What you may write.

    def tables(self) -> Sequence[pa.Table]:
        """The rows to send, a table for each batch, all with the same columns; no row may be in them twice."""
        return three_batches()

    def another(self, target: Any) -> Any:
        """An empty target for one more run of the crash matrix.

        The same one will do, as it does by default, where a row under another key is another row: judged is what a run
        adds. A target with business keys of its own has to be a new one, or emptied.
        """
        return target

    def snapshot(self, target: Any) -> Any:
        """What a target of a transactional sink holds, rows and ledger, by a client of its own, for `restore`.

        Write both where you can: then the target which forgets its newest commits is the same one, and the sink keeps
        its connection and what it remembers. Otherwise another target takes its place, to which the sink itself wrote
        all but the newest commits.
        """
        raise NotImplementedError("snapshot(target): return what the target holds, for restore(target, saved)")

    def restore(self, target: Any, saved: Any) -> None:
        """Bring a target back to what `snapshot` saved of it."""
        raise NotImplementedError("restore(target, saved): bring the target back to what snapshot(target) saved")

    def same_value(self, sent: Any, found: Any) -> bool:
        """Whether what `rows_in` gives for a value of an odd column is what was sent.

        Called with the value as Python has it, and with the one that `Chunk.to_json` writes; either will do. By
        default another form of the same value is the same (`testing.data.values.same_value`), and one that was cut,
        rounded or made NULL is not. Override it for what your target is known to alter; `return True` counts only.
        """
        return same_value(sent, found)

    def secrets(self) -> Sequence[str]:
        """Texts that must not show, such as the password that `make_sink` knows or that `open` reads."""
        return ()

    def data_frame(self, table: pa.Table) -> Any:
        """What a writer of whole batches is given: `return spark.createDataFrame(table)`."""
        raise NotImplementedError("data_frame(table): a writer of whole batches needs it; see its documentation")

    # How it is done.

    def _check_matrix(self, target: Any, disturb: Sequence[What]) -> None:
        matrix = crash_matrix(
            self.make_sink,
            self.rows_in,
            lambda: self.another(target),
            tables=self.tables(),
            disturb=disturb,
            every=self.every,
            each_line=self.each_line,
            data_frame=self.data_frame,
            snapshot=self.snapshot if self._is_own("snapshot") else None,
            restore=self.restore if self._is_own("restore") else None,
        )
        if matrix.violations and disturb and not matrix.violations[0].at:
            self._fail(
                expected="a run that may be disturbed",
                found=f"an undisturbed one goes wrong already: {matrix.violations[0]}",
                next_step="see test_an_undisturbed_run_brings_every_row_once; if that one passes, the sink or its "
                "module remembers what an earlier process did",
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
            self._fail(expected=f"no error when {when}", found=shown_error(error), next_step="mend open() and close()")
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
                next_step="ask the target; True only if it has the whole chunk",
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
        """The sink under test; skips where it is a writer of whole batches, which is not called chunk by chunk."""
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

    def _ignores_repetition(self, target: Any) -> Sink:
        sink = self._sink(target)
        if ability_of(sink) is not Ability.TRANSACTIONAL and not sink.idempotent:
            pytest.skip(f"{name_of(sink)} does not claim to ignore what it has seen")
        return sink

    def _chunks(self) -> list[Chunk]:
        """The first table as one segment."""
        return chunks_of(self.tables()[0])

    def _two(self) -> tuple[pa.Table, pa.Table]:
        tables = self.tables()
        if len(tables) < 2 or not all(table.num_rows for table in tables[:2]):
            self._fail(
                expected="two tables with rows, or more",
                found=f"tables() gave {[table.num_rows for table in tables]} rows",
                next_step="give the rows of several batches: some tests write two segments side by side",
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
