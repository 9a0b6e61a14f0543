"""The last error of a committer, where `wal-sink status` finds it: one object while it lasts, none without one."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.house.log import ErrorRecord, Log, claim, paths
from tests.house.operate import WalFacts, read_commit, read_health, read_status
from tests.house.protocol import Run
from tests.house.support import Runtime, StoppedError
from tests.support.small_run import Place, Recorder
from wal_sink import Chunk, Delivery, PermanentError, Retry
from wal_sink.errors import (
    CorruptError,
    DeliveryError,
    FencedError,
    OutcomeUnknownError,
    StoreError,
    WalSinkError,
)
from wal_sink.operate.health import SinkError
from wal_sink.protocol.retry import LONGEST_TEXT, LastError
from wal_sink.testing import Crash, FaultyStore, simulated_runtime

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def failing(*errors: Exception | None) -> Callable[[Chunk], None]:
    """A reason to fail for each call, the last one for all later ones; None: the call succeeds."""
    following = itertools.chain(errors, itertools.repeat(errors[-1]))

    def fail(_chunk: Chunk) -> None:
        if (error := next(following)) is not None:
            raise error

    return fail


def stopped(*errors: Exception | None, attempts: int = 4, **delivery: Any) -> Place:
    """A WAL of one batch, whose delivery failed in this way until all rows were sent, or until it gave up."""
    place = Place()
    run = place.open({"a": Delivery(Recorder(failing(*errors)), retry=Retry(attempts=attempts), **delivery)})
    for _ in place.query().batches(run, 1):
        with contextlib.suppress(WalSinkError, AssertionError):
            run.deliver_all()
    return place


def records(place: Place, name: str = "a") -> list[ErrorRecord]:
    log = Log(place.wal, simulated_runtime(), "")
    found = [log.find(ErrorRecord, paths.error(name, number)) for number in log.numbers(paths.errors(name))]
    return [record for record in found if record is not None]


def created(place: Place) -> list[str]:
    return [each for each in place.requests if f"/{paths.ERRORS}" in each]


def last_error(place: Place) -> SinkError | None:
    status = read_status(place.wal)
    (sink,) = read_health(WalFacts(place.wal), read_commit(place.checkpoint, status.query_id), now=NOW).sinks
    return sink.last_error


@pytest.mark.parametrize(
    "errors", [[None], [OSError("no route"), None]], ids=["no failure", "one that a retry repairs"]
)
def test_a_run_that_needs_one_retry_at_most_records_and_looks_for_nothing(errors: list[Exception | None]) -> None:
    place = stopped(*errors)
    assert created(place) == []
    assert last_error(place) is None


def test_an_error_is_one_object_however_often_it_is_repeated_and_one_more_when_it_ends_the_delivery() -> None:
    place = stopped(OSError("no route"), attempts=20)
    assert created(place) == [
        "list sinks/a/errors",
        "create sinks/a/errors/0000000001.json",
        "create sinks/a/errors/0000000002.json",
        "delete sinks/a/errors/0000000001.json",
    ]
    (record,) = records(place)
    assert (record.batch_id, record.attempts, record.error_class, record.term) == (0, 20, "DeliveryError", 1)
    assert "delivery stopped after 20 attempts" in record.text
    assert "no route" in record.text
    assert record.since < record.created


def test_an_error_that_differs_only_in_numbers_and_ids_is_the_same() -> None:
    place = stopped(
        *(OSError(f"port {port}, request 5f3a{port}aa77bb at 12:00:{port}") for port in range(10, 19)),
        None,
        attempts=20,
    )
    (record,) = records(place)
    assert len([each for each in created(place) if each.startswith("create")]) == 1
    assert (record.error_class, record.attempts) == ("retriable", 2)


def test_another_error_of_the_same_batch_takes_its_place() -> None:
    place = stopped(OSError("first"), OSError("first"), OSError("then"), None)
    (record,) = records(place)
    assert "then" in record.text
    assert record.number == 2


def test_the_error_of_a_delivered_batch_is_over() -> None:
    error = last_error(stopped(OSError("no route"), OSError("no route"), None))
    assert error is not None
    assert (error.batch_id, error.is_over) == (0, True)


def test_an_error_that_stops_the_sink_is_not_over_and_tells_its_age() -> None:
    error = last_error(stopped(PermanentError("no such table")))
    assert error is not None
    assert (error.error_class, error.batch_id, error.attempts, error.is_over) == ("DeliveryError", 0, 1, False)
    assert "no such table" in error.text
    assert error.age_s == 12 * 3600.0


def test_a_later_process_deletes_the_error_of_an_earlier_one() -> None:
    place = stopped(PermanentError("no such table"))
    run = place.open({"a": Recorder(failing(PermanentError("no such column")))})
    run.gate.search()
    with pytest.raises(DeliveryError):
        run.deliver_all()
    (record,) = records(place)
    assert "no such column" in record.text
    assert (record.number, record.term) == (2, 2)


def test_an_error_holds_no_secret_and_is_bounded() -> None:
    place = stopped(PermanentError(f"postgresql://me:hush-hush-0123@host/db refused {'a word ' * 1000}"))
    (record,) = records(place)
    assert "hush-hush" not in record.text
    assert len(record.text) == LONGEST_TEXT
    assert record.text.endswith("…")


def test_a_text_of_any_length_costs_as_much_as_its_head() -> None:
    place = Place()
    error = OSError("row failed: http://host:9000/a/b?sig=hush-hush-0123, " * 400_000)
    began_s = time.process_time()
    LastError(Log(place.wal, simulated_runtime(), "r"), "a").gave_up(error, batch_id=0, term=1)
    assert time.process_time() - began_s < 1.0
    (record,) = records(place)
    assert len(record.text) == LONGEST_TEXT
    assert "hush-hush" not in record.text


@pytest.mark.parametrize("what", ["before list", "before create", "before delete"])
def test_an_error_that_cannot_be_recorded_harms_no_delivery(what: str, caplog: pytest.LogCaptureFixture) -> None:
    place = stopped(PermanentError("the first one"))
    sink = Recorder(failing(OSError("no route"), OSError("no route"), None))

    def deny(operation: str, path: str) -> None:
        if operation == what and f"/{paths.ERRORS}" in path:
            raise StoreError("403")

    run = place_open(place, {"a": sink}, deny)
    run.gate.search()
    run.deliver_all()
    assert sink.batches == [0]
    assert "its last error was not recorded" in caplog.text


def place_open(place: Place, sinks: dict[str, object], hook: Callable[[str, str], None]) -> Run:
    usual, place.wal = place.wal, FaultyStore(place.wal, hook)  # type: ignore[assignment]
    run = place.open(sinks)
    place.wal = usual
    return run


@pytest.mark.parametrize("point", ["before create", "after create", "before delete", "after delete"])
def test_a_crash_while_an_error_is_recorded_loses_and_repeats_nothing(point: str) -> None:
    place = stopped(PermanentError("the first one"))

    def die(operation: str, path: str) -> None:
        if operation == point and f"/{paths.ERRORS}/" in path:
            raise Crash(point)

    run = place_open(place, {"a": Recorder(failing(PermanentError("another one")))}, die)
    run.gate.search()
    with pytest.raises(Crash):
        run.deliver_all()
    assert len(records(place)) in {1, 2}
    assert last_error(place) is not None
    sink = Recorder()
    again = place.open({"a": sink})
    again.gate.search()
    again.deliver_all()
    assert sink.batches == [0]
    error = last_error(place)
    assert error is not None
    assert error.is_over


def test_an_outage_after_one_that_passed_tells_when_it_began() -> None:
    place, runtime = stopped(None), simulated_runtime(seed=76)
    last = LastError(Log(place.wal, runtime, "r"), "a")
    for error in ("first", "second"):
        began = runtime.timestamp()
        for attempts in (1, 2, 3):
            last.retried(StoreError(error), batch_id=1, attempts=attempts, term=1)
            runtime.sleep_s(60)

        (record,) = records(place)
        assert (record.text, record.since, record.attempts) == (error, began, 2)


def test_two_processes_that_record_at_once_leave_the_later_error() -> None:
    place = stopped(None)
    runtime = simulated_runtime(seed=77)
    one, other = (LastError(Log(place.wal, runtime, name * 32), "a") for name in "cd")
    one.gave_up(DeliveryError("one"), batch_id=1, term=2)
    other.gave_up(DeliveryError("other"), batch_id=1, term=2)
    one.gave_up(DeliveryError("one again"), batch_id=1, term=2)  # it knows only its first record
    (record,) = records(place)
    assert (record.text, record.number) == ("one again", 3)


def test_a_process_that_was_superseded_and_does_not_know_it_leaves_the_record_of_the_newer_one() -> None:
    place = stopped(None)
    runtime = simulated_runtime(seed=77)
    old, new, late = (LastError(Log(place.wal, runtime, name * 32), "a") for name in "cde")
    old.gave_up(DeliveryError("old"), batch_id=1, term=1)
    new.gave_up(DeliveryError("new"), batch_id=1, term=2)
    old.gave_up(DeliveryError("old again"), batch_id=1, term=1)
    late.gave_up(DeliveryError("old too"), batch_id=1, term=1)
    (record,) = records(place)
    assert (record.text, record.number, record.term) == ("new", 2, 2)
    late.gave_up(DeliveryError("x" * LONGEST_TEXT), batch_id=1, term=2)
    assert [(each.text, each.number) for each in records(place)] == [("x" * LONGEST_TEXT, 3)]


def test_a_record_that_cannot_be_read_is_replaced() -> None:
    place = stopped(PermanentError("no such table"))
    place.wal.delete([paths.error("a", 1)])
    place.wal.create(paths.error("a", 1), b"rotten")
    LastError(Log(place.wal, simulated_runtime(seed=81), "c" * 32), "a").gave_up(DeliveryError("x"), batch_id=0, term=1)
    (record,) = records(place)
    assert (record.text, record.number) == ("x", 2)


def idle(error: Exception) -> Place:
    """A sink that has every batch, and whose committer met an error when it looked for the next one."""
    place = Place()
    run = place.open({"a": Delivery(Recorder(), retry=Retry(attempts=3))})
    place.stream(run, 1)
    (committer,) = run.committers
    with pytest.raises(type(error)), committer._noting():
        raise error
    return place


@pytest.mark.parametrize("error", [StoreError("checkpoint: timeout"), OutcomeUnknownError("no answer")])
def test_an_outage_while_there_was_nothing_to_deliver_is_over(error: Exception) -> None:
    place = idle(error)
    seen = last_error(place)
    assert seen is not None
    assert (seen.batch_id, seen.is_over) == (2, True)
    run = place.open({})
    place.query().start_batch(2, 2)
    place.query().stage(run, 2)
    place.query().complete_batch(2)
    seen = last_error(place)
    assert seen is not None
    assert not seen.is_over, "there is a batch that the sink lacks, and it may be for this reason"


def test_any_other_error_without_a_batch_is_not_over() -> None:
    seen = last_error(idle(CorruptError("the target lost rows")))
    assert seen is not None
    assert not seen.is_over


def test_a_number_that_is_always_taken_is_given_up() -> None:
    place = stopped(None)
    log = Log(place.wal, simulated_runtime(seed=78), "c" * 32)

    def take_it(what: str, path: str) -> None:
        if what == "before create":
            place.wal.create(path, b"another process was first")

    last = LastError(replace(log, store=FaultyStore(place.wal, take_it)), "a")
    last.gave_up(DeliveryError("one"), batch_id=1, term=1)
    assert len(place.wal.list(paths.errors("a"))) == 2


def test_a_superseded_process_records_nothing() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    for _ in place.query().batches(run, 1):
        claim(Log(place.wal, simulated_runtime(seed=79), "f" * 32), paths.committer_role("a"))
        with pytest.raises(FencedError):
            run.deliver_all()
    assert created(place) == []


def test_a_run_that_ends_records_nothing() -> None:
    place = Place()
    run = place.open({"a": Recorder(failing(OSError("no route")))})
    (committer,) = run.committers
    committer._shared = replace(run.shared, pause=lambda _: True)
    for _ in place.query().batches(run, 1):
        with pytest.raises(StoppedError):
            run.deliver_all()
    assert created(place) == []


def test_an_error_before_the_first_batch_makes_no_object_since_the_wal_does_not_exist_yet() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.checkpoint.create("metadata", b"not JSON")
    run.history.load_owner()  # there is none yet
    (committer,) = run.committers
    committer._failed_again(2, 0.1, StoreError("503"))
    with pytest.raises(ZeroDivisionError), committer._noting():
        raise ZeroDivisionError
    assert created(place) == []
    assert place.wal.list(f"{paths.SINKS}/a") == [paths.SINK_RECORD]


def test_a_store_that_fails_is_recorded_as_soon_as_it_takes_objects_again() -> None:
    place = Place()
    run = place.open({"a": Delivery(Recorder(), retry=Retry(attempts=3))})
    place.query().start_batch(0, 0)
    place.query().stage(run, 0)
    place.query().complete_batch(0)
    path = paths.release(0)
    run_store, failures = run.log.store, itertools.count()

    def fail(what: str, where: str) -> None:
        if where == path and what == "before create" and next(failures) < 3 * 9:
            raise StoreError("503 slow down")

    assert isinstance(run_store, FaultyStore)
    run_store._inner = FaultyStore(place.wal, fail)
    with pytest.raises(WalSinkError):
        run.deliver_all()
    (record,) = records(place)
    assert record.attempts == 2
    assert "503 slow down" in record.text


# --- reading it


def test_a_damaged_record_is_told_and_not_taken_for_none() -> None:
    place = stopped(PermanentError("no such table"))
    path = paths.error("a", 1)
    data = place.wal.read(path)
    place.wal.delete([path])
    place.wal.create(path, data[:-9])
    error = last_error(place)
    assert error is not None
    assert (error.batch_id, error.error_class, error.is_over) == (-1, CorruptError.__name__, False)


def test_a_record_that_is_replaced_while_it_is_read_is_looked_for_again() -> None:
    place = stopped(PermanentError("no such table"))
    runtime: Runtime = simulated_runtime(seed=80)
    moved: list[str] = []

    def replace_it(what: str, path: str) -> None:
        if what == "before read" and path == paths.error("a", 1) and not moved:
            moved.append(path)
            LastError(Log(place.wal, runtime, "c" * 32), "a").gave_up(DeliveryError("newer"), batch_id=0, term=1)

    status = read_status(place.wal)
    store = FaultyStore(place.wal, replace_it)
    (sink,) = read_health(WalFacts(store), read_commit(place.checkpoint, status.query_id), now=NOW).sinks
    assert moved
    assert sink.last_error is not None
    assert sink.last_error.text == "newer"
