"""A healthy WAL has no finding: of every kind of sink, and with the debris of crashes."""

from __future__ import annotations

import pytest

from tests.house.log import paths
from tests.house.operate import AgainstCheckpoint, AgainstTarget, Check
from tests.house.protocol import Collector
from tests.support.golden.targets import Transactional
from tests.support.golden.wal_writer import written
from tests.support.golden.wals import GoldenWal
from tests.unit.operate.worlds import NAMES, copied, findings, world_of
from wal_sink.testing import Crash, FaultyStore


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


def test_a_sink_that_was_forgotten_in_the_meantime() -> None:
    """Its objects are deleted by hand while the check looks at them."""
    wal = copied(world_of("kinds").wal)
    doomed = [path for path in wal.list("", recursive=True) if path.startswith("sinks/plain/")]

    def forget(what: str, path: str) -> None:
        if (what, path) == ("before read", paths.manifest(0, 1, 1)) and doomed:
            wal.create(paths.forgotten("plain"), b"")
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
