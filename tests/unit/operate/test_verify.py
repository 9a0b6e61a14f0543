"""A healthy WAL has no finding, with the debris of crashes too; requests and memory of a check are bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.log import Manifest, SegmentRef, TermRecord, WalRecord, encode, paths
from tests.house.operate import AgainstCheckpoint, AgainstTarget, Check
from tests.house.protocol import Collector
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import process_identity
from tests.support.golden.targets import Transactional
from tests.support.golden.wal_writer import written
from tests.support.golden.wals import GoldenWal
from tests.unit.operate.worlds import NAMES, copied, findings, world_of
from wal_sink.errors import ConfigError, StoreError
from wal_sink.testing import Crash, FaultyStore

BACKLOG = 1_000
RUN = "a" * 32
MOST_BYTES = 1 << 19
"""Memory that a check of the backlog may take at most: names of batches, and one batch."""


def audited(world: GoldenWal) -> Check:
    """Check a world with its checkpoint and each target that keeps positions. It has no finding."""
    ledgers = [name for name in world.sinks if "ledger" in name]
    targets = [AgainstTarget(Transactional(world.targets[name], world.hook), name) for name in ledgers]
    check = Check(world.wal, comparisons=[AgainstCheckpoint(world.checkpoint), *targets])
    assert [(found.fault, found.where, found.what) for found in check.run()] == []
    assert check.found.complete
    return check


@pytest.mark.parametrize("name", NAMES)
def test_a_wal_of_the_present_code(name: str) -> None:
    check = audited(world_of(name))
    assert check.found.seen.records > 0
    assert check.known.wal is not None


def test_a_wal_that_was_collected_and_goes_on() -> None:
    world = written("kinds")
    run = world.process()
    run.deliver_all()
    world.stage(run, 4)
    world.query().complete_batch(4)
    for _ in range(3):
        world.batch(run, 2)
        run.gate.search()
        run.deliver_all()
    assert Collector(run.shared, retention_batches=1).collect(run.committers[0].term) == 6
    check = audited(world)
    assert (check.known.low_water, check.found.seen.batches, check.found.seen.leftovers) == (6, 1, 0)
    run.end()
    audited(world)


def test_a_collection_that_was_interrupted() -> None:
    world = written("kinds")
    run = world.process()
    run.deliver_all()
    world.armed = ["before delete", "before delete"]
    with pytest.raises(Crash):
        Collector(run.shared, retention_batches=1).collect(run.committers[0].term)
    check = audited(world)
    assert check.found.seen.leftovers > 0


def test_debris_of_crashed_attempts_is_told_as_such() -> None:
    world = world_of("kinds")
    wal = copied(world.wal)
    folder = paths.attempt_folder(4, 1, 5)
    wal.create(f"{folder}/000000-0000-{'a' * 32}.parquet", b"of a task that failed")
    wal.create(f"{paths.attempt_folder(5, 1, 6)}/000000-0000-{'b' * 32}.parquet", b"of a process that died")
    check = Check(wal)
    assert check.run() == []
    assert (
        check.found.seen.debris_objects,
        check.found.seen.unfinished_attempts,
        check.found.seen.unreleased_batches,
    ) == (2, 1, 3)


def test_an_attempt_that_a_later_one_superseded() -> None:
    world = written("kinds")
    run = world.process()
    world.stage(run, 4)
    check = audited(world)
    assert (check.found.seen.superseded_attempts, check.found.seen.unfinished_attempts) == (1, 0)
    assert check.found.seen.debris_objects == 2


@pytest.mark.parametrize(
    ("name", "sink", "read"),
    [("kinds", "plain", paths.manifest(0, 1, 1)), ("rolled", "rolled", f"{paths.progress_folder('rolled', 3)}/000")],
    ids=["a batch", "the segment of a roll"],
)
def test_a_sink_that_was_forgotten_in_the_meantime(name: str, sink: str, read: str) -> None:
    """Its objects are deleted by hand while the check looks at them."""
    wal = copied(world_of(name).wal)
    doomed = [path for path in wal.list("", recursive=True) if path.startswith(f"sinks/{sink}/")]

    def forget(what: str, path: str) -> None:
        if what == "before read" and path.startswith(read) and doomed:
            wal.create(paths.forgotten(sink), b"")
            wal.delete(doomed)
            doomed.clear()

    assert Check(FaultyStore(wal, forget)).run() == []
    assert doomed == []


def test_a_check_can_be_limited_and_resumed() -> None:
    wal = world_of("kinds").wal
    seen = []
    for batches in (range(1, 3), range(3, 9), range(1), range(9, 99)):
        done: list[tuple[int, int]] = []
        check = Check(wal, batches, on_batch=lambda *far, done=done: done.append(far))
        assert check.run() == []
        seen.append((check.found.seen.batches, check.found.through, done[-1]))
    assert seen == [(2, 2, (2, 2)), (2, 4, (2, 2)), (1, 0, (1, 1)), (0, None, (0, 0))]


def test_a_folder_without_a_batch() -> None:
    world = GoldenWal("empty", "checks", ["plain"])
    assert findings(world.wal, world.checkpoint) == []
    world.process()
    assert findings(world.wal) == []
    check = Check(world.wal)
    assert check.run() == []
    assert check.found.recorded_location is None


def _segment() -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"c0": [1, 2]}), buffer)
    return buffer.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def backlog() -> tuple[MemoryStore, MemoryStore]:
    """A WAL of complete batches that nobody delivered, and its checkpoint."""
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://checks/backlog/{name}")) for name in ("wal", "checkpoint"))
    stamp: Any = {"id": RUN, "created": "2026-01-01T00:00:00.000+00:00"}
    wal.create(
        paths.WAL, encode(WalRecord(wal_id=RUN, query_id="q", checkpoint="c", first_batch=0, location="", **stamp))
    )
    term = TermRecord(role="stager", term=1, run_id=RUN, process="p", holder=process_identity(), **stamp)
    wal.create(paths.term("stager", 1), encode(term))
    checkpoint.create("metadata", b'{"id":"q"}')
    data = _segment()
    for number in range(BACKLOG):
        folder = paths.attempt_folder(number, 1, number + 1)
        path = paths.segment(folder, 0, 0, f"{number:032x}")
        wal.create(path, data)
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
        wal.create(paths.manifest(number, 1, number + 1), encode(manifest))
        checkpoint.create(f"offsets/{number}", offsets.encode())
        checkpoint.create(f"commits/{number}", b"v1\n{}")
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
