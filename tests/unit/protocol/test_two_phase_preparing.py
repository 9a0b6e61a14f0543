"""Two-phase sinks while a batch is staged: what is begun, written and prepared, and what is when that fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.log import Manifest, paths
from tests.house.sinks import Chunk, Sink, SinkContext, SinkSession
from tests.house.support import DirectCall
from tests.support.small_run import Recorder
from tests.support.two_phase import Failing, place, restarted, shown, staged
from tests.support.vault import Vault, VaultSink
from wal_sink import ConfigError, Delivery, DeliveryError, HistoryError, Rejected, Settings, StoreError
from wal_sink.protocol.two_phase import MAX_HANDLE, OpenTransaction
from wal_sink.sinks import Transaction


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
    assert len(manifest.segments) == 2
    assert manifest.prepared == {"a": tuple(f"handle {segment.id}" for segment in manifest.segments)}
    assert all(segment.kept for segment in manifest.segments)


def test_chunks_are_those_that_a_delivery_would_send(vault: Vault) -> None:
    seen: list[tuple[str, int, int, list[str]]] = []

    class Noting(VaultSink):
        def write(self, chunk: Any) -> None:
            seen.append((chunk.key, chunk.start, chunk.num_rows, chunk.table.column_names))

    where, other = place(5), Recorder()
    run = where.open({"a": Noting(vault), "b": other})
    staged(where, run)
    run.deliver_all()
    assert seen == [(chunk.key, chunk.start, chunk.num_rows, ["batch", "row"]) for chunk in other.chunks]
    assert [(start, rows) for _, start, rows, _ in seen] == [(0, 2), (2, 2), (4, 1)]


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
    run = where.open({"a": sink}, settings=Settings(chunk_rows=2, segment_bytes=1))
    staged(where, run)
    assert sink.times == 98


@pytest.mark.parametrize("call", ["open", "begin", "write", "prepare"])
def test_where_rows_are_not_kept_a_target_that_is_away_fails_the_batch(vault: Vault, call: str) -> None:
    where = place(5)
    sink = Failing(vault, call)
    sink.keep_segments = False
    run = where.open({"a": sink})
    query = where.query()
    query.start_batch(0, 0)
    with pytest.raises(DeliveryError, match=r"unreachable.*keep_segments=False"):
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
    object.__setattr__(run.committers[0].served_sink.preparation, "make_sink", fail)
    where.stream(run, 0)
    assert "sink 'a' raised ConnectionError: no sink today" in caplog.text
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_cannot_be_aborted_at_once_is_aborted_later(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Failing):
        def write(self, chunk: Any) -> None:
            super().write(chunk)
            self.times = 1
            raise ConnectionError("cut")

    where = place(5)
    run = where.open({"a": Broken(vault, "abort", times=0)})
    staged(where, run)
    assert "abort raised ConnectionError" in caplog.text
    left = list(vault.held)
    assert len(left) == 1
    restarted(where, vault)
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
    again = without.open({"a": VaultSink(vault, keep_segments=False)}, settings=Settings(chunk_rows=2, segment_bytes=1))
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


def test_a_handle_may_have_as_many_characters_as_the_limit_says(vault: Vault) -> None:
    class Longest(VaultSink):
        def prepare(self) -> str:
            super().prepare()
            return "x" * MAX_HANDLE

    where = place(1)
    run = where.open({"a": Longest(vault)})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    assert manifest.prepared == {"a": ("x" * MAX_HANDLE,)}


def test_rows_cannot_be_refused_while_they_are_prepared(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    sink: Any = VaultSink(vault)
    sink.write = lambda _: Rejected({0: "no"})
    where = place(1)
    run = where.open({"a": sink})
    staged(where, run)
    assert "rejected 1 row;" in caplog.text
    with pytest.raises(DeliveryError, match="rejected 1 row;"):
        run.deliver_all()


def test_what_is_no_two_phase_sink_prepares_nothing(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    class Plain(Sink):
        def write(self, chunk: object) -> None: ...

    where = place(1)
    run = where.open({"a": VaultSink(vault)})
    preparation = run.committers[0].served_sink.preparation
    assert preparation is not None
    object.__setattr__(preparation, "make_sink", Plain)
    staged(where, run)
    assert "Plain is not a TwoPhaseSink" in caplog.text


def test_a_transaction_of_another_under_the_same_id_is_an_error(vault: Vault) -> None:
    run = place(1).open({"a": VaultSink(vault)})
    context = SinkContext("wal", "a", 1, 0, ("row",), on_executor=False)
    session, sink = SinkSession(VaultSink(vault), DirectCall(), context, timeout_s=1), VaultSink(vault)
    transaction = Transaction("0" * 32, "wal", "a", 0, 0, 0)
    OpenTransaction(run.log, session, sink, transaction)
    with pytest.raises(StoreError, match="another transaction with this id was begun before"):
        OpenTransaction(run.log, session, sink, transaction)


# Rows that are kept nowhere else.


def test_rows_that_are_not_kept_take_no_room_in_the_wal(vault: Vault) -> None:
    where = place(5, 3)
    run = where.open({"a": VaultSink(vault, keep_segments=False)})
    where.stream(run, 1)
    assert not [name for name in where.wal.list(paths.BATCHES, recursive=True) if name.endswith(".parquet")]
    assert shown(vault) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    manifest = run.log.find(Manifest, paths.manifest(1, 1, 2))
    assert manifest is not None
    assert [segment.kept for segment in manifest.segments] == [False, False]


def test_no_other_sink_can_be_given_rows_that_were_not_kept(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault, keep_segments=False)})
    where.stream(run, 0)
    late = where.open({"b": Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(HistoryError, match="keep_segments=False"):
        late.deliver_all()


@pytest.mark.parametrize(
    "others",
    [
        {"b": VaultSink(Vault(), keep_segments=True)},
        {"b": Recorder()},
    ],
)
def test_one_sink_that_needs_them_keeps_the_rows(vault: Vault, others: dict[str, Any]) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault, keep_segments=False), **others})
    where.stream(run, 0)
    assert [name for name in where.wal.list(paths.BATCHES, recursive=True) if name.endswith(".parquet")]


def test_keeping_nothing_is_refused_where_another_sink_is_delivered_elsewhere(vault: Vault) -> None:
    where = place(5)
    where.stream(where.open({"a": VaultSink(vault), "b": Recorder()}), 0)
    with pytest.raises(ConfigError, match=r"keep_segments=False.*\['b'\]"):
        where.open({"a": VaultSink(vault, keep_segments=False)})


def test_keeping_nothing_is_refused_where_the_sink_cannot_prepare(vault: Vault) -> None:
    with pytest.raises(ConfigError, match=r"keep_segments=False.*\['a'\]"):
        place(5).open({"a": Delivery(VaultSink(vault, keep_segments=False), where="driver")})


class Unkept(Sink):
    keep_segments = False

    def write(self, chunk: Chunk) -> None: ...


def test_a_sink_of_another_kind_cannot_do_without_kept_rows() -> None:
    with pytest.raises(ConfigError, match="keep_segments=False needs a TwoPhaseSink"):
        place(5).open({"a": Unkept()})


def test_a_sink_that_stays_in_the_driver_prepares_when_it_delivers(vault: Vault) -> None:
    where = place(5, 3)
    run = where.open({"a": Delivery(VaultSink(vault), where="driver")})
    staged(where, run)
    assert vault.held == {}
    run.deliver_all()
    assert shown(vault) == [0, 0, 1, 1, 2, 2, 3, 4]
