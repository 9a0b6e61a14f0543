"""Reading progress: the highest record of a segment counts, and only records do."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests.house.log import Log, Manifest, Marker, Progress, SegmentRef, Term, encode, load_segment, paths
from tests.house.protocol import DeliveryContext, chunks_of, keep_rejected, read_dead_letter
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import Event, Marked
from tests.support.small_run import Place, Recorder
from wal_sink.errors import CorruptError, StoreError
from wal_sink.protocol.progress import check_recorded, find_marker, keep_last_recorded, recorded_rows, tell_marked
from wal_sink.support.events import Events
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
