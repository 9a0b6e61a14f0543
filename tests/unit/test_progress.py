"""Reading progress: the highest record of a segment counts, and only records do."""

from __future__ import annotations

import itertools

from wal_sink import paths
from wal_sink.progress import recorded_rows
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec

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
