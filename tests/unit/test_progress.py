"""Reading progress: the highest record of a segment counts, and only records do."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from wal_sink import paths
from wal_sink.errors import CorruptError, StoreError
from wal_sink.log import Log
from wal_sink.progress import check_recorded, recorded_rows
from wal_sink.records import Manifest, Progress, SegmentRef, encode
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import simulated_runtime

_numbers = itertools.count()


def with_names(*names: str) -> MemoryStore:
    store = MemoryStore(StoreSpec(f"memory://progress-{next(_numbers)}"))
    for name in names:
        store.create(f"{paths.progress_folder('a', 3)}/{name}", b"")
    return store


def test_a_segment_stands_where_its_highest_record_says() -> None:
    store = with_names("000000-000000000004.json", "000000-000000000002.json", "000002-000000000007.json")

    assert recorded_rows(store, "a", 3) == {0: 4, 2: 7}


def test_what_is_no_record_is_passed_over() -> None:
    store = with_names("000000-000000000004.json", "notes.txt", "000001-000000000009.json.partial")

    assert recorded_rows(store, "a", 3) == {0: 4}


def test_other_batches_and_sinks_have_progress_of_their_own() -> None:
    store = with_names("000000-000000000004.json")

    assert recorded_rows(store, "a", 2) == {}
    assert recorded_rows(store, "b", 3) == {}


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


def test_a_record_of_the_segment_is_relied_on() -> None:
    check_recorded(with_record("second"), "a", MANIFEST, 1, 4)


def test_a_record_of_another_segment_is_corrupt() -> None:
    with pytest.raises(
        CorruptError, match=r"progress of segment 1 of the released batch \(second\), found that of first"
    ):
        check_recorded(with_record("first"), "a", MANIFEST, 1, 4)


def test_a_record_of_a_segment_that_the_batch_does_not_have_is_corrupt() -> None:
    alone = msgspec.structs.replace(MANIFEST, segments=MANIFEST.segments[:1])

    with pytest.raises(CorruptError, match=r"released batch \(none\), found that of second"):
        check_recorded(with_record("second"), "a", alone, 1, 4)


def test_a_record_that_was_listed_and_is_gone_is_worth_another_look() -> None:
    with pytest.raises(StoreError, match="was listed, but is not there"):
        check_recorded(with_record("second"), "a", MANIFEST, 1, 5)
