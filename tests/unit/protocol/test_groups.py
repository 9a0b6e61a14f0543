"""Group commit: batches of an idempotent sink that is behind share a look at the term and a marker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.house.log import Log, Marker, decode, paths
from tests.house.operate import WalFacts, read_batch, read_batches, read_status
from tests.house.protocol import SMALL_BATCH_BYTES, CommitterThread, Run
from tests.house.sinks import Chunk, Rejected
from tests.support.small_run import Place, Recorder
from wal_sink import idempotent
from wal_sink.errors import DeliveryError, FencedError, PermanentError, StoreError
from wal_sink.protocol.progress import GROUP_BATCHES, GROUP_S, Group
from wal_sink.settings import Delivery
from wal_sink.testing import simulated_runtime


def ignoring(sink: Recorder) -> Any:
    """The recorder as a sink whose target ignores keys that it knows."""

    @idempotent
    def send(chunk: Chunk) -> Any:
        return sink(chunk)

    return send


def behind(place: Place, to: Any, batches: int, **options: Any) -> Run:
    """A run that has so many complete batches to deliver, and knows it."""
    run = place.open({"a": to}, **options)
    for _ in place.query().batches(run, batches):
        continue
    run.gate.search()
    place.requests.clear()
    return run


def markers(place: Place) -> list[int]:
    return [int(name.removesuffix(".json")) for name in place.wal.list(paths.markers("a"))]


def found_markers(place: Place) -> list[Marker]:
    return [decode(Marker, place.wal.read(paths.marker("a", batch_id)), "a marker") for batch_id in markers(place)]


def test_a_backlog_costs_at_most_three_requests_a_batch() -> None:
    place, sink, batches = Place(), Recorder(), 2 * GROUP_BATCHES + 1
    run = place.open({"a": ignoring(sink)})
    place.stream(run, 0)
    for _ in place.query().batches(run, 1 + batches):
        continue
    run.gate.search()
    place.requests.clear()

    run.deliver_all()

    assert sink.batches == list(range(1 + batches))
    assert sum(marker.rows for marker in found_markers(place)) == sum(chunk.num_rows for chunk in sink.chunks)
    assert markers(place) == [0, GROUP_BATCHES, 2 * GROUP_BATCHES, 2 * GROUP_BATCHES + 1]
    assert Counter(request.split("/")[0] for request in place.requests) == {
        "create batches": batches,  # releases
        "read batches": batches,  # segments
        "read terms": 3,
        "create sinks": 3,  # markers
    }
    assert len(place.requests) <= 3 * batches


def test_a_query_that_got_ahead_costs_no_more_and_one_read_of_the_checkpoint_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sink was slow for a while. Nobody searches the checkpoint: this run has staged the batches."""
    place, sink, batches, reads = Place(), Recorder(), 2 * GROUP_BATCHES + 1, list[int]()
    run = place.open({"a": ignoring(sink)})
    place.stream(run, 0)
    for _ in place.query().batches(run, 1 + batches):
        continue
    place.requests.clear()
    is_completed = run.checkpoint.is_completed

    def noted(batch_id: int) -> bool:
        reads.append(batch_id)
        return is_completed(batch_id)

    monkeypatch.setattr(run.checkpoint, "is_completed", noted)

    while run.advance(run.committers[0]):
        continue

    assert sink.batches == list(range(1 + batches))
    assert markers(place) == [0, GROUP_BATCHES, 2 * GROUP_BATCHES, 2 * GROUP_BATCHES + 1]
    assert len(place.requests) <= 3 * batches
    assert reads == [batches - 1, batches, batches + 1], (
        "those before the newest, the newest, and one that is not there"
    )


def test_batches_that_are_staged_meanwhile_need_no_look_within_a_group() -> None:
    """Each closes the gate for itself, and for no batch of the group."""
    place = Place()
    run = behind(place, ignoring(Recorder()), 4)
    assert run.advance(run.committers[0])
    run.gate.close_from(4)

    assert run.advance(run.committers[0])

    assert sum(request.startswith("read terms") for request in place.requests) == 1


def test_a_batch_is_marked_at_once_where_no_other_is_known_to_be_complete() -> None:
    place = Place()
    run = place.open({"a": ignoring(Recorder())})

    place.stream(run, 3)

    assert markers(place) == [0, 1, 2, 3]


def test_a_batch_that_this_run_has_staged_meanwhile_joins_the_group() -> None:
    """Back to back, Spark completes the next batch while this one is delivered. One read of the checkpoint tells."""
    place = Place()
    run = place.open({"a": ignoring(Recorder())})
    for _ in place.query().batches(run, 2):
        continue

    assert run.advance(run.committers[0])
    assert markers(place) == []

    run.deliver_all()
    assert markers(place) == [1]


def test_a_checkpoint_that_gives_no_answer_then_repeats_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is sent and has no marker yet."""
    place, sink = Place(), Recorder()
    run = place.open({"a": ignoring(sink)}, runtime=simulated_runtime(seed=7))
    for _ in place.query().batches(run, 2):
        continue
    is_open, failures = run.gate.is_open, [StoreError("the checkpoint gives no answer")]

    def failing_once(batch_id: int) -> bool:
        if batch_id == 1 and failures:
            raise failures.pop()
        return is_open(batch_id)

    monkeypatch.setattr(run.gate, "is_open", failing_once)

    run.deliver_all()

    assert failures == []
    assert sink.batches == [0, 1]
    assert markers(place)[-1] == 1


def test_a_batch_that_became_complete_after_the_look_needs_another_look() -> None:
    """A newer process may have staged it anew, and its attempt be the completed one: it has other rows here."""
    place, first, second = Place(rows=lambda _: [counts]), Recorder(), Recorder()
    counts = 2

    def overtaken(chunk: Chunk) -> None:
        nonlocal counts
        if chunk.batch_id == 0 and counts == 2:
            counts = 3
            newer.append(place.open({"a": ignoring(second)}))
            query = place.query()
            query.start_batch(1, 1)
            assert query.stage(newer[0], 1)
            query.complete_batch(1)
            old.gate.search()  # as another sink of the older process may

    newer: list[Run] = []
    first.fail = overtaken
    old = place.open({"a": ignoring(first)})
    query = place.query()
    next(query.batches(old, 1))
    query.start_batch(1, 1)
    assert query.stage(old, 1)

    with pytest.raises(FencedError):
        old.deliver_all()
    newer[0].deliver_all()

    assert first.batches == [0]
    assert [chunk.num_rows for chunk in second.chunks if chunk.batch_id == 1] == [2, 1]


def test_the_gate_was_closed_and_opened_again_since_the_look() -> None:
    place = Place()
    run = behind(place, ignoring(Recorder()), 2)
    assert run.advance(run.committers[0])
    run.gate.close_from(1)
    assert run.gate.is_open(1)
    place.open({"a": ignoring(Recorder())})

    with pytest.raises(FencedError):
        run.deliver_all()


@pytest.mark.parametrize(
    ("call_s", "before_large"),
    [
        pytest.param(0.3, [1], id="it takes long at the pace of the last one"),
        pytest.param(0.001, [], id="it takes less than a second at that pace"),
    ],
)
def test_a_group_is_marked_before_a_large_batch_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, call_s: float, before_large: list[int]
) -> None:
    """It may take minutes, and a crash would send the group again."""
    place, seen = Place(rows=lambda batch_id: [2] * 10 if batch_id == 2 else [2]), list[list[int]]()
    runtime = simulated_runtime(seed=3)

    def slow(chunk: Chunk) -> None:
        if chunk.start == 0:
            seen.append(markers(place))
            runtime.sleep_s(call_s)

    run = behind(place, ignoring(Recorder(slow)), 4, runtime=runtime)
    details = [read_batch(WalFacts(place.wal), batch_id) for batch_id in range(4)]
    sizes = [detail.manifest.bytes for detail in details if detail is not None]
    large = sizes.pop(2)
    assert large > 9 * max(sizes)
    monkeypatch.setattr("wal_sink.protocol.progress.SMALL_BATCH_BYTES", large - 1)

    run.deliver_all()

    assert seen[:3] == [[], [], before_large]
    assert markers(place)[-1] == 3


@pytest.mark.parametrize(
    ("size", "took_s", "ends"),
    [
        (SMALL_BATCH_BYTES, 100 * GROUP_S, False),
        (2 * SMALL_BATCH_BYTES, GROUP_S, True),
        (2 * SMALL_BATCH_BYTES, 0.999 * GROUP_S, False),
    ],
    ids=["small", "large, a second", "large, less"],
)
def test_only_a_batch_beyond_4_mib_that_takes_a_second_ends_a_group(size: int, took_s: float, ends: bool) -> None:
    run = behind(Place(), ignoring(Recorder()), 1)
    staged = run.history.staged(0)
    assert staged is not None
    batch = msgspec.structs.replace(staged, segments=(msgspec.structs.replace(staged.segments[0], bytes=size),))
    group = Group(cast("Any", run), is_allowed=True)
    group.batches.append(staged)
    group.note_pace(batch, took_s)

    assert group.must_end_before(batch) is ends


def test_a_group_is_marked_before_a_large_batch_whose_pace_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch before had no rows."""
    place, seen = Place(rows=lambda batch_id: [600] if batch_id == 1 else []), list[list[int]]()
    run = behind(place, ignoring(Recorder(lambda _: seen.append(markers(place)))), 3)
    monkeypatch.setattr("wal_sink.protocol.progress.SMALL_BATCH_BYTES", 0)

    run.deliver_all()

    assert seen[0] == [0]


def test_the_pace_of_a_batch_counts_the_wait_that_its_rows_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `rows_per_s` the next batch waits for it, and the group would wait with it."""
    place, runtime, seen = Place(rows=lambda _: [2]), simulated_runtime(seed=3), list[list[int]]()
    to = Delivery(ignoring(Recorder(lambda _: seen.append(markers(place)))), rows_per_s=0.5)
    run = behind(place, to, 3, runtime=runtime)
    monkeypatch.setattr("wal_sink.protocol.progress.SMALL_BATCH_BYTES", 0)

    run.deliver_all()

    assert seen == [[], [0], [0, 1]]


def test_a_group_lasts_a_second_however_often_the_term_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch becomes known as complete after the look for the one before, so there is a look for each."""
    place, runtime = Place(), simulated_runtime(seed=3)
    run = place.open({"a": ignoring(Recorder(lambda _: runtime.sleep_s(0.4 * GROUP_S)))}, runtime=runtime)
    for _ in place.query().batches(run, 8):
        continue
    monkeypatch.setattr(Group, "learn_of_backlog", lambda *_: None)  # as if they came one by one

    run.deliver_all()

    assert markers(place) == [2, 5, 7]


def test_a_group_that_lasts_a_second_takes_no_further_batch() -> None:
    runtime = simulated_runtime(seed=3)
    run = behind(Place(), ignoring(Recorder()), 3, runtime=runtime)
    group = Group(cast("Any", run), is_allowed=True)
    runtime.sleep_s(10 * GROUP_S)
    group.look(lambda: None)

    runtime.sleep_s(0.5 * GROUP_S)
    assert (group.may_take(0), group.is_in_time()) == (True, True)
    runtime.sleep_s(0.5 * GROUP_S)
    assert (group.may_take(0), group.is_in_time()) == (False, False)


@pytest.mark.parametrize(
    ("newest", "is_open", "allowed", "reads"),
    [(9, False, True, [8]), (6, False, True, []), (7, False, True, [6]), (9, True, True, []), (9, False, False, [])],
)
def test_one_read_tells_of_a_backlog(newest: int, is_open: bool, allowed: bool, reads: list[int]) -> None:
    read, run = list[int](), Place().open({"a": Recorder()})
    gate = SimpleNamespace(known=run.gate.known, is_known_open=lambda _: is_open, is_open=read.append)
    shared: Any = SimpleNamespace(gate=gate, history=SimpleNamespace(newest_known=newest), log=run.log)
    Group(shared, is_allowed=allowed).learn_of_backlog(5)
    assert read == reads


def test_the_limits_of_a_group_are_those_that_the_guarantees_name() -> None:
    assert (GROUP_BATCHES, GROUP_S, SMALL_BATCH_BYTES) == (8, 1.0, 4 << 20)


def test_only_what_was_known_before_a_look_at_the_term_rests_on_it() -> None:
    """A newer process may have staged a batch anew that becomes known as complete during the look."""
    place = Place()
    run = place.open({"a": ignoring(Recorder())})
    for _ in place.query().batches(run, 3):
        continue
    one = Group(cast("Any", run), is_allowed=True)
    staged = run.history.staged(0)
    assert staged is not None
    one.batches.append(staged)

    one.look(lambda: cast("None", run.gate.search()))

    assert run.gate.is_known_open(1)
    assert not one.covers(1)
    one.look(lambda: None)
    assert one.covers(1)


def test_a_group_is_marked_when_its_next_batch_fails_and_is_tried_again() -> None:
    place, seen = Place(), list[list[int]]()

    def failing(chunk: Chunk) -> None:
        if chunk.batch_id == 2 and len(seen) < 3:
            seen.append(markers(place))
            raise ConnectionError("down")

    sink = Recorder(failing)
    behind(place, ignoring(sink), 4, runtime=simulated_runtime(seed=3)).deliver_all()

    assert seen == [[], [1], [1]]
    assert sink.batches == [0, 1, 2, 3]
    assert markers(place)[-1] == 3


def test_a_group_is_marked_while_the_checkpoint_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    place, seen = Place(), list[list[int]]()
    run = behind(place, ignoring(Recorder()), 4, runtime=simulated_runtime(seed=3))
    offsets_text = run.checkpoint.offsets_text

    def failing(batch_id: int) -> str | None:
        if batch_id == 2 and len(seen) < 3:
            seen.append(markers(place))
            raise StoreError("the checkpoint gives no answer")
        return offsets_text(batch_id)

    monkeypatch.setattr(run.checkpoint, "offsets_text", failing)

    run.deliver_all()

    assert seen == [[], [1], [1]]
    assert markers(place)[-1] == 3


def test_a_group_is_marked_when_its_next_batch_is_no_longer_complete() -> None:
    """The checkpoint was rolled back between two batches of the group."""
    place = Place()
    run = behind(place, ignoring(Recorder()), 2)
    assert run.advance(run.committers[0])
    assert markers(place) == []

    place.query().roll_back(0)
    run.gate.close_from(1)

    assert run.advance(run.committers[0])
    assert markers(place) == [0]
    assert not run.advance(run.committers[0])


def test_who_takes_a_batch_over_marks_it_before_it_goes_on() -> None:
    """It may have been sent before, and marked by a predecessor that wakes up."""

    class Crash(BaseException):
        pass

    def dying(_: Chunk) -> None:
        raise Crash

    place = Place()
    with pytest.raises(Crash):
        behind(place, ignoring(Recorder(dying)), 3).deliver_all()
    newer = place.open({"a": ignoring(Recorder())})

    assert newer.advance(newer.committers[0])

    assert markers(place) == [0]


@pytest.mark.parametrize(
    "to",
    [
        pytest.param(lambda sink: sink, id="plain"),
        pytest.param(lambda sink: Delivery(ignoring(sink), guarantee="at_most_once"), id="at most once"),
    ],
)
def test_every_other_sink_gets_a_marker_a_batch(to: Callable[[Recorder], Any]) -> None:
    place, sink = Place(), Recorder()

    behind(place, to(sink), 5).deliver_all()

    assert markers(place) == [0, 1, 2, 3, 4]


def test_what_a_crash_left_unmarked_is_sent_again_under_the_same_keys() -> None:
    class Crash(BaseException):
        pass

    def dying(chunk: Chunk) -> None:
        if chunk.batch_id == 3:
            raise Crash

    place, first, second = Place(), Recorder(dying), Recorder()
    with pytest.raises(Crash):
        behind(place, ignoring(first), 5).deliver_all()
    assert markers(place) == []

    place.open({"a": ignoring(second)}).deliver_all()

    assert second.batches == [0, 1, 2, 3, 4]
    assert second.keys[: len(first.keys)] == first.keys


def test_a_name_that_began_otherwise_keeps_a_marker_a_batch_and_may_go_back() -> None:
    """A plain sink that came after a group's death would send all of it again."""
    place, sink = Place(), Recorder()
    place.open({"a": sink})
    behind(place, ignoring(sink), 4).deliver_all()
    assert markers(place) == [0, 1, 2, 3]

    place.open({"a": sink}).deliver_all()

    assert sink.batches == [0, 1, 2, 3]


def test_a_sink_that_gives_up_leaves_no_batch_unmarked_that_it_has() -> None:
    def refusing(chunk: Chunk) -> None:
        if chunk.batch_id == 3:
            raise PermanentError("no")

    place, sink = Place(), Recorder(refusing)

    with pytest.raises(DeliveryError):
        behind(place, ignoring(sink), 5).deliver_all()

    assert markers(place) == [2]


def test_a_marker_that_cannot_be_written_hides_no_failure_of_the_sink(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unwritable(*_: object) -> bool:
        raise StoreError("the disk is full")

    def refusing(chunk: Chunk) -> None:
        if chunk.batch_id == 3:
            monkeypatch.setattr(Log, "create", unwritable)
            raise PermanentError("no")

    place = Place()

    with pytest.raises(DeliveryError, match="no"):
        behind(place, ignoring(Recorder(refusing)), 5).deliver_all()

    assert markers(place) == []
    assert "the markers of 3 delivered batches were not written: the disk is full" in caplog.text


def test_a_process_that_slept_within_a_group_sees_that_it_was_superseded() -> None:
    place, sink = Place(), Recorder()
    runtime = simulated_runtime()
    run = behind(place, ignoring(sink), 5, runtime=runtime)
    assert run.advance(run.committers[0])

    runtime.sleep_s(GROUP_S)
    place.open({"a": ignoring(Recorder())})

    with pytest.raises(FencedError):
        run.deliver_all()
    assert sink.batches == [0]


def test_a_batch_with_refused_rows_has_a_separate_marker_that_counts_them() -> None:
    place = Place()
    picky = Recorder(lambda chunk: Rejected({0: "bad"}) if chunk.batch_id == 1 else None)
    run = behind(place, Delivery(ignoring(picky), on_rejected="dead_letter"), 4)

    run.deliver_all()

    assert markers(place) == [1, 3]


def test_who_takes_over_sends_nothing_that_a_later_marker_stands_for() -> None:
    """The older process marks its group after the newer one has looked at its standing, before its first send."""
    place, first, second = Place(), Recorder(), Recorder()
    old = behind(place, ignoring(first), 3)
    assert old.advance(old.committers[0])
    assert old.advance(old.committers[0])
    new = place.open({"a": ignoring(second)})
    old.committers[0].mark_delivered()
    assert markers(place) == [1]

    new.deliver_all()

    assert second.batches == [2]


def test_people_see_every_batch_that_a_marker_stands_for_as_delivered() -> None:
    place, sink = Place(), Recorder()
    behind(place, ignoring(sink), 3).deliver_all()

    detail = read_batch(WalFacts(place.wal), 1)

    assert markers(place) == [2]
    assert [view.delivered_to for view in read_batches(WalFacts(place.wal))] == [("a",)] * 3
    assert detail is not None
    assert detail.delivered[0].complete
    assert detail.delivered[0].rows == detail.manifest.rows
    assert read_status(place.wal).sinks[0].delivered_through == 2


def test_a_sink_that_began_later_has_not_what_came_before_it() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    run = place.open({"a": Recorder(), "b": Delivery(Recorder(), start_from="next")})
    place.stream(run, 3)

    assert [view.delivered_to for view in read_batches(WalFacts(place.wal))] == [("a",), ("a",), ("a", "b"), ("a", "b")]


def test_a_thread_that_is_stopped_within_a_group_marks_what_was_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    place, stopping = Place(), threading.Event()
    sink = Recorder(lambda chunk: stopping.set() if chunk.batch_id == 2 else None)
    run = behind(place, ignoring(sink), 5)
    monkeypatch.setattr(run, "shared", replace(run.shared, pause=lambda _: stopping.is_set()))
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)

    thread.start()

    assert thread.join(60)
    assert thread.error is None
    assert markers(place) == [2]
