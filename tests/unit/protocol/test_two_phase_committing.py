"""Two-phase sinks when a batch is delivered: what is committed, and what is when it is gone."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest

from tests.house.log import PreparedRecord, SegmentRef, paths
from tests.support.two_phase import Failing, place, shown, staged
from tests.support.vault import Vault, VaultSink
from wal_sink import CorruptError, Delivery, DeliveryError, FencedError, HandleGoneError
from wal_sink.protocol.two_phase import transaction_of
from wal_sink.sinks import Transaction


def test_a_steady_batch_of_one_segment_costs_no_more_than_its_transaction(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    where.stream(run, 0)
    where.requests.clear()
    where.stream(run, 1)
    asked = [request for request in where.requests if not request.startswith("list")]
    assert [request.split()[0] for request in asked] == ["create", "segment", "create", "read", "create", "create"]
    assert not [request for request in where.requests if request.startswith("list")]


def test_two_handles_that_are_gone_one_after_the_other_are_tried_again(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "; the transaction was prepared a moment ago" in caplog.text
    numbers = [name for name in where.wal.list(paths.progress_folder("a", 0)) if paths.is_prepared(name)]
    assert len(numbers) == 2


def test_a_commit_of_what_was_prepared_again_may_fail_like_any_other(vault: Vault) -> None:
    class Twice(VaultSink):
        left = 1

        def commit(self, transaction: Transaction, handle: str) -> None:
            if transaction.id == first:
                raise HandleGoneError("gone", never_committed=True)
            if self.left:
                self.left -= 1
                raise ConnectionError("unreachable")
            super().commit(transaction, handle)

    where = place(5)
    run = where.open({"a": Twice(vault)})
    staged(where, run)
    manifest = run.history.staged(0)
    assert manifest is not None
    first = manifest.segments[0].id
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_nobody_tried_to_commit_was_surely_not_committed(vault: Vault) -> None:
    vault.remembers_commits = False
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    staged(where, run)
    vault.drop_held()
    run.deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


def test_what_may_have_been_committed_and_is_gone_stops_delivery_until_somebody_looked(vault: Vault) -> None:
    vault.remembers_commits = False
    where = place(5)
    run = where.open({"a": Failing(vault, "commit", times=99)})
    staged(where, run)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    vault.drop_held()
    with pytest.raises(
        DeliveryError, match=r"An earlier attempt may have committed this transaction.*on_gone='prepare_again'"
    ):
        where.open({"a": VaultSink(vault)}).deliver_all()
    where.open({"a": VaultSink(vault, on_gone="prepare_again")}).deliver_all()
    assert shown(vault) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("on_gone", ["halt", "prepare_again"])
def test_a_superseded_process_prepares_nothing_again(vault: Vault, on_gone: Literal["halt", "prepare_again"]) -> None:
    """Found by TLC: the newer process, whose answer was lost, would take that transaction for the one to commit."""
    vault.remembers_commits = False
    where = place(5)

    class Asleep(VaultSink):
        def commit(self, transaction: Transaction, handle: str) -> None:
            where.open({"a": VaultSink(vault)}).deliver_all()
            vault.take_shown()
            super().commit(transaction, handle)

    run = where.open({"a": Asleep(vault, on_gone=on_gone)})
    staged(where, run)
    with pytest.raises(FencedError):
        run.deliver_all()
    assert (vault.held, vault.shown) == ({}, {})
    assert not where.wal.list(paths.progress_folder("a", 0))


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
    run = where.open({"a": VaultSink(vault, keep_segments=False)})
    staged(where, run)
    vault.drop_held()
    with pytest.raises(DeliveryError, match="The WAL did not keep the rows of this transaction"):
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
    where_it_lies = re.escape(where.wal.url_of(paths.prepared("a", 0, 0, 1)))
    with pytest.raises(CorruptError, match=f"{where_it_lies}: expected the prepared transaction of segment"):
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
    with pytest.raises(CorruptError, match="disappeared while it was read"):
        run.deliver_all()


def test_a_run_that_ends_prepares_and_commits_nothing_more(vault: Vault) -> None:
    where = place(5)
    sink = VaultSink(vault)
    run = where.open({"a": Delivery(sink, where="driver")})
    staged(where, run)
    dispatcher: Any = run.committers[0].served_sink.dispatcher
    dispatcher._should_stop = lambda: bool(vault.held)
    with pytest.raises(Exception, match="the run is ending"):
        run.deliver_all()
    assert (vault.shown, vault.held) == ({}, {})


def test_a_segment_whose_path_is_none_is_refused() -> None:
    segment = SegmentRef(path="batches/0/elsewhere", id="x", rows=1, bytes=1, crc32=0)
    with pytest.raises(CorruptError, match="batches/0/elsewhere: expected the path of a segment"):
        transaction_of("wal", "a", 0, segment, "x")
