"""Dead letters that a person chooses: sent again or deleted; a row that was sent again never becomes due again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

import wal_sink.operate.letters
from tests.house.log import Log, TakeOver, claim, paths
from tests.house.operate import Check
from tests.house.sinks import Chunk, Rejected
from tests.support.repairs import end_roles, killed_everywhere, log_on, remade
from tests.support.small_run import Place, Recorder
from wal_sink import PermanentError
from wal_sink.errors import ConfigError, DeliveryError, FencedError, HeldError
from wal_sink.operate.letters import (
    Chosen,
    DeletePlan,
    delete_letters,
    older_than,
    plan_delete,
)
from wal_sink.operate.replay import DeadLetters, ReplayResult
from wal_sink.settings import Delivery
from wal_sink.testing import Crash

EVERY = Chosen()


def refuse(chunk: Chunk) -> Rejected:
    """Refuse the first row of each chunk, with the batch in the reason."""
    return Rejected({0: f"bad row of {chunk.batch_id}"})


def kept(through: int = 1, rows: int = 4) -> Place:
    """A WAL with two dead letters of one row for each batch."""
    place = Place(rows=lambda _: [rows])
    place.stream(place.open({"a": Recorder(refuse)}, on_rejected="dead_letter"), through)
    end_roles(place.wal)
    return place


def both_rows_refused() -> Place:
    """A WAL with one dead letter of two rows."""
    place = Place(rows=lambda _: [2])
    place.stream(place.open({"a": Recorder(lambda _: Rejected({0: "bad", 1: "bad"}))}, on_rejected="dead_letter"), 0)
    end_roles(place.wal)
    return place


def files(place: Place) -> list[str]:
    return place.wal.list(paths.dead_letter_batches("a"), recursive=True)


def deleted(place: Place, chosen: Chosen = EVERY, *, log: Log | None = None) -> DeletePlan:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    plan = plan_delete(log, "a", chosen)
    delete_letters(log, "a", plan, take_over=TakeOver.IF_GONE)
    return plan


def replayed(place: Place, to: object, chosen: Chosen = EVERY, *, log: Log | None = None) -> ReplayResult:
    log = log or log_on(place.wal)
    return DeadLetters(log, name="a").replay(to, only=chosen.holds, take_over=TakeOver.IF_GONE)


def due(place: Place) -> int:
    return sum(len(letter.own) for letter in DeadLetters(log_on(place.wal), name="a").due())


# --- choosing


def test_dead_letters_are_chosen_by_batch_reason_file_and_age() -> None:
    place = kept()
    found = list(DeadLetters(log_on(place.wal), name="a").all())
    file = found[3].letter.path.rpartition("/")[2]

    def chosen(condition: Chosen) -> list[int]:
        return [number for number, letter in enumerate(found) if condition.holds(letter)]

    assert chosen(EVERY) == [0, 1, 2, 3]
    assert chosen(Chosen(batch_id=1)) == [2, 3]
    assert chosen(Chosen(file=file)) == [1, 3]
    assert chosen(Chosen(batch_id=1, file=file)) == [3]
    assert chosen(Chosen(reason="row of 0")) == [0, 1]
    assert chosen(Chosen(before="2026-01-02T00:00:00.000+00:00")) == [0, 1, 2, 3]
    assert chosen(Chosen(before="2025-12-31T00:00:00.000+00:00")) == []
    assert EVERY.is_all
    assert not Chosen(reason="x").is_all


def test_an_age_is_a_moment_before_now() -> None:
    log = log_on(Place().wal)

    assert older_than(log, None) == ""
    assert older_than(log, timedelta(days=30).total_seconds()) == "2025-12-02T00:00:00.000+00:00"


# --- sending again


def test_chosen_ones_are_sent_again() -> None:
    place, got = kept(), Recorder()

    done = replayed(place, got, Chosen(batch_id=1))

    assert (done.letters, done.rows) == (2, 2)
    assert set(got.batches) == {1}
    assert due(place) == 2


# --- deleting


def test_chosen_ones_are_deleted_and_the_others_stay() -> None:
    place = kept()

    plan = deleted(place, Chosen(reason="row of 0"))

    assert (plan.letters, plan.rows, plan.undelivered, plan.shared, plan.more) == (2, 2, 0, 0, False)
    assert {name.partition("/")[0] for name in files(place)} == {paths.batch_name(1)}
    deleted(place)
    assert files(place) == []


def test_letters_that_were_refused_again_go_together_with_the_records() -> None:
    place = kept(0)
    replayed(place, refuse)
    assert len(files(place)) == 6

    plan = deleted(place)

    assert (plan.letters, plan.rows) == (2, 2)
    assert files(place) == []
    assert Check(place.wal).run() == []


def test_rows_of_a_chunk_whose_other_rows_are_not_chosen_stay() -> None:
    """The second row of a chunk was refused again for another reason: both letters have rows of it."""
    place = both_rows_refused()
    replayed(place, lambda _: Rejected({1: "worse"}))

    plan = deleted(place, Chosen(reason="worse"))

    assert (plan.letters, plan.shared) == (0, 1)
    assert len(files(place)) == 3


def test_letters_of_a_batch_that_the_sink_does_not_have_yet_stay() -> None:
    """A committer still reads them: without them it would send the chunk again."""
    place = Place(rows=lambda _: [4])

    def once(chunk: Chunk) -> Rejected:
        if chunk.start:
            raise PermanentError("down")
        return refuse(chunk)

    run = place.open({"a": Recorder(once)}, on_rejected="dead_letter")
    list(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    end_roles(place.wal)

    plan = deleted(place)

    assert (plan.letters, plan.undelivered) == (0, 1)
    assert len(files(place)) == 1


def test_no_more_than_memory_holds_are_deleted_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.operate.letters, "MOST_CHUNKS", 3)
    place = kept()

    assert deleted(place).more
    assert len(files(place)) == 1
    assert not deleted(place).more
    assert files(place) == []


def test_a_sink_that_does_not_exist_has_none() -> None:
    with pytest.raises(ConfigError, match="has no sink 'x'; it has 'a'"):
        plan_delete(log_on(kept().wal), "x", EVERY)


def test_nothing_is_deleted_while_a_replay_runs() -> None:
    place = kept()
    claim(log_on(place.wal), paths.replayer_role("a"))

    with pytest.raises(HeldError, match="is running on this machine"):
        deleted(place)

    assert len(files(place)) == 4


def test_a_replay_that_begins_meanwhile_ends_the_deletion() -> None:
    place = kept()
    begun: list[str] = []

    def rival(what: str, where: str) -> None:
        if what == "after delete" and not begun:
            begun.append(where)
            claim(log_on(place.wal), paths.replayer_role("a"))

    with pytest.raises(FencedError):
        deleted(place, log=log_on(place.wal, rival))
    end_roles(place.wal)

    assert deleted(place).letters == 3
    assert files(place) == []


def texts(place: Place) -> list[str]:
    return [reason for kept in DeadLetters(log_on(place.wal), name="a").all() for reason in kept.reasons]


def test_a_letter_that_came_after_the_plan_stays_with_its_chunk() -> None:
    """While a person reads the question, a replay is refused for another reason."""
    place = kept(0)
    plan = plan_delete(log_on(place.wal), "a", Chosen(reason="bad row"))
    replayed(place, lambda chunk: Rejected({0: "new"}) if chunk.rows[0] == 0 else None)
    before = [name for name in files(place) if "000000000000-000000000002" in name]

    done = delete_letters(log_on(place.wal), "a", plan, take_over=TakeOver.IF_GONE)

    assert files(place) == before
    assert texts(place) == ["new"]
    assert (done.files, done.stayed) == (2, 2)


def test_a_letter_that_came_meanwhile_under_an_old_name_stays() -> None:
    """While a person reads the question, another command deletes the letters, and a replay is refused again."""
    place = both_rows_refused()
    replayed(place, lambda _: Rejected({0: "again", 1: "again"}))
    end_roles(place.wal)
    [newest] = [name for name in files(place) if "-000001.parquet" in name]
    plan = plan_delete(log_on(place.wal), "a", EVERY)
    folder = paths.dead_letter_batches("a")
    place.wal.delete([f"{folder}/{newest}", *(f"{folder}/{name}" for name in files(place) if "replayed" in name)])
    replayed(place, lambda _: Rejected({0: "new", 1: "new"}))
    end_roles(place.wal)

    done = delete_letters(log_on(place.wal), "a", plan, take_over=TakeOver.IF_GONE)

    assert (done.files, done.stayed) == (0, 2)
    assert texts(place) == ["new", "new"]


def test_a_letter_that_vanishes_while_it_is_deleted_is_gone() -> None:
    place = kept(0)
    plan = plan_delete(log_on(place.wal), "a", EVERY)

    def vanish(what: str, where: str) -> None:
        if what == "before read" and where.endswith(".parquet"):
            place.wal.delete([where])

    delete_letters(log_on(place.wal, vanish), "a", plan, take_over=TakeOver.IF_GONE)

    assert files(place) == []


def without_records() -> Place:
    return kept(0)


def sent_and_refused_again() -> Place:
    """One row was taken by a replay, one was refused again."""
    place = both_rows_refused()
    replayed(place, lambda _: Rejected({1: "worse"}))
    replayed(place, Recorder())
    end_roles(place.wal)
    return place


@pytest.mark.parametrize("make", [without_records, sent_and_refused_again])
def test_a_deletion_that_is_killed_anywhere_is_completed_and_makes_no_row_due_again(make: Callable[[], Place]) -> None:
    before = due(make())
    for place in killed_everywhere(remade(make), lambda place: place.wal, lambda log, place: deleted(place, log=log)):
        assert due(place) <= before
        live = Recorder()
        place.stream(place.open({"a": live}), 1)
        assert set(live.batches) == {1}
        end_roles(place.wal)
        deleted(place)
        assert files(place) == []


def unknown_then_refused_again() -> Place:
    """A chunk of unknown outcome. The target refused row 0 of its replay, which was killed before that was recorded."""
    place = Place(rows=lambda _: [2])

    def fail(_: Chunk) -> None:
        raise ConnectionError("broken")

    run = place.open({"a": Delivery(Recorder(fail), guarantee="at_most_once", on_rejected="dead_letter")})
    list(place.query().batches(run, 1))
    with suppress(DeliveryError):
        run.deliver_all()
    place.open({"a": Delivery(Recorder(), guarantee="at_most_once")}).deliver_all()
    end_roles(place.wal)

    def die(what: str, where: str) -> None:
        if what == "before create" and where.endswith(paths.REPLAYED):
            raise Crash

    with pytest.raises(Crash):
        DeadLetters(log_on(place.wal, die), name="a").replay(
            lambda _: Rejected({0: "bad"}), unknown=True, take_over="always"
        )
    end_roles(place.wal)
    return place


def test_a_deletion_that_is_killed_sends_no_row_of_unknown_outcome_again() -> None:
    for place in killed_everywhere(
        remade(unknown_then_refused_again), lambda place: place.wal, lambda log, place: deleted(place, log=log)
    ):
        sent = Recorder()
        DeadLetters(log_on(place.wal), name="a").replay(sent, unknown=True, take_over="always")
        assert 1 not in [row for chunk in sent.chunks for row in chunk.rows]  # the first replay brought it
