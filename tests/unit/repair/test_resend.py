"""`replay`: released batches are sent again under their keys; a ledger gets only its missing rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import wal_sink.committer.collection
import wal_sink.delivery.batch
from tests.simulation.histories.lives import lower_retention
from tests.support.forgetting import Forgetful, Target, rows_of
from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.support.vault import Vault, VaultSink
from wal_sink import BatchSink, PermanentError, ReleasedBatch, idempotent
from wal_sink.checking.verify import Check
from wal_sink.errors import ConfigError, DeliveryError, FencedError, HeldError
from wal_sink.recovery.sink_changes import retire
from wal_sink.repair.beyond import Asked
from wal_sink.repair.journal import begin, find_unfinished, read_journal
from wal_sink.repair.resend import Resent, resend
from wal_sink.repair.resend_plan import plan_resend, planned_resend, resend_order
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected, Sink, as_sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest, Marker, SinkRecord, encode

ROWS = [5, 3]


class Remembering(Sink):
    """A target that can tell which chunks it has."""

    def __init__(self, known: dict[str, int] | None = None, answer: object = None) -> None:
        self.known = {} if known is None else known
        self.answer = answer

    def was_applied(self, key: str) -> bool:
        return key in self.known if self.answer is None else self.answer  # type: ignore[return-value]

    def write(self, chunk: Chunk) -> None:
        self.known[chunk.key] = self.known.get(chunk.key, 0) + 1


def delivered(through: int = 3, to: object = None, **delivery: Any) -> Place:
    """A WAL of which the sink `a` has every batch, and nobody serves it."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": to or Recorder()}, **delivery), through)
    end_roles(place.wal)
    return place


def replayed(
    place: Place,
    to: object,
    batches: list[int],
    *,
    log: Log | None = None,
    again: bool = False,
    name: str = "",
    typed: str = "",
    ledger_of: Sequence[str] = (),
    **delivery: Any,
) -> Resent:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    sink = as_sink(to)
    order = resend_order(log, batches, sink, name=name, again=again, why="on purpose", typed=typed, ledger_of=ledger_of)
    entry = find_unfinished(log, order)
    plan = (
        planned_resend(entry) if entry else plan_resend(log, batches, sink, name=name, again=again, ledger_of=ledger_of)
    )
    assert isinstance(sink, Sink)
    return resend(log, order, plan, sink, delivery=Delivery(sink, **delivery), take_over=TakeOver.IF_GONE)


def state_of(store: Store, name: str) -> dict[str, bytes]:
    """Every object of a sink, and its terms."""
    folders = (f"sinks/{name}", paths.terms(paths.committer_role(name)))
    return {f"{at}/{each}": store.read(f"{at}/{each}") for at in folders for each in store.list(at, recursive=True)}


# --- what is sent


def test_a_function_gets_the_batches_again_under_their_keys_and_no_other_sink_is_touched() -> None:
    first = Recorder()
    place = delivered(to=first)
    before = state_of(place.wal, "a")

    again = Recorder()
    done = replayed(place, again, [1, 2])

    assert again.keys == [chunk.key for chunk in first.chunks if chunk.batch_id in {1, 2}]
    assert (done.batches, done.rows_sent, done.rows_there, done.rejected) == (2, 16, 0, 0)
    assert (done.repair, done.name, done.earlier_batches) == (1, "replay-1", 0)
    assert state_of(place.wal, "a") == before
    assert list(Check(place.wal).run()) == []
    [entry] = read_journal(log_on(place.wal))
    assert (entry.state, entry.plan["rows"], entry.begun.arguments["batches"]) == ("done", 16, ["1-2"])
    assert paths.RETIRED in place.wal.list("sinks/replay-1")


def test_single_batches_and_ranges_are_told_in_few_words() -> None:
    place = delivered(6)
    replayed(place, Recorder(), [0, 2, 3, 5])

    assert read_journal(log_on(place.wal))[0].begun.arguments["batches"] == ["0", "2-3", "5"]


def test_a_live_query_goes_on_as_if_nothing_had_been() -> None:
    place = delivered()
    replayed(place, Recorder(), [1])

    later = Recorder()
    place.stream(place.open({"a": later}), 5)

    assert set(later.batches) == {4, 5}


def test_a_name_of_the_users_choice_and_twice_the_same_is_refused() -> None:
    place = delivered()

    assert replayed(place, Recorder(), [1], name="friday").name == "friday"
    for taken in ("friday", "a"):
        with pytest.raises(ConfigError, match=f"the name '{taken}' is taken"):
            replayed(place, Recorder(), [2], name=taken)
    with pytest.raises(ConfigError, match="not a valid sink name"):
        replayed(place, Recorder(), [2], name="a/b")


def test_an_idempotent_target_gets_the_same_keys() -> None:
    first, again = Recorder(), Recorder()
    place = delivered(to=idempotent(first))

    replayed(place, idempotent(again), [2])

    assert set(again.keys) == {chunk.key for chunk in first.chunks if chunk.batch_id == 2}


def test_a_target_that_can_tell_gets_only_the_chunks_that_it_lacks() -> None:
    known: dict[str, int] = {}
    place = delivered(to=Remembering(known))
    gone = [key for key in known if key.endswith("-0-2")][:4]
    for key in gone:
        del known[key]

    done = replayed(place, Remembering(known), [0, 1])

    assert set(known.values()) == {1}
    assert (done.rows_sent, done.rows_there) == (8, 8)


def test_an_answer_that_is_neither_yes_nor_no_ends_the_replay() -> None:
    place = delivered(to=Remembering())

    with pytest.raises(DeliveryError, match="returned a str: expected True or False"):
        replayed(place, Remembering(answer="no"), [0])


def test_a_wrapped_target_passes_its_calls_on() -> None:
    inner = Remembering({"known": 1})
    asked = Asked(inner, inner)

    assert asked.was_applied("known")
    assert asked.describe() == "Remembering"


# --- a transactional target


def test_a_ledger_that_has_the_batches_gets_nothing() -> None:
    target = Target()
    place = delivered(to=Forgetful(target))
    rows = target.rows

    done = replayed(place, Forgetful(target), [0, 1, 2, 3])

    assert target.rows == rows
    assert (done.rows_sent, done.rows_there) == (0, 32)


def test_a_new_transactional_target_gets_all_rows_once_however_often_it_is_replayed() -> None:
    place, target = delivered(to=Forgetful(Target())), Target()

    first = replayed(place, Forgetful(target), [1, 2])
    second = replayed(place, Forgetful(target), [0, 1, 2])

    assert (first.rows_sent, second.rows_sent, second.rows_there) == (16, 8, 16)
    assert target.rows == rows_of(ROWS, ROWS, ROWS)


def test_a_target_that_was_restored_to_an_older_state_gets_the_rest_once() -> None:
    target = Target()
    place = delivered(to=Forgetful(target))
    target.forget(7)

    done = replayed(place, Forgetful(target), [0, 1, 2, 3])

    assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)
    assert done.rows_sent + done.rows_there == 32
    assert done.rows_sent >= 7


def test_a_renewed_target_gets_rows_of_both_in_order_though_a_segment_was_there_in_part() -> None:
    """The position of the other sink lies in the middle of a segment."""
    target = Target()
    place = delivered(to=Forgetful(target))
    target.forget(1, slot=0)

    done = replayed(place, Forgetful(target), [3])

    assert (done.rows_sent, done.rows_there) == (1, 7)
    assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)


def test_rows_are_sent_although_they_are_there_if_somebody_says_so() -> None:
    target = Target()
    place = delivered(to=Forgetful(target))

    assert replayed(place, Forgetful(target), [3], again=True).rows_sent == 8
    assert len(target.rows) == 40


def test_a_later_position_of_a_sink_that_never_had_the_batch_proves_nothing() -> None:
    """It began behind the batch."""
    target = Target()
    place = delivered()
    run = place.open({"a": Recorder(), "late": Delivery(Forgetful(target), start_from="next")})
    place.stream(run, 5)
    end_roles(place.wal)

    assert replayed(place, Forgetful(target), [1]).rows_sent == 8


@pytest.mark.parametrize("known", [(2, 3), (2,), None], ids=["known", "in part", "unknown"])
def test_of_a_skipped_batch_the_rows_count_that_were_recorded(known: tuple[int, ...] | None) -> None:
    target = Target()
    place = delivered(to=Forgetful(target))
    log = log_on(place.wal)
    path = paths.marker("a", 1)
    marker = log.require(Marker, path)
    place.wal.delete([path])
    skipped = msgspec.structs.replace(marker, skipped=True, skipped_rows=known)
    place.wal.create(path, encode(skipped))
    held = {(1, 0, 0), (1, 0, 1)} | ({(1, 1, row) for row in range(3)} if known == (2, 3) else set())
    target.commits = [
        commit for commit in target.commits if not (commit.entry.position.batch_id == 1 and not set(commit.rows) & held)
    ]

    if known is None:
        with pytest.raises(ConfigError, match=r"skipped this batch.*give-up.*--again"):
            replayed(place, Forgetful(target), [1])
        return
    done = replayed(place, Forgetful(target), [1])
    assert done.rows_there == sum(known)
    assert len(set(target.rows)) == len(target.rows)
    assert target.rows == rows_of(ROWS, ROWS, ROWS, ROWS)


def test_rows_of_another_history_in_the_slot_do_not_count() -> None:
    target = Target()
    place = delivered(to=Forgetful(target))
    last = target.commits[-1]
    position = last.entry.position
    target.commits[-1] = replace(last, entry=replace(last.entry, position=replace(position, segment_id="other")))

    assert replayed(place, Forgetful(target), [3]).rows_sent >= 1


def test_a_target_that_gives_no_answer_ends_the_replay() -> None:
    class Silent(Forgetful):
        def positions(self, slots: Any) -> Any:
            raise PermanentError(f"no answer about {slots}")

    place = delivered(to=Forgetful(Target()))

    with pytest.raises(DeliveryError, match="no answer"):
        replayed(place, Silent(Target()), [1])


def test_a_batch_without_rows_and_one_that_spark_passed_over_are_only_marked() -> None:
    place = Place(rows=lambda batch: ROWS if batch else [])
    place.stream(place.open({"a": Forgetful(Target())}), 1)
    end_roles(place.wal)
    log = log_on(place.wal)
    name = next(name for name in place.wal.list(paths.batch(1)) if name.startswith("manifest"))
    path = f"{paths.batch(1)}/{name}"
    manifest = log.require(Manifest, path)
    place.wal.delete([path])
    place.wal.create(path, encode(msgspec.structs.replace(manifest, passed_over=True, segments=())))

    done = replayed(place, Forgetful(Target()), [0, 1])

    assert (done.batches, done.rows_sent) == (2, 0)


# --- other kinds, refused rows


def test_a_two_phase_target_gets_each_segment_as_a_whole() -> None:
    vault = Vault()
    place = delivered()

    replayed(place, VaultSink(vault), [1])

    assert len(vault.rows()) == 8
    assert vault.held == {}


def test_rows_that_are_refused_become_dead_letters_of_the_replay() -> None:
    place = delivered()

    done = replayed(place, lambda _: Rejected({0: "bad"}), [1], on_rejected="dead_letter")

    assert (done.rejected, done.rows_sent) == (5, 3)
    assert place.wal.list(paths.dead_letter_batches("replay-1")) != []


def test_a_failure_ends_it_and_the_same_command_goes_on() -> None:
    place = delivered()
    broken = True

    def take(chunk: Chunk) -> None:
        if broken and chunk.batch_id == 2:
            raise PermanentError("down")
        got.append(chunk.key)

    got: list[str] = []
    with pytest.raises(DeliveryError):
        replayed(place, take, [1, 2])
    assert read_journal(log_on(place.wal))[0].state == "unfinished"
    broken = False

    done = replayed(place, take, [1, 2])

    assert (done.earlier_batches, done.rows_sent) == (1, 8)
    assert len(set(got)) == len(got) == 10


def test_plan_tells_dead_letters_and_sinks_that_will_get_the_batches_by_themselves() -> None:
    place = Place(rows=lambda _: ROWS)
    run = place.open(
        {"a": Recorder(lambda _: Rejected({0: "bad"})), "b": Recorder(), "c": Recorder()}, on_rejected="dead_letter"
    )
    list(place.query().batches(run, 2))
    while run.deliver_next(run.committers[0]):
        pass
    while run.deliver_next(run.committers[2]):
        pass
    end_roles(place.wal)
    retire(log_on(place.wal), "c", drop_pending=0, take_over=TakeOver.IF_GONE)

    plan = plan_resend(log_on(place.wal), [0, 1], as_sink(Recorder()), name="", again=False)

    assert (plan.dead_letter_rows, plan.lacking) == (10, ("b",))
    assert (plan.rows, plan.batches) == (16, (0, 1))
    assert plan.bytes > 0


# --- refused


class Whole(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise NotImplementedError(str(batch))


def test_a_writer_of_whole_batches_is_refused() -> None:
    with pytest.raises(ConfigError, match="writes whole batches with Spark"):
        plan_resend(log_on(delivered().wal), [1], Whole(), name="", again=False)


def test_batches_that_are_not_released_or_were_deleted_are_refused() -> None:
    place = delivered()
    list(place.query().batches(place.open({}), 5))

    with pytest.raises(ConfigError, match=r"batch 4 of .* was not released"):
        replayed(place, Recorder(), [3, 4])
    log_on(place.wal).raise_low_water(1)
    with pytest.raises(
        ConfigError, match=r"batch 1 was deleted, since every sink had it\. The WAL holds batches from 2 on"
    ):
        replayed(place, Recorder(), [1, 2])
    assert read_journal(log_on(place.wal)) == []


def test_batches_whose_rows_were_not_kept_are_refused() -> None:
    place = delivered(to=Delivery(VaultSink(Vault()), keep_segments=False))

    with pytest.raises(ConfigError, match="the WAL did not keep its rows"):
        replayed(place, Recorder(), [1])


def test_two_replays_at_a_time_are_refused() -> None:
    place = delivered()
    log = log_on(place.wal)
    sink = as_sink(Recorder())
    order = resend_order(log, [1], sink, name="x", again=False, why="")
    begin(log, order, {})

    with pytest.raises(HeldError, match="is not finished"):
        replayed(place, Recorder(), [2])


# --- races


def once(path: str, act: Callable[[], object]) -> Callable[[str, str], None]:
    done: list[str] = []

    def hook(what: str, where: str) -> None:
        if (what, where) == ("before create", path) and not done:
            done.append(path)
            act()

    return hook


def test_batches_that_are_deleted_before_the_sink_is_registered_end_the_replay() -> None:
    place = delivered()

    def collect() -> None:
        log_on(place.wal).raise_low_water(1)
        folder = paths.batch(1)
        place.wal.delete(f"{folder}/{name}" for name in place.wal.list(folder, recursive=True))

    with pytest.raises(ConfigError, match="were deleted meanwhile"):
        replayed(place, Recorder(), [1, 2], log=log_on(place.wal, once(paths.sink("replay-1"), collect)))

    assert read_journal(log_on(place.wal))[0].state == "done"
    assert paths.RETIRED in place.wal.list("sinks/replay-1")


def test_a_sink_that_gets_the_name_first_keeps_it() -> None:
    place = delivered()

    def register() -> None:
        log = log_on(place.wal)
        log.create(paths.sink("x"), SinkRecord(name="x", sink_kind="plain", first_batch=0, identity="", **log.stamp()))

    with pytest.raises(HeldError, match="another sink was registered under the name 'x' meanwhile"):
        replayed(place, Recorder(), [1], name="x", log=log_on(place.wal, once(paths.sink("x"), register)))


def test_a_process_that_takes_the_replay_over_ends_this_one() -> None:
    place = delivered()
    role = paths.committer_role("replay-1")

    def take_over() -> None:
        claim(log_on(place.wal), role)
        log = log_on(place.wal)
        found = log.require(Marker, paths.marker("a", 1))
        log.create(paths.marker("replay-1", 1), msgspec.structs.replace(found, **log.stamp()))

    with pytest.raises(FencedError):
        replayed(place, Recorder(), [1, 2], log=log_on(place.wal, once(paths.marker("replay-1", 1), take_over)))


def test_a_lost_attempt_goes_on_under_the_next_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a task that was left behind, and with a target that knows a higher term."""

    terms: list[int] = []
    place = delivered()
    run = wal_sink.delivery.batch.BatchDelivery.run

    def renewing(self: Any, renew_term: Callable[[int], Any]) -> None:
        terms.append(renew_term(0).number)
        self.go_on_under(term := renew_term(terms[-1] + 5))
        terms.append(term.number)
        run(self, renew_term)

    monkeypatch.setattr(wal_sink.delivery.batch.BatchDelivery, "run", renewing)
    replayed(place, Recorder(), [1])

    assert terms[0] == 2
    assert terms[1] > 7


def test_while_it_is_unfinished_its_batches_stay_and_afterwards_they_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)
    place = delivered()
    down = [True]

    def take(_: Chunk) -> None:
        if down[0]:
            raise PermanentError("down")

    with pytest.raises(DeliveryError):
        replayed(place, take, [2])
    end_roles(place.wal)
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(2)), 12)
    end_roles(place.wal)
    assert log_on(place.wal).low_water() <= 1
    down[0] = False

    assert replayed(place, take, [2]).rows_sent == 8

    place.stream(place.open({"a": Recorder()}, settings=lower_retention(2)), 16)
    assert log_on(place.wal).low_water() == 14


# --- killed


@pytest.mark.parametrize("kind", ["plain", "idempotent", "transactional", "two-phase"])
def test_killed_at_any_request_the_same_command_completes_it_beside_a_live_query(kind: str) -> None:
    targets: dict[int, tuple[Target, Recorder, Vault]] = {}

    def make() -> Place:
        place = delivered(2)
        targets[id(place)] = (Target(), Recorder(), Vault())
        return place

    def sink(place: Place) -> object:
        target, recorder, vault = targets[id(place)]
        return {
            "plain": recorder,
            "idempotent": idempotent(recorder),
            "transactional": Forgetful(target),
            "two-phase": VaultSink(vault),
        }[kind]

    for place in killed_everywhere(
        make, lambda place: place.wal, lambda log, place: replayed(place, sink(place), [0, 1], log=log)
    ):
        target, recorder, vault = targets[id(place)]
        entries = read_journal(log_on(place.wal))
        assert [entry.state for entry in entries] in ([], ["unfinished"], ["done"])
        live = Recorder()
        place.stream(place.open({"a": live}), 4)
        assert live.batches.count(3) == live.batches.count(4) == 5
        end_roles(place.wal)
        if entries and entries[0].state == "done":
            continue
        replayed(place, sink(place), [0, 1])
        assert [entry.state for entry in read_journal(log_on(place.wal))] == ["done"]
        if kind == "transactional":
            assert target.rows == rows_of(ROWS, ROWS)
        elif kind == "two-phase":
            assert len(vault.rows()) == 16
            assert vault.held == {}
        else:
            assert len(set(recorder.keys)) == 10
            assert len(recorder.keys) <= 10 + 1 + (2 if kind == "idempotent" else 0)
