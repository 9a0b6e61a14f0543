"""One commit for a batch: what the position in the target decides, before the commit and after a failure of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest

from tests.house.log import claim, paths
from tests.house.protocol import DeliveryContext, LocalDispatcher, Run, SegmentTask
from tests.house.sinks import BatchCommit, CommitPosition, Sink, StagedSegment, as_sink, promise
from tests.support.hanging_calls import Hangs
from tests.support.lake import Lake, LakeSink, LostRaceError, Version
from tests.support.one_segment import raising
from tests.support.small_run import Place, Recorder
from wal_sink import ConfigError, DeliveryError, FencedError, HistoryError, PermanentError
from wal_sink.log.records import without_segments
from wal_sink.protocol.dispatch import serve
from wal_sink.protocol.positions import digest_of
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import SinkQuery, simulated_runtime

FIRST, SECOND, THIRD = (pa.table({"id": [number, number + 1]}) for number in (1, 3, 5))


def query(lake: Lake, sink: Callable[[Lake], LakeSink] = LakeSink, attempts: int = 3) -> SinkQuery:
    return SinkQuery(lambda: Delivery(sink(lake), retry=Retry(attempts=attempts)))


def ids(lake: Lake) -> list[int]:
    return [row["id"] for row in lake.rows()]


def test_the_digest_of_a_batch_stays_the_same_since_targets_keep_it() -> None:
    assert digest_of(msgspec.structs.replace(without_segments(1), id="m")) == "b3030da20464028"


def test_all_segments_of_a_batch_are_one_commit_in_their_order() -> None:
    lake = Lake()
    with query(lake) as running:
        running.batch(FIRST, SECOND, THIRD)
        assert (ids(lake), lake.commits) == ([1, 2, 3, 4, 5, 6], 1)
        calls = [point for point in running.points if "position" in point or "commit " in point]
        assert [call.partition(" of")[0] for call in calls if call.startswith("before")] == [
            "before position",
            "before commit",
        ]


def test_a_batch_without_rows_makes_no_commit_and_the_next_one_follows() -> None:
    lake = Lake()
    with query(lake) as running:
        running.batch(FIRST)
        running.batch(FIRST.slice(0, 0))
        running.batch(SECOND)
    assert (ids(lake), lake.commits) == ([1, 2, 3, 4], 2)


class _AnswerIsLost(LakeSink):
    """The commit arrives, and its answer does not."""

    def commit(self, batch: BatchCommit) -> None:
        before = self.lake.commits
        super().commit(batch)
        if self.lake.commits > before:
            raise TimeoutError("no answer")


def test_a_commit_whose_answer_is_lost_is_asked_for_before_anything_is_prepared_again() -> None:
    lake = Lake()
    with query(lake, _AnswerIsLost) as running:
        running.batch(FIRST)
        points = [point.split()[1] for point in running.points if point.startswith("before p") and "mark" not in point]
    assert (ids(lake), lake.commits) == ([1, 2], 1)
    assert points == ["prepare", "position", "position"]


class _BesideOthers(LakeSink):
    """Another writer commits between the look and the commit."""

    others = 1

    def commit(self, batch: BatchCommit) -> None:
        if self.others:
            self.others -= 1
            self.lake.versions.append(self.lake.versions[-1])
            raise LostRaceError("the version is there")
        super().commit(batch)


def test_a_sink_that_leaves_a_lost_race_to_the_core_is_asked_again() -> None:
    lake = Lake()
    with query(lake, _BesideOthers) as running:
        running.batch(FIRST)
    assert (ids(lake), lake.commits) == ([1, 2], 2)


class _PreparesOne(LakeSink):
    """Fails at its second segment."""

    def prepare(self, segment: StagedSegment) -> str:
        if self.lake.written:
            raise ConnectionError("the store is gone")
        return super().prepare(segment)


def test_nothing_is_committed_while_one_segment_is_not_prepared() -> None:
    lake = Lake()
    with pytest.raises(DeliveryError, match="the store is gone"), query(lake, _PreparesOne) as running:
        running.batch(FIRST, pa.table({"name": ["other columns, so another segment"]}))
    assert lake.commits == 0


# Targets that lost something, or never had it.


def start_after(lake: Lake, how: Callable[[], object], *more: pa.Table) -> None:
    """Two batches; then the process dies, something happens to the target, and the next process starts."""
    with query(lake) as running:
        running.batch(FIRST)
        running.batch(SECOND)
        running.crash()
        how()
        running.restart()
        for table in more:
            running.batch(table)


def made_anew(lake: Lake) -> None:
    lake.versions[:] = Lake().versions


def of_an_older_backup(lake: Lake) -> None:
    del lake.versions[-1]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda lake: lake.restore(1), "the target has batch 1, which it does not show"),
        (lambda lake: lake.restore(0), "the target has batch 1, which it does not show"),
        (of_an_older_backup, r"the target has batch 0\."),
        (made_anew, "the target has no position"),
    ],
)
def test_a_table_that_was_rolled_back_or_replaced_is_refused_at_the_next_start(
    how: Callable[[Lake], object], told: str
) -> None:
    lake, before = Lake(), list[Version]()

    def happens() -> None:
        how(lake)
        before[:] = lake.versions

    with pytest.raises(HistoryError, match=rf"batch 1 was delivered, but {told}.*wal-sink catch-up"):
        start_after(lake, happens)
    assert lake.versions == before


@pytest.mark.parametrize("how", [lambda lake: lake.restore(1), made_anew])
def test_a_table_that_is_rolled_back_in_mid_run_is_refused_before_the_next_commit_and_at_the_end(
    how: Callable[[Lake], object],
) -> None:
    for more in (True, False):
        lake, before = Lake(), list[Version]()
        with pytest.raises(HistoryError, match="batch 1 was delivered"), query(lake) as running:  # noqa: PT012
            running.batch(FIRST)
            running.batch(SECOND)
            how(lake)
            before += lake.versions
            if more:
                running.batch(THIRD)
        assert lake.versions == before, more


@pytest.mark.parametrize(
    "how",
    [
        lambda lake: lake.restore(2),
        lambda lake: lake.versions.append(lake.versions[-1]),
        lambda lake: (lake.restore(1), lake.restore(2)),
    ],
    ids=["to our own commit", "another's commit", "back and forth"],
)
def test_what_keeps_our_commit_is_no_loss(how: Callable[[Lake], object]) -> None:
    lake = Lake()
    start_after(lake, lambda: how(lake), THIRD)
    assert ids(lake) == [1, 2, 3, 4, 5, 6]


def test_a_batch_that_was_rolled_back_before_its_marker_is_delivered_again() -> None:
    lake = Lake()
    with query(lake) as running:
        running.crash_at("after commit")
        running.batch(FIRST)
        lake.restore(0)
        running.restart()
        running.batch(SECOND)
    assert ids(lake) == [1, 2, 3, 4]
    assert lake.commits == 4


@pytest.mark.parametrize("batch_id", [2, 7])
def test_a_target_with_a_later_batch_or_another_history_is_refused(batch_id: int) -> None:
    lake = Lake()
    with pytest.raises(HistoryError, match=f"already holds batch {batch_id} with digest 0{{15}}, where batch 2"):  # noqa: PT012, SIM117
        with query(lake) as running:
            running.batch(FIRST)
            running.batch(SECOND)
            slot = next(iter(lake.versions[-1].positions))
            lake.versions[-1].positions[slot] = (CommitPosition(batch_id, "0" * 15), 2)
            running.batch(THIRD)
    assert lake.commits == 2


@pytest.mark.parametrize(
    ("call", "does", "told"),
    [
        ("commit", raising(PermanentError("no")), "'default': LakeSink: commit refused permanently: no"),
        ("commit", lambda *_: 7, "'default': LakeSink: commit returned 7: expected None"),
        ("position", raising(PermanentError("no")), "'default': position refused permanently: no"),
    ],
)
def test_a_call_that_fails_is_named(call: str, does: Callable[..., object], told: str) -> None:
    lake, sink = Lake(), type("Failing", (LakeSink,), {call: does})
    with pytest.raises(DeliveryError, match=told), query(lake, sink) as running:
        running.batch(FIRST)
    assert lake.commits == 0


@pytest.mark.parametrize("answer", ["batch 1", 1, True])
def test_an_answer_that_is_no_position_is_an_error(answer: Any) -> None:
    class Wrong(LakeSink):
        def position(self) -> CommitPosition | None:
            found: CommitPosition | None = answer
            return found

    lake = Lake()
    with pytest.raises(DeliveryError, match="expected a CommitPosition or None"), query(lake, Wrong) as running:
        running.batch(FIRST)
    assert lake.commits == 0


# Arguments.


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        ({"on_rejected": "dead_letter"}, "names the rows that it refuses; its kind is commit"),
        ({"rows_per_s": 1.0}, "commit sink does not support rows_per_s=1"),
        ({"max_concurrency": 1}, "neither max_concurrency=1"),
        ({"threads_per_task": 2}, "nor threads_per_task"),
    ],
)
def test_policies_that_a_commit_cannot_keep_are_refused(policies: dict[str, Any], told: str) -> None:
    sink = LakeSink(Lake())
    with pytest.raises(ConfigError, match=told):
        promise(sink, Delivery(sink, **policies), "a")


def test_rows_that_only_the_target_would_keep_are_refused() -> None:
    sink = LakeSink(Lake())
    sink.keep_segments = False  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="keep_segments=False needs a TwoPhaseSink"):
        promise(sink, Delivery(sink), "a")


@pytest.mark.parametrize("guarantee", [None, "at_most_once", "exactly_once"])
def test_it_is_exactly_once_whatever_less_is_asked_for(guarantee: Any) -> None:
    sink = LakeSink(Lake())
    assert promise(sink, Delivery(sink, guarantee=guarantee), "a").sentence.startswith("exactly once: all rows of a")


# The process that commits.


def run_of(sink: LakeSink, *, make: Callable[[], Sink] | None, hangs: Hangs | None = None) -> Run:
    """A run with one complete batch, whose sink is made by `make` for each look and commit; None: it has no copies."""
    place = Place(rows=lambda _: [1, 2])
    runtime = simulated_runtime(seed=99)
    if hangs is not None:
        runtime = replace(runtime, new_timed_call=hangs.new_timed_call)
    run = place.open({"a": Recorder()}, runtime=runtime)
    sink.driver_only = make is None
    delivery = Delivery(sink, retry=Retry(attempts=3, attempt_timeout_s=0.05))
    here = LocalDispatcher(lambda: sink, run.log, should_stop=lambda: False)
    run.committers[0]._served_sink = serve("a", sink, delivery, here, run.log, travels=make)
    next(place.query().batches(run, 1))
    return run


def test_a_superseded_process_commits_nothing() -> None:
    class Superseded(LakeSink):
        def prepare(self, segment: StagedSegment) -> str:
            if not self.lake.written:
                claim(run.log, paths.committer_role("a"), was_held=True)
            return super().prepare(segment)

    lake = Lake()
    run = run_of(Superseded(lake), make=None)
    with pytest.raises(FencedError, match="batch 0, sink 'a': term 1 of 'committer-a'"):
        run.deliver_all()
    assert (lake.commits, len(lake.written)) == (0, 2)


def test_the_process_that_commits_uses_copies_that_are_made_for_it() -> None:
    lake, made = Lake(), list[LakeSink]()

    def make() -> LakeSink:
        made.append(LakeSink(lake))
        return made[-1]

    run_of(LakeSink(lake), make=make).deliver_all()
    assert (len(made), lake.commits, len(lake.rows())) == (1, 1, 3)


def test_a_batch_is_prepared_once_and_its_result_counts_each_segment_once() -> None:
    sink: Any = LakeSink(Lake())
    run = run_of(sink, make=None)
    dispatcher: Any = run.committers[0].served_sink.dispatcher
    manifest = run.history.staged(0)
    assert manifest is not None
    sink.commit = Mock(wraps=sink.commit)
    prepares = dispatcher._prepares.deliver = Mock(wraps=dispatcher._prepares.deliver)
    given = DeliveryContext("w", "a", run.committers[0].term, 0, ("batch", "row"), "", 2, 2, False, False, 10, None)
    for again in (False, True):
        tasks = [SegmentTask(number, ref, 0, maybe_sent=again) for number, ref in enumerate(manifest.segments)]
        results = dispatcher.deliver(given, manifest, tasks, confirm=False)
        assert [(each.ordinal, each.rows, each.chunks) for each in results] == [(0, 1, 1), (1, 2, 1)]
    ((_, of, _), how), ((committed,), _) = prepares.call_args, sink.commit.call_args
    assert (prepares.call_count, of, how, committed.rows) == (1, manifest, {"confirm": False}, 3)


def refuse() -> Sink:
    raise PermanentError("no module")


@pytest.mark.parametrize(
    ("make", "told"),
    [(refuse, "making the sink refused permanently: no module"), (lambda: as_sink(Recorder()), "is not a CommitSink")],
)
def test_without_a_copy_of_its_kind_nothing_is_committed(make: Callable[[], Sink], told: str) -> None:
    lake = Lake()
    with pytest.raises(DeliveryError, match=told):
        run_of(LakeSink(lake), make=make).deliver_all()
    assert lake.commits == 0


def test_a_commit_that_hangs_in_the_only_object_is_not_called_beside_itself() -> None:
    hangs = Hangs()

    class Hanging(LakeSink):
        def commit(self, batch: BatchCommit) -> None:  # noqa: ARG002
            hangs.wait()

    lake = Lake()
    try:
        with pytest.raises(DeliveryError, match=r"still running after 0\.05 s.*cannot be called again"):
            run_of(Hanging(lake), make=None, hangs=hangs).deliver_all()
    finally:
        hangs.release.set()
    assert lake.commits == 0
