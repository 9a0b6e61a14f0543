"""The batches that matter next: lost manifests, checkpoints that are older or differ, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.unit.checking.worlds import copied, replaced, world_of
from wal_sink.doctor.contents import NEWEST, NEXT, Contents, examine_contents
from wal_sink.errors import StoreError
from wal_sink.inspection import read_status
from wal_sink.lifecycle.run import Run
from wal_sink.reporting.findings import Finding, Level
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Settings
from wal_sink.stores.base import Store
from wal_sink.stores.measured import MeasuredStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.records import SinkRecord, encode

_BATCHES = 30


@pytest.fixture(scope="module")
def staged() -> tuple[MemoryStore, MemoryStore]:
    """A WAL of 30 batches that no sink gets, and its checkpoint."""
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://contents/{name}")) for name in ("wal", "checkpoint"))
    run = Run(wal, checkpoint, Settings())
    run.open()
    run.become_stager()
    query = FakeQuery(checkpoint, lambda _batch, _end: [pa.table({"id": [1]})])
    assert len(list(query.batches(run, _BATCHES))) == _BATCHES
    return wal, checkpoint


@pytest.fixture
def wal(staged: tuple[MemoryStore, MemoryStore]) -> MemoryStore:
    return copied(staged[0])


@pytest.fixture
def checkpoint(staged: tuple[MemoryStore, MemoryStore]) -> MemoryStore:
    return copied(staged[1])


def examined(wal: Store, checkpoint: Store | None = None) -> Contents:
    return examine_contents(wal, read_status(wal), checkpoint, SYSTEM)


def lines(findings: Sequence[Finding]) -> dict[str, str]:
    assert all(one.next_step for one in findings if one.level is not Level.OK)
    return {one.check: f"{one.level}: {one.found}" for one in findings}


def without(store: MemoryStore, start: str) -> None:
    doomed = [path for path in store.list("", recursive=True) if path.startswith(start)]
    assert doomed
    store.delete(doomed)


def roll_back(checkpoint: MemoryStore, to: int) -> None:
    numbers = range(to + 1, _BATCHES)
    checkpoint.delete([f"{folder}/{number}" for folder in ("offsets", "commits") for number in numbers])


def test_healthy_batches_are_fine_and_the_others_are_named(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    found = examined(wal, checkpoint)
    which = f"batches 0-{NEXT - 1}, {_BATCHES - NEWEST}-{_BATCHES - 1}"
    assert lines(found.findings) == {
        "wal.batches": f"OK: nothing is missing of {which}",
        "checkpoint.batches": f"OK: the checkpoint is not older than the WAL, and has the input of {which} as it was "
        "staged",
    }
    assert found.left_out == [
        f"batches {NEXT}-{_BATCHES - NEWEST - 1} of the WAL (wal-sink audit)",
        "the bytes of segments (wal-sink audit)",
    ]


def test_a_sink_that_begins_later_gets_its_own_first_batches_next(wal: MemoryStore) -> None:
    for name, first in (("late", 10), ("later", 15)):
        record = SinkRecord(name=name, sink_kind="plain", first_batch=first, identity="", id="0" * 32, created="now")
        wal.create(paths.sink(name), encode(record))
    told = lines(examined(wal).findings)
    assert told["wal.batches"] == f"OK: nothing is missing of batches 10-{9 + NEXT}, {_BATCHES - NEWEST}-{_BATCHES - 1}"
    without(wal, f"{paths.batch(9 + NEXT)}/manifest")
    assert lines(examined(wal).findings)["wal.batches"].startswith("error: lost: ")


@pytest.mark.parametrize("batch_id", [0, NEXT - 1, _BATCHES - NEWEST])
def test_a_lost_manifest_is_an_error(wal: MemoryStore, checkpoint: MemoryStore, batch_id: int) -> None:
    without(wal, f"{paths.batch(batch_id)}/manifest")
    finding, of_checkpoint = examined(wal, checkpoint).findings
    assert of_checkpoint.level is Level.OK  # the loss is told once
    assert (finding.check, finding.level) == ("wal.batches", Level.ERROR)
    assert f"lost: {paths.batch(batch_id)}/: this batch has no manifest" in finding.found
    assert finding.next_step


def test_a_lost_batch_is_an_error_wherever_it_is(wal: MemoryStore) -> None:
    without(wal, f"{paths.batch(NEXT + 3)}/")
    (finding,) = examined(wal).findings
    assert (finding.check, finding.level) == ("wal.batches", Level.ERROR)
    assert f"batch {NEXT + 3} must exist" in finding.found


def test_faults_of_one_sort_are_one_line(wal: MemoryStore) -> None:
    for batch_id in range(4):
        without(wal, f"{paths.batch(batch_id)}/manifest")
    (finding,) = examined(wal).findings
    assert f"{paths.batch(0)}/" in finding.found
    assert "(3 more faults of this sort: wal-sink audit)" in finding.found


@pytest.mark.parametrize("to", [0, 5, _BATCHES - 3])
def test_a_checkpoint_that_was_rolled_back_is_an_error(wal: MemoryStore, checkpoint: MemoryStore, to: int) -> None:
    roll_back(checkpoint, to)
    found = lines(examined(wal, checkpoint).findings)
    assert found["wal.batches"].startswith("OK: ")
    assert (
        f"error: rolled-back: {checkpoint.root}/offsets: the newest batch of the checkpoint is {to}"
        in (found["checkpoint.batches"])
    )


def test_other_input_under_the_batch_that_spark_planned_is_an_error() -> None:
    """The batch is released, and the query is about to run it again with other input."""
    wal, checkpoint = (copied(store) for store in (world_of("kinds").wal, world_of("kinds").checkpoint))
    checkpoint.delete([f"{folder}/{number}" for folder in ("offsets", "commits") for number in (3, 4)])
    checkpoint.delete(["commits/2"])
    text = checkpoint.read("offsets/2")
    replaced(checkpoint, "offsets/2", text.replace(b'"end": ', b'"end": 7'))
    found = [one.found for one in examined(wal, checkpoint).findings if one.level is Level.ERROR]
    assert any(one.startswith(f"diverged: {paths.batch(2)}/manifest") for one in found)
    assert any(one.startswith("rolled-back: ") for one in found)


def test_an_object_that_no_version_knows_is_a_warning(wal: MemoryStore) -> None:
    wal.create(f"{paths.batch(0)}/strange.txt", b"")
    (finding,) = examined(wal).findings
    assert finding.level is Level.WARNING
    assert "strange.txt" in finding.found


def test_a_wal_whose_batches_are_all_collected_is_fine(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    without(wal, "batches/")
    checkpoint.delete(checkpoint.list("", recursive=True))
    status = read_status(wal)
    found = examine_contents(wal, status, None, SYSTEM)
    assert lines(found.findings) == {"wal.batches": "OK: the WAL holds no batch now"}
    assert found.left_out == ["the bytes of segments (wal-sink audit)"]
    checkpoint.create("metadata", b'{"id":"another"}')
    told = lines(examine_contents(wal, status, checkpoint, SYSTEM).findings)
    assert told["checkpoint.batches"].startswith("error: other-query: ")


def test_a_wal_and_a_checkpoint_without_batches_are_fine(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    without(wal, "batches/")
    roll_back(checkpoint, -1)
    told = lines(examine_contents(wal, read_status(wal), checkpoint, SYSTEM).findings)
    assert told["checkpoint.batches"] == "OK: the checkpoint is not older than the WAL"


def test_an_answer_that_does_not_come_is_an_error(wal: MemoryStore) -> None:
    class Refusing(MeasuredStore):
        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            raise StoreError(f"no right to list {prefix}{after}{recursive}")

    found = examine_contents(Refusing(wal), read_status(wal), None, SYSTEM)
    assert "no right to list" in lines(found.findings)["wal.batches"]
    assert found.left_out == ["the other batches of the WAL (wal-sink audit)"]


def test_requests_are_bounded_however_many_batches_are_pending(wal: MemoryStore, checkpoint: MemoryStore) -> None:
    requests: list[str] = []

    class Counted(MeasuredStore):
        def read(self, path: str) -> bytes:
            requests.append(path)
            return super().read(path)

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            requests.append(prefix)
            return super().list(prefix, after=after, recursive=recursive)

    for batch_id in range(_BATCHES, 10_000):
        wal.create(f"{paths.batch(batch_id)}/manifest-0000000001-0000000001.json", b"{}")
    status = read_status(wal)
    found = examine_contents(Counted(wal), status, Counted(checkpoint), SYSTEM)
    assert len(requests) < 200
    assert lines(found.findings)["wal.batches"].startswith("error: damaged: ")
