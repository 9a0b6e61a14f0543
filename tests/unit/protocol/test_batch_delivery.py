"""One batch on its way to one sink: what is ordered again, what counts as progress, which failure is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.house.log import MARGIN, Manifest, Marker, Progress, Stamp, decode, encode, paths
from tests.house.protocol import ByTime, DeliveryContext, DispatcherLostError, Run, SegmentResult, SegmentTask, Staged
from tests.house.sinks import Chunk, Failure, FailureKind, TransactionalSink
from tests.house.support import Event, Sent, StoppedError
from tests.support.small_run import Place, Recorder, served_sink
from tests.support.vault import Vault, VaultSink
from wal_sink import idempotent
from wal_sink.errors import CorruptError, DeliveryError, FencedError, HistoryError, StoreError, WalSinkError
from wal_sink.protocol.messages import failed_as_a_whole
from wal_sink.settings import Delivery, Retry
from wal_sink.sinks.base import OnGone
from wal_sink.support.measures import OperationTimes, Times

Answer = Callable[[Sequence[SegmentTask]], list[SegmentResult]]


class Carrying:
    """Answers as it is told, and notes what it was handed."""

    def __init__(self, *answers: Answer, whole_batch: bool = False) -> None:
        self.answers = list(answers)
        self.whole_batch = whole_batch
        self.tasks: list[list[SegmentTask]] = []
        self.given: list[DeliveryContext] = []

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,  # noqa: ARG002
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool = False,  # noqa: ARG002
    ) -> list[SegmentResult]:
        self.given.append(delivery_context)
        self.tasks.append(list(tasks))
        return self.answers.pop(0)(tasks)

    @property
    def starts(self) -> list[list[tuple[int, int]]]:
        return [[(task.ordinal, task.start) for task in tasks] for tasks in self.tasks]


@idempotent
def take_once(_: Chunk) -> None:
    """A target that ignores repeats."""


def done(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
    return [SegmentResult(task.ordinal, task.segment.rows, chunks=1) for task in tasks]


def failed(*kinds: FailureKind, rows: int = 0, chunks: int = 0) -> Answer:
    def answer(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        results = []
        for task, kind in zip(tasks, kinds, strict=False):
            results.append(SegmentResult(task.ordinal, rows, chunks, Failure(kind, f"it is {kind.value}")))
        return results

    return answer


def carried_by(
    dispatcher: Carrying,
    *,
    rows: Sequence[int] = (2, 3),
    to: object = None,
    on_event: Callable[[Event], object] | None = None,
    **delivery: Any,
) -> tuple[Place, Run]:
    """A run with one complete batch of some segments."""
    place = Place(rows=lambda _: list(rows))
    given = Delivery(to or Recorder(), **delivery)
    run = place.open({"a": given}, on_event=on_event)
    run.committers[0]._served_sink = replace(served_sink(run, "a", given), dispatcher=dispatcher)
    next(place.query().batches(run, 1))
    return place, run


def record(place: Place, task: SegmentTask, rows: int, *, run_id: str = "r") -> None:
    """Record these rows, as a sender does that could not tell of them."""
    segment_id, stamp = task.segment.id, Stamp(id="x", created="now")
    made = Progress(batch_id=0, ordinal=task.ordinal, rows=rows, segment_id=segment_id, term=1, run_id=run_id, **stamp)
    place.wal.create(paths.progress("a", 0, task.ordinal, rows), encode(made))


# The context that a dispatcher gets.


def test_a_carrier_is_told_what_the_segments_of_a_batch_have_in_common() -> None:
    dispatcher = Carrying(done)
    place, run = carried_by(dispatcher, retry=Retry(attempt_timeout_s=7), rows_per_s=1000)

    run.deliver_all()

    given = dispatcher.given[0]
    assert given.by_time is None
    assert run.history.wal is not None
    assert (given.wal_id, given.sink, given.term.number, given.batch_id) == (run.history.wal.wal_id, "a", 1, 0)
    assert (given.columns, given.chunk_rows, given.segments) == (("batch", "row"), 2, 2)
    assert (given.at_most_once, given.attempt_timeout_s, given.last_delivered) == (False, 7, None)
    assert given.rows_per_s == 1000
    assert place.wal.list(paths.markers("a"))


def test_the_rows_of_each_segment_are_paced_once() -> None:
    times: list[float] = []

    def timed(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        times.append(run.log.runtime.monotonic_s())
        return done(tasks)

    _, run = carried_by(Carrying(timed, timed, timed), rows=[10, 10, 10], max_concurrency=1, rows_per_s=10)

    run.deliver_all()

    assert [time_s - times[0] for time_s in times] == pytest.approx([0, 1, 2])


def test_a_carrier_is_told_the_schema_and_the_time_zone_of_the_manifest() -> None:
    place, dispatcher = Place(), Carrying(done, whole_batch=True)
    given = Delivery(Recorder())
    run = place.open({"a": given})
    run.committers[0]._served_sink = replace(served_sink(run, "a", given), dispatcher=dispatcher)
    query = place.query()
    query.start_batch(0, 0)
    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    run.end_staging(attempt, Staged((), ("id", "at"), spark_schema="{}", time_zone="Asia/Tokyo"))
    query.complete_batch(0)

    run.deliver_all()

    context = dispatcher.given[0].context(on_executor=False)
    assert (context.columns, context.spark_schema, context.time_zone) == (("id", "at"), "{}", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("most", "rows", "records"), [(None, (2, 3), True), (2, (2, 3), True), (1, (2, 3), False), (1, (3,), True)]
)
def test_an_idempotent_target_has_records_by_time_unless_each_segment_is_a_separate_task(
    most: int | None, rows: Sequence[int], records: bool
) -> None:
    dispatcher = Carrying(*[done] * len(rows))
    carried_by(dispatcher, rows=rows, to=take_once, max_concurrency=most)[1].deliver_all()

    assert [given.by_time and given.by_time.records for given in dispatcher.given] == [records] * len(dispatcher.given)


@pytest.mark.parametrize("on_gone", ["halt", "prepare_again"])
def test_a_dispatcher_is_told_whether_lost_rows_are_prepared_again(on_gone: OnGone) -> None:
    dispatcher = Carrying(done)
    sink = VaultSink(Vault(), on_gone=on_gone)
    _, run = carried_by(dispatcher, to=sink)
    sink.on_gone = "halt"  # too late: it was read when the run began
    run.deliver_all()

    assert dispatcher.given[0].prepares_again is (on_gone == "prepare_again")


def test_a_lone_segment_needs_no_term_check_for_its_first_chunk_and_several_do() -> None:
    alone, paced, two = Carrying(done), Carrying(done), Carrying(done)
    carried_by(alone, rows=[3])[1].deliver_all()
    carried_by(paced, rows=[3], rows_per_s=1000)[1].deliver_all()
    carried_by(two, rows=[3, 3])[1].deliver_all()

    assert [task.term_checked for task in alone.tasks[0]] == [True]
    assert [task.term_checked for task in paced.tasks[0]] == [False]  # it may have waited since
    assert [task.term_checked for task in two.tasks[0]] == [False, False]


def test_the_first_attempt_has_sent_nothing_before_and_the_next_may_have() -> None:
    dispatcher = Carrying(failed(FailureKind.RETRIABLE), done)
    carried_by(dispatcher, rows=[3])[1].deliver_all()

    tasks = [task for tasks in dispatcher.tasks for task in tasks]
    assert [(task.maybe_sent, task.sent_through, task.term_checked) for task in tasks] == [
        (False, 0, True),
        (True, 0, False),
    ]


def test_what_is_settled_is_not_ordered_again() -> None:
    dispatcher = Carrying(failed(FailureKind.RETRIABLE, FailureKind.RETRIABLE, rows=2), done)
    carried_by(dispatcher, rows=[2, 3])[1].deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)], [(1, 2)]]


def test_an_outcome_never_takes_rows_back() -> None:
    first = failed(FailureKind.RETRIABLE, rows=2)
    dispatcher = Carrying(first, failed(FailureKind.RETRIABLE, rows=0), done)
    carried_by(dispatcher, rows=[3])[1].deliver_all()

    assert dispatcher.starts == [[(0, 0)], [(0, 2)], [(0, 2)]]


@pytest.mark.parametrize(("whole_batch", "handed"), [(False, []), (True, [[]])])
def test_a_batch_of_no_segments_is_handed_to_a_carrier_of_batches_alone(whole_batch: bool, handed: list[Any]) -> None:
    dispatcher = Carrying(lambda _: [], whole_batch=whole_batch)
    place, run = carried_by(dispatcher, rows=[0])

    run.deliver_all()

    assert dispatcher.tasks == handed
    assert place.wal.list(paths.markers("a"))


def test_total_order_stops_at_the_first_segment_that_failed() -> None:
    dispatcher = Carrying(done, failed(FailureKind.RETRIABLE), done, done)
    carried_by(dispatcher, rows=[1, 1, 1], max_concurrency=1)[1].deliver_all()

    assert dispatcher.starts == [[(0, 0)], [(1, 0)], [(1, 0)], [(2, 0)]]


def test_segments_without_an_outcome_are_never_taken_for_delivered() -> None:
    dispatcher = Carrying(lambda tasks: done(tasks[:1]), done)
    place, run = carried_by(dispatcher)

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)], [(1, 0)]]
    assert place.wal.list(paths.markers("a"))


# Which failure is told.


@pytest.mark.parametrize(
    ("worse", "other", "told"),
    [
        (FailureKind.FENCED, FailureKind.HISTORY, FencedError),
        (FailureKind.HISTORY, FailureKind.CORRUPT, HistoryError),
        (FailureKind.CORRUPT, FailureKind.PERMANENT, CorruptError),
        (FailureKind.PERMANENT, FailureKind.STOPPED, DeliveryError),
        (FailureKind.STOPPED, FailureKind.LOST, StoppedError),
        (FailureKind.STOPPED, FailureKind.RETRIABLE, StoppedError),
    ],
)
def test_of_several_failures_the_worst_is_told(
    worse: FailureKind, other: FailureKind, told: type[WalSinkError]
) -> None:
    for kinds in ((worse, other), (other, worse)):
        dispatcher = Carrying(failed(*kinds))
        place, run = carried_by(dispatcher)

        with pytest.raises(told, match=f"it is {worse.value}"):
            run.deliver_all()

        assert len(dispatcher.tasks) == 1
        assert not place.wal.list(paths.markers("a"))


@pytest.mark.parametrize("kind", [FailureKind.RETRIABLE, FailureKind.UNKNOWN, FailureKind.LOST])
def test_who_gives_up_says_after_how_many_attempts_and_why(kind: FailureKind) -> None:
    dispatcher = Carrying(*[failed(kind)] * 3)
    _, run = carried_by(dispatcher, retry=Retry(attempts=3))

    told = (
        r"batch 0, sink 'a': delivery stopped after 3 attempts in \d+\.\d s without progress; .* it is "
        rf"{kind.value}\. The WAL .* keeps the rows"
    )
    with pytest.raises(DeliveryError, match=told):
        run.deliver_all()


def test_a_failed_attempt_is_logged_with_its_batch_and_sink(caplog: pytest.LogCaptureFixture) -> None:
    carried_by(Carrying(failed(FailureKind.RETRIABLE), done), rows=[3])[1].deliver_all()

    assert any(text.startswith("batch 0, sink 'a': ") and "it is retriable" in text for text in caplog.messages)


# Progress.


def test_chunks_that_arrived_renew_the_budget() -> None:
    some = [failed(FailureKind.RETRIABLE, rows=rows, chunks=1) for rows in (1, 2, 3, 4)]
    dispatcher = Carrying(*some, done)
    _, run = carried_by(dispatcher, rows=[9], retry=Retry(attempts=2))

    run.deliver_all()

    assert len(dispatcher.tasks) == 5


def test_rows_given_up_without_a_chunk_that_arrived_renew_nothing() -> None:
    some = [failed(FailureKind.RETRIABLE, rows=rows) for rows in (1, 2, 3, 4)]
    dispatcher = Carrying(*some, done)
    _, run = carried_by(dispatcher, rows=[9], retry=Retry(attempts=2))

    with pytest.raises(DeliveryError, match="delivery stopped after 2 attempts"):
        run.deliver_all()


def test_a_chunk_of_one_segment_renews_the_budget_of_the_batch() -> None:
    def one_arrives(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(tasks[0].ordinal, 1, 1), *failed(FailureKind.RETRIABLE)(tasks[1:])]

    dispatcher = Carrying(failed(FailureKind.RETRIABLE), one_arrives, done)
    _, run = carried_by(dispatcher, rows=[3, 3], retry=Retry(attempts=2))

    run.deliver_all()

    assert len(dispatcher.tasks) == 3


def test_what_an_attempt_recorded_and_could_not_tell_counts_as_progress() -> None:
    place: Place

    def silent(rows: int) -> Answer:
        def answer(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
            record(place, tasks[0], rows)
            return failed(FailureKind.UNKNOWN)(tasks)

        return answer

    dispatcher = Carrying(silent(2), silent(4), silent(6), done)
    place, run = carried_by(dispatcher, rows=[9], retry=Retry(attempts=2))

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0)], [(0, 2)], [(0, 4)], [(0, 6)]]


@pytest.mark.parametrize("recorded", [2, 4])
def test_records_that_tell_nothing_new_take_nothing_back_and_are_not_read(recorded: int) -> None:
    place: Place

    def further_than_recorded(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        record(place, tasks[0], recorded)
        return failed(FailureKind.RETRIABLE, rows=4, chunks=2)(tasks)

    dispatcher = Carrying(further_than_recorded, done)
    place, run = carried_by(dispatcher, rows=[9])

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0)], [(0, 4)]]
    assert f"read {paths.progress('a', 0, 0, recorded)}" not in place.requests


def test_progress_of_a_segment_that_the_batch_does_not_have_stops_delivery() -> None:
    place: Place

    def strange(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        record(place, replace(tasks[0], ordinal=7), 1)
        return failed(FailureKind.RETRIABLE)(tasks)

    place, run = carried_by(Carrying(strange, done), rows=[9])

    with pytest.raises(CorruptError, match=r"progress of segment 7 of the released batch \(none\)"):
        run.deliver_all()


class Ledger(TransactionalSink):
    def last(self, slot: str) -> None: ...

    def write(self, chunk: object) -> None: ...


def test_of_a_target_that_stores_its_position_no_records_are_read() -> None:
    def recorded(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        record(place, tasks[0], 2)
        return failed(FailureKind.UNKNOWN)(tasks)

    dispatcher = Carrying(recorded, done)
    place, run = carried_by(dispatcher, rows=[9], to=Ledger())
    place.requests.clear()

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0)], [(0, 0)]]
    assert not [name for name in place.requests if name.startswith("list sinks/a/progress")]


# A target that took nothing.


@pytest.mark.parametrize("to", [Recorder(), take_once], ids=["plain", "idempotent"])
@pytest.mark.parametrize("rows", [(2, 3), (2, 3, 1)])
def test_a_target_that_took_nothing_is_asked_with_one_segment_first(rows: Sequence[int], to: object) -> None:
    kinds, every = [FailureKind.RETRIABLE] * len(rows), [(number, 0) for number in range(len(rows))]
    dispatcher = Carrying(failed(*kinds), failed(*kinds), done, done)
    carried_by(dispatcher, rows=rows, to=to)[1].deliver_all()

    assert dispatcher.starts == [every, every[:1], every[:1], every[1:]]


def test_a_target_that_took_some_rows_is_given_all_the_rest_at_once() -> None:
    dispatcher = Carrying(failed(*[FailureKind.RETRIABLE] * 3, rows=1, chunks=1), done)
    carried_by(dispatcher, rows=(2, 3, 2))[1].deliver_all()

    assert dispatcher.starts[1:] == [[(0, 1), (1, 1), (2, 1)]]


def test_a_target_that_took_rows_of_which_no_record_is_due_is_given_all_the_rest_at_once() -> None:
    dispatcher = Carrying(failed(FailureKind.RETRIABLE, FailureKind.RETRIABLE, rows=1), done)
    carried_by(dispatcher, rows=(3, 3), to=take_once)[1].deliver_all()

    assert dispatcher.starts[1:] == [[(0, 1), (1, 1)]]


def test_a_transactional_target_that_took_a_single_row_is_given_all_the_rest_at_once() -> None:
    def one_row(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        first = SegmentResult(0, 1, 1, Failure(FailureKind.RETRIABLE, "no answer"))
        return [first, *failed(FailureKind.RETRIABLE)(tasks[1:])]

    dispatcher = Carrying(one_row, done)
    carried_by(dispatcher, rows=(3, 3), to=Ledger())[1].deliver_all()

    assert dispatcher.starts[1:] == [[(0, 1), (1, 0)]]


def test_segments_that_all_came_back_without_a_result_are_handed_over_together_again() -> None:
    dispatcher = Carrying(lambda _: [], done)
    carried_by(dispatcher)[1].deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)]] * 2


def test_a_target_of_which_a_record_tells_that_it_took_some_rows_is_given_all_the_rest_at_once() -> None:
    place: Place

    def silent(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        record(place, tasks[0], 2)
        return failed(FailureKind.UNKNOWN, FailureKind.UNKNOWN)(tasks)

    dispatcher = Carrying(silent, done)
    place, run = carried_by(dispatcher, rows=(3, 3))

    run.deliver_all()

    assert dispatcher.starts[1:] == [[(0, 2), (1, 0)]]


# The event of a dispatch.


class Heard:
    """Keeps the events of dispatches."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Sent):
            self.sent.append(event)


def test_an_event_tells_how_many_more_rows_arrived_and_no_number_below_0_for_a_target_that_forgot() -> None:
    def forgotten(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(0, 0, 0, Failure(FailureKind.FORGOTTEN, "0 of 2 rows"))]

    heard = Heard()
    dispatcher = Carrying(failed(FailureKind.RETRIABLE, rows=2, chunks=1), forgotten, forgotten, done)
    carried_by(dispatcher, rows=[5], to=Ledger(), on_event=heard)[1].deliver_all()

    told = [(event.rows, event.chunks, event.failure) for event in heard.sent]
    assert told == [(2, 1, "retriable"), (0, 0, "forgotten"), (0, 0, "forgotten"), (5, 1, "")]


def test_an_event_tells_the_requests_of_all_tasks() -> None:
    read, created = OperationTimes("read", "ok", Times()), OperationTimes("create", "exists", Times())

    def measured(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        requests = [(read, created), (created,)]
        return [replace(result, requests=requests.pop(0)) for result in done(tasks)]

    heard = Heard()
    carried_by(Carrying(measured), on_event=heard)[1].deliver_all()

    assert [event.requests for event in heard.sent] == [(read, created, created)]


# Lost attempts.


def test_after_a_lost_attempt_the_next_goes_on_under_a_new_term_from_what_was_recorded_meanwhile() -> None:
    place: Place

    def lost(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        return failed(FailureKind.LOST)(tasks)

    def record_late(_: float) -> bool:
        record(place, dispatcher.tasks[0][0], 2)  # the lost one is still at work
        return False

    dispatcher = Carrying(lost, done)
    place, run = carried_by(dispatcher, rows=[9])
    object.__setattr__(run.shared, "pause", record_late)

    run.deliver_all()

    assert [given.term.number for given in dispatcher.given] == [1, 2]
    assert dispatcher.starts == [[(0, 0)], [(0, 2)]]


@pytest.mark.parametrize("of_another", [False, True])
def test_only_progress_of_another_run_shows_that_the_term_was_held_before(
    of_another: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = Carrying(failed(FailureKind.RETRIABLE), done)
    place, run = carried_by(dispatcher, rows=[5], retry=Retry(attempts=1))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    record(place, dispatcher.tasks[0][0], 2, run_id="another" if of_another else run.log.run_id)

    run.deliver_all()

    assert run.committers[0].term.number == (1 + MARGIN + 1 if of_another else 1)
    assert ("progress of batch 0 names term 1" in caplog.text) is of_another
    assert dispatcher.starts == [[(0, 0)], [(0, 2)]]


def test_the_term_is_renewed_once_for_each_lost_attempt() -> None:
    dispatcher = Carrying(failed(FailureKind.LOST), failed(FailureKind.RETRIABLE), failed(FailureKind.LOST), done)
    carried_by(dispatcher, rows=[9])[1].deliver_all()

    assert [given.term.number for given in dispatcher.given] == [1, 2, 2, 3]


def test_no_term_is_claimed_again_for_a_marker_that_failed_after_a_lost_attempt() -> None:
    dispatcher = Carrying(failed(FailureKind.LOST), done)
    place, run = carried_by(dispatcher, rows=[9])
    fail_first_marker(place)

    run.deliver_all()

    assert len(dispatcher.tasks) == 2
    assert run.committers[0].term.number == 2


def test_under_a_new_term_no_earlier_look_is_good() -> None:
    dispatcher = Carrying(failed(FailureKind.LOST), done)
    carried_by(dispatcher, rows=[9], to=take_once)[1].deliver_all()

    before, after = (given.by_time for given in dispatcher.given)
    assert before is not None
    assert before.looked_s > -math.inf
    assert after == ByTime(-math.inf, records=True)


def test_one_lost_segment_among_others_that_failed_is_enough() -> None:
    dispatcher = Carrying(failed(FailureKind.UNKNOWN, FailureKind.LOST), done)
    carried_by(dispatcher)[1].deliver_all()

    assert [given.term.number for given in dispatcher.given] == [1, 2]


def lose_dispatcher(_: Sequence[SegmentTask]) -> list[SegmentResult]:
    raise DispatcherLostError("the executor is gone")


@pytest.mark.parametrize(
    ("answer", "told"),
    [(lose_dispatcher, "the executor is gone"), (lambda _: [], "2 of 2 segments came back without a result")],
)
def test_what_a_carrier_said_or_left_out_is_told_when_giving_up(answer: Answer, told: str) -> None:
    place, run = carried_by(Carrying(answer), retry=Retry(attempts=1))

    with pytest.raises(DeliveryError, match=f"the last failure: {told}"):
        run.deliver_all()
    assert not place.wal.list(paths.markers("a"))


@pytest.mark.parametrize("whole_batch", [True, False])
def test_a_batch_that_arrived_is_not_handed_over_again_because_its_marker_failed(whole_batch: bool) -> None:
    dispatcher = Carrying(done, whole_batch=whole_batch)
    place, run = carried_by(dispatcher)
    fail_first_marker(place)

    run.deliver_all()

    assert len(dispatcher.tasks) == 1
    assert run.committers[0].marked_through == 0


def test_a_transactional_target_is_asked_again_because_the_marker_failed() -> None:
    """It may have lost what it acknowledged while the store was unreachable."""

    def forgotten(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(0, 2), SegmentResult(1, 0, 0, Failure(FailureKind.FORGOTTEN, "0 of 3 rows"))]

    dispatcher = Carrying(done, forgotten, done)
    place, run = carried_by(dispatcher, to=Ledger())
    fail_first_marker(place)

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)], [], [(1, 0)]]
    assert run.committers[0].marked_through == 0


def fail_first_marker(place: Place) -> None:
    """The first create of the marker has no answer, nor has the read after it."""
    create, read = place.wal.create, place.wal.read

    def no_marker_at_first(path: str, data: bytes) -> None:
        if path == paths.marker("a", 0):
            place.wal.create = create  # type: ignore[method-assign]
            place.wal.read = unreadable  # type: ignore[method-assign]
            raise StoreError("no answer")
        create(path, data)

    def unreadable(path: str) -> bytes:
        place.wal.read = read  # type: ignore[method-assign]
        raise StoreError(f"no answer for {path}")

    place.wal.create = no_marker_at_first  # type: ignore[method-assign]


def test_a_target_that_forgot_something_is_asked_until_it_answers_before_it_gets_more() -> None:
    def unanswered(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(-1, 0, 0, Failure(FailureKind.RETRIABLE, "no answer"))]

    def answered(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(0, 0, 0, Failure(FailureKind.FORGOTTEN, "0 of 2 rows")), SegmentResult(1, 3)]

    dispatcher = Carrying(failed(FailureKind.FORGOTTEN, FailureKind.FORGOTTEN), unanswered, answered, done)
    carried_by(dispatcher, to=Ledger())[1].deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)], [], [], [(0, 0)]]


@pytest.mark.parametrize(("rows", "sent_through"), [(0, 2), (2, 4), (4, 5), (5, 5)])
def test_after_a_failure_a_transactional_target_may_have_had_the_next_chunk_too(rows: int, sent_through: int) -> None:
    def forgotten(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(0, 0, 0, Failure(FailureKind.FORGOTTEN, "0 of 5 rows"))]

    asked = [forgotten] if rows == 5 else []
    dispatcher = Carrying(failed(FailureKind.UNKNOWN, rows=rows), *asked, done)
    carried_by(dispatcher, rows=[5], to=Ledger())[1].deliver_all()

    assert [task.sent_through for task in dispatcher.tasks[-1]] == [sent_through]


@pytest.mark.parametrize(("to", "sent_through"), [(Ledger, [2, 3]), (Recorder, [0, 0])])
def test_after_a_lost_attempt_a_transactional_target_may_have_had_everything(
    to: Callable[[], object], sent_through: list[int]
) -> None:
    """Of any other target the records tell how far it was."""
    dispatcher = Carrying(lose_dispatcher, done)
    _, run = carried_by(dispatcher, to=to())

    run.deliver_all()

    assert [task.sent_through for task in dispatcher.tasks[-1]] == sent_through


def test_each_segment_goes_on_from_a_record_of_its_own() -> None:
    place: Place

    def answer(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        record(place, tasks[1], 1)
        first = SegmentResult(0, 3, chunks=2, failure=Failure(FailureKind.UNKNOWN, "no answer"))
        return [first, *failed(FailureKind.UNKNOWN)(tasks[1:])]

    dispatcher = Carrying(answer, done)
    place, run = carried_by(dispatcher, rows=[4, 4])

    run.deliver_all()

    assert dispatcher.starts[1] == [(0, 3), (1, 1)]


# A target that knows a higher term than the WAL.


def fenced_by(term: int) -> Answer:
    def answer(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        failure = Failure(FailureKind.FENCED, f"term {term} has written", term=term)
        return [SegmentResult(task.ordinal, 0, failure=failure) for task in tasks]

    return answer


def test_a_target_that_did_not_answer_the_last_look_is_asked_again_before_the_marker() -> None:
    def unanswered(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [*done(tasks), SegmentResult(-1, 0, 0, Failure(FailureKind.RETRIABLE, "the connection was lost"))]

    def forgotten(_: Sequence[SegmentTask]) -> list[SegmentResult]:
        return [SegmentResult(0, 2), SegmentResult(1, 0, 0, Failure(FailureKind.FORGOTTEN, "0 of 3 rows"))]

    dispatcher = Carrying(unanswered, forgotten, done)
    place, run = carried_by(dispatcher, to=Ledger())

    run.deliver_all()

    assert dispatcher.starts == [[(0, 0), (1, 0)], [], [(1, 0)]]
    assert place.wal.list(paths.markers("a"))


def test_a_target_that_knows_a_higher_term_than_the_wal_is_outrun_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Carrying(fenced_by(7), done)
    place, run = carried_by(dispatcher, rows=[2])

    run.deliver_all()

    assert [given.term.number for given in dispatcher.given] == [1, 7 + MARGIN + 1]
    assert place.wal.list(paths.markers("a"))
    assert "the target of sink 'a' names term 7" in caplog.text


def test_who_is_outrun_again_ends() -> None:
    dispatcher = Carrying(fenced_by(7), fenced_by(9))
    _, run = carried_by(dispatcher, rows=[2])

    with pytest.raises(FencedError, match="term 9 has written"):
        run.deliver_all()


def test_a_target_that_names_the_own_term_is_not_outrun() -> None:
    dispatcher = Carrying(fenced_by(1), fenced_by(1))
    _, run = carried_by(dispatcher, rows=[2])

    with pytest.raises(FencedError, match="term 1 has written"):
        run.deliver_all()
    assert [given.term.number for given in dispatcher.given] == [1, 1]


def test_where_the_wal_knows_a_newer_process_the_term_of_the_target_is_its() -> None:
    dispatcher = Carrying(fenced_by(2), done)
    place, run = carried_by(dispatcher)
    place.open({"a": Recorder()})

    with pytest.raises(FencedError, match="a newer process took over"):
        run.deliver_all()
    assert not place.wal.list(paths.markers("a"))


def test_a_target_that_names_no_term_ends_the_run_at_once() -> None:
    dispatcher = Carrying(failed(FailureKind.FENCED), done)
    _, run = carried_by(dispatcher)

    with pytest.raises(FencedError, match="it is fenced"):
        run.deliver_all()
    assert len(dispatcher.given) == 1


# The times that a marker tells.


def test_the_marker_tells_the_seconds_of_all_attempts_and_the_slowest_segment() -> None:
    def slowly(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        run.log.runtime.sleep_s(5)
        lost = failed_as_a_whole(Failure(FailureKind.RETRIABLE, "cut off"))
        return [lost, *(SegmentResult(task.ordinal, 0, fetch_s=1, send_s=2, host="h") for task in tasks)]

    def then(tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        run.log.runtime.sleep_s(5)
        return [SegmentResult(task.ordinal, task.segment.rows, 1, fetch_s=2, send_s=1) for task in tasks]

    place, run = carried_by(Carrying(slowly, then), rows=[3])
    run.log.runtime.sleep_s(100)
    run.deliver_all()

    (timing,) = decode(Marker, place.wal.read(paths.marker("a", 0)), "x").timings
    assert (timing.attempts, timing.fetch_seconds, timing.send_seconds) == (2, 3, 3)
    assert 10 <= timing.seconds <= 12
    assert timing.slowest is not None
    assert msgspec.structs.astuple(timing.slowest) == (0, 1, 2, "h")


def test_one_attempt_is_told_as_one() -> None:
    place, run = carried_by(Carrying(done))
    run.deliver_all()
    (timing,) = decode(Marker, place.wal.read(paths.marker("a", 0)), "x").timings
    assert timing.attempts == 1
