"""How a WAL does: lag, backlog and take-overs of each sink, and what keeps batches from deletion."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest

from tests.house.log import Log, Manifest, RetiredRecord, claim, encode, note_end, paths
from tests.house.operate import SparkCommit, WalFacts, read_commit, read_health, read_status
from tests.house.support import process_identity
from tests.support.repairs import log_on
from tests.support.small_run import Place, Recorder
from wal_sink import Chunk, Delivery, Rejected
from wal_sink.errors import StoreError
from wal_sink.log.terms import renew
from wal_sink.operate.batches import age_s, moment_of, seconds_between
from wal_sink.operate.health import LOOKED_AT, MOST_READ, NOT_COUNTED, Health, SinkHealth, take_overs
from wal_sink.operate.status import older_checkpoint
from wal_sink.testing import FaultyStore

STAGED = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of a simulated run that never slept."""
LATER = STAGED + timedelta(minutes=20)
LATE_S = 600.0
UNKNOWN = SparkCommit(None, "nobody knows")
ROLE = paths.committer_role("a")


def staged(batches: int, *, drained: int = 0, names: tuple[str, ...] = ("a",)) -> Place:
    """Return a WAL of complete batches of 3 rows; the first sink has the first `drained` of them, the others all."""
    place = Place(rows=lambda _: [3])
    run = place.open({name: Recorder() for name in names})
    for batch_id in place.query().batches(run, batches):
        for committer in run.committers:
            if committer.name != names[0] or batch_id < drained:
                run.advance(committer, search=True)
    return place


def health(place: Place, *, spark: SparkCommit | None = None, now: datetime = LATER) -> Health:
    status = read_status(place.wal)
    spark = spark or read_commit(place.checkpoint, status.query_id)
    return read_health(WalFacts(place.wal), spark, now=now)


def only(place: Place, *, spark: SparkCommit | None = None, now: datetime = LATER) -> SinkHealth:
    (sink,) = health(place, spark=spark, now=now).sinks
    return sink


def test_a_sink_that_has_everything_has_no_lag_however_long_ago_that_was() -> None:
    sink = only(staged(2, drained=2))
    assert (sink.lag_s, sink.lag_note, sink.pending.batches, sink.behind_spark, sink.keeps_back) == (0.0, "", 0, 0, 0)
    assert (sink.delivered_at, sink.delivered_age_s) == ("2026-01-01T00:00:00.000+00:00", 1200.0)
    assert not sink.is_late(1.0)


def test_a_backlog_is_counted_in_batches_rows_and_bytes_since_its_oldest_batch() -> None:
    place = staged(5, drained=2)
    sink = only(place)
    manifests = [place_manifest(place, batch_id) for batch_id in (2, 3, 4)]
    assert (sink.pending.batches, sink.pending.rows, sink.pending.is_exact) == (3, 9, True)
    assert sink.pending.bytes == sum(manifest.bytes for manifest in manifests)
    assert (sink.pending.oldest, sink.pending_age_s, sink.lag_s, sink.behind_spark) == (2, 1200.0, 1200.0, 3)
    assert sink.is_late(LATE_S)
    assert not sink.is_late(1200.0)


def place_manifest(place: Place, batch_id: int) -> Manifest:
    found = Log(place.wal, None, "").find(Manifest, paths.manifest(batch_id, 1, batch_id + 1))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_sink_without_a_marker_has_the_whole_backlog() -> None:
    sink = only(staged(2))
    assert (sink.delivered_at, sink.delivered_age_s) == (None, None)
    assert (sink.pending.oldest, sink.pending.batches) == (0, 2)


def test_batches_before_the_first_one_of_a_sink_are_no_backlog_of_it() -> None:
    place = staged(3, drained=3)
    place.open({"a": Recorder(), "b": Delivery(Recorder(), start_from="next")})
    late = next(sink for sink in health(place).sinks if sink.name == "b")
    assert (late.lag_s, late.pending.batches, late.behind_spark, late.keeps_back) == (0.0, 0, 0, 0)


def test_a_batch_that_spark_did_not_complete_counts_and_says_what_it_waits_for() -> None:
    place = staged(2, drained=2)
    run = place.open({"a": Recorder()})
    query = place.query()
    query.start_batch(2, 2)
    query.stage(run, 2)
    sink = only(place)
    assert (sink.pending.oldest, sink.behind_spark, sink.lag_s) == (2, 0, 1200.0)
    assert sink.lag_note == "batch 2 waits until Spark completes it"
    assert sink.is_late(LATE_S)


def test_a_batch_that_is_being_staged_is_no_backlog_yet() -> None:
    place = staged(2, drained=2)
    place.wal.create(f"{paths.attempt_folder(2, 1, 9)}/000000-0000-x.parquet", b"rows")
    for spark in (None, UNKNOWN):
        sink = only(place, spark=spark)
        assert (sink.pending.batches, sink.pending.missing, sink.lag_s) == (0, None, 0.0)


def test_a_batch_that_spark_completed_and_the_wal_lacks_is_an_unknown_lag() -> None:
    for held in (0, 2):
        sink = only(staged(2, drained=held), spark=SparkCommit(5))
        assert (sink.lag_s, sink.pending.missing) == (None, 2)
        assert sink.lag_note == "batch 2 is due, but the WAL does not hold it, or it cannot be read"
        assert sink.is_late(10.0**9)


def test_a_complete_batch_whose_manifest_is_gone_is_missing() -> None:
    place = staged(3, drained=2)
    place.wal.delete([paths.manifest(2, 1, 3)])
    sink = only(place)
    assert (sink.lag_s, sink.pending.missing, sink.pending.rows, sink.pending.is_exact) == (None, 2, 0, False)


def test_a_gap_in_the_middle_is_missing() -> None:
    place = staged(6, drained=2)
    place.wal.delete([f"{paths.batch(4)}/{name}" for name in place.wal.list(paths.batch(4), recursive=True)])
    sink = only(place)
    assert (sink.pending.oldest, sink.pending.missing, sink.lag_s) == (2, 4, None)


def test_damaged_records_hide_no_other_sink() -> None:
    place = staged(3, drained=2, names=("a", "b"))
    path = paths.manifest(2, 1, 3)
    data = place.wal.read(path)
    place.wal.delete([path])
    place.wal.create(path, data[:-20])
    first, second = health(place).sinks
    assert (first.lag_s, first.pending.missing) == (None, 2)
    assert second.lag_s == 0.0


def test_an_unknown_checkpoint_is_told_as_unknown_and_the_lag_is_still_known() -> None:
    sink = only(staged(3, drained=1), spark=UNKNOWN)
    assert (sink.behind_spark, sink.lag_s) == (None, 1200.0)


def test_a_query_that_ran_on_since_the_checkpoint_was_read_has_no_older_checkpoint() -> None:
    facts = WalFacts(staged(4, drained=4).wal)
    for again, is_older in ((SparkCommit(3), False), (SparkCommit(1), True), (UNKNOWN, True)):
        found = read_health(facts, SparkCommit(1), again=partial(copy, again), now=LATER)
        assert (found.checkpoint_fault is not None) == is_older
        assert found.spark == SparkCommit(1)


def test_a_time_that_cannot_be_read_is_late() -> None:
    place = staged(1)
    path = paths.manifest(0, 1, 1)
    manifest = place_manifest(place, 0)
    place.wal.delete([path])
    place.wal.create(path, encode(msgspec.structs.replace(manifest, created="yesterday")))
    sink = only(place)
    assert (sink.lag_s, sink.lag_note) == (None, "the time at which batch 0 was staged is unknown")
    assert sink.is_late(10.0**9)


def test_clocks_that_differ_by_more_than_the_limit_are_late() -> None:
    sink = only(staged(1), now=STAGED - timedelta(hours=1))
    assert (sink.lag_s, sink.lag_note) == (-3600.0, "the clock of the writer is ahead of this machine's")
    assert sink.is_late(LATE_S)


def test_the_sink_that_is_behind_all_others_keeps_batches_back() -> None:
    found = health(staged(5, drained=2, names=("slow", "fast", "faster")))
    assert [sink.keeps_back for sink in found.sinks] == [0, 0, 3]  # by name: fast, faster, slow
    assert found.kept_back_by == ("slow",)


def test_a_sink_with_a_last_batch_lacks_no_later_one() -> None:
    """It counted as late, and the batches that it never gets as pending, for ever."""
    place = staged(2, drained=2)
    run = place.open({"b": Delivery(Recorder(), start_from=0, through=0, same_target=True)}, stages=False)
    list(place.query().batches(place.open({"a": Recorder()}), 5))
    found = {sink.name: sink for sink in health(place).sinks}["b"]
    assert (found.pending.batches, found.behind_spark) == (1, 1)
    run.deliver_all()
    assert {sink.name: sink.pending_batches for sink in read_status(place.wal).sinks} == {"a": 3, "b": 0}


def test_a_retired_sink_is_never_late_and_keeps_nothing_back() -> None:
    place = staged(3, drained=1)
    log = Log(place.wal, place.open({}).log.runtime, "r" * 32)
    log.create(paths.retired("a"), RetiredRecord(through=0, run_id="r" * 32, **log.stamp()))
    sink = only(place)
    assert (sink.is_retired, sink.lag_s, sink.lag_note, sink.keeps_back, sink.behind_spark) == (True, None, "", 0, None)
    assert not sink.is_late(1.0)


def test_a_look_reads_no_dead_letter_of_a_retired_sink() -> None:
    place = Place(rows=lambda _: [2])
    place.stream(place.open({"a": Delivery(refuse, on_rejected="dead_letter")}), 2)
    log = Log(place.wal, place.open({}).log.runtime, "r" * 32)
    log.create(paths.retired("a"), RetiredRecord(through=2, run_id="r" * 32, **log.stamp()))
    requests: list[str] = []
    counted = FaultyStore(place.wal, lambda what, path: requests.append(f"{what} {path}"))
    (sink,) = read_health(WalFacts(counted), UNKNOWN, now=LATER).sinks
    assert not [each for each in requests if "dead-letters" in each]
    assert (sink.dead_letters, sink.letters.is_exact, sink.letters.note) == (0, False, NOT_COUNTED)


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "not this one"})


def test_ten_thousand_pending_batches_cost_a_bounded_number_of_requests() -> None:
    place = staged(1)
    manifest = place_manifest(place, 0)
    for batch_id in range(1, 10_000):
        copied = msgspec.structs.replace(manifest, batch_id=batch_id, attempt=1)
        place.wal.create(paths.manifest(batch_id, 1, 1), encode(copied))
    requests: list[str] = []
    counted = FaultyStore(place.wal, lambda what, path: requests.append(f"{what} {path}"))
    (sink,) = read_health(WalFacts(counted), UNKNOWN, now=LATER).sinks
    assert (sink.pending.batches, sink.pending.is_exact, sink.pending.oldest) == (10_000, False, 0)
    assert 3 * (MOST_READ - 1) <= sink.pending.rows <= 3 * MOST_READ
    assert len(requests) <= 2 * MOST_READ + 17
    listings = [each for each in requests if each.startswith("before list")]
    assert len(listings) == len(set(listings))  # each prefix once


def test_the_sinks_share_the_manifests_that_are_read() -> None:
    place = staged(30, names=tuple("abcdefgh"))
    for batch_id in range(30):  # nobody has any batch
        place.wal.delete([paths.marker(name, batch_id) for name in "abcdefgh"])
    requests: list[str] = []
    counted = FaultyStore(place.wal, lambda what, path: requests.append(f"{what} {path}"))
    read_health(WalFacts(counted), UNKNOWN, now=LATER)
    assert len([each for each in requests if "/manifest-" in each]) == MOST_READ // 8


# --- Spark's newest commit


def test_the_newest_commit_is_that_of_the_checkpoint() -> None:
    place = staged(4)
    assert read_commit(place.checkpoint, read_status(place.wal).query_id) == SparkCommit(3)


def test_a_checkpoint_of_another_query_or_of_none_says_nothing() -> None:
    other, empty = staged(1), Place()
    assert "belongs to another query" in read_commit(other.checkpoint, "another").unknown_because
    assert read_commit(empty.checkpoint, "q") == SparkCommit(None, f"{empty.checkpoint.root} holds no query id")


def test_a_checkpoint_that_cannot_be_read_is_unknown_and_its_error_holds_no_secret() -> None:
    def refuse_it(_what: str, _path: str) -> None:
        raise StoreError("403 for https://me:hush-hush-0123@host/checkpoint")

    found = read_commit(FaultyStore(Place().checkpoint, refuse_it), "q")
    assert found.newest is None
    assert "403" in found.unknown_because
    assert "hush-hush" not in found.unknown_because


# --- ages


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01"])
def test_a_time_that_is_none_has_no_age(text: str | None) -> None:
    assert moment_of(text) is None
    assert age_s(text, LATER) is None
    assert seconds_between(text, LATER.isoformat()) is None


def test_a_time_without_a_zone_is_utc() -> None:
    assert age_s("2026-01-01T00:00:00", LATER) == 1200.0
    assert seconds_between("2026-01-01T00:00:00", "2026-01-01T00:00:01+00:00") == 1.0


@pytest.mark.parametrize(
    ("spark", "newest_batch", "delivered_through", "told"),
    [
        (SparkCommit(6), 13, 13, "was delivered through 13, while Spark completed batches through 6 only"),
        (SparkCommit(6), 8, 6, "holds batches through 8, while Spark completed batches through 6 only"),
        (SparkCommit(-1), 1, -1, "holds batches through 1, while Spark completed no batch"),
        (SparkCommit(6), 7, 6, ""),
        (SparkCommit(-1), 0, -1, ""),
        (SparkCommit(9), 7, 6, ""),
        (SparkCommit(None, "no rights"), 13, 13, ""),
    ],
)
def test_a_checkpoint_is_older_if_the_wal_knows_more_than_it_completed(
    spark: SparkCommit, newest_batch: int, delivered_through: int, told: str
) -> None:
    found = older_checkpoint(spark, newest_batch=newest_batch, delivered_through=delivered_through)
    assert (told in found) if told else found == ""


def served() -> Place:
    place = Place()
    place.open({"a": Recorder()})
    return place


def fenced(place: Place, *, later: timedelta = timedelta()) -> int:
    log = log_on(place.wal)
    return take_overs(log, "a", max(log.numbers(paths.terms(ROLE))), log.runtime.now() + later)


def a_process(place: Place) -> Log:
    log = log_on(place.wal)
    return Log(log.store, log.runtime, log.runtime.new_id())


def test_processes_that_fence_each_other_are_counted() -> None:
    place = served()
    for _ in range(LOOKED_AT - 1):
        claim(a_process(place), ROLE)
    assert fenced(place) == LOOKED_AT - 1


def test_processes_that_ended_in_order_are_not() -> None:
    place = served()
    note_end(log_on(place.wal), ROLE, 1)
    for _ in range(6):
        log = a_process(place)
        note_end(log, ROLE, claim(log, ROLE).number)
    assert fenced(place) == 0


def test_processes_of_this_machine_that_were_killed_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor starts a process again that is killed each time; there is no second supervisor."""
    place, killed = served(), msgspec.structs.replace(process_identity(), pid=2**22 + 1)
    monkeypatch.setattr("wal_sink.log.terms.process_identity", lambda: killed)
    for _ in range(LOOKED_AT):
        claim(a_process(place), ROLE)
    assert fenced(place) == 0


def test_processes_that_recorded_their_end_after_they_were_fenced_are_counted() -> None:
    place = served()
    for number in range(1, LOOKED_AT):
        log = a_process(place)
        claim(log, ROLE)
        log.runtime.sleep_s(1.0)
        note_end(log, ROLE, number)
    assert fenced(place) == LOOKED_AT - 1


def test_take_overs_of_long_ago_are_not() -> None:
    place = served()
    for _ in range(6):
        claim(a_process(place), ROLE)
    assert fenced(place, later=timedelta(hours=2)) == 0


def test_one_process_that_claims_several_terms_is_not() -> None:
    place = served()
    log = a_process(place)
    term = claim(log, ROLE)
    for _ in range(6):
        term = renew(log, term)
    assert fenced(place) == 0


@pytest.mark.parametrize("data", [b"damaged", None])
@pytest.mark.parametrize("number", [3, 4])
def test_a_term_that_cannot_be_read_tells_nothing(data: bytes | None, number: int) -> None:
    place = served()
    for _ in range(6):
        claim(a_process(place), ROLE)
    place.wal.delete([paths.term(ROLE, number)])
    if data is not None:
        place.wal.create(paths.term(ROLE, number), data)
    assert fenced(place) < 3


def test_a_sink_with_few_terms_costs_no_request() -> None:
    place, requests = served(), list[str]()
    log = log_on(place.wal, lambda what, where: requests.append(f"{what} {where}"))
    assert isinstance(log.store, FaultyStore)
    assert take_overs(log, "a", LOOKED_AT - 1, log.runtime.now()) == 0
    assert requests == []
