"""Two-phase sinks, step by step: what is prepared when, what is published, what is aborted, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.small_run import Place, Recorder
from tests.unit.vault import Vault, VaultSink
from wal_sink import (
    ConfigError,
    CorruptError,
    DeadLetters,
    Delivery,
    DeliveryError,
    HandleGoneError,
    HistoryError,
    Rejected,
    Settings,
    StoreError,
    Transaction,
    paths,
)
from wal_sink.calls import DirectCaller
from wal_sink.guarantees import promise
from wal_sink.preparing import MAX_HANDLE, OpenTransaction
from wal_sink.publishing import transaction_of
from wal_sink.records import Manifest, PreparedRecord, SegmentRef
from wal_sink.run import Run
from wal_sink.segments import load_segment
from wal_sink.sink import Sink, SinkContext
from wal_sink.sink_session import SinkSession


@pytest.fixture
def vault() -> Vault:
    return Vault()


def place(*rows: int) -> Place:
    return Place(rows=lambda _: list(rows))


def staged(where: Place, run: Run, batch_id: int = 0) -> None:
    """Staged and completed, not delivered."""
    for done in where.query().batches(run, batch_id + 1):
        assert done <= batch_id


def shown(vault: Vault) -> list[int]:
    return sorted(row["row"] for row in vault.rows())


def begun(where: Place, sink: str = "a") -> list[str]:
    return where.wal.list(paths.begun_folder(sink))


# While a batch is staged.


def test_rows_are_held_back_until_the_batch_is_complete(vault: Vault) -> None:
    where = place(5, 0, 3)
    run = where.open({"a": VaultSink(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    run.deliver_all()
    assert (vault.shown, len(vault.held)) == ({}, 2)
    query.complete_batch(0)
    run.deliver_all()
    assert shown(vault) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert vault.held == {}


def test_the_manifest_names_a_handle_of_each_segment(vault: Vault) -> None:
    where = place(5, 3)
    run = where.open({"a": VaultSink(vault), "b": Recorder()})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    assert manifest.prepared == {"a": tuple(f"handle {segment.id}" for segment in manifest.segments)}
    assert all(segment.kept for segment in manifest.segments)


def test_a_transaction_has_the_numbers_of_its_segment(vault: Vault) -> None:
    seen: list[Transaction] = []

    class Noting(VaultSink):
        def begin(self, transaction: Transaction) -> str:
            seen.append(transaction)
            return super().begin(transaction)

    where = place(0, 5)
    run = where.open({"a": Noting(vault)})
    staged(where, run)
    wal = run.history.wal
    assert wal is not None
    assert [(one.wal_id, one.sink, one.batch_id, one.partition, one.roll) for one in seen] == [
        (wal.wal_id, "a", 0, 1, 0)
    ]


def test_chunks_are_those_that_a_delivery_would_send(vault: Vault) -> None:
    seen: list[tuple[str, int, list[str]]] = []

    class Noting(VaultSink):
        def write(self, chunk: Any) -> None:
            seen.append((chunk.key, chunk.num_rows, chunk.table.column_names))

    where, other = place(5), Recorder()
    run = where.open({"a": Noting(vault), "b": other})
    staged(where, run)
    run.deliver_all()
    assert seen == [(chunk.key, chunk.num_rows, ["batch", "row"]) for chunk in other.chunks]
    assert [rows for _, rows, _ in seen] == [2, 2, 1]


def test_one_instance_serves_a_task_and_is_told_what_it_prepares_for(vault: Vault) -> None:
    sink = VaultSink(vault)
    where = place(5, 5)
    staged(where, where.open({"a": sink}))
    assert [(context.batch_id, context.columns) for context in sink.contexts] == [(0, ("batch", "row"))] * 2
    assert sink.contexts[0].sink == "a"


class Failing(VaultSink):
    """Fails in some calls, as often as told."""

    def __init__(self, vault: Vault, call: str, *, times: int = 1, error: Exception | None = None) -> None:
        super().__init__(vault)
        self.call, self.times, self.error = call, times, error or ConnectionError("away")

    def _fail(self, call: str) -> None:
        if call == self.call and self.times:
            self.times -= 1
            raise self.error

    def open(self, context: Any) -> None:
        self._fail("open")
        super().open(context)

    def begin(self, transaction: Transaction) -> str:
        self._fail("begin")
        return super().begin(transaction)

    def write(self, chunk: Any) -> None:
        self._fail("write")
        super().write(chunk)

    def prepare(self) -> str:
        self._fail("prepare")
        return super().prepare()

    def commit(self, transaction: Transaction, handle: str) -> None:
        self._fail("commit")
        super().commit(transaction, handle)

    def abort(self, transaction: Transaction, token: str) -> None:
        self._fail("abort")
        super().abort(transaction, token)


@pytest.mark.parametrize("call", ["open", "begin", "write", "prepare"])
def test_a_target_that_is_away_while_rows_are_staged_gets_them_later(vault: Vault, call: str) -> None:
    where = place(5)
    run = where.open({"a": Failing(vault, call)})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    assert manifest.prepared == {"a": (None,)}
    assert vault.held == {}, "what had begun was aborted"
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_a_target_that_failed_once_is_not_asked_again_in_the_same_task(vault: Vault) -> None:
    sink = Failing(vault, "begin", times=99)
    where = place(5)
    run = where.open({"a": sink}, settings=None)
    staged(where, run)
    assert sink.times == 98


@pytest.mark.parametrize("call", ["open", "begin", "write", "prepare"])
def test_where_rows_are_not_kept_a_target_that_is_away_fails_the_batch(vault: Vault, call: str) -> None:
    where = place(5)
    run = where.open({"a": Delivery(Failing(vault, call), keep_segments=False)})
    query = where.query()
    query.start_batch(0, 0)
    with pytest.raises(DeliveryError, match=r"away.*keep_segments=False"):
        query.stage(run, 0)
    assert run.history.staged(0) is None
    assert vault.held == {}
    query.stage(run, 0)
    query.complete_batch(0)
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_a_sink_that_cannot_be_made_where_rows_are_staged_is_made_later(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Sink:
        raise ConnectionError("no sink today")

    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    object.__setattr__(run.committers[0].serving.preparation, "make_sink", fail)
    where.stream(run, 0)
    assert "no sink today" in caplog.text
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_cannot_be_aborted_at_once_is_aborted_later(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Failing):
        def write(self, chunk: Any) -> None:
            super().write(chunk)
            self.call, self.times = "abort", 1
            raise ConnectionError("cut")

    where = place(5)
    run = where.open({"a": Broken(vault, "none")})
    staged(where, run)
    assert "abort raised ConnectionError" in caplog.text
    left = list(vault.held)
    assert len(left) == 1
    _restarted(where, vault)
    assert vault.aborts == left
    assert vault.held == {}


def test_each_segment_of_a_partition_has_a_transaction_of_its_own(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)}, settings=Settings(chunk_rows=2, segment_bytes=1))
    staged(where, run)
    assert [len(rows) for rows in vault.held.values()] == [2, 2, 1]
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]
    without = place(5)
    again = without.open(
        {"a": Delivery(VaultSink(vault), keep_segments=False)}, settings=Settings(chunk_rows=2, segment_bytes=1)
    )
    staged(without, again)
    assert [len(rows) for rows in vault.held.values()] == [2, 2, 1]


@pytest.mark.parametrize("returned", [None, 5, "x" * (MAX_HANDLE + 1)])
@pytest.mark.parametrize("call", ["begin", "prepare"])
def test_a_handle_has_to_be_text_of_some_length(
    vault: Vault, call: str, returned: object, caplog: pytest.LogCaptureFixture
) -> None:
    sink: Any = VaultSink(vault)
    genuine = getattr(sink, call)
    setattr(sink, call, lambda *given: [genuine(*given), returned][1])
    where = place(1)
    staged(where, where.open({"a": sink}))
    assert f"{call} returned" in caplog.text
    assert "expected text of at most 4096 characters" in caplog.text
    assert vault.held == {}


def test_a_handle_may_be_as_long_as_that(vault: Vault) -> None:
    class Long(VaultSink):
        def prepare(self) -> str:
            return "x" * MAX_HANDLE

        def commit(self, transaction: Transaction, handle: str) -> None:
            super().commit(transaction, f"handle {transaction.id}" if handle == "x" * MAX_HANDLE else handle)

    where = place(3)
    run = where.open({"a": Long(vault)})
    where.stream(run, 0)
    assert shown(vault) == [0, 1, 2]


def test_rows_cannot_be_refused_while_they_are_prepared(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    sink: Any = VaultSink(vault)
    sink.write = lambda _: Rejected({0: "no"})
    where = place(1)
    run = where.open({"a": sink})
    staged(where, run)
    assert "rejected 1 rows" in caplog.text
    with pytest.raises(DeliveryError, match="rejected 1 rows"):
        run.deliver_all()


def test_what_is_no_two_phase_sink_prepares_nothing(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    class Plain(Sink):
        def write(self, chunk: object) -> None: ...

    where = place(1)
    run = where.open({"a": VaultSink(vault)})
    preparation = run.committers[0].serving.preparation
    assert preparation is not None
    object.__setattr__(preparation, "make_sink", Plain)
    staged(where, run)
    assert "Plain is no TwoPhaseSink" in caplog.text


def test_a_transaction_of_another_under_the_same_id_is_an_error(vault: Vault) -> None:
    run = place(1).open({"a": VaultSink(vault)})
    context = SinkContext("wal", "a", 1, 0, ("row",), on_executor=False)
    session, sink = SinkSession(VaultSink(vault), DirectCaller(), context, timeout_s=1), VaultSink(vault)
    transaction = Transaction("0" * 32, "wal", "a", 0, 0, 0)
    OpenTransaction(run.log, session, sink, transaction)
    with pytest.raises(StoreError, match="another transaction of this id was begun"):
        OpenTransaction(run.log, session, sink, transaction)


# Rows that are kept nowhere else.


def test_rows_that_are_not_kept_take_no_room_in_the_wal(vault: Vault) -> None:
    where = place(5, 3)
    run = where.open({"a": Delivery(VaultSink(vault), keep_segments=False)})
    where.stream(run, 1)
    assert not [name for name in where.wal.list(paths.BATCHES, recursive=True) if name.endswith(".parquet")]
    assert shown(vault) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    manifest = run.log.find(Manifest, paths.manifest(1, 1, 2))
    assert manifest is not None
    assert [segment.kept for segment in manifest.segments] == [False, False]


def test_no_other_sink_can_be_given_rows_that_were_not_kept(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": Delivery(VaultSink(vault), keep_segments=False)})
    where.stream(run, 0)
    late = where.open({"b": Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(HistoryError, match="keep_segments=False"):
        late.deliver_all()


@pytest.mark.parametrize(
    "others",
    [
        {"b": Delivery(VaultSink(Vault()), keep_segments=True)},
        {"b": Recorder()},
    ],
)
def test_one_sink_that_needs_them_keeps_the_rows(vault: Vault, others: dict[str, Any]) -> None:
    where = place(5)
    run = where.open({"a": Delivery(VaultSink(vault), keep_segments=False), **others})
    where.stream(run, 0)
    assert [name for name in where.wal.list(paths.BATCHES, recursive=True) if name.endswith(".parquet")]


def test_keeping_nothing_is_refused_where_another_sink_is_delivered_elsewhere(vault: Vault) -> None:
    where = place(5)
    where.stream(where.open({"a": VaultSink(vault), "b": Recorder()}), 0)
    with pytest.raises(ConfigError, match=r"keep_segments=False.*\['b'\]"):
        where.open({"a": Delivery(VaultSink(vault), keep_segments=False)})


def test_keeping_nothing_is_refused_where_the_sink_cannot_prepare(vault: Vault) -> None:
    with pytest.raises(ConfigError, match=r"keep_segments=False.*\['a'\]"):
        place(5).open({"a": Delivery(VaultSink(vault), keep_segments=False, where="driver")})


def test_a_sink_of_another_kind_cannot_do_without_kept_rows() -> None:
    with pytest.raises(ConfigError, match="keep_segments=False needs a TwoPhaseSink"):
        place(5).open({"a": Delivery(Recorder(), keep_segments=False)})


def test_a_sink_that_stays_in_the_driver_prepares_when_it_delivers(vault: Vault) -> None:
    where = place(5, 3)
    run = where.open({"a": Delivery(VaultSink(vault), where="driver")})
    staged(where, run)
    assert vault.held == {}
    run.deliver_all()
    assert shown(vault) == [0, 0, 1, 1, 2, 2, 3, 4]


# When it is published.


def test_a_steady_batch_of_one_segment_costs_no_more_than_its_transaction(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    where.stream(run, 0)
    where.requests.clear()
    where.stream(run, 1)
    asked = [request for request in where.requests if not request.startswith("list")]
    assert [request.split()[0] for request in asked] == ["create", "segment", "create", "read", "create", "create"]
    assert not [request for request in where.requests if request.startswith("list")]


def test_two_handles_that_are_gone_one_after_the_other_are_tried_again(vault: Vault) -> None:
    class Losing(VaultSink):
        left = 3

        def commit(self, transaction: Transaction, handle: str) -> None:
            if self.left:
                self.left -= 1
                self.vault.drop_held()
            super().commit(transaction, handle)

    where = place(5)
    where.stream(where.open({"a": Losing(vault)}), 0)
    assert shown(vault) == [0, 1, 2, 3, 4]
    numbers = [name for name in where.wal.list(paths.progress_folder("a", 0)) if paths.is_prepared(name)]
    assert len(numbers) == 2


def test_a_commit_of_what_was_prepared_again_may_fail_like_any_other(vault: Vault) -> None:
    class Twice(Failing):
        def commit(self, transaction: Transaction, handle: str) -> None:
            if transaction.id == first:
                raise HandleGoneError("gone", never_published=True)
            super().commit(transaction, handle)

    where = place(5)
    run = where.open({"a": Twice(vault, "commit")})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    first = manifest.segments[0].id
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_nobody_tried_to_commit_was_surely_not_published(vault: Vault) -> None:
    vault.remembers_commits = False
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    staged(where, run)
    vault.drop_held()
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_may_have_been_published_and_is_gone_stops_delivery_until_somebody_looked(vault: Vault) -> None:
    vault.remembers_commits = False
    where = place(5)
    run = where.open({"a": Failing(vault, "commit", times=99)})
    staged(where, run)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    vault.drop_held()
    with pytest.raises(DeliveryError, match=r"An earlier attempt may have published it.*on_gone='prepare_again'"):
        where.open({"a": VaultSink(vault)}).deliver_all()
    where.open({"a": Delivery(VaultSink(vault), on_gone="prepare_again")}).deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_a_target_that_knows_better_needs_nobody_to_look(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": Failing(vault, "commit", times=99)})
    staged(where, run)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    vault.drop_held()
    where.open({"a": VaultSink(vault)}).deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_rows_that_are_gone_and_were_not_kept_are_an_error_that_says_so(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": Delivery(VaultSink(vault), keep_segments=False)})
    staged(where, run)
    vault.drop_held()
    with pytest.raises(DeliveryError, match="not kept in the WAL"):
        run.deliver_all()
    assert not where.wal.list(paths.markers("a"))


def test_what_another_process_prepared_meanwhile_is_committed_in_place_of_ones_own(vault: Vault) -> None:
    where = place(5)

    class Beaten(VaultSink):
        def prepare(self) -> str:
            handle = super().prepare()
            assert self.transaction is not None
            other = "f" * 32
            self.vault.held[other] = list(self.vault.held[self.transaction.id])
            segment = released.segments[0]
            record = PreparedRecord(
                batch_id=0,
                ordinal=0,
                number=1,
                segment_id=segment.id,
                transaction_id=other,
                handle=f"handle {other}",
                term=1,
                run_id="another",
                id="another",
                created="",
            )
            run.log.create(paths.prepared("a", 0, 0, 1), record)
            return handle

    run = where.open({"a": Delivery(Beaten(vault), where="driver")})
    staged(where, run)
    found = run.history.staged(0)
    assert found is not None
    released = found
    run.deliver_all()
    assert list(vault.shown) == ["f" * 32]
    assert vault.held == {}, "its own was aborted"


def test_what_was_prepared_of_another_segment_is_refused(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": Delivery(VaultSink(vault), where="driver")})
    staged(where, run)
    record = PreparedRecord(
        batch_id=0,
        ordinal=0,
        number=1,
        segment_id="another",
        transaction_id="x",
        handle="x",
        term=1,
        run_id="r",
        id="i",
        created="",
    )
    run.log.create(paths.prepared("a", 0, 0, 1), record)
    with pytest.raises(CorruptError, match="expected what was prepared of segment"):
        run.deliver_all()


def test_what_was_prepared_and_vanishes_is_told(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(5)
    run = where.open({"a": Delivery(VaultSink(vault), where="driver")})
    staged(where, run)
    genuine = type(run.log).create
    monkeypatch.setattr(
        type(run.log),
        "create",
        lambda log, path, record: False if record.kind == "prepared" else genuine(log, path, record),
    )
    with pytest.raises(CorruptError, match="vanished while it was read"):
        run.deliver_all()


def test_a_run_that_ends_prepares_and_publishes_nothing_more(vault: Vault) -> None:
    where = place(5)
    sink = VaultSink(vault)
    run = where.open({"a": Delivery(sink, where="driver")})
    staged(where, run)
    carrier: Any = run.committers[0].serving.carrier
    carrier._should_stop = lambda: bool(vault.held)
    with pytest.raises(Exception, match="the run is ending"):
        run.deliver_all()
    assert (vault.shown, vault.held) == ({}, {})


def test_a_segment_whose_path_is_none_is_refused() -> None:
    segment = SegmentRef(path="batches/0/elsewhere", id="x", rows=1, bytes=1, crc32=0)
    with pytest.raises(CorruptError, match="batches/0/elsewhere: expected the path of a segment"):
        transaction_of("wal", "a", 0, segment, "x")


# What is aborted.


def _restarted(where: Place, vault: Vault, times: int = 2) -> None:
    for _ in range(times):
        where.open({"a": VaultSink(vault)}).deliver_all()


def test_an_attempt_that_lost_is_aborted_once_its_batch_is_delivered(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.stage(run, 0)
    lost = next(iter(vault.held))
    query.complete_batch(0)
    run.deliver_all()
    assert list(vault.held) == [lost], "not yet: it is tidied up now and then"
    _restarted(where, vault)
    assert vault.held == {}
    assert lost in vault.aborts
    assert begun(where) == []
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_a_transaction_that_needs_a_token_is_aborted_by_it(vault: Vault) -> None:
    tokens: list[str] = []

    class WithToken(VaultSink):
        token = "upload"  # noqa: S105 - what finds it again

        def abort(self, transaction: Transaction, token: str) -> None:
            tokens.append(token)
            super().abort(transaction, token)

    where = place(5)
    run = where.open({"a": WithToken(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.stage(run, 0)
    lost = next(iter(vault.held))
    query.complete_batch(0)
    run.deliver_all()
    where.open({"a": WithToken(vault)})
    assert tokens == [f"upload {lost}"]
    assert where.wal.list(paths.begun_folder("a")) == []


def test_a_running_query_tidies_up_now_and_then_without_listing_each_time(vault: Vault) -> None:
    where = place(1)
    run = where.open({"a": VaultSink(vault)})
    where.requests.clear()
    where.stream(run, 47)
    listed = where.requests.count(f"list {paths.begun_folder('a')}")
    assert listed == 48 // 16
    assert len(begun(where)) <= 16


def test_what_was_prepared_at_delivery_is_not_aborted(vault: Vault) -> None:
    where = place(5)
    where.stream(where.open({"a": Delivery(VaultSink(vault), where="driver")}), 0)
    _restarted(where, vault)
    assert vault.aborts == []
    assert begun(where) == []


def test_nothing_is_aborted_of_a_batch_that_is_not_delivered(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    where.open({"a": VaultSink(vault)})
    assert vault.aborts == []
    assert len(vault.held) == 1


def test_of_a_batch_whose_records_are_gone_the_target_itself_tells_what_was_committed() -> None:
    for missing in ("release", "manifest"):
        where, target = place(5), Vault()
        where.stream(where.open({"a": VaultSink(target)}), 0)
        where.wal.delete([paths.release(0) if missing == "release" else paths.manifest(0, 1, 1)])
        where.open({"a": VaultSink(target)})
        assert len(target.aborts) == 1
        assert shown(target) == [0, 1, 2, 3, 4]
        assert begun(where) == []


def test_what_cannot_be_aborted_is_left_for_the_next_start(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.stage(run, 0)
    query.complete_batch(0)
    run.deliver_all()
    where.open({"a": Failing(vault, "abort")})
    assert "1 transactions are left to abort" in caplog.text
    assert len(vault.held) == 1
    where.open({"a": VaultSink(vault)})
    assert vault.held == {}


def test_a_sink_that_cannot_even_be_made_leaves_them_too(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.stage(run, 0)
    query.complete_batch(0)
    run.deliver_all()
    committer = run.committers[0]
    committer._tidied_through = None

    def fail() -> Sink:
        raise ConnectionError("no sink today")

    object.__setattr__(committer.serving, "make_sink", fail)
    committer.abort_abandoned()
    assert "no sink today" in caplog.text
    assert len(vault.held) == 1


def test_a_record_that_vanishes_meanwhile_is_no_trouble(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    where.stream(run, 0)
    where.wal.delete([paths.release(0)])
    genuine = type(run.log).find
    monkeypatch.setattr(
        type(run.log), "find", lambda log, kind, path: None if kind.kind == "begun" else genuine(log, kind, path)
    )
    where.open({"a": VaultSink(vault)})
    assert vault.aborts == []
    assert begun(where) == []


def test_a_damaged_record_of_a_transaction_stops_nobody(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    where.stream(run, 0)
    where.wal.delete([paths.release(0), f"{paths.begun_folder('a')}/{begun(where)[0]}"])
    where.wal.create(f"{paths.begun_folder('a')}/{paths.batch_name(0)}-{'0' * 32}.json", b"damaged")
    where.open({"a": VaultSink(vault)})
    assert "aborting what was abandoned failed" in caplog.text


# What is promised and refused.


def test_exactly_once_is_promised_and_less_is_not_needed(vault: Vault) -> None:
    for wanted in (None, "exactly_once", "at_least_once", "at_most_once"):
        kept = promise(VaultSink(vault), Delivery(VaultSink(vault), guarantee=wanted), "a")
        assert kept.guarantee == "exactly_once"
        assert "held back" in kept.sentence


def test_dead_letters_need_another_kind_of_sink(vault: Vault) -> None:
    with pytest.raises(ConfigError, match="on_rejected='dead_letter' needs a sink that is called chunk by chunk"):
        place(1).open({"a": Delivery(VaultSink(vault), on_rejected="dead_letter")})


def test_dead_letters_are_not_replayed_to_it(vault: Vault) -> None:
    where = place(1)
    run = where.open({"a": Recorder()})
    where.stream(run, 0)
    with pytest.raises(ConfigError, match="cannot be given single rows"):
        DeadLetters(run.log, name="a").replay(VaultSink(vault))


def test_a_name_keeps_its_kind(vault: Vault) -> None:
    where = place(1)
    where.stream(where.open({"a": Recorder()}), 0)
    with pytest.raises(ConfigError, match="two-phase"):
        where.open({"a": VaultSink(vault)})


def test_a_segment_that_was_not_kept_is_not_looked_for(vault: Vault) -> None:
    where = place(1)
    run = where.open({"a": Delivery(VaultSink(vault), keep_segments=False)})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    segment = manifest.segments[0]
    assert (segment.kept, segment.bytes, segment.crc32, segment.rows) == (False, 0, 0, 1)
    with pytest.raises(HistoryError, match="not kept"):
        load_segment(where.wal, segment)
