"""A WAL compared with its checkpoint: another query, a roll-back, missing batches, other input, damaged entries."""

from __future__ import annotations

import msgspec
import pytest

from tests.house.log import Manifest, Release, decode, encode, paths
from tests.house.operate import AgainstCheckpoint, Check, Fault
from tests.house.stores import MemoryStore
from tests.support.golden.wal_writer import written
from tests.unit.operate.worlds import copied, findings, replaced, world_of
from wal_sink.testing import FaultyStore


@pytest.fixture
def checkpoint() -> MemoryStore:
    """Of five batches; the last one is not complete."""
    return copied(world_of("kinds").checkpoint)


@pytest.fixture
def wal() -> MemoryStore:
    return copied(world_of("kinds").wal)


def faults(wal: MemoryStore, checkpoint: MemoryStore) -> list[tuple[Fault, int | None]]:
    return [(found.fault, found.batch_id) for found in findings(wal, checkpoint)]


def left_out(wal: MemoryStore, checkpoint: MemoryStore) -> list[str]:
    check = Check(wal, comparisons=[AgainstCheckpoint(checkpoint)])
    check.run()
    return check.found.not_compared


def test_a_checkpoint_of_another_query_is_a_fault_and_is_left_out(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    replaced(checkpoint, "metadata", b'{"id":"another"}')
    assert faults(wal, checkpoint) == [(Fault.OTHER_QUERY, None)]
    assert left_out(wal, checkpoint) == [f"the checkpoint {checkpoint.root}: the checkpoint belongs to another query"]


def test_a_checkpoint_that_was_deleted(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    checkpoint.delete(checkpoint.list("", recursive=True))
    assert faults(wal, checkpoint) == [(Fault.OTHER_QUERY, None)]


def test_a_damaged_query_id(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    replaced(checkpoint, "metadata", b"{")
    assert faults(wal, checkpoint) == [(Fault.CHECKPOINT, None)]
    assert "it cannot be read" in left_out(wal, checkpoint)[0]


def test_a_checkpoint_that_was_rolled_back(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    checkpoint.delete([f"{folder}/{number}" for folder in ("offsets", "commits") for number in (2, 3, 4)])
    (rolled_back,) = findings(wal, checkpoint)  # once, and not again for each batch that was released
    assert (rolled_back.fault, rolled_back.where) == (Fault.ROLLED_BACK, f"{checkpoint.root}/offsets")
    assert "newest batch of the checkpoint is 1, but the WAL knows batches 2 to 4" in rolled_back.what
    assert left_out(wal, checkpoint) == [
        "the source offsets of batches 2 to 4: the checkpoint is older, and ends with batch 1"
    ]


def test_batches_that_are_newer_than_the_checkpoint_are_not_said_to_be_deleted_by_spark(
    wal: MemoryStore, checkpoint: MemoryStore
) -> None:
    checkpoint.delete([f"{folder}/{number}" for folder in ("offsets", "commits") for number in (0, 2, 3, 4)])
    assert left_out(wal, checkpoint) == [
        "the source offsets of batch 0: Spark has deleted these old entries of the checkpoint",
        "the source offsets of batches 2 to 4: the checkpoint is older, and ends with batch 1",
    ]
    checkpoint.delete(["offsets/1", "commits/1"])
    assert left_out(wal, checkpoint) == [
        "the source offsets of batches 0 to 4: the checkpoint is older, and has no batch"
    ]


def test_a_batch_that_was_released_and_is_not_complete(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    checkpoint.delete(["commits/2", "commits/3"])
    assert faults(wal, checkpoint) == [(Fault.ROLLED_BACK, 2)]


def test_a_newest_batch_that_is_gone(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    wal.delete([path for path in wal.list("", recursive=True) if "0000000000000000004" in path])
    assert faults(wal, checkpoint) == []  # Spark did not complete it
    wal.delete([path for path in wal.list("", recursive=True) if "0000000000000000003" in path])
    assert faults(wal, checkpoint) == [(Fault.MISSING_BATCH, 3)]


def test_a_completed_batch_without_a_manifest(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    wal.delete([path for path in wal.list("", recursive=True) if "0000000000000000004" in path])
    wal.delete([paths.manifest(3, 1, 4)])
    assert faults(wal, checkpoint) == [(Fault.MISSING_BATCH, 3)]


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_batch_that_is_completed_and_released_meanwhile(
    wal: MemoryStore, checkpoint: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """`is_planted`: the comparison goes by the commits that it read at its beginning."""
    if is_planted:
        monkeypatch.setattr(AgainstCheckpoint, "_is_complete", lambda self, batch_id: batch_id <= self._committed)
    before = decode(Release, wal.read(paths.release(2)), "")
    manifest = decode(Manifest, wal.read(paths.manifest(4, 1, 5)), "")
    release = msgspec.structs.replace(before, batch_id=4, attempt=5, fingerprint=manifest.fingerprint, sink="")

    def complete(what: str, where: str) -> None:
        if (what, where) == ("before list", paths.batch(4)) and "release.json" not in wal.list(paths.batch(4)):
            checkpoint.create("commits/4", b'v1\n{"nextBatchWatermarkMs":0}')
            wal.create(paths.release(4), encode(release))

    comparison = AgainstCheckpoint(checkpoint)
    found = [found.fault for found in Check(FaultyStore(wal, complete), comparisons=[comparison]).run()]
    assert found == ([Fault.ROLLED_BACK] if is_planted else [])


def test_a_manifest_that_an_older_listing_does_not_show(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    path = paths.manifest(3, 1, 4)
    data = wal.read(path)
    looks: list[str] = []

    def stage(what: str, where: str) -> None:
        if (what, where) == ("before list", paths.batch(3)):
            looks.append(where)
            wal.delete([path])
            if len(looks) > 1:
                wal.create(path, data)

    wal.delete([each for each in wal.list("", recursive=True) if f"{4:019d}" in each])
    assert Check(FaultyStore(wal, stage), comparisons=[AgainstCheckpoint(checkpoint)]).run() == []
    assert len(looks) == 2


def test_other_input_under_a_known_batch_id(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    for number in (1, 4):  # of the second, another attempt may follow
        text = checkpoint.read(f"offsets/{number}")
        replaced(checkpoint, f"offsets/{number}", text.replace(b'"end": ', b'"end": 7'))
    (found,) = findings(wal, checkpoint)
    assert (found.fault, found.where) == (Fault.DIVERGED, paths.manifest(1, 1, 2))


def test_a_damaged_entry(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    replaced(checkpoint, "offsets/1", b"\xff")
    replaced(checkpoint, "offsets/3", b"v9\n{}\n{}")
    assert faults(wal, checkpoint) == [(Fault.CHECKPOINT, None), (Fault.CHECKPOINT, None)]


def test_entries_that_spark_deleted_are_named(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    checkpoint.delete(["offsets/0", "commits/0"])
    assert faults(wal, checkpoint) == []
    assert left_out(wal, checkpoint) == [
        "the source offsets of batch 0: Spark has deleted these old entries of the checkpoint"
    ]
    checkpoint.delete(["offsets/1", "commits/1"])
    assert "of batches 0 to 1:" in left_out(wal, checkpoint)[0]


def test_the_files_of_a_batch_whose_entry_before_is_gone_cannot_be_compared(
    wal: MemoryStore, checkpoint: MemoryStore
) -> None:
    checkpoint.delete(["offsets/0", "commits/0"])
    replaced(checkpoint, "offsets/1", b'v1\n{"batchTimestampMs":5}\n{"logOffset":7}')
    assert faults(wal, checkpoint) == []
    assert "of batches 0 to 1:" in left_out(wal, checkpoint)[0]


def test_a_wal_without_its_record(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    wal.delete([paths.WAL])
    assert Fault.LOST in [fault for fault, _ in faults(wal, checkpoint)]
    assert "no wal.json" in left_out(wal, checkpoint)[0]


def test_batches_that_no_query_ran() -> None:
    """Spark wrote them into the checkpoint; the WAL learns of the last one when it is due."""
    world = written("passed_over")
    wal, checkpoint = world.wal, world.checkpoint
    assert faults(wal, checkpoint) == []
    newest = max(int(name) for name in checkpoint.list("commits"))
    gone = [path for path in wal.list("", recursive=True) if f"{newest:019d}" in path]
    wal.delete(gone)
    checkpoint.delete([f"{folder}/{newest}" for folder in ("offsets", "commits")])
    assert newest - 1 == max(int(name) for name in checkpoint.list("commits"))
    passed = paths.manifest(newest - 1, 0, 0)
    assert passed in wal.list("", recursive=True)
    wal.delete([path for path in wal.list("", recursive=True) if f"{newest - 1:019d}" in path])
    assert faults(wal, checkpoint) == []
    wal.create(f"{paths.attempt_folder(newest - 1, 1, 9)}/000000-0000-{'a' * 32}.parquet", b"of an attempt before")
    assert faults(wal, checkpoint) == []
    replaced(checkpoint, f"offsets/{newest - 1}", b"v9\n{}\n{}")
    assert faults(wal, checkpoint) == [(Fault.MISSING_BATCH, newest - 1)]


def test_a_batch_that_no_query_ran_needs_the_entry_before() -> None:
    world = written("passed_over")
    text = world.checkpoint.read("offsets/1")
    world.checkpoint.delete(["offsets/0", "commits/0"])
    replaced(world.checkpoint, "offsets/1", text + b"\n-")
    assert faults(world.wal, world.checkpoint) == []
    assert "of batches 0 to 1:" in left_out(world.wal, world.checkpoint)[0]
