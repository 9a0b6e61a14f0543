"""Reading progress: the highest record of a segment counts, and only records do."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.house.log import (
    Log,
    Manifest,
    Marker,
    OlderSlots,
    Progress,
    Release,
    SegmentRef,
    SinkRecord,
    Term,
    encode,
    load_segment,
    paths,
)
from tests.house.protocol import DeliveryContext, chunks_of, keep_rejected, read_dead_letter
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import Event, Events, Marked
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, CorruptError, StoreError
from wal_sink.log.records import without_segments
from wal_sink.log.segment_reader import read_parquet
from wal_sink.protocol.progress import (
    check_recorded,
    find_marker,
    first_due,
    furthest_rows,
    keep_each_last_recorded,
    keep_last_recorded,
    new_marker,
    read_marked,
    recorded_rows,
    tell_marked,
)
from wal_sink.testing import simulated_runtime

_numbers = itertools.count()


def with_names(*names: str) -> MemoryStore:
    store = MemoryStore(StoreSpec(f"memory://progress-{next(_numbers)}"))
    for name in names:
        store.create(f"{paths.progress_folder('a', 3)}/{name}", b"")
    return store


def test_a_segment_stands_where_its_highest_record_says() -> None:
    store = with_names("000000-000000000004.json", "000000-000000000002.json", "000002-000000000007.json")

    assert recorded_rows(store, "a", MANIFEST) == {0: 4, 2: 7}


def test_the_order_of_records_decides_nothing() -> None:
    names = [paths.ProgressName(*each) for each in ((1, 7), (0, 4), (1, 3), (0, 6))]

    assert furthest_rows(names) == {0: 6, 1: 7}


def test_files_that_are_no_records_of_progress_are_passed_over() -> None:
    store = with_names("000000-000000000004.json", "notes.txt", "000001-000000000009.json.partial")

    assert recorded_rows(store, "a", MANIFEST) == {0: 4}


# Records that are relied on.


def with_record(segment_id: str) -> Log:
    store = with_names()
    record = Progress(
        batch_id=3, ordinal=1, rows=4, segment_id=segment_id, term=1, run_id="r", id="x", created="now"
    )  # fmt: skip
    store.create(paths.progress("a", 3, 1, 4), encode(record))
    return Log(store, simulated_runtime(), "r")


MANIFEST = Manifest(
    batch_id=3,
    term=1,
    attempt=1,
    run_id="r",
    fingerprint="f",
    offsets="o",
    columns=(),
    spark_schema="",
    chunk_rows=2,
    segments=tuple(SegmentRef(path=name, id=name, rows=9, bytes=1, crc32=0) for name in ("first", "second")),
    id="x",
    created="now",
)


def test_a_record_of_another_segment_is_corrupt() -> None:
    with pytest.raises(
        CorruptError,
        match=r"^memory://.*04\.json: .*segment 1 of the released batch \(second\), found that of first",
    ):
        check_recorded(with_record("first"), "a", MANIFEST, 1, 4)


def test_a_record_of_a_segment_that_the_batch_does_not_have_is_corrupt() -> None:
    alone = msgspec.structs.replace(MANIFEST, segments=MANIFEST.segments[:1])

    with pytest.raises(CorruptError, match=r"released batch \(none\), found that of second"):
        check_recorded(with_record("second"), "a", alone, 1, 4)


def test_a_record_that_was_listed_and_is_gone_is_worth_another_look() -> None:
    with pytest.raises(StoreError, match=r"^memory://.*05\.json was listed, but it does not exist"):
        check_recorded(with_record("second"), "a", MANIFEST, 1, 5)


# Markers.

MARKER = Marker(
    batch_id=3, term=1, run_id="r", rows=18, rejected=2, unknown=1, last_delivered_batch=3, id="x", created="now"
)


def test_a_marker_that_is_created_after_the_first_read_is_found_by_the_listing() -> None:
    store = with_names()
    names_of = store.list

    def late(prefix: str, **more: Any) -> list[str]:
        store.list = names_of  # type: ignore[method-assign]
        store.create(paths.marker("a", 3), encode(MARKER))
        return names_of(prefix, **more)

    store.list = late  # type: ignore[method-assign]
    log = Log(store, simulated_runtime(), "r")

    assert find_marker(log, "a", 3) == MARKER
    assert find_marker(log, "a", 4) is None


# Where a sink without a marker begins, and what the newest marker of a sink stands for.


def sink_record(first: int, *, through: int | None = None, is_exact: bool = False) -> SinkRecord:
    return SinkRecord(
        name="a", sink_kind="plain", first_batch=first, identity="", through=through, is_exact=is_exact,
        id="x", created="now",
    )  # fmt: skip


def deleted_through(low_water: int, *held: int) -> Log:
    log = Log(with_names(), simulated_runtime(), "r")
    log.raise_low_water(low_water)
    for batch_id in held:
        log.store.create(paths.release(batch_id), b"")
    return log


@pytest.mark.parametrize(
    ("sink", "held", "due"),
    [
        pytest.param(sink_record(3, is_exact=True), [3, 4], 3, id="the first that is held"),
        pytest.param(sink_record(2), [4, 5], 4, id="low water itself"),
        pytest.param(sink_record(0, through=3), [3, 4], 3, id="the last one is held"),
        pytest.param(sink_record(0), [], 3, id="nothing is held"),
    ],
)
def test_a_sink_without_a_marker_begins_with_the_oldest_batch_that_is_held(
    sink: SinkRecord, held: list[int], due: int
) -> None:
    assert first_due(deleted_through(2, *held), sink) == due


@pytest.mark.parametrize("sink", [sink_record(2, is_exact=True), sink_record(0, through=2), sink_record(1, through=1)])
def test_a_sink_whose_batches_were_deleted_begins_with_no_other_one(sink: SinkRecord) -> None:
    first = sink.first_batch

    with pytest.raises(ConfigError, match=rf"^sink 'a' of memory://.* to begin with batch {first}, .* through 2 while"):
        first_due(deleted_through(2, 3), sink)


@pytest.mark.parametrize("lost", ["nothing", "the manifest", "the release", "half of the release"])
def test_of_a_batch_that_was_passed_over_the_manifest_counts_if_it_is_left(lost: str) -> None:
    log, skipped = Log(with_names(), simulated_runtime(), "r"), msgspec.structs.replace(MARKER, skipped=True)
    release = Release(
        batch_id=3, term=1, attempt=1, fingerprint="f", run_id="r", sink="a", id="x", created="now"
    )  # fmt: skip
    if lost != "the manifest":
        log.store.create(paths.manifest(3, 1, 1), encode(MANIFEST))
    if lost != "the release":
        data = encode(release)
        log.store.create(paths.release(3), data[: len(data) // 2] if lost.startswith("half") else data)

    found = read_marked(log, "a", skipped)

    assert found == (MANIFEST if lost == "nothing" else without_segments(3))


def test_a_marker_names_the_rows_of_the_newest_batch_and_the_slots_of_earlier_ones() -> None:
    log = Log(with_names(), simulated_runtime(), "r")
    older = (OlderSlots(batch_id=1, rows=(7,)),)

    marker = new_marker(
        log, Term("committer-a", 4), [MANIFEST], kept={}, last_delivered=(3, (9, 9), older), timings={}
    )  # fmt: skip

    assert (marker.last_delivered_batch, marker.last_delivered_rows) == (3, (9, 9))
    assert marker.last_delivered_older == older


def test_the_marker_of_a_batch_is_found_or_else_the_newest_one_after_it() -> None:
    log = Log(with_names(), simulated_runtime(), "r")
    for batch_id in (3, 5):
        log.store.create(paths.marker("a", batch_id), encode(msgspec.structs.replace(MARKER, batch_id=batch_id)))

    found = [find_marker(log, "a", batch_id) for batch_id in (3, 4, 5, 6)]

    assert [None if marker is None else marker.batch_id for marker in found] == [3, 5, 5, None]


SECOND = "2026-01-01T00:00:{:02}.000+00:00"


@pytest.mark.parametrize(
    ("staged", "marked", "delays_s"),
    [
        pytest.param([SECOND.format(2), SECOND.format(4)], SECOND.format(5), (3.0, 1.0), id="two batches"),
        pytest.param([SECOND.format(2)], SECOND.format(1), (0.0,), id="the clock was set back"),
        pytest.param(["unknown", SECOND.format(4)], SECOND.format(5), (1.0,), id="a batch of unknown time"),
        pytest.param([SECOND.format(4)], "unknown", (), id="a marker of unknown time"),
    ],
)
def test_a_marker_is_told_with_its_rows_and_the_delay_of_each_batch(
    staged: list[str], marked: str, delays_s: tuple[float, ...]
) -> None:
    heard: list[Event] = []
    log = Log(with_names(), simulated_runtime(), "r", events=Events("memory://wal", [heard.append]))
    group = [msgspec.structs.replace(MANIFEST, created=created) for created in staged]

    tell_marked(log, "a", group, msgspec.structs.replace(MARKER, created=marked))

    told = Marked(
        "memory://wal", sink="a", batch=3, batches=len(staged), rows=18, rejected=2, unknown=1, delays_s=delays_s
    )
    assert heard == [told]


# Records that a process made before sending, and then died.


def a_batch() -> tuple[Place, DeliveryContext, SegmentRef, Log]:
    place = Place(rows=lambda _: [5])
    run = place.open({"a": Recorder()})
    next(place.query().batches(run, 1))
    staged = run.history.staged(0)
    assert staged is not None
    given = DeliveryContext(
        wal_id="w",
        sink="a",
        term=Term("committer-a", 1),
        batch_id=0,
        columns=("batch", "row"),
        spark_schema="",
        chunk_rows=2,
        segments=1,
        at_most_once=True,
        keeps_rejected=False,
        attempt_timeout_s=10,
        last_delivered=None,
    )
    return place, given, staged.segments[0], run.log


def test_a_chunk_that_the_sink_answered_is_not_of_unknown_outcome() -> None:
    place, given, segment, log = a_batch()
    data = load_segment(log.store, segment)
    chunk = next(chunks_of(given, 3, segment, data, 0, where="here"))
    keep_rejected(log, paths.dead_letter("a", 0, 3, 0, 2, number=0), chunk.without([0]), ["no good"], answered=True)

    keep_last_recorded(given, 3, segment, 2, log)

    assert len(place.wal.list(paths.dead_letter_folder("a", 0))) == 1


@pytest.mark.parametrize(("rows", "first"), [(2, 0), (4, 2), (5, 4)])
def test_the_chunk_that_ends_at_the_record_is_kept_with_the_reason(rows: int, first: int) -> None:
    place, given, segment, log = a_batch()

    keep_last_recorded(given, 3, segment, rows, log)

    kept = read_dead_letter(place.wal, paths.dead_letter("a", 0, 3, first, rows))
    assert kept.kept == "unknown"
    assert list(kept.chunk.table.to_pydict().values()) == [[0] * (rows - first), list(range(first, rows))]
    assert kept.chunk.key == f"{segment.id}-{first}-{rows}"
    assert kept.chunk.position.slot == "w/a/3"
    assert set(kept.reasons) == {"the process that sent the rows ended before it recorded the outcome"}


def test_a_segment_that_does_not_hold_the_rows_is_told_with_its_address() -> None:
    place, given, segment, log = a_batch()
    more = msgspec.structs.replace(segment, rows=6)

    with pytest.raises(CorruptError, match=f"^{place.wal.url_of(segment.path)}: expected 6 rows"):
        keep_last_recorded(given, 0, more, 6, log)


def test_the_last_recorded_chunk_of_each_segment_is_kept_under_the_keys_that_a_delivery_would_use() -> None:
    place, _, segment, log = a_batch()
    manifest = log.require(Manifest, paths.manifest(0, 1, 1))
    record = Progress(batch_id=0, ordinal=0, rows=4, segment_id=segment.id, term=1, run_id="r", **log.stamp())
    log.create(paths.progress("a", 0, 0, 4), record)

    keep_each_last_recorded(log, "the-wal", "a", manifest, Term("committer-a", 1))

    kept = read_dead_letter(place.wal, paths.dead_letter("a", 0, 0, 2, 4))
    assert (kept.kept, kept.chunk.key, kept.chunk.position.slot) == ("unknown", f"{segment.id}-2-4", "the-wal/a/0")


def test_a_chunk_of_unknown_outcome_is_read_as_the_run_reads_segments() -> None:
    _, given, segment, log = a_batch()
    read: list[int] = []

    def reader(data: bytes, ref: SegmentRef, *, columns: int, start: int, where: str) -> Any:
        read.append(start)
        return read_parquet(data, ref, columns=columns, start=start, where=where)

    keep_last_recorded(given, 0, segment, 4, replace(log, segment_reader=reader))

    assert read == [2]
