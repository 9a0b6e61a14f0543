"""Giving a repair up: its sink ends, no other one does, nothing stays open in a target, and it can be repeated."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.support.vault import Vault, VaultSink
from tests.unit.repair.test_resend import delivered, replayed
from wal_sink import PermanentError, Transaction
from wal_sink.errors import ConfigError, CorruptError, DeliveryError, HeldError
from wal_sink.repair.giving_up import give_up
from wal_sink.repair.journal import Order, begin, find_unfinished, finish, read_journal
from wal_sink.repair.resend import resend
from wal_sink.repair.resend_plan import plan_resend, resend_order
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Sink, as_sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord, encode


def down(_: Chunk) -> None:
    raise PermanentError("down")


class Named(VaultSink):
    """A vault whose identity is not that of its class."""

    def describe(self) -> str:
        return "vault"


class Closed(Named):
    """A vault whose commits are refused: what was prepared stays open."""

    def commit(self, transaction: Transaction, handle: str) -> None:
        raise PermanentError(f"{transaction.id}: {handle}: refused")


def stopped(to: object = down, batches: tuple[int, ...] = (1,)) -> Place:
    """A WAL with a replay that the target stopped."""
    place = delivered()
    with pytest.raises(DeliveryError):
        replayed(place, to, list(batches))
    end_roles(place.wal)
    return place


def states(place: Place) -> list[str]:
    return [entry.state for entry in read_journal(log_on(place.wal))]


def is_retired(place: Place, name: str = "replay-1") -> bool:
    return paths.RETIRED in place.wal.list(f"sinks/{name}")


def damage(place: Place, path: str) -> None:
    place.wal.delete([path])
    place.wal.create(path, b"damaged")


def test_the_sink_of_a_replay_is_retired_and_the_end_says_so() -> None:
    place = stopped()

    entry = give_up(log_on(place.wal), 1, why="x")

    assert is_retired(place)
    assert entry.ended is not None
    assert (entry.state, entry.ended.result) == ("given up", {"retired": "replay-1", "aborted": 0})


def test_one_that_is_given_up_before_it_registered_anything_leaves_nothing() -> None:
    place = delivered()
    log = log_on(place.wal)
    begin(log, resend_order(log, [1], as_sink(Recorder()), name="", again=False, why=""), {})

    give_up(log, 1, why="x")

    assert place.wal.list("sinks") == ["a/"]


def test_another_sink_that_got_the_name_meanwhile_goes_on() -> None:
    """The query started with a new sink of that name while a person read the question."""
    place = delivered()
    log = log_on(place.wal)
    sink = as_sink(Recorder())
    assert isinstance(sink, Sink)
    order = resend_order(log, [1], sink, name="b", again=False, why="x")
    plan = plan_resend(log, [1], sink, name="b", again=False)
    live = Recorder()
    run = place.open({"a": Recorder(), "b": Delivery(live, start_from="next")})
    with pytest.raises(HeldError, match="another sink was registered"):
        resend(log, order, plan, sink, delivery=Delivery(sink), take_over=TakeOver.IF_GONE)

    give_up(log_on(place.wal), 1, why="as told")

    assert not is_retired(place, "b")
    place.stream(run, 5)
    assert set(live.batches) == {4, 5}
    assert states(place) == ["given up"]


@pytest.mark.parametrize(
    ("identity", "repair"),
    [("take (repair 2: a replay)", ""), ("take", ""), ("take (repair 1: a replay)", "of a journal that was lost")],
)
def test_the_sink_of_another_repair_goes_on(identity: str, repair: str) -> None:
    place = delivered()
    log = log_on(place.wal)
    begin(log, resend_order(log, [1], as_sink(Recorder()), name="b", again=False, why=""), {"name": "b"})
    record = SinkRecord(
        name="b",
        sink_kind="plain",
        first_batch=0,
        identity=identity,
        is_replay=True,
        repair=repair,
        **log.stamp(),
    )
    log.create(paths.sink("b"), record)

    give_up(log, 1, why="x")

    assert not is_retired(place, "b")


def test_the_sink_of_a_replay_by_an_earlier_version_is_retired_too() -> None:
    """Its registration names the number of the repair only."""
    place = stopped()
    path = paths.sink("replay-1")
    record = log_on(place.wal).require(SinkRecord, path)
    place.wal.delete([path])
    place.wal.create(path, encode(msgspec.structs.replace(record, repair="")))

    give_up(log_on(place.wal), 1, why="x")

    assert is_retired(place)


def test_killed_at_any_request_the_same_command_completes_it() -> None:
    for place in killed_everywhere(stopped, lambda place: place.wal, lambda log, _: give_up(log, 1, why="x")):
        if states(place) == ["unfinished"]:
            give_up(log_on(place.wal), 1, why="x")
        assert states(place) == ["given up"]
        assert is_retired(place)
        with pytest.raises(ConfigError, match="is not unfinished"):
            give_up(log_on(place.wal), 1, why="x")


def test_a_sink_that_was_registered_while_its_replay_was_given_up_is_retired_by_the_same_command() -> None:
    """The replay ran on another machine, and nobody could see it."""
    place = stopped()
    path = paths.sink("replay-1")
    record = place.wal.read(path)
    place.wal.delete([path])
    give_up(log_on(place.wal), 1, why="x")
    place.wal.create(path, record)

    assert give_up(log_on(place.wal), 1, why="x").state == "given up"

    assert is_retired(place)


def test_one_that_was_completed_is_not_given_up() -> None:
    place = delivered()
    replayed(place, Recorder(), [1])

    with pytest.raises(ConfigError, match=r"is not unfinished: it ended at .* \(done\)"):
        give_up(log_on(place.wal), 1, why="x")


# --- a two-phase target


def test_open_transactions_are_named_and_nothing_is_given_up_without_their_target() -> None:
    vault = Vault()
    place = stopped(Closed(vault))
    before = place.wal.list("", recursive=True)
    assert vault.held

    with pytest.raises(ConfigError, match=r"wal-sink replay WAL 1 --to .*--to") as refused:
        give_up(log_on(place.wal), 1, why="x")

    assert all(each in str(refused.value) for each in vault.held)
    assert place.wal.list("", recursive=True) == before
    assert states(place) == ["unfinished"]


def test_many_are_named_by_examples() -> None:
    vault = Vault()
    place = stopped(Closed(vault))
    root = paths.begun_folder("replay-1")
    [name] = place.wal.list(root)
    [held] = vault.held
    for number in range(8):
        place.wal.create(f"{root}/{name.replace(held, f'{number:032x}')}", place.wal.read(f"{root}/{name}"))

    with pytest.raises(ConfigError, match="and 4 more"):
        give_up(log_on(place.wal), 1, why="x")


def test_with_their_target_they_are_aborted_and_what_was_committed_stays() -> None:
    vault = Vault()

    class Fails(Named):
        """Commits batch 0 and the first segment of batch 1."""

        def commit(self, transaction: Transaction, handle: str) -> None:
            if len(vault.shown) >= 3:
                raise PermanentError("refused")
            super().commit(transaction, handle)

    place = stopped(Fails(vault), (0, 1))
    assert (len(vault.shown), len(vault.held)) == (3, 1)
    [held] = vault.held

    entry = give_up(log_on(place.wal), 1, why="x", to=Named(vault))

    assert (vault.held, len(vault.shown)) == ({}, 3)
    assert held in vault.aborts
    assert is_retired(place)
    assert entry.ended is not None
    assert entry.ended.result["retired"] == "replay-1"
    assert place.wal.list(f"{paths.begun_folder('replay-1')}") != []  # batch 0 has its marker: committed


def test_a_delivered_batch_leaves_nothing_open() -> None:
    vault = Vault()

    class Fails(Named):
        def begin(self, transaction: Transaction) -> str:
            if transaction.batch_id == 1:
                raise PermanentError("refused")
            return super().begin(transaction)

    place = stopped(Fails(vault), (0, 1))
    place.wal.delete(
        f"{paths.begun_folder('replay-1')}/{name}"
        for name in place.wal.list(paths.begun_folder("replay-1"))
        if name.startswith(paths.batch_name(1))
    )

    give_up(log_on(place.wal), 1, why="x")

    assert set(vault.aborts).isdisjoint(vault.shown)
    assert is_retired(place)


def test_a_target_that_does_not_abort_leaves_it_unfinished_and_the_same_command_goes_on() -> None:
    vault = Vault()

    class Silent(Named):
        def abort(self, transaction: Transaction, token: str) -> None:
            raise PermanentError(f"{transaction.id} {token}: no answer")

    place = stopped(Closed(vault))

    with pytest.raises(DeliveryError, match="1 transaction could not be aborted"):
        give_up(log_on(place.wal), 1, why="x", to=Silent(vault))

    assert states(place) == ["unfinished"]
    assert not is_retired(place)
    give_up(log_on(place.wal), 1, why="x", to=Named(vault))
    assert vault.held == {}


class Elsewhere(VaultSink):
    def describe(self) -> str:
        return "another vault"


@pytest.mark.parametrize(
    ("to", "told"),
    [(Elsewhere, "another vault"), (lambda _: as_sink(Recorder()), "is not a two-phase sink")],
)
def test_another_target_is_refused(to: Callable[[Vault], Sink], told: str) -> None:
    vault = Vault()
    place = stopped(Closed(vault))

    with pytest.raises(ConfigError, match=told):
        give_up(log_on(place.wal), 1, why="x", to=to(vault))

    assert vault.aborts == []
    assert states(place) == ["unfinished"]


def test_a_target_where_there_is_nothing_to_abort_is_refused() -> None:
    for place in (stopped(), delivered()):
        log = log_on(place.wal)
        if not read_journal(log):
            begin(log, Order("skip", {}, ("terms/",)), {})
        with pytest.raises(ConfigError, match="--to"):
            give_up(log, 1, why="x", to=Named(Vault()))
        assert states(place) == ["unfinished"]


def test_a_transaction_that_a_superseded_process_begins_meanwhile_is_noticed() -> None:
    vault = Vault()
    place = stopped(Closed(vault))
    root = paths.begun_folder("replay-1")
    hidden = {f"{root}/{name}": place.wal.read(f"{root}/{name}") for name in place.wal.list(root)}
    place.wal.delete(hidden)

    def begin_late(what: str, where: str) -> None:
        if what == "after create" and where.startswith(paths.terms(paths.committer_role("replay-1"))):
            for path, data in hidden.items():
                place.wal.create(path, data)
            hidden.clear()

    with pytest.raises(ConfigError, match="--to"):
        give_up(log_on(place.wal, begin_late), 1, why="x")

    assert states(place) == ["unfinished"]
    assert not is_retired(place)


def test_killed_at_any_request_with_open_transactions_the_same_command_completes_it() -> None:
    vaults: dict[int, Vault] = {}

    def make() -> Place:
        vault = Vault()
        place = stopped(Closed(vault))
        vaults[id(place)] = vault
        return place

    def act(log: Log, place: Place) -> None:
        give_up(log, 1, why="x", to=Closed(vaults[id(place)]))

    for place in killed_everywhere(make, lambda place: place.wal, act):
        if states(place) == ["unfinished"]:
            act(log_on(place.wal), place)
        assert vaults[id(place)].held == {}
        assert is_retired(place)
        assert states(place) == ["given up"]


# --- a record that cannot be read


def test_a_damaged_record_blocks_other_repairs_until_it_is_given_up() -> None:
    place = delivered()
    order = Order("skip", {"batch": 7}, ("terms/",))
    begin(log_on(place.wal), order, {})
    damage(place, paths.repair(1))

    with pytest.raises(CorruptError, match=r"wal-sink repairs give-up WAL 1 --why"):
        find_unfinished(log_on(place.wal), order)
    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.begun.verb) == ("unfinished", "")
    assert "expected a repair record" in entry.damage

    assert give_up(log_on(place.wal), 1, why="damaged").state == "given up"

    log = log_on(place.wal)
    finish(log, begin(log, order, {}), {})
    assert states(place) == ["given up", "done"]


def test_of_a_damaged_record_of_a_replay_the_sink_is_found_by_its_registration() -> None:
    place = stopped()
    damage(place, paths.repair(1))

    give_up(log_on(place.wal), 1, why="damaged")

    assert is_retired(place)
    assert not is_retired(place, "a")


def test_of_a_damaged_record_the_transactions_are_aborted_too() -> None:
    vault = Vault()
    place = stopped(Closed(vault))
    damage(place, paths.repair(1))
    with pytest.raises(ConfigError, match="--to"):
        give_up(log_on(place.wal), 1, why="x")

    give_up(log_on(place.wal), 1, why="x", to=Closed(vault))

    assert vault.held == {}


def test_a_record_that_vanishes_is_lost() -> None:
    place = delivered()
    order = Order("skip", {"batch": 7}, ("terms/",))
    begin(log_on(place.wal), order, {})

    def vanish(what: str, where: str) -> None:
        if (what, where) == ("before read", paths.repair(1)):
            place.wal.delete([where])

    with pytest.raises(CorruptError, match="disappeared"):
        find_unfinished(log_on(place.wal, vanish), order)
