"""`SinkContract`: subclass it, define how to create your sink and read its target, and get all tests for its kind.

Needs pytest. See `docs/testing-your-sink.md` for a complete example.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pytest

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.settings import GuaranteeName
from wal_sink.sinks.base import CommitSink, Rejected, Sink, TransactionalSink, TwoPhaseSink
from wal_sink.sinks.chunk import Chunk
from wal_sink.support.texts import name_of
from wal_sink.testing.contract.base import ContractBase, rows_of
from wal_sink.testing.contract.calls import (
    attempt,
    chunks_of,
    deliver,
    opened,
    parts_of,
    pickled,
    shown_error,
    travelled,
)
from wal_sink.testing.contract.commits import CommitContract
from wal_sink.testing.contract.ledger import LedgerContract
from wal_sink.testing.contract.two_phase import TwoPhaseContract
from wal_sink.testing.data.rows import missing_row, shown
from wal_sink.testing.data.tables import COLUMN_NAMES, COLUMN_TYPES, table_of_names, table_of_type, table_with_long_text
from wal_sink.testing.simulation.process import promise_of, resolve

_PARAMETERS = (("column_type", "column_types", COLUMN_TYPES), ("names", "column_names", COLUMN_NAMES))


class ValuesContract(ContractBase):
    """Tests of odd values: a sink writes them completely, or refuses them with a helpful error."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each type and each kind of name."""
        for argument, attribute, known in _PARAMETERS:
            if argument not in metafunc.fixturenames:
                continue
            values = getattr(self, attribute)
            if unknown := [value for value in values if value not in known]:
                raise pytest.UsageError(f"{type(self).__name__}.{attribute}: {unknown} are not in {list(known)}")
            metafunc.parametrize(argument, values)

    def test_a_column_of_this_type_is_taken_or_refused_by_name(self, target: Any, column_type: str) -> None:
        self._take_or_refuse(target, table_of_type(column_type), f"a column of type {column_type}", ["odd_one"])

    def test_columns_with_such_names_are_taken_or_refused_by_name(self, target: Any, names: str) -> None:
        self._take_or_refuse(target, table_of_names(names), f"columns {COLUMN_NAMES[names]}", COLUMN_NAMES[names])

    def test_a_very_long_text_is_taken_or_refused_for_good(self, target: Any) -> None:
        self._take_or_refuse(target, table_with_long_text(), "a text of a MiB", [""])

    def _take_or_refuse(self, target: Any, table: pa.Table, what: str, names: Sequence[str]) -> None:
        sink, (chunk,) = self._sink(target), chunks_of(table, chunk_rows=table.num_rows)
        before = list(self.rows_in(target))
        refused: object = None
        try:
            refused = next((some for some in deliver(sink, [chunk]) if isinstance(some, Rejected)), None)
        except (PermanentError, ConfigError) as error:
            refused = error
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            self._fail(
                expected=f"{what} is taken, or refused with PermanentError",
                found=f"{shown_error(error)}: this error would be retried again and again without success",
                next_step="raise PermanentError naming the column, or remove the case from column_types, column_names",
            )
        if refused is not None and not any(name in str(refused) for name in names):
            self._fail(
                expected=f"a message that names {list(names)}",
                found=f"{str(refused)[:300]!r}",
                next_step="name the column in the message",
            )
        self._expect_values(
            chunk.without(_not_written(sink, chunk, refused)), _added(self.rows_in(target), before), what
        )

    def _expect_values(self, chunk: Chunk, added: list[Any], what: str) -> None:
        if len(added) != chunk.num_rows:
            self._fail(
                expected=f"{chunk.num_rows} rows with {what}: all except Rejected ones; none if PermanentError was "
                "raised or a transactional sink rejected a row",
                found=f"{len(added)} rows",
                next_step="write every row, or refuse it with PermanentError naming the column, or with Rejected",
            )
        names = chunk.table.column_names
        if len(set(names)) < len(names) or not all(isinstance(row, Mapping) for row in added):
            return
        sent = zip(chunk.table.to_pylist(), json.loads(chunk.to_json(), parse_float=Decimal), strict=True)
        if missing := missing_row(list(sent), added, self.same_value):
            self._fail(
                expected=f"rows with {what} as they were sent, such as {shown([missing])}",
                found=shown(added),
                next_step="write the whole value, or raise PermanentError naming the column; if the target returns "
                "another form of the same value, override same_value(sent, found)",
            )


def _not_written(sink: Sink, chunk: Chunk, refused: object) -> Collection[int]:
    """The rows that must not be in the target, given how the sink refused."""
    if isinstance(refused, Rejected) and not isinstance(sink, TransactionalSink):
        return refused.reasons.keys()
    return range(chunk.num_rows) if refused is not None else ()


def _added(now: Iterable[Any], before: Iterable[Any]) -> list[Any]:
    old = Counter(map(repr, before))
    added = []
    for row in now:
        if old[repr(row)] > 0:
            old[repr(row)] -= 1
        else:
            added.append(row)
    return added


class SinkContract(LedgerContract, TwoPhaseContract, CommitContract, ValuesContract):
    """Tests for the kind of a sink: plain, idempotent, look-up, transactional, two-phase, commit, segment writer, batch
    writer.

        class TestOrders(SinkContract):
            @pytest.fixture
            def target(self, tmp_path): ...       # a new, empty target: a table, a folder, a fake server
            def make_sink(self, target): ...      # the object that you pass to WalSink for this target
            def rows_in(self, target): ...        # the rows in the target, read by its own client

    Everything runs in the test's process, without Spark; mocks such as moto's `mock_aws` work. Tests for other kinds of
    sinks are skipped. `ContractBase` lists the other methods and attributes that you may override.
    """

    # Crashes and disturbances: every kind of sink.

    def test_an_undisturbed_run_brings_every_row_once(self, target: Any) -> None:
        self._check_matrix(target, ())

    def test_a_process_may_die_at_any_point(self, target: Any) -> None:
        self._check_matrix(target, ("dies",))

    def test_a_request_may_fail_at_any_point(self, target: Any) -> None:
        self._check_matrix(target, ("fails",))

    def test_a_process_may_wake_after_its_successor_has_finished(self, target: Any) -> None:
        self._check_matrix(target, ("stands still",))
        if self.key:
            self._check_matrix(self.another(target), ("stands still",), self.key)

    def test_a_target_may_forget_its_newest_commits_at_any_point(self, target: Any) -> None:
        """Rows that a fail-over lost are sent again, or delivery of a transactional or commit sink stops."""
        self._may_lose(target, "restore")
        self._check_matrix(target, ("forgets",))

    def test_a_target_may_lose_rows_and_keep_their_position_at_any_point(self, target: Any) -> None:
        """Only a commit sink has to notice it. For others later rows come once, as if nothing had happened."""
        self._may_lose(target, "roll_back")
        self._check_matrix(target, ("loses rows",))

    def test_it_promises_what_is_expected_of_it(self, target: Any) -> None:
        """This finds, for example, a missing `idempotent = True`: the sink would get a weaker guarantee silently."""
        if self.expected_guarantee is None:
            pytest.skip("expected_guarantee names none")
        if self.expected_guarantee not in get_args(GuaranteeName):
            self._fail(
                expected=f"expected_guarantee is one of {list(get_args(GuaranteeName))}",
                found=repr(self.expected_guarantee),
                next_step="correct its spelling",
            )
        found = promise_of(self.make_sink(target))
        if found.guarantee != self.expected_guarantee:
            self._fail(
                expected=f"a sink that promises {self.expected_guarantee}",
                found=f"{found.guarantee}: {found.sentence}",
                next_step="declare in the sink what the target can do (idempotent = True, was_applied, "
                "TransactionalSink, …), or correct expected_guarantee",
            )

    def _may_lose(self, target: Any, way: str) -> None:
        sink = self._sink(target)
        if isinstance(sink, CommitSink) and not (self._is_own("snapshot") and self._is_own(way)):
            pytest.skip(f"without snapshot(target) and {way}(target, saved) its target loses nothing")
        if not isinstance(sink, TransactionalSink | TwoPhaseSink | CommitSink):
            pytest.skip(f"{name_of(sink)} keeps neither positions nor transactions in its target")

    # The rules of a sink.

    def test_it_travels_to_executors(self, target: Any) -> None:
        sink = self._sink(target)
        if sink.driver_only or resolve(self.make_sink(target))[0].where == "driver":
            pytest.skip("it stays in the driver's process")
        try:
            copy = travelled(sink)
        except Exception as error:  # noqa: BLE001 - a user's own pickling may raise anything
            self._fail(
                expected="a sink that can be pickled before it is opened",
                found=shown_error(error),
                next_step="keep plain data in __init__ and connect in open(), or use Delivery(sink, where='driver')",
            )
        self._expect_rows(target, lambda: deliver(copy, self._chunks()), "a copy of it writes", rows_of(self._chunks()))

    def test_it_can_be_opened_again_after_it_was_closed(self, target: Any) -> None:
        sink, (first, second) = self._sink(target), self._two_segments()
        deliver(sink, first)
        self._expect_rows(target, lambda: deliver(sink, second), "the same sink delivers again", rows_of(second))

    def test_a_second_one_works_beside_it(self, target: Any) -> None:
        """Segments are delivered in parallel, each by a separate sink."""
        first, second = self._two_segments()

        def side_by_side() -> None:
            one, other = self._sink(target), self._sink(target)
            with opened(one, first[0]), opened(other, second[0]):
                attempt(one, first)
                attempt(other, second)

        self._expect_rows(target, side_by_side, "two sinks are open at the same time", rows_of([*first, *second]))

    def test_it_returns_none_or_rejected(self, target: Any) -> None:
        sink = self._sink(target)
        allowed = type(None) if isinstance(sink, TwoPhaseSink | CommitSink) else Rejected | None
        wrong = [some for some in deliver(sink, self._chunks()) if not isinstance(some, allowed)]
        if wrong:
            self._fail(
                expected="None after every row is in the target, or (except for two-phase and commit sinks) Rejected",
                found=f"{wrong[0]!r}",
                next_step="return nothing; raise an exception after a failure",
            )

    def test_every_row_is_there_when_write_returns(self, target: Any) -> None:
        """Rows must be there before close, because a process may die first. Two-phase sinks: when commit returns."""
        sink, chunks = self._sink(target), self._chunks()
        before = self._rows_of(target)
        with opened(sink, chunks[0]):
            for count, part in enumerate(parts_of(sink, chunks), 1):
                attempt(sink, part)
                wanted = rows_of(part if len(part) > 1 else chunks[:count])
                if lost := wanted.difference(self._rows_of(target).added_since(before)).lost:
                    self._fail(
                        expected="every row in the target, durably, when write (commit) returns",
                        found=f"{len(lost)} are missing before close: {shown(lost)}",
                        next_step="flush and commit in write(), and wait for other threads that send rows",
                    )

    def test_a_chunk_without_rows_adds_none(self, target: Any) -> None:
        if isinstance(self._sink(target), CommitSink):
            pytest.skip("it commits no batch without rows")
        empty = chunks_of(self.tables()[0].slice(0, 0))
        self._expect_rows(target, lambda: deliver(self._sink(target), empty), "a chunk has no rows", rows_of(empty))

    def test_no_secret_shows(self, target: Any) -> None:
        if not self.secrets():
            pytest.skip("it has none: secrets() names none")
        delivery, sink = resolve(self.make_sink(target))
        places = {"repr(sink)": repr(sink), "describe()": name_of(sink), "repr(Delivery(sink))": repr(delivery)}
        if isinstance(sink, Sink):
            deliver(sink, self._chunks())
            with suppress(ConfigError):  # a sink that cannot be pickled leaks no secret in its pickle
                places["its pickle, after use"] = pickled(sink).decode("latin-1")
        for place, text in places.items():
            if any(secret in text or secret.encode().decode("latin-1") in text for secret in self.secrets()):
                self._fail(
                    expected="no secret outside of an open sink",
                    found=f"one of secrets() in {place}",
                    next_step="read secrets in open(), drop them in close(), leave them out of __repr__ and describe()",
                )

    # Idempotent and transactional sinks.

    def test_a_chunk_that_comes_again_changes_nothing(self, target: Any) -> None:
        """This holds for every chunk, not only the newest one, and for every sender."""
        self._ignores_repetition(target)
        chunks = self._chunks()
        deliver(self._sink(target), chunks)
        for chunk in chunks:
            before = self._count(target)
            deliver(self._sink(target), [chunk])
            if (added := self._count(target) - before) != 0:
                self._fail(
                    expected=f"nothing new after the chunk {chunk.key} was sent again",
                    found=f"{added:+d} rows",
                    next_step="check in the target what it has, by chunk.key, chunk.row_keys() or chunk.position",
                )

    # Look-up sinks.

    def test_was_applied_is_false_for_what_was_not_written(self, target: Any) -> None:
        self._lookup(target)
        first, second = self._two_segments()
        self._expect_applied(target, first[0], expected=False)
        deliver(self._sink(target), first)
        self._expect_applied(target, second[0], expected=False)

    def test_was_applied_is_true_for_what_was_written(self, target: Any) -> None:
        self._lookup(target)
        chunks = self._chunks()
        deliver(self._sink(target), chunks)
        for chunk in chunks:
            self._expect_applied(target, chunk, expected=True)

    def test_was_applied_is_false_for_a_part_of_a_chunk(self, target: Any) -> None:
        self._lookup(target)
        for fresh, chunk, added, _, _ in self._each_line_failing(target):
            if len(added) < chunk.num_rows:
                self._expect_applied(fresh, chunk, expected=False)
