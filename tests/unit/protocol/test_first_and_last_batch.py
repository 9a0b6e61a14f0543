"""A new sink that begins with a batch which a person names, and one that ends with a batch and then retires itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.house.log import RetiredRecord, SinkRecord, TakeOver, paths
from tests.house.operate import Check, retire
from tests.house.sinks import Chunk
from tests.support.forgetting import Forgetful, Target, rows_of
from tests.support.repairs import end_roles, log_on, remade
from tests.support.small_run import Place, Recorder, before_create
from tests.support.vault import Vault, VaultSink
from wal_sink import PermanentError, idempotent
from wal_sink.errors import ConfigError, DeliveryError
from wal_sink.settings import Delivery
from wal_sink.testing import Crash, FaultyStore

ROWS = [5, 3]


def delivered(through: int = 5) -> Place:
    """A WAL of which the sink `a` has every batch."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), through)
    end_roles(place.wal)
    return place


def collected(place: Place, through: int) -> None:
    log_on(place.wal).raise_low_water(through)
    for batch_id in range(through + 1):
        folder = paths.batch(batch_id)
        place.wal.delete([f"{folder}/{name}" for name in place.wal.list(folder, recursive=True)])


def drained(place: Place, to: object, **delivery: Any) -> None:
    run = place.open({"b": to}, stages=False, **delivery)
    run.deliver_all()
    run.end()


def retired(place: Place) -> int | None:
    """The last batch of the sink `b`; None if it is not retired."""
    record = log_on(place.wal).find(RetiredRecord, paths.retired("b"))
    return None if record is None else record.through


# --- the first batch


@pytest.mark.parametrize("first", [0, 2, 5, 6])
def test_a_new_sink_begins_with_the_batch_that_a_person_names(first: int) -> None:
    place, got = delivered(), Recorder()

    drained(place, got, start_from=first, where="driver", same_target=True)
    place.stream(place.open({"a": Recorder(), "b": got}), 6)

    assert sorted(set(got.batches)) == list(range(first, 7))
    assert Check(place.wal).run() == []


@pytest.mark.parametrize("first", [0, 2])
def test_a_batch_that_was_deleted_is_refused_by_what_is_there(first: int) -> None:
    place, got = delivered(), Recorder()
    collected(place, 2)

    with pytest.raises(ConfigError, match=rf"start_from={first}: sink 'b' of .*with batch {first}.*batches 3 to 5"):
        drained(place, got, start_from=first)

    assert got.chunks == []
    assert place.wal.list("sinks/b") == []
    drained(place, got, start_from=3, same_target=True)
    assert set(got.batches) == {3, 4, 5}


@pytest.mark.parametrize("first", [7, 100])
def test_a_batch_that_is_not_next_is_refused(first: int) -> None:
    with pytest.raises(ConfigError, match=rf"cannot begin with batch {first}. The WAL holds batches 0 to 5"):
        drained(delivered(), Recorder(), start_from=first)


def test_in_a_wal_without_any_batch_only_the_first_one_can_be_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot begin with batch 1\. The WAL holds no batch yet"):
        Place().open({"b": Recorder()}, start_from=1)
    place, got = Place(), Recorder()
    place.stream(place.open({"b": got}, start_from=0), 1)
    assert got.batches == [0, 1]


def test_a_batch_that_is_deleted_while_the_sink_is_registered_is_refused_at_every_start() -> None:
    """A collection that did not see the sink. Another way to begin would have passed over the batch."""
    place, got = delivered(), Recorder()
    before_create(place.wal, paths.sink("b"), lambda: collected(place, 2))
    for delivery in ({"start_from": 2, "same_target": True}, {"start_from": "next"}):
        with pytest.raises(ConfigError, match=r"to begin with batch 2.*batches through 2.*sinks retire WAL b"):
            drained(place, got, **delivery)
        end_roles(place.wal)

    assert got.chunks == []
    retire(log_on(place.wal), "b", drop_pending=9, take_over=TakeOver.IF_GONE)


# --- the same target


def test_the_target_of_another_sink_asks_first_and_a_retired_one_counts() -> None:
    place, target = Place(rows=lambda _: ROWS), Target()
    place.stream(place.open({"a": Forgetful(target), "c": Recorder()}), 3)
    end_roles(place.wal)
    rows = target.rows

    for name in ("", "a"):
        if name:
            retire(log_on(place.wal), name, drop_pending=0, take_over=TakeOver.IF_GONE)
        with pytest.raises(ConfigError, match=r"sink 'a' of .* has the same target, Forgetful.*same_target=True"):
            drained(place, Forgetful(target), start_from=2)
    assert target.rows == rows
    assert place.wal.list("sinks/b") == []

    drained(place, Forgetful(target), start_from=2, same_target=True)
    assert sorted(target.rows) == sorted([*rows_of(*[ROWS] * 4), *(row for row in rows_of(*[ROWS] * 4) if row[0] > 1)])


# --- the last batch


@pytest.mark.parametrize("make", [lambda got: got, idempotent, lambda _: Forgetful(Target())])
def test_a_sink_with_a_last_batch_gets_no_later_one_and_retires(make: Callable[[Recorder], object]) -> None:
    place, got = delivered(), Recorder()
    to = make(got)

    drained(place, to, start_from=1, through=3, same_target=True)

    assert retired(place) == 3
    assert max(log_on(place.wal).numbers(paths.markers("b"))) == 3
    assert {chunk.batch_id for chunk in got.chunks} in ({1, 2, 3}, set())
    assert Check(place.wal).run() == []
    with pytest.raises(ConfigError, match="was retired"):
        drained(place, to, through=3)


def test_a_sink_with_a_last_batch_goes_on_until_then_and_its_registration_counts() -> None:
    place, got = delivered(2), Recorder()
    drained(place, got, start_from=1, through=4, same_target=True)
    assert (set(got.batches), retired(place)) == ({1, 2}, None)
    place.stream(place.open({"a": Recorder()}), 6)
    end_roles(place.wal)

    with pytest.raises(ConfigError, match=r"through=5: sink 'b' of .* to end with batch 4"):
        drained(place, got, through=5)
    drained(place, got)

    assert (set(got.batches), retired(place)) == ({1, 2, 3, 4}, 4)


def test_a_known_sink_gets_no_last_batch() -> None:
    place = delivered()
    with pytest.raises(ConfigError, match=r"through=9: sink 'a' of .* was registered without a last batch"):
        place.open({"a": Recorder()}, stages=False, through=9)


def test_a_two_phase_sink_and_a_query_are_refused() -> None:
    place = delivered()
    with pytest.raises(ConfigError, match="'b' is a two-phase sink"):
        drained(place, VaultSink(Vault()), start_from="earliest", through=3)
    with pytest.raises(ConfigError, match=r"sink 'b' ends with a batch.*wal-sink drain"):
        place.open({"b": Recorder()}, start_from="earliest", through=3)
    with pytest.raises(ConfigError, match=r"sink 'b' ends with a batch"):  # by its registration
        place.open({"b": Recorder()})
    with pytest.raises(ConfigError, match="holds no batch yet, so its first batch is not known"):
        Place().open({"b": Recorder()}, stages=False, through=3)


def test_a_batch_that_fails_leaves_it_unretired() -> None:
    def poison(chunk: Chunk) -> None:
        if chunk.batch_id == 3:
            raise PermanentError("no")

    place = delivered()
    with pytest.raises(DeliveryError):
        drained(place, Recorder(poison), start_from=1, through=3, same_target=True)
    assert retired(place) is None


# --- killed


@pytest.mark.parametrize("served", [True, False])
def test_the_next_start_completes_a_sink_with_a_last_batch_that_was_killed_anywhere(served: bool) -> None:
    """A process that serves another sink retires it, too."""
    make = remade(delivered)
    points: list[str] = []

    def life(place: Place, hook: Callable[[str, str], None], target: Target) -> None:
        store, place.wal = place.wal, FaultyStore(place.wal, hook)  # type: ignore[assignment]
        try:
            drained(place, Forgetful(target), start_from=1, through=3)
        finally:
            place.wal = store
            end_roles(place.wal)

    life(make(), lambda what, where: points.append(f"{what} {where}"), Target())
    between = 0
    for number in range(len(points)):
        place, target, left = make(), Target(), iter(range(number + 1))

        def die(_what: str, _where: str, left: Any = left, number: int = number) -> None:
            if next(left, number) == number:
                raise Crash

        with suppress(Crash):
            life(place, die, target)
        marked = max(log_on(place.wal).numbers(paths.markers("b")), default=-1)
        between += marked == 3 and retired(place) is None
        if not served and marked == 3:
            place.open({"a": Recorder()}).end()
        elif retired(place) is None:
            drained(place, Forgetful(target), start_from=1, through=3)
        assert retired(place) == 3
        assert target.rows == [row for row in rows_of(*[ROWS] * 4) if row[0] > 0] or not served
    assert between > 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"start_from": -1}, "start_from=-1: expected 'earliest', 'next' or the number of a batch, from 0 on"),
        ({"start_from": True}, "start_from=True: expected"),
        ({"start_from": 1.5}, "start_from=1.5: expected"),
        ({"through": "9"}, "through='9': expected the number of a batch"),
        ({"start_from": 3, "through": 2}, "through=2: expected at least start_from=3"),
        ({"same_target": "yes"}, "same_target='yes': expected True or False"),
    ],
)
def test_values_that_are_no_batch_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Delivery(Recorder(), **given)


# --- several sinks, and a sink that is known


def test_two_new_sinks_of_one_target_in_one_run_ask() -> None:
    place, got = delivered(), Recorder()
    to = Delivery(got, start_from=2, where="driver")

    with pytest.raises(ConfigError, match=r"sink 'c' of .* has the same target"):
        place.open({"b": to, "c": to}, stages=False)

    assert got.chunks == []


def test_a_last_batch_before_the_first_is_refused_and_leaves_the_name_free() -> None:
    place = delivered()

    with pytest.raises(ConfigError, match=r"through=3: sink 'b' .* would begin with batch 6, and get none"):
        drained(place, Recorder(), start_from="next", through=3, where="driver")

    assert log_on(place.wal).find(SinkRecord, paths.sink("b")) is None


def test_a_known_sink_begins_with_no_other_batch() -> None:
    place, got = delivered(), Recorder()
    drained(place, got, start_from=5, where="driver", same_target=True)

    with pytest.raises(ConfigError, match=r"start_from=2: sink 'b' .* to begin with batch 5"):
        drained(place, got, start_from=2, where="driver", same_target=True)

    drained(place, got, start_from=5, where="driver", same_target=True)
    assert set(got.batches) == {5}


# --- another process at the same time


@pytest.mark.parametrize(
    ("to", "other", "said"),
    [
        (Recorder(), {"start_from": 5}, "to begin with batch 5"),
        (Recorder(), {"start_from": 2, "through": 3}, "to end with batch 3"),
        (idempotent(Recorder()), {"start_from": 2}, "The two kinds of sink"),
    ],
)
def test_a_registration_by_a_faster_process_counts_and_another_one_is_refused(
    to: object, other: dict[str, Any], said: str
) -> None:
    place, got = delivered(), Recorder()
    theirs = Recorder() if to is not None and not isinstance(to, Recorder) else to
    before_create(place.wal, paths.sink("b"), lambda: drained(place, theirs, same_target=True, where="driver", **other))

    mine = {"start_from": 2, "through": 5 if "through" in other else None}
    with pytest.raises(ConfigError, match=said):
        drained(place, idempotent(got) if to is not theirs else got, same_target=True, where="driver", **mine)

    assert got.chunks == []


def test_the_target_of_another_sink_is_a_warning_from_the_earliest_batch_on(caplog: pytest.LogCaptureFixture) -> None:
    drained(delivered(), Recorder(), start_from="earliest", where="driver")

    assert "start_from=earliest: sink 'a' of" in caplog.text
    assert "has the same target" in caplog.text


def test_next_is_a_batch_that_was_staged_and_not_complete_when_the_sink_was_registered() -> None:
    place, new = Place(), Recorder()
    run = place.open({"old": Recorder()})
    place.stream(run, 1)
    query = place.query()
    query.start_batch(2, 2)
    query.stage(run, 2)

    drain = place.open({"new": Delivery(new, start_from="next")}, stages=False)
    query.complete_batch(2)
    drain.deliver_all()

    assert new.batches == [2]
