"""Rolls of batches that a sink shows as one: what is in a roll, who decides it, and what a process does then."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from tests.house.log import ErrorRecord, Log, Marker, decode, paths
from tests.house.operate import Check, plan_skip
from tests.house.protocol import CommitterThread, Run
from tests.house.sinks import BatchCommit, CommitPosition, Sink
from tests.house.support import SYSTEM
from tests.support.lake import Lake, LakeSink
from tests.support.small_run import Place, Recorder, before_create
from tests.support.vault import Vault, VaultSink
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import ConfigError, CorruptError, DeliveryError, FencedError, HistoryError, StoreError
from wal_sink.protocol import committer as committing
from wal_sink.protocol.rolling import MOST_BATCHES
from wal_sink.settings import MAX_SEGMENT_BYTES, Delivery, Retry
from wal_sink.sinks import Transaction
from wal_sink.testing import crash_matrix

ROLL_S = 60.0
FIVE = [pa.table({"id": range(10 * batch, 10 * batch + rows)}) for batch, rows in enumerate((3, 0, 2, 1, 4))]


def rolled(sink: Sink, **policies: Any) -> Delivery:
    return Delivery(sink, **{"roll_s": ROLL_S, "retry": Retry(attempts=2), **policies})


def staged(place: Place, run: Run, batches: int) -> None:
    for _ in place.query().batches(run, batches):
        continue
    run.gate.search()


def advance(run: Run, *, closes: bool = False) -> int:
    """Do all that can be done now. Returns the number of steps."""
    return sum(1 for _ in iter(lambda: run.advance(run.committers[0], closes=closes), False))


def folder_of(place: Place, first: int) -> list[str]:
    return place.wal.list(paths.progress_folder("a", first))


def marker(place: Place, batch_id: int) -> Marker:
    return decode(Marker, place.wal.read(paths.marker("a", batch_id)), "a marker")


def test_a_roll_waits_for_later_batches_until_its_time_is_over() -> None:
    place, lake = Place(rows=lambda batch: [1, 2] if batch != 1 else [0]), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 2)
    assert (advance(run), run.committers[0].rolls_in_s, lake.commits) == (2, ROLL_S, 0)
    run.log.runtime.sleep_s(ROLL_S - 1)
    for _ in place.query().batches(run, 4):
        continue
    assert (advance(run), lake.commits, run.committers[0].rolls_in_s) == (2, 0, 1.0)
    run.log.runtime.sleep_s(1)
    assert (advance(run), lake.commits, run.committers[0].rolls_in_s) == (1, 1, None)
    assert len(lake.versions[-1].files) == 1, "six small segments and an empty batch are one file"
    assert [(row["batch"], row["row"]) for row in lake.rows()] == [
        (batch, row) for batch in (0, 2, 3) for count in (1, 2) for row in range(count)
    ]
    (name,) = place.wal.list(paths.markers("a"))
    found = marker(place, 3)
    assert (name, found.rows, found.last_delivered_batch, found.last_delivered_rows) == (f"{3:019}.json", 9, 3, (9,))
    assert len(found.timings) == 1


def test_the_end_of_a_run_closes_the_roll() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 3)
    assert advance(run) == 3
    place.requests.clear()
    run.deliver_all()
    assert [each for each in place.requests if "markers" in each] == [f"create {paths.marker('a', 2)}"]
    assert (lake.commits, run.committers[0].marked_through) == (1, 2)


def test_nothing_of_a_roll_is_open_over_a_restart() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 3)
    assert advance(run) == 3
    place.open({"a": rolled(LakeSink(lake))}).deliver_all()
    assert (lake.commits, len(lake.rows())) == (1, 3)


def test_batches_without_rows_make_no_commit_and_one_marker() -> None:
    place, lake = Place(rows=lambda _: [0]), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 3)
    run.deliver_all()
    assert (lake.commits, place.wal.list(paths.markers("a"))) == (0, [f"{2:019}.json"])


def test_the_position_names_the_last_batch_with_rows() -> None:
    place, lake = Place(rows=lambda batch: [1] if batch < 2 else [0]), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 4)
    run.deliver_all()
    ((position, _),) = lake.versions[-1].positions.values()
    assert (position.batch_id, marker(place, 3).last_delivered_batch) == (1, 1)
    assert place.wal.list(paths.markers("a")) == [f"{3:019}.json"]
    run.committers[0].confirm_marked()
    again = place.open({"a": rolled(LakeSink(lake))})
    staged(place, again, 5)
    again.deliver_all()
    assert (lake.commits, len(lake.rows())) == (1, 2)


def test_a_large_batch_appears_alone_with_its_own_segments() -> None:
    place, lake = Place(rows=lambda batch: [1, 1] if batch == 1 else [1]), Lake()
    run = place.open({"a": rolled(LakeSink(lake), roll_bytes=bytes_of_a_batch() + 1)})
    staged(place, run, 3)
    run.deliver_all()
    assert [len(version.files) for version in lake.versions] == [0, 1, 3, 4]
    assert [folder_of(place, first) for first in range(3)] == [["roll.json"]] * 3


def test_a_roll_ends_with_as_many_bytes_and_before_more() -> None:
    place, lake = Place(), Lake()
    one = bytes_of_a_batch()
    run = place.open({"a": rolled(LakeSink(lake), roll_bytes=3 * one)})
    staged(place, run, 7)
    assert advance(run) == 7
    assert (lake.commits, run.committers[0].marked_through) == (2, 5)
    less = Lake()
    run = place.open({"b": rolled(LakeSink(less), roll_bytes=3 * one - 1, start_from="earliest")}, stages=False)
    run.deliver_all()
    assert less.commits == 4


def bytes_of_a_batch() -> int:
    """The bytes of a batch of one row."""
    other = Place()
    run = other.open({"a": Recorder()})
    (manifest,) = [run.history.staged(batch_id) for batch_id in other.query().batches(run, 1)]
    assert manifest is not None
    return manifest.bytes


def test_a_roll_has_so_many_batches_at_most_and_chunks_that_its_sink_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_BATCHES == 1000
    monkeypatch.setattr("wal_sink.protocol.rolling.MOST_BATCHES", 2)
    place, sink = Place(), LakeSink(Lake())
    sink.max_chunk_bytes = 12_345
    run = place.open({"a": rolled(sink)})
    assert run.committers[0]._rolling._chunk_bytes == 12_345
    staged(place, run, 5)
    assert (advance(run), sink.lake.commits) == (5, 2)


def test_other_columns_begin_another_roll() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 2)
    place.evaluate = lambda batch_id, end_offset: [pa.table({"other": [batch_id + end_offset]})]  # type: ignore[method-assign]
    staged(place, run, 4)
    run.deliver_all()
    assert [len(version.files) for version in lake.versions] == [0, 1, 2]


# Several processes.


class _Dies(LakeSink):
    def commit(self, batch: BatchCommit) -> None:  # noqa: ARG002
        raise ConnectionError("no answer")


class _IsLost(LakeSink):
    """The commit arrives, and its answer does not."""

    def commit(self, batch: BatchCommit) -> None:
        super().commit(batch)
        raise ConnectionError("no answer")

    def position(self) -> Any:
        if self.lake.commits:
            raise ConnectionError("no answer")


@pytest.mark.parametrize("sink", [_Dies, _IsLost])
@pytest.mark.parametrize("more", [0, 2])
def test_a_roll_that_was_decided_is_delivered_as_it_is(sink: type[LakeSink], more: int) -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(sink(lake))})
    staged(place, run, 3)
    with pytest.raises(DeliveryError, match="no answer"):
        run.deliver_all()
    assert run.committers[0].rolls_in_s == 0
    written = set(lake.written)
    again = place.open({"a": rolled(LakeSink(lake), roll_bytes=1 if more == 0 else 1 << 20)})
    staged(place, again, 3 + more)
    again.deliver_all()
    assert (lake.commits, len(lake.rows())) == (1 + bool(more), 3 + more)
    assert written <= set(lake.versions[-1].files), "no file is left over"
    assert set(lake.written) == set(lake.versions[-1].files)


def test_the_first_to_decide_decides_for_all() -> None:
    """A process that slept decides after the newer one has, and drops what it merged."""
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 2)
    assert advance(run) == 2
    rolling = run.committers[0]._rolling

    def overtaken() -> None:
        newer = place.open({"a": rolled(_Dies(lake))})
        staged(place, newer, 3)
        with pytest.raises(DeliveryError):
            newer.deliver_all()

    before_create(place.wal, paths.roll("a", 0), overtaken)
    assert rolling.decide(1) is None, "the roll has a third batch"
    assert not rolling.may_close()
    assert rolling.wait_s() is None, "it waits for a batch, not for a time"
    assert max(folder_of(place, 0)) == "roll.json"
    assert len(folder_of(place, 0)) == 2, "one segment and its record"


def test_a_roll_that_a_newer_process_delivered_meanwhile_is_not_delivered_again() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 2)
    assert advance(run) == 2
    before_create(place.wal, paths.roll("a", 0), lambda: place.open({"a": rolled(LakeSink(lake))}).deliver_all())
    assert run.advance(run.committers[0])
    assert (lake.commits, run.committers[0].marked_through) == (1, 1)


def test_a_roll_with_fewer_batches_than_were_taken_leaves_the_others() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(_Dies(lake))})
    staged(place, run, 2)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    again = place.open({"a": rolled(LakeSink(lake))}, stages=False)
    assert (advance(again), again.committers[0].next_batch()) == (2, 2)
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 5)
    run.deliver_all()
    assert [len(version.files) for version in lake.versions] == [0, 1, 2]
    assert run.committers[0].marked_through == 4


def test_a_lost_record_of_a_roll_that_was_begun_is_an_error() -> None:
    class Failing(VaultSink):
        def commit(self, transaction: Transaction, handle: str) -> None:  # noqa: ARG002
            raise ConnectionError("no answer")

    place, vault = Place(), Vault()
    for _ in range(2):
        run = place.open({"a": rolled(Failing(vault))})
        staged(place, run, 1)
        with pytest.raises(DeliveryError):
            run.deliver_all()
    place.wal.delete([paths.roll("a", 0)])
    with pytest.raises(CorruptError, match=r"roll\.json: expected the record of a roll"):
        place.open({"a": rolled(VaultSink(vault))}).deliver_all()
    assert vault.rows() == []
    newest = max(place.wal.list(paths.errors("a")))
    assert decode(ErrorRecord, place.wal.read(f"{paths.errors('a')}/{newest}"), "an error").batch_id == 0


def test_a_record_that_was_made_after_the_look_for_it_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A superseded process that slept makes it, and prepares rows."""
    place, vault = Place(), Vault()
    older = place.open({"a": rolled(VaultSink(vault))})
    staged(place, older, 3)
    assert advance(older) == 3
    newer = place.open({"a": rolled(VaultSink(vault))}, stages=False)
    list_numbers = Log.numbers

    def overtaken(log: Log, prefix: str, *, after: int = -1) -> list[int]:
        if log is newer.log and prefix == paths.progress_batches("a"):
            with pytest.raises(FencedError):
                older.deliver_all()
        return list_numbers(log, prefix, after=after)

    monkeypatch.setattr(older.committers[0], "_look_at_term", lambda: None)
    monkeypatch.setattr(Log, "numbers", overtaken)
    newer.deliver_all()
    assert (len(vault.rows()), newer.committers[0].marked_through) == (3, 2)


def fail_once(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let the next call of this function of the committer's module fail."""
    inner, failures = getattr(committing, step), [StoreError("no answer")]

    def failing(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return inner(*given, **more)

    monkeypatch.setattr(committing, step, failing)


@pytest.mark.parametrize("before", ["new_marker", "tell_marked"])
def test_a_roll_whose_marker_fails_is_shown_once(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the marker is there."""
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 3)
    fail_once(monkeypatch, before)
    run.deliver_all()
    assert (lake.commits, run.committers[0].marked_through, run.committers[0].next_batch()) == (1, 2, 3)


def test_a_roll_whose_marker_fails_is_shown_once_while_later_batches_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They begin the next roll, and keep the one that was decided from nothing."""
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake), roll_bytes=2 * bytes_of_a_batch())})
    staged(place, run, 5)
    fail_once(monkeypatch, "new_marker")
    assert (advance(run), lake.commits, run.committers[0].marked_through) == (5, 2, 3)
    run.deliver_all()
    assert (lake.commits, len(lake.rows()), run.committers[0].marked_through) == (3, 5, 4)


@pytest.mark.parametrize("lost", ["manifest-", ".parquet"])
def test_batches_before_a_broken_one_are_delivered_and_it_can_be_skipped(lost: str) -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 4)
    folder = paths.batch(2)
    place.wal.delete(f"{folder}/{name}" for name in place.wal.list(folder, recursive=True) if lost in name)
    again = place.open({"a": rolled(LakeSink(lake))}, stages=False)
    with pytest.raises((CorruptError, HistoryError)):
        again.deliver_all()
    assert (lake.commits, len(lake.rows()), again.committers[0].marked_through) == (1, 2, 1)
    with pytest.raises((CorruptError, HistoryError)):
        place.open({"a": rolled(LakeSink(lake))}, stages=False).deliver_all()
    assert plan_skip(run.log, "a", 2).batch_id == 2


def test_a_target_that_has_a_part_of_a_roll_is_refused() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake))})
    staged(place, run, 1)
    run.deliver_all()
    ((slot, _),) = lake.versions[-1].positions.items()
    lake.versions[-1].positions[slot] = (CommitPosition(1, "0" * 15), 1)
    staged(place, run, 4)
    with pytest.raises(HistoryError, match=r"already holds batch 1 .* where batch 3"):
        run.deliver_all()
    assert lake.commits == 1


def test_a_batch_of_a_roll_that_was_decided_cannot_be_skipped() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(_IsLost(lake))})
    staged(place, run, 3)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    with pytest.raises(ConfigError, match=r"batches 0 to 2 of .* are one roll of sink 'a'"):
        plan_skip(run.log, "a", 0)


def test_a_roll_of_one_batch_can_be_skipped() -> None:
    place = Place()
    run = place.open({"a": rolled(_Dies(Lake()))})
    staged(place, run, 1)
    with pytest.raises(DeliveryError):
        run.deliver_all()
    assert plan_skip(run.log, "a", 0).batch_id == 0


def test_the_records_of_a_rolled_two_phase_sink_are_whole() -> None:
    place, vault = Place(rows=lambda _: [2, 1]), Vault()
    for batches in (3, 5):
        run = place.open({"a": rolled(VaultSink(vault))})
        staged(place, run, batches)
        run.deliver_all()
        assert (Check(place.wal).run(), len(vault.rows())) == ([], 3 * batches)


# Every disturbance.


def test_every_disturbance_shows_every_row_once_in_a_lake() -> None:
    lakes: list[Lake] = []

    def new_lake() -> Lake:
        lakes.append(Lake())
        return lakes[-1]

    matrix = crash_matrix(lambda lake: rolled(LakeSink(lake)), Lake.rows, new_lake, tables=FIVE).check()
    assert (matrix.lost, matrix.repeated, matrix.permitted) == (0, 0, 0)
    assert matrix.crashes > 50
    assert matrix.takeovers > 20
    used = [lake for lake in lakes if lake.commits]
    assert min(lake.commits for lake in used) == 3, "five batches, two in each roll"
    assert all(set(lake.written) == set(lake.versions[-1].files) for lake in used), "no file is left over"


def test_every_disturbance_shows_every_row_once_in_a_two_phase_target() -> None:
    matrix = crash_matrix(lambda vault: rolled(VaultSink(vault)), Vault.rows, Vault, tables=FIVE).check()
    assert (matrix.lost, matrix.repeated, matrix.permitted) == (0, 0, 0)
    assert matrix.takeovers > 20


def test_every_pair_of_deaths_shows_every_row_once() -> None:
    matrix = crash_matrix(
        lambda lake: rolled(LakeSink(lake)), Lake.rows, Lake,
        tables=FIVE[:3], disturb=("dies",), every=3, each_line=False, double=True,
    ).check()  # fmt: skip
    assert matrix.crashes > 100


# Arguments.


@pytest.mark.parametrize(
    ("sink", "policies", "told"),
    [
        (Recorder(), {}, "roll_s=60 needs a CommitSink or a TwoPhaseSink"),
        (VaultSink(Vault()), {"keep_segments": False}, "with keep_segments=True"),
        (LakeSink(Lake()), {"roll_s": 0}, "roll_s=0: expected a number of seconds above 0"),
        (LakeSink(Lake()), {"roll_bytes": 0}, "roll_bytes"),
        (LakeSink(Lake()), {"roll_bytes": MAX_SEGMENT_BYTES + 1}, "expected at most"),
    ],
)
def test_what_cannot_be_rolled_is_refused(sink: Any, policies: dict[str, Any], told: str) -> None:
    if "keep_segments" in policies:
        sink.keep_segments = policies.pop("keep_segments")
    with pytest.raises(ConfigError, match=told):
        Place().open({"a": rolled(sink, **policies)})


@pytest.mark.parametrize("before", [True, False])
def test_a_name_keeps_its_rolls_or_has_none(before: bool) -> None:
    place, lake = Place(), Lake()
    place.open({"a": rolled(LakeSink(lake), roll_s=ROLL_S if before else None)})
    with pytest.raises(ConfigError, match=f"registered with{'' if before else 'out'} rolls of batches.*--roll-s"):
        place.open({"a": rolled(LakeSink(lake), roll_s=None if before else ROLL_S)})
    place.open({"a": rolled(LakeSink(lake), roll_s=2 * ROLL_S if before else None)})


# The committer's thread.


def test_the_thread_waits_for_the_roll_and_delivers_it_without_another_call() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake), roll_s=0.5)}, runtime=SYSTEM)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    began_s = SYSTEM.monotonic_s()
    for _ in place.query().batches(run, 3):
        thread.wake()
    wait_until(lambda: bool(lake.commits))
    assert SYSTEM.monotonic_s() - began_s >= 0.5
    thread.finish()
    assert thread.join(PATIENCE_S)
    assert (thread.error, lake.commits, len(lake.rows())) == (None, 1, 3)


def test_finishing_closes_the_roll_at_once() -> None:
    place, lake = Place(), Lake()
    run = place.open({"a": rolled(LakeSink(lake), roll_s=PATIENCE_S * 2)}, runtime=SYSTEM)
    thread = CommitterThread(run, run.committers[0], on_failure=lambda _: None)
    for _ in place.query().batches(run, 3):
        thread.wake()
    wait_until(lambda: len(run.committers[0]._rolling.batches) == 3)
    thread.wake()
    time.sleep(0.1)  # it looks for another batch, and has no answer to give
    assert lake.commits == 0
    thread.finish()
    assert thread.join(PATIENCE_S)
    assert (thread.error, lake.commits, len(lake.rows())) == (None, 1, 3)
