"""Every number of a few estimates, computed by hand. The store has round numbers, and a listing shows one name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from wal_sink.estimation.advice import advise, changes
from wal_sink.estimation.estimate import Estimate, PrefixLoad, estimate
from wal_sink.estimation.plan import LOCAL_MODEL, S3_MODEL, Plan, Prices, Segments, Shape, StoreModel, shape_of
from wal_sink.estimation.requests import Done, Pace, Protocol, Requests
from wal_sink.estimation.sizes import manifest_bytes, marker_bytes, progress_bytes, release_bytes
from wal_sink.settings import Settings
from wal_sink.sinks.guarantees import Ability

STORE = StoreModel(
    "by hand", write_s=2, read_s=1, bandwidth=1000, writes_per_s=100, reads_per_s=400, page=1,
    prices=Prices(per_1000_puts=1000, per_1000_gets=100, per_1000_deletes=10, gb_month=2**30, as_of="a test"),
)  # fmt: skip
"""A listing takes a request for each name, a delete one for each object. Prices: $1 a PUT, $0.10 a GET, $0.01 a delete,
$1 a byte.
"""
AT_ONCE = replace(STORE, write_s=0, read_s=0, bandwidth=1e18)
KEPT = 200 + 16
"""Batches in a WAL at most: the retention, and those between two collections."""
PLAN = Plan(
    executors=3,
    cores_per_executor=2,
    segments=3,
    batch_interval_s=10,
    rows_per_s=4,
    row_bytes=30,
    compression=3,
    settings=Settings(chunk_rows=10, retention_batches=200),
    inline_bytes=0,
    sinks=2,
    where="executors",
    sink_call_s=0.5,
    pending_batches=3,
)
"""120 rows a batch: 3 segments of 40 rows and 400 bytes, each of 4 chunks. Two segments at a time for each sink."""
BESIDE = Shape((Segments(3, 4, rows_each=40, rows_per_chunk=10, bytes_each=400),))
SPREAD = Shape((Segments(2 * 1026, 3, rows_each=3, rows_per_chunk=1, bytes_each=1, files_per_partition=2),))
"""Of 1026 partitions, two lie in shards, with two segments each. The progress of 6156 chunks lies in shards too."""


LARGE = Plan(1, segments=1026, rows_per_s=1026, batch_interval_s=1, where="executors", inline_bytes=0)


def protocol(ability: Ability = Ability.ACCEPT, *, at_most_once: bool = False, sinks: int = 2) -> Protocol:
    return Protocol(STORE, ability, at_most_once, sinks, retention_batches=200)


# --- requests


def test_a_batch_in_shards_for_two_sinks() -> None:
    assert protocol().of_batch(SPREAD) == {
        "batches": Requests(puts=2048 + 2, gets=2 * 2048),
        "batches/<shard>": Requests(puts=4, gets=2 * 4),
        "terms": Requests(gets=2 * (1 + 6156)),
        "sinks": Requests(puts=2),
        "sinks/<shard>": Requests(puts=2 * 6156),
    }


def test_a_collection_deletes_what_was_recorded_by_time_from_shards() -> None:
    """A chunk takes half a second, so there are records after every other one."""
    keyed = replace(protocol(Ability.IGNORE_KNOWN_KEYS), pace=Pace(chunk_s=0.5))
    records = keyed.records(SPREAD)
    assert 6156 / 2 <= records <= 6156
    assert keyed.of_batch(SPREAD)["sinks/<shard>"] == Requests(puts=2 * records)
    assert keyed.of_collection(SPREAD)["sinks/<shard>"].keys_deleted == 16 * 2 * records


def test_a_collection_of_batches_in_one_folder() -> None:
    assert protocol().of_collection(BESIDE) == {
        "low-water": Requests(puts=1, lists=2 * 17, keys_deleted=1),
        "terms": Requests(gets=1),
        # Each sink: three listings of its markers, its folders of progress, and 12 records in each of 16.
        "sinks": Requests(gets=2 * 2, lists=3 * 2 + 2 * (3 * KEPT + KEPT + 16 * 12), keys_deleted=16 * 2 * 13),
        "sinks/<shard>": Requests(),
        # 16 folders of 3 segments, a manifest and a release. One delete takes one of 497 objects.
        "batches": Requests(lists=KEPT + 16 * 5, deletes=80 + 416 + 1, keys_deleted=80),
        "batches/<shard>": Requests(),
        "milestones": Requests(lists=1),
    }


def test_a_collection_of_batches_in_shards() -> None:
    assert protocol().of_collection(SPREAD) == {
        "low-water": Requests(puts=1, lists=2 * 17, keys_deleted=1),
        "terms": Requests(gets=1),
        "sinks": Requests(gets=2 * 2, lists=3 * 2 + 2 * (3 * KEPT + 16), keys_deleted=16 * 2),
        "sinks/<shard>": Requests(lists=2 * 16 * (KEPT + 6156), deletes=2 * 16 * 6156, keys_deleted=2 * 16 * 6156),
        "batches": Requests(lists=KEPT + 2 + 16 * 2050, deletes=16 * 2050 + 32 + 1, keys_deleted=16 * 2050),
        "batches/<shard>": Requests(lists=2 * (KEPT + 16 * 2), deletes=16 * 4, keys_deleted=16 * 4),
        "milestones": Requests(lists=1),
    }


def test_a_start_with_three_transactional_sinks() -> None:
    assert protocol(Ability.TRANSACTIONAL, sinks=3).of_start() == {
        "probe": Requests(puts=2, gets=1, lists=1, deletes=1, keys_deleted=1),
        "": Requests(lists=1),
        "wal.json": Requests(gets=1),
        "low-water": Requests(gets=1, lists=2 * 16),
        "batches": Requests(gets=2 * 3, lists=2 * KEPT + 1),
        "sinks": Requests(gets=3 * 3, lists=1 + 3 * (1 + KEPT)),
        "terms": Requests(puts=3 + 1, lists=3 + 2),
    }


@pytest.mark.parametrize(
    ("given", "shape", "done", "expected"),
    [
        pytest.param(
            protocol(),
            SPREAD,
            Done(begun=5, whole=3, chunks=12),
            {
                # Release, manifest, a look for a later marker; the segments beside one another but for three.
                "batches": Requests(gets=2 + 1 + 2048 - 3),
                "batches/<shard>": Requests(gets=4),
                "terms": Requests(gets=1 + 6156 - 12),
                "low-water": Requests(lists=16),
                "sinks": Requests(puts=1, gets=1 + 2052 - 3, lists=1 + KEPT),
                "sinks/<shard>": Requests(puts=6156 - 12, gets=5, lists=16),
            },
            id="a plain sink, in shards",
        ),
        pytest.param(
            protocol(at_most_once=True),
            SPREAD,
            Done(begun=2050, whole=2049, chunks=6148),
            {
                # The last chunk of each segment that was begun becomes a dead letter: its segment is read for it.
                "batches": Requests(gets=2 + 1 + 2048),
                "batches/<shard>": Requests(gets=2052 - 2049 + 2050 - 2048),
                "terms": Requests(gets=1 + 8),
                "low-water": Requests(lists=16),
                "sinks": Requests(puts=2050 + 1, gets=1 + 2050, lists=2050 + KEPT),
                "sinks/<shard>": Requests(puts=8, gets=2050, lists=16 * 385),
            },
            id="at most once, in shards",
        ),
        pytest.param(
            protocol(Ability.SEGMENT_WRITER),
            BESIDE,
            Done(begun=2, whole=2, chunks=8),
            {
                "batches": Requests(gets=2 + 1 + 1),
                "batches/<shard>": Requests(),
                "terms": Requests(gets=1 + 1),
                "low-water": Requests(lists=16),
                "sinks": Requests(puts=1 + 1, gets=1 + 2, lists=2 + 1 + KEPT),
                "sinks/<shard>": Requests(),
            },
            id="whole segments, in one folder",
        ),
    ],
)
def test_a_batch_that_is_taken_over(given: Protocol, shape: Shape, done: Done, expected: dict[str, Requests]) -> None:
    assert given.of_takeover(shape, done) == expected


# --- the estimate of a plan


def test_each_number_of_an_estimate() -> None:
    found = estimate(PLAN, STORE)

    assert found.shape == BESIDE
    # 12 chunks for each of two sinks; and a sixteenth of the collection above.
    assert found.requests == Requests(
        puts=5 + 26 + 1 / 16,
        gets=6 + 26 + 5 / 16,
        lists=(34 + 2118 + 296 + 1) / 16,
        deletes=497 / 16,
        keys_deleted=497 / 16,
    )
    # The completion comes after 0.04 s and four requests: 14 reads, and one of the next batch.
    assert found.checkpoint_gets == 2 + 2 * (14 + 1)
    assert found.delivery_tasks == 2
    assert found.repeated_rows == 3 * 10  # one sink alone, and not for long, may have all six slots
    assert found.burst_s == 3 / 100
    # A read, two writes, a job, and two waves of segments: a read, 4 checks, 4 records, 400 bytes and 4 calls.
    assert found.delivery_s == pytest.approx(1 + 2 * 2 + 0.11 + 2 * (1 + 4 * 1 + 4 * 2 + 0.4 + 4 * 0.5))
    assert found.collection_s == 2 + 5 + 2449 + 497
    assert found.busy == pytest.approx((35.91 + 2953 / 16) / 10)


def test_each_dollar_of_an_estimate() -> None:
    found = estimate(PLAN, STORE)

    of_sink = 12 * progress_bytes() + marker_bytes()
    of_batch = 3 * 400 + manifest_bytes(PLAN, BESIDE) + release_bytes() + 2 * of_sink
    assert found.stored_bytes == 208 * of_batch
    assert found.dollars is not None
    assert found.dollars.storage == pytest.approx(208 * of_batch)
    # 262,800 batches a month; $1 a PUT or a listing, $0.10 a GET, those of the checkpoint included, $0.01 a delete.
    a_batch = (31.0625 + 153.0625) * 1 + (32.3125 + 32) * 0.1 + 31.0625 * 0.01
    assert found.dollars.requests == pytest.approx(262_800 * a_batch)
    assert found.dollars.total == found.dollars.requests + found.dollars.storage


def test_each_load_of_an_estimate() -> None:
    assert [_rounded(load) for load in estimate(PLAN, STORE).prefixes] == [
        PrefixLoad("sinks/<name>/", 2.6, 6.63125, 0.026, "writes"),
        PrefixLoad("batches/", 1.0, 2.45, 0.01, "writes"),
        PrefixLoad("terms/committer-<name>/", 0.0, 1.303125, 0.003258, "reads"),
        PrefixLoad("low-water/", 0.0125, 0.2125, 0.000531, "reads"),
        PrefixLoad("the whole WAL", 6.2125, 18.5375, 0.062125, "writes"),
    ]


def _rounded(load: PrefixLoad) -> PrefixLoad:
    return replace(
        load,
        writes_per_s=round(load.writes_per_s, 6),
        reads_per_s=round(load.reads_per_s, 6),
        share=None if load.share is None else round(load.share, 6),
    )


def test_loads_on_a_store_without_limits_are_ordered_by_their_requests() -> None:
    loads = estimate(PLAN, replace(STORE, writes_per_s=None, reads_per_s=None)).prefixes

    order = ["sinks/<name>/", "batches/", "terms/committer-<name>/", "low-water/", "the whole WAL"]
    assert [load.prefix for load in loads] == order
    assert {(load.share, load.limited) for load in loads} == {(None, "")}


@pytest.mark.parametrize(("at_most_once", "lost"), [(False, 0), (True, 3)])
def test_each_second_of_a_restart(at_most_once: bool, lost: int) -> None:
    plan = replace(PLAN, at_most_once=at_most_once)
    # Of a start: 5 writes, 9 reads and 5 of the checkpoint, 906 listings, a delete.
    start_s = 5 * 2 + 9 + 5 + 906 + 1
    # Of the batch in flight: 6 reads, a record of each segment, its last chunk, 2 waves of doubted chunks, 12 records.
    taking_over_s = lost * 2 + 6 + 3 + 2 * lost + 2 + 12
    manifest_s = manifest_bytes(plan, BESIDE) / 1000
    later_s = 2 * (2 * 1 + manifest_s + 35.91)

    found = estimate(plan, STORE).restart_s

    assert found == pytest.approx(start_s + taking_over_s + manifest_s + 35.91 + later_s)
    assert estimate(replace(plan, pending_batches=0), STORE).restart_s == start_s


def test_a_transactional_sink_is_asked_for_each_position_and_needs_no_records() -> None:
    found = estimate(replace(PLAN, ability=Ability.TRANSACTIONAL), STORE)

    # A chunk takes half a second, and a quarter of the 1.4 s in which its segment is read: a look is good for two.
    # The tasks have 8 and 4 chunks, and look before the first of them: 1 + 3 and 1 + 1 looks for three segments.
    delivery_s = 1 + 2 * 2 + 0.11 + 2 * (1 + 6 / 3 * 1 + 0.4 + (1 + 4) * 0.5)
    assert found.delivery_s == pytest.approx(delivery_s)
    # A start reads the newest batch of each sink too. Of the batch in flight: 6 reads, and 6 doubted chunks of a task.
    manifest_s = manifest_bytes(PLAN, BESIDE) / 1000
    waited_s = 931 + 4 + 6 + 6 + manifest_s + delivery_s + 2 * (2 + manifest_s + delivery_s)
    assert found.restart_s == pytest.approx(waited_s)


def test_an_idempotent_sink_looks_and_records_by_time() -> None:
    found = estimate(replace(PLAN, ability=Ability.IGNORE_KNOWN_KEYS), STORE)

    # The looks of the transactional sink, and a record for two chunks: 4 and 2 in the two tasks.
    assert found.delivery_s == pytest.approx(1 + 2 * 2 + 0.11 + 2 * (1 + 6 / 3 * 1 + 6 / 3 * 2 + 0.4 + 4 * 0.5))
    assert found.requests.puts == 5 + 2 * (6 + 1) + 1 / 16
    assert found.repeated_rows == 0


def test_a_batch_in_shards_without_records_is_not_listed() -> None:
    plan = replace(LARGE, ability=Ability.TRANSACTIONAL)
    found = estimate(plan, replace(AT_ONCE, read_s=1))

    start_s = 8 + 5 + 688 + 1
    assert found.restart_s - found.delivery_s == pytest.approx(start_s + 6 + 1026 / 3)


def test_a_store_that_answers_at_once_takes_as_long_as_its_limits_ask() -> None:
    plan = replace(PLAN, sinks=5, sink_call_s=0)

    def delivery_s(**limits: Any) -> float:
        return estimate(plan, replace(AT_ONCE, **limits)).delivery_s

    # Five sinks read 3 segments of one folder; one sink writes 12 records, and looks at its term 12 times.
    assert delivery_s(writes_per_s=1, reads_per_s=1) == pytest.approx(0.11 + 15)
    assert delivery_s(writes_per_s=1, reads_per_s=5) == pytest.approx(0.11 + 12)
    assert delivery_s(writes_per_s=None, reads_per_s=1) == pytest.approx(0.11)
    assert delivery_s(writes_per_s=1, reads_per_s=None) == pytest.approx(0.11)


def test_a_collection_takes_as_long_as_its_deletes_are_limited_to() -> None:
    """1026 segments of a row: two of them lie in shards, and the progress of all."""
    plan = LARGE
    beside = 16 * (1024 + 2) + 16 + 1
    in_each_shard = 16 * (2 + 1026) // 16

    assert estimate(plan, replace(AT_ONCE, writes_per_s=1)).collection_s == pytest.approx(beside + in_each_shard)
    assert estimate(plan, replace(AT_ONCE, writes_per_s=None)).collection_s == 0


def test_a_wave_of_tasks_ends_as_many_segments_as_there_are_slots() -> None:
    assert estimate(replace(PLAN, segments=12), STORE).burst_s == pytest.approx(6 / 100)


def test_a_small_batch_is_one_of_4_mib_at_most() -> None:
    small = Plan(1, segments=2, rows_per_s=2**22, batch_interval_s=1, row_bytes=1, compression=1)

    assert estimate(small, LOCAL_MODEL).delivery_tasks == 1
    assert estimate(replace(small, rows_per_s=2**22 + 2), LOCAL_MODEL).delivery_tasks == 2


@pytest.mark.parametrize(
    ("row_bytes", "rows", "rows_per_chunk", "uneven"),
    [(2**21, 8, 1, True), (2**20, 8, 1, True), (2**18, 8, 4, False), (2**18, 3, 3, False), (2**19, 2, 2, False)],
    ids=["larger than a chunk", "as large", "as many as settings say", "less than a chunk", "one chunk by its bytes"],
)
def test_chunks_of_large_rows(row_bytes: int, rows: int, rows_per_chunk: int, uneven: bool) -> None:
    settings = Settings(chunk_rows=4, chunk_bytes=2**20)
    plan = Plan(1, segments=1, rows_per_s=rows, batch_interval_s=1, row_bytes=row_bytes, settings=settings)
    (group,) = shape_of(plan).groups

    assert (group.rows_per_chunk, group.uneven) == (rows_per_chunk, uneven)
    assert group.chunks_each == math.ceil(rows / rows_per_chunk)


# --- sizes

_ID = "0123456789abcdef0123456789abcdef"
_HEAD = f'"id":"{_ID}","created":"2026-01-01T00:00:00.000+00:00","batch_id":1000000'
MANIFEST = (
    '{"format":3,"kind":"manifest","crc32":1377370048,"body":{' + _HEAD + ',"term":10,"attempt":100000,'
    f'"run_id":"{_ID}","fingerprint":"{_ID}{_ID}","rule":2,"offsets":"","columns":["column_0","column_1"],'
    r'"spark_schema":"{\"type\":\"struct\",\"fields\":['
    r"{\"name\":\"column_0\",\"type\":\"string\",\"nullable\":true,\"metadata\":{}},"
    r"{\"name\":\"column_1\",\"type\":\"string\",\"nullable\":true,\"metadata\":{}}"
    r']}","chunk_rows":20,"segments":[],"timing":{"tasks":10,"task_seconds":12.345,'
    '"slowest":{"partition":10,"seconds":1.234},"began":"2026-01-01T00:00:00.000+00:00"}}}'
    "\n"
)
SEGMENT = (
    f'{{"path":"batches/0000000000001000000/0000000010-0000100000/000000-0000-{_ID}.parquet",'
    f'"id":"{_ID}","rows":25,"bytes":10000,"crc32":4294967295}},'
)
OFFSETS_ESCAPED = 2 * 4 + 2 * 2 - 2
"""Quotes and line ends of source offsets get a backslash each."""


def test_a_manifest_and_its_segments_take_as_many_bytes_as_their_text() -> None:
    plan = Plan(1, columns=2, offsets_bytes=500, settings=Settings(chunk_rows=20))
    none = Segments(0, 3, rows_each=25, rows_per_chunk=10, bytes_each=10_000)
    empty = Shape((none,))
    sizes = [manifest_bytes(plan, Shape((replace(none, count=count),))) for count in (0, 1, 1024, 1026)]

    assert sizes[0] == len(MANIFEST) + 500 + OFFSETS_ESCAPED
    assert sizes[1] - sizes[0] == len(SEGMENT)
    assert sizes[2] - sizes[0] == 1024 * len(SEGMENT)
    assert sizes[3] - sizes[2] == 2 * (len(SEGMENT) + len("shard-0/"))
    uneven = manifest_bytes(plan, Shape((replace(none, count=1, uneven=True),)))
    assert uneven - sizes[1] == len(',"chunk_ends":[10,20,30]')
    longer = manifest_bytes(replace(plan, offsets_bytes=700), empty)
    assert longer - sizes[0] == 200


# --- advice


def _cheapest(found: Estimate) -> float:
    """The cost of the requests of its first change."""
    changed = estimate(next(changes(found)).plan, found.store)
    assert changed.dollars is not None
    return changed.dollars.requests


def _costing(found: Estimate, requests: float) -> Estimate:
    assert found.dollars is not None
    return replace(found, dollars=replace(found.dollars, requests=requests))


def test_a_change_that_halves_the_cost_is_enough_and_one_that_saves_less_is_not() -> None:
    dear = replace(S3_MODEL, prices=Prices(5.0, 0.4, 0.0, 0.023, as_of="a test"))
    found = estimate(Plan(100), dear)
    first, half = next(changes(found)), _cheapest(found)

    assert advise(_costing(found, 2 * half)).change == first.what
    assert advise(_costing(found, 1.99 * half)).change != first.what


def test_a_limit_that_is_just_reached_is_no_problem() -> None:
    found = estimate(Plan(1), S3_MODEL)

    assert advise(replace(found, restart_s=60.0, manifest_bytes=2**24)).problem == ""
    assert advise(replace(found, restart_s=60.1)).problem == "a long restart"
    assert advise(replace(found, manifest_bytes=2**24 + 1)).problem == "a large manifest"


def test_an_advice_without_a_problem_or_without_a_change_leaves_out_only_that() -> None:
    fine = advise(estimate(Plan(1), S3_MODEL))
    assert (fine.problem, fine.change, fine.before, fine.after) == ("", "", "", "")
    hopeless = advise(estimate(Plan(1, segments=1, sink_call_s=3600), S3_MODEL))
    assert (hopeless.change, hopeless.before, hopeless.after) == ("", "3,601 s of every 10.0 s", "")


def test_two_segments_in_the_driver_may_go_to_executors_and_two_chunks_into_one() -> None:
    plan = Plan(1, segments=2, where="driver", rows_per_s=4, settings=Settings(chunk_rows=10), inline_bytes=0)
    offered = [change.what for change in changes(estimate(plan, S3_MODEL))]

    assert offered[:2] == ["Delivery(…, where='executors')", "chunk_rows=100"]


def test_an_advice_tells_the_problem_before_and_after_its_change() -> None:
    """40 calls one after the other; on executors two waves of them, and a job."""
    plan = Plan(10, segments=40, sink_call_s=0.4, where="driver")
    advice = advise(estimate(plan, replace(AT_ONCE, writes_per_s=None, reads_per_s=None)))

    assert (advice.before, advice.after) == ("16.0 s of every 10.0 s", "0.9 s of every 10.0 s")
    assert advice.change == "Delivery(…, where='executors')"


def test_64_segments_may_become_a_quarter_a_16th_or_one() -> None:
    offered = [change.plan.segments for change in changes(estimate(Plan(1, segments=64, inline_bytes=0), S3_MODEL))]

    assert offered[:6] == [16, 16, 4, 4, 1, 1]
