"""Two-phase sinks: what was begun and never committed is aborted, neither too early nor never."""

from __future__ import annotations

import pytest

from tests.house.log import paths
from tests.house.sinks import Sink
from tests.support.time_limits import noting_limits
from tests.support.two_phase import Failing, begun, place, restaged, restarted, shown
from tests.support.vault import Vault, VaultSink
from wal_sink import Delivery, Retry, SinkContext
from wal_sink.protocol.two_phase import Abandoned
from wal_sink.sinks import Transaction


def test_an_attempt_that_lost_is_aborted_once_its_batch_is_delivered(vault: Vault) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    lost = restaged(where, run, vault)
    assert list(vault.held) == [lost], "not yet: it is tidied up now and then"
    restarted(where, vault)
    assert vault.held == {}
    assert lost in vault.aborts
    assert begun(where) == []
    assert shown(vault) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows", [(5,), (0, 5)])
def test_a_transaction_that_needs_a_token_is_aborted_by_it(vault: Vault, rows: tuple[int, ...]) -> None:
    tokens: list[str] = []

    class WithToken(VaultSink):
        token = "upload"  # noqa: S105 - what finds it again

        def abort(self, transaction: Transaction, token: str) -> None:
            tokens.append(token)
            super().abort(transaction, token)

    where = place(*rows)
    run = where.open({"a": WithToken(vault)})
    lost = restaged(where, run, vault)
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
    restarted(where, vault)
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
    restaged(where, run, vault)
    (held,) = vault.held
    where.open({"a": Failing(vault, "abort")})
    assert "sink a: 1 transactions are left to abort: batch 0" in caplog.text
    assert f"transaction {held}: " in caplog.text
    assert ": Failing: abort raised ConnectionError: unreachable" in caplog.text
    assert list(vault.held) == [held]
    where.open({"a": VaultSink(vault)})
    assert vault.held == {}


def test_records_of_transactions_aborted_before_a_failure_are_deleted(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingLater(VaultSink):
        def abort(self, transaction: Transaction, token: str) -> None:
            if vault.aborts:
                raise ConnectionError("unreachable")
            super().abort(transaction, token)

    where = place(5, 5)
    run = where.open({"a": VaultSink(vault)})
    restaged(where, run, vault)
    where.open({"a": FailingLater(vault)})
    assert "1 transactions are left to abort" in caplog.text
    assert (len(vault.aborts), len(vault.held), len(begun(where))) == (1, 1, 1)


def test_the_sink_that_aborts_is_told_where_it_runs_and_what_it_aborts(vault: Vault) -> None:
    told: list[Transaction] = []

    class Telling(VaultSink):
        def abort(self, transaction: Transaction, token: str) -> None:
            told.append(transaction)
            super().abort(transaction, token)

    where = place(0, 5)
    lost = restaged(where, where.open({"a": VaultSink(vault)}), vault)
    sink = Telling(vault)
    run = where.open({"a": sink})
    wal = run.history.wal
    assert wal is not None
    assert told == [Transaction(lost, wal.wal_id, "a", 0, partition=1, file_index=0)]
    assert sink.contexts == [
        SinkContext(wal.wal_id, "a", run.committers[0].term.number, 0, columns=(), on_executor=False)
    ]


def test_every_call_of_an_abort_is_limited_in_time(vault: Vault) -> None:
    where, limits = place(5), dict[str, set[float]]()
    restaged(where, where.open({"a": VaultSink(vault)}), vault)
    where.open({"a": VaultSink(vault)}, runtime=noting_limits(limits), retry=Retry(attempt_timeout_s=7))
    assert len(vault.aborts) == 1
    assert limits == {call: {7.0} for call in ["<lambda>", "open", "abort", "close"]}


def test_a_sink_that_cannot_even_be_made_leaves_them_too(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    where = place(5)
    run = where.open({"a": VaultSink(vault)})
    restaged(where, run, vault)

    def fail() -> Sink:
        raise ConnectionError("no sink today")

    Abandoned(run.log, "a", fail, 7).abort(1, through=run.committers[0].marked_through)
    assert "sink 'a' raised ConnectionError: no sink today" in caplog.text
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
    assert "aborting abandoned transactions failed" in caplog.text
