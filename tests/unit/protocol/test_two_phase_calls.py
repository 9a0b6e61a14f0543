"""Calls of a two-phase sink: their arguments, their time limits, and the messages of those that fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.protocol import Run, Staged
from tests.house.sinks import Chunk, FailureKind, Position, Sink, SinkFailedError, SinkSession
from tests.house.support import CallTimedOutError, DirectCall
from tests.support.small_run import Recorder, numbers
from tests.support.time_limits import noting_limits
from tests.support.two_phase import Failing, place, shown, staged
from tests.support.vault import Vault, VaultSink
from wal_sink import Delivery, DeliveryError, FencedError, Rejected, Retry, Settings, SinkContext
from wal_sink.protocol.partitions import stage_partition
from wal_sink.protocol.two_phase import OpenTransaction
from wal_sink.sinks import Transaction
from wal_sink.testing.data.tables import spark_schema_of

TRANSACTION = Transaction("0" * 32, "wal", "a", 0, 0, 0)


class Noting(VaultSink):
    """Keeps what it is called with."""

    def __init__(self, vault: Vault) -> None:
        super().__init__(vault)
        self.chunks: list[Chunk] = []
        self.begun: list[Transaction] = []
        self.committed: list[Transaction] = []

    def begin(self, transaction: Transaction) -> str:
        self.begun.append(transaction)
        return super().begin(transaction)

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        super().write(chunk)

    def commit(self, transaction: Transaction, handle: str) -> None:
        self.committed.append(transaction)
        super().commit(transaction, handle)


def wal_id_of(run: Run) -> str:
    wal = run.history.wal
    assert wal is not None
    return wal.wal_id


def session_of(sink: Sink, caller: DirectCall | None = None) -> SinkSession:
    context = SinkContext("wal", "a", 1, 0, ("row",), on_executor=False)
    return SinkSession(sink, caller or DirectCall(), context, timeout_s=1)


# Arguments.


def test_a_chunk_says_where_its_rows_stand_while_they_are_prepared(vault: Vault) -> None:
    where, sink = place(5), Noting(vault)
    where.open({"b": Recorder()})  # so that the stager's term is another than the committer's
    run = where.open({"a": sink, "b": Recorder()})
    staged(where, run)
    (transaction,) = sink.begun
    slot = f"{wal_id_of(run)}/a/0-0"
    assert [(chunk.batch_id, chunk.segment_id, list(chunk.rows), chunk.term) for chunk in sink.chunks] == [
        (0, transaction.id, [0, 1], 2),
        (0, transaction.id, [2, 3], 2),
        (0, transaction.id, [4], 2),
    ]
    assert [chunk.position for chunk in sink.chunks] == [Position(slot, 0, end, transaction.id) for end in (2, 4, 5)]


@pytest.mark.parametrize("on_executor", [True, False])
def test_the_context_of_a_sink_names_the_batch_columns_and_place_it_prepares_for(
    vault: Vault, on_executor: bool
) -> None:
    where, sink = place(5), VaultSink(vault)
    where.open({"b": Recorder()})
    run = where.open({"a": sink})
    rows = numbers(0, 5)
    schema = spark_schema_of(rows.schema)
    query = where.query()
    query.start_batch(0, 0)

    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    order = run.staging_context(attempt, columns=("batch", "row"), spark_schema=schema)
    done = stage_partition(order, rows.to_batches(), lambda: run.log, partition=0, on_executor=on_executor)
    columns = ("batch", "row")
    run.end_staging(attempt, Staged(done.segments, columns=columns, spark_schema=schema, prepared=done.prepared))
    assert sink.contexts == [
        SinkContext(wal_id_of(run), "a", 2, 0, columns, on_executor=on_executor, spark_schema=schema)
    ]


def test_commit_gets_the_transaction_that_begin_got(vault: Vault) -> None:
    where, sink = place(0, 3), Noting(vault)
    run = where.open({"a": sink}, settings=Settings(chunk_rows=2, segment_bytes=1))
    where.stream(run, 0)
    assert sink.committed == sink.begun
    assert [(given.sink, given.partition, given.file_index) for given in sink.begun] == [("a", 1, 0), ("a", 1, 1)]


def test_commit_gets_the_transaction_of_begin_if_rows_are_prepared_at_delivery(vault: Vault) -> None:
    where, sink = place(0, 5), Noting(vault)
    run = where.open({"a": Delivery(sink, where="driver")})
    where.stream(run, 0)
    (given,) = sink.begun
    assert sink.committed == [given]
    assert given == Transaction(given.id, wal_id_of(run), "a", 0, partition=1, file_index=0)


def test_a_takeover_begins_no_transaction_that_a_predecessor_prepared(vault: Vault) -> None:
    where = place(5)
    failing = Delivery(Failing(vault, "commit", times=99), where="driver", retry=Retry(attempts=1))
    with pytest.raises(DeliveryError, match="unreachable"):
        where.stream(where.open({"a": failing}), 0)
    sink = Noting(vault)
    where.open({"a": Delivery(sink, where="driver")}).deliver_all()
    assert (sink.begun, shown(vault)) == ([], [0, 1, 2, 3, 4])


def test_a_process_superseded_between_two_segments_commits_no_other(vault: Vault) -> None:
    where = place(2, 2)

    class SupersededAfter(VaultSink):
        def commit(self, transaction: Transaction, handle: str) -> None:
            super().commit(transaction, handle)
            where.open({"a": VaultSink(vault)})

    run = where.open({"a": SupersededAfter(vault)})
    staged(where, run)
    with pytest.raises(FencedError):
        run.deliver_all()
    assert len(vault.commits) == 1


# How long it may take.


def test_every_call_of_staging_is_limited_in_time(vault: Vault) -> None:
    limits: dict[str, set[float]] = {}

    where = place(5)
    runtime = noting_limits(limits)
    staged(where, where.open({"a": VaultSink(vault)}, runtime=runtime, retry=Retry(attempt_timeout_s=7)))
    assert limits == {call: {7.0} for call in ["<lambda>", "open", "begin", "write", "prepare", "close"]}


def test_a_call_that_takes_too_long_while_rows_are_held_back_can_be_repeated(vault: Vault) -> None:
    """No row of the transaction is visible, whether `prepare` took effect or not."""

    class Waiting(DirectCall):
        def call(self, function: Any, *args: Any, timeout_s: float) -> Any:
            if function.__name__ == "prepare":
                raise CallTimedOutError(f"no answer within {timeout_s:g} s")
            return super().call(function, *args, timeout_s=timeout_s)

    run, sink = place(1).open({"a": VaultSink(vault)}), VaultSink(vault)
    opened = OpenTransaction(run.log, session_of(sink, Waiting()), sink, TRANSACTION)
    with pytest.raises(SinkFailedError, match="prepare timed out") as caught:
        opened.prepare()
    assert caught.value.failure.kind is FailureKind.RETRIABLE


# Messages of failures.


@pytest.mark.parametrize("call", ["begin", "write", "prepare"])
def test_a_failure_while_rows_are_staged_names_the_transaction_and_the_call(
    vault: Vault, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    where, sink = place(5), Failing(vault, call)
    staged(where, where.open({"a": sink}))
    (transaction_id,) = vault.aborts
    what = f"batch 0, transaction {transaction_id}: {sink.describe()}"
    told = f"{what}: {call} raised ConnectionError: unreachable"
    assert f"{told}; the rows of this transaction are prepared when they are delivered" in caplog.text


def test_a_failure_while_rows_are_committed_names_the_transaction_and_the_call(vault: Vault) -> None:
    where, sink = place(5), Failing(vault, "commit")
    run = where.open({"a": Delivery(sink, retry=Retry(attempts=1))})
    staged(where, run)
    (transaction_id,) = vault.held
    what = f"batch 0, transaction {transaction_id}: {sink.describe()}: commit"
    with pytest.raises(DeliveryError) as caught:
        run.deliver_all()
    assert f"{what} raised ConnectionError: unreachable" in str(caught.value)


@pytest.mark.parametrize("call", ["write", "commit"])
def test_an_answer_that_nobody_asked_for_is_shown_with_its_call(
    vault: Vault, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    where, sink = place(1), Noting(vault)
    setattr(sink, call, lambda *_: Rejected({0: "no"}))
    run = where.open({"a": sink})
    staged(where, run)
    with pytest.raises(DeliveryError) as caught:
        run.deliver_all()
    what = f"transaction {sink.begun[-1].id}: {sink.describe()}"
    if call == "write":
        assert f"batch 0, transaction {sink.begun[0].id}: {sink.describe()} rejected 1 row;" in caplog.text
    assert f"{what}{': commit' if call == 'commit' else ''} rejected 1 row;" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "found"), [(None, "a NoneType"), (5, "a int"), ("x" * 4097, "4097 characters")], ids=["none", "5", "x"]
)
@pytest.mark.parametrize("call", ["begin", "prepare"])
def test_an_answer_that_is_no_handle_stops_a_delivery_at_once(
    vault: Vault, call: str, returned: object, found: str
) -> None:
    where, sink = place(1), VaultSink(vault)
    asked: list[object] = []

    def answer(*given: object) -> object:
        asked.append(given)
        return returned

    setattr(sink, call, answer)
    run = where.open({"a": Delivery(sink, where="driver")})
    staged(where, run)
    with pytest.raises(DeliveryError, match=f": {call} returned {found}: expected text of at most 4096 characters"):
        run.deliver_all()
    assert len(asked) == 1
