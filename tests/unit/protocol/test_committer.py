"""One committer: where it stands, what it does about markers of others, and what its own say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.house.log import MARGIN, NOTHING, LowWater, Marker, SinkRecord, decode, encode, paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Sink
from tests.house.stores import MemoryStore
from tests.simulation.world import World
from tests.support.forgetting import Forgetful, Target
from tests.support.small_run import Place, Recorder
from wal_sink.errors import DeliveryError, FencedError, HistoryError, OutcomeUnknownError, PermanentError, StoreError
from wal_sink.protocol.committer import RELEASE_S
from wal_sink.settings import Delivery, Retry


def marker_of(place: Place, batch_id: int) -> Marker:
    return decode(Marker, place.wal.read(paths.marker("a", batch_id)), "the marker")


def raising(error: Exception) -> Callable[[Chunk], object]:
    def fail(_: Chunk) -> object:
        raise error

    return fail


def with_batch(place: Place, sink: Recorder) -> Run:
    """A run with one complete batch to deliver."""
    run = place.open({"a": sink})
    next(place.query().batches(run, 1))
    return run


def test_a_batch_whose_checkpoint_lost_it_before_its_release_waits() -> None:
    place, sink = Place(), Recorder()
    with_batch(place, sink)
    drain = place.open({"a": sink}, stages=False)
    assert drain.gate.search() == 0
    place.checkpoint.delete(["commits/0"])
    assert not drain.advance(drain.committers[0])
    assert place.wal.list(paths.batch(0), recursive=True).count("release.json") == 0


# Where it begins.


def beginning(*, first_batch: int, low_water: int, held: list[int]) -> int | None:
    """The batch that a sink without a marker begins with, on a WAL that holds some batches."""
    place = Place()
    list(place.query().batches(place.open({}), 1))
    sink = SinkRecord(name="a", sink_kind="plain", first_batch=first_batch, identity="i", id="x", created="now")
    place.wal.create(paths.sink("a"), encode(sink))
    place.wal.create(paths.low_water(low_water), encode(LowWater(batch_id=low_water, marked={}, id="x", created="now")))
    for batch_id in held:
        place.wal.create(f"{paths.batch(batch_id)}/left", b"")
    return place.open({"a": Recorder()}).committers[0].next_batch()


@pytest.mark.parametrize(
    ("low_water", "held", "begins"),
    [
        pytest.param(4, [3, 5, 7], 5, id="its first batch"),
        pytest.param(6, [3, 4, 7, 8], 7, id="the oldest after it"),
        pytest.param(11, [4, 5, 12], 5, id="below low water, and still there"),
        pytest.param(9, [], 10, id="behind low water"),
    ],
)
def test_a_sink_begins_with_its_first_batch_or_the_oldest_that_is_held(
    low_water: int, held: list[int], begins: int
) -> None:
    assert beginning(first_batch=5, low_water=low_water, held=held) == begins


def test_a_folder_whose_objects_are_gone_is_no_batch_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS shows it for two minutes more. Such a sink began with a batch that was collected."""
    names_of = MemoryStore.list

    def with_an_empty_folder(self: MemoryStore, prefix: str, **more: Any) -> list[str]:
        found = names_of(self, prefix, **more)
        return sorted([*found, f"{paths.batch_name(5)}/"]) if prefix == paths.BATCHES else found

    monkeypatch.setattr(MemoryStore, "list", with_an_empty_folder)
    assert beginning(first_batch=5, low_water=11, held=[12]) == 12
    assert beginning(first_batch=5, low_water=11, held=[]) == 12


def test_a_marker_of_a_term_that_is_lost_is_named_and_a_higher_term_claimed(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    place.wal.delete([paths.marker("a", 1)])
    mark(place, 1, term=5)

    (committer,) = place.open({"a": Recorder()}).committers

    assert f"gone: {paths.marker('a', 1)} names term 5" in caplog.text
    assert committer.term.number == 5 + MARGIN + 1


# Batches that it may deliver.


def test_what_a_predecessor_released_waits_until_a_checkpoint_that_forgot_it_has_it_complete_again() -> None:
    place, sink = Place(), Recorder()
    with pytest.raises(DeliveryError):
        with_batch(place, Recorder(raising(PermanentError("no")))).deliver_all()
    place.checkpoint.delete(["commits/0"])
    run = place.open({"a": sink})

    run.deliver_all()
    assert sink.batches == []

    next(place.query().batches(run, 1))
    run.deliver_all()
    assert sink.batches == [0]


def test_what_a_predecessor_staged_and_did_not_release_waits_for_its_completion() -> None:
    place, sink = Place(), Recorder()
    with_batch(place, Recorder())
    place.checkpoint.delete(["commits/0"])

    run = place.open({"a": sink})
    run.deliver_all()

    assert sink.chunks == []
    assert run.committers[0].marked_through == NOTHING


@pytest.mark.parametrize(
    ("slept_s", "replanned", "checks"),
    [(0.0, False, 0), (RELEASE_S - 0.1, False, 0), (RELEASE_S, False, 1), (0.0, True, 1)],
    ids=["at once", "slow", "slept", "planned anew"],
)
def test_a_release_that_took_long_or_is_of_another_plan_is_followed_by_a_look_at_the_term(
    slept_s: float, replanned: bool, checks: int
) -> None:
    """A newer process may have delivered another attempt meanwhile, and collected its release."""
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    if replanned:
        entry = place.checkpoint.read("offsets/0").replace(b'"batchTimestampMs": 17', b'"batchTimestampMs": 18')
        place.checkpoint.delete(["offsets/0"])
        place.checkpoint.create("offsets/0", entry)
    create = place.wal.create

    def slow(path: str, data: bytes) -> None:
        create(path, data)
        if path == paths.release(0):
            run.log.runtime.sleep_s(slept_s)

    place.wal.create = slow  # type: ignore[method-assign]
    place.requests.clear()
    run.deliver_all()

    since = place.requests[place.requests.index(f"create {paths.release(0)}") :]
    assert since.count(f"read {paths.term('committer-a', 2)}") == checks
    assert sink.batches == [0]


# Markers of others.


def test_a_marker_that_a_process_which_did_not_supersede_it_made_is_as_good_as_its_own() -> None:
    place = Place()
    other = Marker(batch_id=0, term=1, run_id="other", rows=1, last_delivered_batch=NOTHING, id="x", created="now")
    sink = Recorder(lambda _: place.wal.create(paths.marker("a", 0), encode(other)))
    run = with_batch(place, sink)

    run.deliver_all()

    assert run.committers[0].marked_through == 0
    assert marker_of(place, 0) == other


def test_a_committer_whose_successor_made_the_marker_is_fenced() -> None:
    place = Place()
    newer = Recorder()
    sink = Recorder(lambda _: place.open({"a": newer}).deliver_all())
    run = with_batch(place, sink)

    with pytest.raises(FencedError, match="term 1 of 'committer-a'"):
        run.deliver_all()

    assert newer.batches == [0]
    assert marker_of(place, 0).term == 2


def mark(place: Place, batch_id: int, term: int = 1) -> None:
    marker = Marker(batch_id=batch_id, term=term, run_id="r", rows=1, last_delivered_batch=NOTHING, id="x", created="")
    place.wal.create(paths.marker("a", batch_id), encode(marker))


def test_the_rows_of_a_marker_that_came_late_are_confirmed() -> None:
    """It was not there when the run began: the batch is then not sent, and the target confirms its rows."""
    place, target = Place(), Target()
    first = place.open({"a": Forgetful(target)})
    next(place.query().batches(first, 1))
    first.deliver_all()
    late = place.wal.read(paths.marker("a", 0))
    place.wal.delete([paths.marker("a", 0)])
    committer = place.open({"a": Forgetful(target)}).committers[0]
    place.wal.create(paths.marker("a", 0), late)

    committer.deliver_next(search=False)
    assert (committer.marked_through, target.met.count("write")) == (0, 1)
    asked = target.met.count("last")
    committer.confirm_marked()

    assert target.met.count("last") == asked + 1


def test_a_target_that_a_newer_process_filled_further_has_what_was_marked() -> None:
    place, target = Place(rows=lambda _: [1, 1]), Target()
    older = place.open({"a": Forgetful(target)})
    place.stream(older, 0)
    newer = place.open({"a": Forgetful(target)})
    asked = target.met.count("last")
    assert not any(newer.committers[0].deliver_next(search=False) for _ in range(2))
    assert target.met.count("last") == asked + 2, "once for each slot, when the run begins"
    place.stream(newer, 1)
    place.requests.clear()

    older.committers[0].confirm_marked()

    assert target.met[-2:] == ["last", "last"]
    assert place.requests == [], "it marked the batch, and so knows the manifest"


# Its own markers.


def test_a_marker_tells_who_delivered_how_many_rows_under_which_term() -> None:
    place = Place(rows=lambda _: [3, 2])
    run = with_batch(place, Recorder())

    run.deliver_all()

    marker = marker_of(place, 0)
    assert (marker.batch_id, marker.term, marker.run_id) == (0, 1, run.log.run_id)
    assert (marker.rows, marker.unknown, marker.rejected) == (5, 0, 0)


def test_the_newest_batch_with_rows_bears_last_delivered_over_empty_ones_and_restarts() -> None:
    world = World("transactional", batches=((0,), (3, 2), (0,), (0,)))
    life = world.life()
    run = life.open_run()
    for batch_id in life.batches(run):
        life.deliver_all(run)
        if batch_id == 2:
            break
    assert world.life().live()

    names = world.wal.list(paths.markers("default"))
    markers = [decode(Marker, world.wal.read(f"{paths.markers('default')}/{name}"), name) for name in names]
    last_delivered = [(marker.last_delivered_batch, marker.last_delivered_rows) for marker in markers]
    assert last_delivered == [(NOTHING, ()), (1, (3, 2)), (1, (3, 2)), (1, (3, 2))]


def test_rows_that_an_at_most_once_delivery_gave_up_are_counted_in_the_marker() -> None:
    place = Place(rows=lambda _: [3])
    sink = Recorder(lambda chunk: raising(ConnectionError("half sent"))(chunk) if chunk.rows[0] == 0 else None)
    run = place.open({"a": Delivery(sink, guarantee="at_most_once")})
    next(place.query().batches(run, 1))

    run.deliver_all()

    assert (marker_of(place, 0).rows, marker_of(place, 0).unknown) == (3, 2)


# Work that an earlier call or process began.


class LosesItsAnswer(Sink):
    """Has what it was given, and can say so; its first answer is lost."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def was_applied(self, key: str) -> bool:
        return key in self.keys

    def write(self, chunk: Chunk) -> None:
        self.keys.append(chunk.key)
        if len(self.keys) == 1:
            raise ConnectionError("no answer")


def test_what_an_earlier_call_began_is_gone_on_with() -> None:
    place, sink = Place(), LosesItsAnswer()
    run = place.open({"a": Delivery(sink, retry=Retry(attempts=1))})
    next(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()

    run.deliver_all()

    assert len(sink.keys) == 1
    assert run.committers[0].marked_through == 0


@pytest.mark.parametrize("low_water", [0, 3])
def test_what_a_predecessor_finished_and_collected_meanwhile_is_not_sent_again(low_water: int) -> None:
    place, sink = Place(), Recorder()
    with pytest.raises(DeliveryError):
        with_batch(place, Recorder(raising(PermanentError("no")))).deliver_all()
    run = place.open({"a": sink})
    listed = place.wal.list

    def finished_meanwhile(prefix: str, **how: Any) -> list[str]:
        if prefix == paths.progress_folder("a", 0):
            place.wal.list = listed  # type: ignore[method-assign]
            marker = Marker(batch_id=5, term=1, run_id="r", rows=1, last_delivered_batch=NOTHING, id="x", created="now")
            place.wal.create(paths.marker("a", 5), encode(marker))
            passed = LowWater(batch_id=low_water, marked={}, id="x", created="now")
            place.wal.create(paths.low_water(low_water), encode(passed))
        return listed(prefix, **how)

    place.wal.list = finished_meanwhile  # type: ignore[method-assign]

    assert run.advance(run.committers[0])

    assert sink.chunks == []
    assert run.committers[0].next_batch() == 6


def test_what_a_predecessor_that_woke_up_marked_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)

    def marked_and_collected(*_: object, **__: object) -> None:
        mark(place, 5)
        raise HistoryError("no manifest")

    with monkeypatch.context() as patch:
        patch.setattr(run.shared.releaser, "release", marked_and_collected)
        assert run.advance(run.committers[0])
    assert not run.advance(run.committers[0])
    assert (sink.chunks, run.committers[0].next_batch()) == ([], 6)


@pytest.mark.parametrize(
    ("make", "looks"), [(Recorder, [paths.progress_folder("a", 0)]), (lambda: Forgetful(Target()), [])]
)
def test_a_drain_looks_for_progress_of_others_before_its_first_batch_if_there_can_be_any(
    make: Callable[[], object], looks: list[str]
) -> None:
    place = Place()
    list(place.query().batches(place.open({}), 3))
    drain = place.open({"a": Delivery(make(), start_from="earliest")}, stages=False)
    place.requests.clear()

    drain.deliver_all()

    assert drain.committers[0].marked_through == 2
    assert [request for request in place.requests if request.startswith("list sinks/")] == [
        f"list {path}" for path in looks
    ]


# A store that does not answer.


@pytest.mark.parametrize("error", [StoreError("no answer"), OutcomeUnknownError("no answer")], ids=["store", "unknown"])
def test_a_store_that_does_not_answer_is_asked_again_after_a_pause(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_s = run.log.runtime.monotonic_s()
    read = place.wal.read

    def fails_once(path: str) -> bytes:  # noqa: ARG001
        place.wal.read = read  # type: ignore[method-assign]
        raise error

    place.wal.read = fails_once  # type: ignore[method-assign]

    run.deliver_all()

    assert sink.batches == [0]
    assert run.log.runtime.monotonic_s() > before_s
    assert "sink 'a': attempt 1 of 8 failed at " in caplog.text
