"""A stager writes segments and manifests, and some states keep it from writing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.house.log import WalRecord, decode, encode, paths
from tests.house.protocol import Run, Staged
from tests.house.support import Event
from tests.house.support import Staged as StagedEvent
from tests.support.logged import said_here
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, FencedError, HistoryError
from wal_sink.settings import Settings
from wal_sink.testing import simulated_runtime


def drainer(place: Place) -> Run:
    """A run that only delivers."""
    run = Run(place.wal, place.checkpoint, Settings())
    run.open()
    return run


def test_a_run_is_the_stager_once_it_claimed_the_role() -> None:
    run = drainer(Place())
    assert not run.is_stager
    with pytest.raises(ConfigError, match="opened to drain only"):
        run.begin_staging(0, planned_ms=1)

    run.become_stager()

    assert run.is_stager


def test_a_manifest_that_is_there_under_the_same_term_is_anothers_and_ends_the_query() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    assert list(place.query().batches(run, 1)) == [0]
    query = place.query()
    query.start_batch(1, 1)
    place.wal.create(paths.manifest(1, 1, 2), b"another process's")

    with pytest.raises(FencedError, match=r"batch 1: manifest of term 1 .* under the same term"):
        query.stage(run, 1)

    assert run.history.staged(1) is None


def test_the_manifest_says_what_was_staged_from_which_offsets_for_chunks_of_which_size() -> None:
    place = Place()
    run = place.open({}, settings=Settings(chunk_rows=7))
    query = place.query()
    query.start_batch(0, 0)

    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    manifest = run.end_staging(
        attempt, Staged(segments=(), columns=("a", "b"), spark_schema="{}", time_zone="Asia/Tokyo")
    )

    offsets = place.checkpoint.read("offsets/0").decode()
    assert (manifest.batch_id, manifest.term, manifest.attempt, manifest.run_id) == (0, 1, 1, run.log.run_id)
    assert (manifest.offsets, manifest.fingerprint, manifest.time_zone) == (
        offsets,
        attempt.offsets.fingerprint,
        "Asia/Tokyo",
    )
    assert (manifest.columns, manifest.spark_schema, manifest.chunk_rows) == (("a", "b"), "{}", 7)
    assert attempt.folder == paths.attempt_folder(0, 1, 1)
    assert manifest.timing is not None
    assert (manifest.timing.tasks, manifest.timing.task_seconds) == (0, 0)
    assert manifest.timing.began == attempt.began


def test_the_event_of_a_staged_batch_tells_the_seconds_since_its_attempt_began() -> None:
    clock, events = simulated_runtime(seed=1), list[Event]()
    place = Place()
    run = place.open({}, runtime=clock, on_event=events.append)
    clock.sleep_s(60)
    query = place.query()
    query.start_batch(0, 0)

    attempt = run.begin_staging(0, planned_ms=query.planned_ms(0))
    assert attempt is not None
    clock.sleep_s(2)
    requests: Any = ("as measured",)
    run.end_staging(attempt, Staged(segments=(), columns=(), requests=requests))

    told = [(event.took_s, event.requests) for event in events if isinstance(event, StagedEvent)]
    ((took_s, found),) = told
    assert found == requests
    assert took_s == pytest.approx(2)


def test_every_attempt_of_a_run_counts_higher_than_those_before() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    query = place.query()
    query.start_batch(0, 0)

    numbers = []
    for _ in range(3):
        query.stage(run, 0)
        staged = run.history.staged(0)
        assert staged is not None
        numbers.append((staged.term, staged.attempt))

    assert numbers == [(1, 1), (1, 2), (1, 3)]


def test_a_batch_that_another_query_planned_is_refused_by_its_number_and_both_times() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(0, 0)
    planned = run.checkpoint.require_offsets(0).planned_ms

    with pytest.raises(FencedError, match=rf"batch 0: .*/offsets/0 was planned at {planned}, .* at 5\. Another query"):
        run.begin_staging(0, planned_ms=5)


def test_a_batch_whose_entry_does_not_say_when_it_was_planned_is_refused() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(0, 0)
    place.checkpoint.delete(["offsets/0"])
    place.checkpoint.create("offsets/0", b'v1\n{}\n{"end":0}')

    with pytest.raises(
        FencedError, match=r"batch 0: .*/offsets/0 was planned at an unknown time, .* at 5\. Another query"
    ):
        run.begin_staging(0, planned_ms=5)


def test_of_two_runs_that_only_stage_on_copies_of_a_checkpoint_the_earlier_one_ends() -> None:
    """Nothing else would tell: each copy has what its own query planned, and neither run has a committer."""
    place = Place()
    copy = Place(wal=place.wal)
    earlier = place.open({})
    query, other = place.query(), copy.query()
    next(query.batches(earlier, 1))
    for name in place.checkpoint.list("", recursive=True):
        copy.checkpoint.create(name, place.checkpoint.read(name))
    later = copy.open({})
    query.start_batch(1, 1)
    other.start_batch(1, 77)

    with pytest.raises(FencedError, match="term 1 of 'stager'"):
        query.stage(earlier, 1)

    assert place.wal.list(paths.batch(1)) == []
    assert other.stage(later, 1)


@pytest.mark.parametrize(("sinks", "reads"), [([], 1), (["a"], 0)])
def test_a_newer_process_is_looked_for_at_each_batch_by_a_run_without_committers_alone(
    sinks: list[str], reads: int
) -> None:
    place = Place()
    run = place.open({name: Recorder() for name in sinks})
    query = place.query()
    next(query.batches(run, 1))
    query.start_batch(1, 1)
    place.requests.clear()

    query.stage(run, 1)

    assert len([name for name in place.requests if name.startswith(f"read {paths.terms(paths.STAGER_ROLE)}")]) == reads


def test_other_input_under_a_released_batch_is_refused_by_its_number() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)
    run = place.open({"a": Recorder()})
    query = place.query()
    query.roll_back(-1)
    query.start_batch(0, 77)

    with pytest.raises(HistoryError, match="batch 0 of memory://"):
        query.stage(run, 0)


# Gaps.


def test_the_newest_batch_is_a_replay_once_it_is_released_also_in_the_query_that_staged_it() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    query = place.query()
    next(query.batches(run, 1))
    run.deliver_all()

    assert not query.stage(run, 0)


@pytest.mark.parametrize(
    ("batch_id", "missing"), [(2, "batch 1 is"), (3, "batches 1 to 2 are"), (4, "batches 1 to 3 are")]
)
def test_a_gap_is_refused_with_the_batches_that_are_missing(batch_id: int, missing: str) -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 0)
    query = place.query()
    query.start_batch(batch_id, batch_id)

    with pytest.raises(HistoryError, match=rf"batch {batch_id} follows batch 0 in .*: {missing} missing in between"):
        query.stage(run, batch_id)


def test_a_batch_that_an_older_process_staged_meanwhile_is_no_gap() -> None:
    place = Place()
    older, newer = place.open({"a": Recorder()}), place.open({"a": Recorder()})
    query = place.query()
    for run, batch_id in ((older, 0), (newer, 1)):
        query.start_batch(batch_id, batch_id)
        assert query.stage(run, batch_id)


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_first_batch_that_was_bound_and_not_staged_is_missing(first: int, restarted: bool) -> None:
    """`foreachBatch` swallowed the error, so that Spark completed it."""
    place = Place()
    run = place.open({})
    query = place.query()
    query.start_batch(first, first)
    assert run.begin_staging(first, planned_ms=query.planned_ms(first)) is not None
    if restarted:
        run = place.open({})
    query.start_batch(first + 1, first + 1)

    with pytest.raises(
        HistoryError,
        match=rf"batch {first + 1} cannot be staged into .*, because this WAL begins with batch {first} and holds no "
        rf"batch: batch {first} is missing in between",
    ):
        query.stage(run, first + 1)

    assert query.stage(run, first), "restored, it is staged after all"
    assert query.stage(run, first + 1)


def test_a_first_batch_that_others_delivered_since_the_query_began_is_refused_under_other_offsets() -> None:
    where = Place()
    sleeping = where.open({"b": Recorder()})
    where.stream(where.open({"a": Recorder()}), 0)
    query = where.query()
    query.roll_back(-1)
    query.start_batch(0, 7)
    with pytest.raises(HistoryError, match="under the same id"):
        query.stage(sleeping, 0)


def test_a_first_batch_whose_wal_another_process_makes_at_that_moment_is_looked_up() -> None:
    """Unlike that of a WAL that the run made: the other one may have released the batch by now."""
    where = Place()
    sleeping = where.open({"b": Recorder()})
    query = where.query()
    query.start_batch(0, 7)
    create = where.wal.create

    def another_is_first(path: str, data: bytes) -> None:
        where.wal.create = create  # type: ignore[method-assign]
        if path == paths.WAL:
            create(path, encode(replace(decode(WalRecord, data, path), id="another's")))
            create(paths.release(0), release_of_another_plan())
        create(path, data)

    where.wal.create = another_is_first  # type: ignore[method-assign]

    with pytest.raises(HistoryError, match="batch 0"):
        query.stage(sleeping, 0)


def release_of_another_plan() -> bytes:
    """A release of batch 0, as another query of the checkpoint makes it."""
    other = Place()
    other.stream(other.open({"a": Recorder()}), 0)
    return other.wal.read(paths.release(0))


def test_a_superseded_query_is_told_so_if_its_batch_was_collected() -> None:
    where = Place()
    sleeping = where.open({})
    run = where.open({"a": Recorder()})
    where.stream(run, 0)
    run.log.raise_low_water(0)
    with pytest.raises(FencedError, match="was superseded"):
        where.query().stage(sleeping, 0)


def test_of_batches_collected_since_it_chose_them_a_query_is_told_that_another_runs() -> None:
    """Although its term is the higher one: it began later, and the earlier query was the faster."""
    where = Place()
    run = where.open({"a": Recorder()})
    sleeping = where.open({})
    where.stream(run, 0)
    run.log.raise_low_water(0)
    with pytest.raises(FencedError, match=r"batch 0: the batch is complete in .*another query runs on this checkpoint"):
        where.query().stage(sleeping, 0)


def test_a_collected_batch_that_a_restored_checkpoint_asks_for_is_gone() -> None:
    where = Place()
    where.stream(where.open({"a": Recorder()}), 0)
    run = where.open({"a": Recorder()})
    run.log.raise_low_water(0)
    query = where.query()
    query.roll_back(-1)
    query.start_batch(0, 0)
    with pytest.raises(
        HistoryError, match=r"batch 0 .*deleted from the WAL \(low water 0\).*Restore a newer checkpoint"
    ):
        query.stage(run, 0)


@pytest.mark.parametrize("stale", [1, 3], ids=["of this batch", "of a later one"])
def test_a_batch_that_is_complete_before_it_ran_is_refused_before_anything_is_written(stale: int) -> None:
    """`offsets` was rolled back and `commits` was not: the old entry would open the gate. Before: it did."""
    place = Place()
    place.query().start_batch(1, 1)
    place.query().complete_batch(stale)
    sink = Recorder()
    run = place.open({"a": sink})

    with pytest.raises(FencedError, match=r"batch 1: .*/commits has an entry for this batch.* restore the whole"):
        place.query().stage(run, 1)
    run.deliver_all()

    assert sink.batches == []
    assert place.wal.list(paths.BATCHES) == []
    assert run.history.wal is None
    place.checkpoint.delete([f"commits/{stale}"])
    assert place.query().stage(run, 1)
    run.deliver_all()
    assert sink.batches == []
    place.query().complete_batch(1)
    run.deliver_all()
    assert sink.batches == [1]


def staged_twice(place: Place, rows: list[int]) -> None:
    """Batch 0 with two rows, by a run that died before Spark completed it, then again."""
    place.rows = lambda _: [2]
    place.query().start_batch(0, 0)
    place.query().stage(place.open({}), 0)
    place.rows = lambda _: rows
    place.query().stage(place.open({}), 0)


@pytest.mark.parametrize("rows", [[], [1], [2, 1]], ids=["none", "fewer", "more"])
def test_another_number_of_rows_than_an_earlier_attempt_had_is_told(
    rows: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """As where a file was deleted after a crash: Spark replays its batch without it. Before: not a word."""
    place = Place()

    staged_twice(place, rows)

    (told,) = said_here(caplog)
    (record,) = [vars(each) for each in caplog.records if each.getMessage() == told]
    assert (record["wal"], record["batch"]) == (place.wal.root, 0)
    assert f"batch 0 of {place.wal.root} was staged again with {sum(rows)} rows" in told
    assert f"had 2 rows from the same input ({paths.manifest(0, 1, 1)})" in told


def test_an_attempt_of_this_run_is_compared_without_a_request() -> None:
    place = Place()
    run, query = place.open({"a": Recorder()}), place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    place.requests.clear()

    query.stage(run, 0)

    assert f"read {paths.manifest(0, 1, 1)}" not in place.requests
    assert f"create {paths.manifest(0, 1, 2)}" in place.requests


def test_the_same_number_of_rows_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    staged_twice(Place(), [1, 1])

    assert said_here(caplog) == []


def test_a_commit_that_a_restored_checkpoint_no_longer_has_opens_no_gate_for_a_batch_staged_since() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    place.checkpoint.create("commits/1", b"v1\n{}")
    assert run.gate.search() == 1
    place.checkpoint.delete(["commits/1"])

    query.start_batch(1, 1)
    query.stage(run, 1)
    run.deliver_all()

    assert sink.batches == [0]
    assert not run.gate.is_known_open(1)
