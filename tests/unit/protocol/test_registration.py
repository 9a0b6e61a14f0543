"""Registering sinks: who comes first decides, whatever happens at the same moment."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.house.log import MARGIN, SinkRecord, decode, encode, paths
from tests.house.sinks import Chunk, Position, Sink, TransactionalSink
from tests.support.logged import said_here
from tests.support.small_run import Place, Recorder, before_create
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.protocol.registration import Registration, _refuse_unfit, described_elsewhere
from wal_sink.settings import Delivery
from wal_sink.sinks.guarantees import Ability

OTHER = SinkRecord(name="a", sink_kind="plain", first_batch=7, identity="other", id="x", created="now")


def record_of(place: Place, name: str) -> SinkRecord:
    return decode(SinkRecord, place.wal.read(paths.sink(name)), name)


def test_the_registration_says_what_the_sink_is_and_where_it_begins() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 2)

    place.open({"a": Recorder(), "b": Delivery(Recorder(), start_from="next", guarantee="at_most_once")})

    first, second = record_of(place, "a"), record_of(place, "b")
    assert (first.name, first.sink_kind, first.at_most_once, first.first_batch) == ("a", "plain", False, 0)
    assert (second.name, second.sink_kind, second.at_most_once, second.first_batch) == ("b", "plain", True, 3)


def test_of_two_who_register_a_name_at_once_both_go_by_the_one_that_is_there() -> None:
    place, sink = Place(), Recorder()
    before_create(place.wal, paths.sink("a"), lambda: place.wal.create(paths.sink("a"), encode(OTHER)))

    run = place.open({"a": sink})
    place.stream(run, 8)

    assert record_of(place, "a") == OTHER
    assert run.committers[0].term.number == 1 + MARGIN, "the other may have claimed terms"
    assert sink.batches == [7, 8]


def test_a_registration_that_vanishes_is_an_error() -> None:
    place = Place()
    before_create(place.wal, paths.sink("a"), lambda: place.wal.create(paths.sink("a"), encode(OTHER)))
    read = place.wal.read

    def deleted_after_the_first_look(path: str) -> bytes:
        data = read(path)
        if path == paths.sink("a"):
            place.wal.delete([path])
        return data

    place.wal.read = deleted_after_the_first_look  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"sinks/a/sink\.json disappeared while it was read"):
        place.open({"a": Recorder()})


def test_a_name_that_cannot_stand_in_a_path_registers_nothing() -> None:
    place = Place()

    with pytest.raises(ConfigError, match="is not a valid sink name"):
        place.open({"a": Recorder(), "b/c": Recorder()})

    assert place.wal.list(paths.SINKS) == []


class Looking(Sink):
    """Says which keys it has."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def write(self, chunk: Chunk) -> None:
        self.keys.append(chunk.key)

    def was_applied(self, key: str) -> bool:
        return key in self.keys


class Knowing(Looking):
    """Ignores keys it has."""

    idempotent = True


ALIKE = [(before, now) for before in (Recorder, Looking) for now in (Recorder, Looking, Knowing)]


@pytest.mark.parametrize(("before", "now"), [*ALIKE, (Knowing, Knowing)])
def test_kinds_that_keep_their_progress_alike_may_follow_each_other(
    before: Callable[[], Recorder | Looking], now: Callable[[], Recorder | Looking]
) -> None:
    place, later = Place(), now()
    place.stream(place.open({"a": before()}), 0)

    place.stream(place.open({"a": later}), 1)

    assert len(later.keys) == 1


@pytest.mark.parametrize("now", [Recorder, Looking])
def test_a_name_that_began_idempotent_is_given_to_no_other_kind(now: Callable[[], Recorder | Looking]) -> None:
    place = Place()
    place.stream(place.open({"a": Knowing()}), 0)

    with pytest.raises(ConfigError, match=r"known as “idempotent” .* but was given as “(plain|lookup)” "):
        place.open({"a": now()})


def test_a_sink_that_was_or_becomes_at_most_once_is_refused_with_another_guarantee() -> None:
    at_most_once = Delivery(Recorder(), guarantee="at_most_once")
    for before, now, told in (
        (at_most_once, Recorder(), "known as “plain, at most once” .* given as “plain” "),
        (Recorder(), at_most_once, "known as “plain” .* given as “plain, at most once” "),
    ):
        place = Place()
        place.stream(place.open({"a": before}), 0)

        with pytest.raises(ConfigError, match=told):
            place.open({"a": now})


def test_the_earliest_batch_is_the_one_above_low_water(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 3)
    run.log.raise_low_water(1)

    place.open({"b": Delivery(Recorder(), start_from="earliest")})

    assert record_of(place, "b").first_batch == 2
    told = f"sink b of {place.wal.root} begins with batch 2: batches 0 to 1 were delivered to other sinks and deleted"
    assert f"{told} here" in said_here(caplog)


def begins_late() -> Place:
    """A WAL whose first batch is 3, with batches through 5."""
    place = Place()
    list(place.query().batches(place.open({}), 3))
    place.wal.delete(place.wal.list("", recursive=True))
    place.stream(place.open({"a": Recorder()}), 5)
    return place


@pytest.mark.parametrize(("low_water", "told"), [(None, []), (2, []), (3, ["batches 3 to 3 were"])])
def test_batches_before_the_first_of_a_wal_were_not_deleted(
    low_water: int | None, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    place = begins_late()
    run = place.open({"a": Recorder()})
    if low_water is not None:
        run.log.raise_low_water(low_water)
    caplog.clear()

    place.open({"a": Recorder(), "b": Delivery(Recorder(), start_from="earliest", same_target=True)})

    assert [part for part in told if part in caplog.text] == told
    assert ("delivered to other sinks" in caplog.text) is bool(told)


def test_a_batch_before_the_first_of_a_wal_is_no_first_one() -> None:
    with pytest.raises(ConfigError, match=r"start_from=2: sink 'b' .* The WAL holds batches 3 to 5; earlier"):
        begins_late().open({"a": Recorder(), "b": Delivery(Recorder(), start_from=2)})


def test_a_new_sink_may_get_one_batch_only() -> None:
    place = begins_late()

    place.open({"b": Delivery(Recorder(), start_from=4, through=4, same_target=True)}, stages=False)

    record = record_of(place, "b")
    assert (record.first_batch, record.through, record.is_exact) == (4, 4, True)


def test_the_sink_of_a_catch_up_is_served_by_no_run() -> None:
    place = Place()
    place.wal.create(paths.sink("a"), encode(msgspec.structs.replace(OTHER, is_holder=True)))

    with pytest.raises(ConfigError, match=rf"^sink 'a' of {place.wal.root} belongs to a catch-up \(other\)"):
        place.open({"a": Recorder()})


class Table(TransactionalSink):
    """A table of a database with one ledger."""

    def __init__(self, host: str, name: str) -> None:
        self.host, self.target_name = host, name

    def describe(self) -> str:
        return f"Table({self.host!r}, {self.target_name!r}, key='other')"

    def last(self, slot: str) -> Position | None: ...

    def write(self, chunk: Chunk) -> None: ...


def test_a_known_sink_is_given_its_own_table_again(caplog: pytest.LogCaptureFixture) -> None:
    """The ledger of a database knows positions and no tables, so the rest of the rows went to the other table."""
    place = Place()
    place.open({"a": Table("db", "orders")})

    place.open({"a": Table("db.example", "orders")})
    assert "was registered for" not in caplog.text

    with pytest.raises(ConfigError, match=r"registered for Table\('db', 'orders', .*\), .* same_target=True"):
        place.open({"a": Table("db", "other")})
    place.open({"a": Delivery(Table("db", "other"), same_target=True)})
    assert "but its target is now Table('db', 'other', key='other')" in caplog.text


def test_another_table_of_a_sink_that_names_none_is_only_told(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.open({"a": Table("one", "")})

    place.open({"a": Table("one", "")})
    assert said_here(caplog) == []
    place.open({"a": Table("two", "")})

    assert "sink 'a' of " in caplog.text
    assert "was registered for Table('one', '', key='other')" in caplog.text


def test_a_target_without_the_attribute_for_its_name_is_one_that_names_none(caplog: pytest.LogCaptureFixture) -> None:
    place, before = Place(), msgspec.structs.replace(OTHER, sink_kind="transactional", identity="Old('', 'None')")
    log = place.open({}).log
    now = Registration("a", Delivery(Recorder()), Ability.TRANSACTIONAL, at_most_once=False, identity="New('', 'None')")

    said = described_elsewhere(before, now.identity, now.delivery.to)
    _refuse_unfit(log, before, now)

    assert (
        said == "was registered for Old('', 'None'), which has its earlier rows, but its target is now New('', 'None')"
    )
    assert said in caplog.text
