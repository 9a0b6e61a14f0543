"""A large backlog: the requests and the memory of a check are bounded. A store that refuses is told."""

from __future__ import annotations

import tracemalloc
import zlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.log import Manifest, SegmentRef, TermRecord, WalRecord, encode, paths
from tests.house.operate import AgainstCheckpoint, Check
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import process_identity
from tests.unit.operate.worlds import copied, world_of
from wal_sink.errors import ConfigError, StoreError
from wal_sink.testing import FaultyStore

BACKLOG = 1_000
RUN = "a" * 32
MOST_BYTES = 1 << 19
"""Memory that a check of the backlog may take at most: names of batches, and one batch."""


def _segment() -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"c0": [1, 2]}), buffer)
    return buffer.getvalue().to_pybytes()


def _put(store: MemoryStore, path: str, data: bytes) -> None:
    store.create(path, data)


@pytest.fixture(scope="module")
def backlog() -> tuple[MemoryStore, MemoryStore]:
    """A WAL of complete batches that nobody delivered, and its checkpoint."""
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://checks/backlog/{name}")) for name in ("wal", "checkpoint"))
    stamp: Any = {"id": RUN, "created": "2026-01-01T00:00:00.000+00:00"}
    _put(
        wal, paths.WAL, encode(WalRecord(wal_id=RUN, query_id="q", checkpoint="c", first_batch=0, location="", **stamp))
    )
    term = TermRecord(role="stager", term=1, run_id=RUN, process="p", holder=process_identity(), **stamp)
    _put(wal, paths.term("stager", 1), encode(term))
    _put(checkpoint, "metadata", b'{"id":"q"}')
    data = _segment()
    for number in range(BACKLOG):
        folder = paths.attempt_folder(number, 1, number + 1)
        path = paths.segment(folder, 0, 0, f"{number:032x}")
        _put(wal, path, data)
        ref = SegmentRef(path=path, id=f"{number:032x}", rows=2, bytes=len(data), crc32=zlib.crc32(data))
        offsets = f'v1\n{{"batchTimestampMs":{number}}}\n{{"end":{number}}}'
        manifest = Manifest(
            batch_id=number,
            term=1,
            attempt=number + 1,
            run_id=RUN,
            fingerprint="f",
            offsets=offsets,
            columns=("id",),
            spark_schema="",
            chunk_rows=10,
            segments=(ref,),
            **stamp,
        )
        _put(wal, paths.manifest(number, 1, number + 1), encode(manifest))
        _put(checkpoint, f"offsets/{number}", offsets.encode())
        _put(checkpoint, f"commits/{number}", b"v1\n{}")
    return wal, checkpoint


def test_requests_and_memory_are_bounded(backlog: tuple[MemoryStore, MemoryStore]) -> None:
    requests: Counter[str] = Counter()
    wal, checkpoint = (FaultyStore(store, lambda what, _: requests.update([what])) for store in backlog)
    tracemalloc.start()
    check = Check(wal, comparisons=[AgainstCheckpoint(checkpoint)])
    assert check.run() == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (check.found.seen.batches, check.found.seen.segments, check.found.through) == (BACKLOG, BACKLOG, BACKLOG - 1)
    assert set(requests) == {"before list", "before read"}
    assert BACKLOG <= requests["before list"] < BACKLOG + 20  # a listing a batch
    assert 3 * BACKLOG <= requests["before read"] < 3 * BACKLOG + 20  # manifest, segment, entry of the checkpoint
    assert peak < MOST_BYTES, peak


def test_without_segments_each_batch_costs_a_listing_and_a_read(backlog: tuple[MemoryStore, MemoryStore]) -> None:
    requests: Counter[str] = Counter()
    wal = FaultyStore(backlog[0], lambda what, _: requests.update([what]))
    check = Check(wal, range(BACKLOG - 200, BACKLOG), reads_segments=False)
    assert check.run() == []
    assert check.found.seen.segments == 0
    assert requests["before list"] + requests["before read"] < 2 * 200 + 20


def test_without_segments_one_that_is_gone_is_found() -> None:
    wal = copied(world_of("kinds").wal)
    gone = next(path for path in wal.list("", recursive=True) if path.endswith(".parquet"))
    wal.delete([gone])
    assert [found.where for found in Check(wal, reads_segments=False).run()] == [gone]


@pytest.mark.parametrize("refused", ["", paths.BATCHES, paths.batch(1), "sinks/plain"])
def test_no_permission_to_list_ends_the_check_with_the_error_of_the_store(refused: str) -> None:
    def hook(what: str, path: str) -> None:
        if (what, path) == ("before list", refused):
            raise StoreError(f"{path}: access denied")

    check = Check(FaultyStore(world_of("kinds").wal, hook))
    with pytest.raises(StoreError, match="access denied"):
        check.run()
    assert not check.found.complete
    assert check.found.through == (0 if refused == paths.batch(1) else None)


def test_the_folder_of_a_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is the checkpoint of a query"):
        Check(world_of("kinds").checkpoint).run()
