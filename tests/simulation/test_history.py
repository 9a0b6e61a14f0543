"""A checkpoint and a WAL that contradict each other are refused, before anything is written or sent."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import wal_sink.protocol.collect
from tests.house.log import paths
from tests.house.protocol import Checkpoint, Run
from tests.house.stores import MemoryStore
from tests.simulation.scenarios import LONG
from tests.simulation.world import World, dies
from wal_sink.errors import ConfigError, CorruptError, HistoryError, WalSinkError
from wal_sink.protocol.history import MissingBatchError
from wal_sink.testing import FakeQuery


def delivered(batches: tuple[tuple[int, ...], ...] = ((3,), (2,), (1,))) -> World:
    """A world in which everything was delivered and the process ended."""
    world = World(batches=batches)
    assert world.life().live()
    return world


def everything(store: MemoryStore) -> dict[str, bytes]:
    return {path: store.read(path) for path in store.list("", recursive=True)}


def overwrite(store: MemoryStore, path: str, data: bytes) -> None:
    store.delete([path])
    store.create(path, data)


def damage(world: World, path: str, data: bytes) -> None:
    """Overwrite an object of the WAL, as wal-sink never does."""
    overwrite(world.wal, path, data)


PLANNED_MS = 1_700_000_000_000


def offsets_of(end: int) -> bytes:
    return f'v1\n{{"batchTimestampMs":{PLANNED_MS},"conf":{{}}}}\n{{"end":{end}}}'.encode()


def rewrite_offsets(world: World, batch_id: int) -> None:
    """Give the same batch id other input."""
    overwrite(world.checkpoint, f"offsets/{batch_id}", offsets_of(1000 + batch_id))


def recover(world: World) -> Run:
    """Do the part of a start that comes before Spark runs."""
    run = world.life().open_run()
    run.deliver_all()
    return run


# The owner of the WAL.


def test_a_deleted_checkpoint_is_refused_at_open() -> None:
    world = delivered()
    world.checkpoint.delete(world.checkpoint.list("", recursive=True))
    before = everything(world.wal)

    with pytest.raises(HistoryError, match="it is new or was deleted"):
        world.life().open_run()

    assert everything(world.wal) == before


def test_a_batch_without_offsets_is_refused() -> None:
    world = World()
    run = world.life().open_run()

    with pytest.raises(HistoryError, match="does not exist, but the batch is running"):
        run.begin_staging(0, planned_ms=PLANNED_MS)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"not JSON", b"\xff"])
def test_damaged_checkpoint_metadata_is_named(damage: bytes) -> None:
    world = delivered()
    overwrite(world.checkpoint, "metadata", damage)

    with pytest.raises(CorruptError, match="metadata"):
        world.life().open_run()


# Checkpoints that were rolled back.


@pytest.mark.parametrize("through", [-1, 0, 1])
def test_a_checkpoint_restored_to_an_older_state_with_the_same_input_repeats_nothing(through: int) -> None:
    world = delivered()
    world.roll_back(through)
    rows = world.rows

    assert world.life().live()

    assert world.hits["replayed batch"] == len(range(through + 1, 3))
    assert world.rows == rows
    world.check_end(crashes=0)


@pytest.mark.parametrize("through", [-1, 0, 1])
def test_a_checkpoint_restored_to_an_older_state_with_other_input_is_refused_before_anything_is_written(
    through: int,
) -> None:
    world = delivered()
    world.roll_back(through)
    run = recover(world)
    world.checkpoint.create(f"offsets/{through + 1}", offsets_of(1000))
    before = everything(world.wal)

    with pytest.raises(HistoryError, match="No row of the other history was staged"):
        run.begin_staging(through + 1, planned_ms=PLANNED_MS)

    assert everything(world.wal) == before


def test_other_input_under_a_batch_that_was_completed_but_not_released_is_not_delivered_as_the_old() -> None:
    world = World(batches=((3,), (2,)))
    world.life(dies("before create", "release.json")).live()
    rewrite_offsets(world, 0)

    with pytest.raises(HistoryError, match="under the same id"):
        recover(world)

    assert world.rows == []
    assert "release.json" not in world.wal.list(paths.batch(0))


def test_a_batch_that_was_completed_and_not_released_before_a_roll_back_is_staged_anew() -> None:
    world = World(batches=((3,), (2,)))
    world.life(dies("before create", "release.json")).live()
    world.roll_back(-1)

    assert world.life().live()

    assert world.hits["replayed batch"] == 0
    world.check_end(crashes=0)


def test_a_drainer_does_not_release_what_a_roll_back_made_undone() -> None:
    """The gate remembers the batches as complete, but the checkpoint no longer knows them."""
    world = World(batches=((3,), (2,), (1,)), lagging=True)
    world.life(dies("before create", "release.json")).live()
    drainer = world.life().open_run()
    world.roll_back(0)
    drainer.advance(drainer.committers[0])

    with pytest.raises(HistoryError, match="no offsets/1"):
        drainer.advance(drainer.committers[0])

    assert {row[1] for row in world.rows} == {0}


def test_a_checkpoint_rolled_back_beyond_the_retention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)
    world = World(batches=LONG, retention=1)
    assert world.life().live()
    low_water = world.judge.low_water
    assert low_water >= 3
    world.roll_back(low_water - 1)
    run = recover(world)
    world.checkpoint.create(f"offsets/{low_water}", offsets_of(low_water))
    before = everything(world.wal)

    with pytest.raises(HistoryError, match="this batch was delivered and then deleted from the WAL"):
        run.begin_staging(low_water, planned_ms=PLANNED_MS)

    assert everything(world.wal) == before


# Missing batches.


def test_a_batch_that_a_predecessor_staged_meanwhile_is_no_gap() -> None:
    world = World(batches=((1,), (1,), (1,)), zombies=True, lagging=True)
    old = world.life()
    batches = old.batches(old.open_run())
    next(batches)
    new = world.life().open_run()
    next(batches)

    world.checkpoint.create("offsets/2", offsets_of(2))
    assert new.begin_staging(2, planned_ms=PLANNED_MS) is not None


def test_a_deleted_manifest_of_a_completed_batch_holds_later_batches_back() -> None:
    world = World(batches=((3,), (2,), (1,)), lagging=True)
    world.life(dies("before create", "release.json")).live()
    folder = paths.batch(1)
    world.wal.delete([f"{folder}/{name}" for name in world.wal.list(folder) if name.startswith("manifest")])

    for _ in range(2):
        with pytest.raises(HistoryError, match="later batches must wait"):
            recover(world)

    assert world.facts.marked == {0}
    assert {row[1] for row in world.rows} == {0}


# Damaged objects.


def undelivered() -> World:
    """A world in which batch 0 is released and partly sent, and nothing else happened."""
    world = World(batches=((5, 2), (1,)))
    assert not world.life(dies("after create", "sinks/", number=3)).live()
    assert world.rows
    return world


def segments(world: World) -> list[str]:
    return [f"batches/{name}" for name in world.wal.list("batches", recursive=True) if name.endswith(".parquet")]


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@pytest.mark.parametrize(
    "damaged",
    [lambda data: data[:-1], lambda data: data[:0], lambda data: data + b"x", lambda data: flip(data, len(data) * 4)],
    ids=["truncated", "emptied", "longer", "a flipped bit"],
)
def test_a_damaged_segment_stops_delivery_and_loses_nothing_once_it_is_restored(
    damaged: Callable[[bytes], bytes],
) -> None:
    world = undelivered()
    path = segments(world)[1]
    whole = world.wal.read(path)
    overwrite(world.wal, path, damaged(whole))

    with pytest.raises(CorruptError, match=path.rsplit("/", 1)[1]):
        recover(world)
    assert world.facts.marked == set()

    overwrite(world.wal, path, whole)
    assert world.life().live()
    world.check_end(crashes=2)


# Changes that fingerprints show.


def file_source_checkpoint(*, compact: bool, files: str = "a.csv") -> MemoryStore:
    world = World()
    store = world.checkpoint
    for batch in (2, 3):
        store.create(f"offsets/{batch}", b'v1\n{"batchTimestampMs":1}\n{"logOffset":%d}' % batch)
    entries = [json.dumps({"path": f"file:///{batch}-{files}", "timestamp": 1, "batchId": batch}) for batch in range(6)]
    if compact:
        store.create("sources/0/1.compact", "\n".join(["v1", *entries[:2]]).encode())
        store.create("sources/0/5.compact", "\n".join(["v1", *entries]).encode())
    else:
        store.create("sources/0/3", "\n".join(["v1", entries[3]]).encode())
    return store


def fingerprint(store: MemoryStore, batch_id: int = 3) -> str:
    return Checkpoint(store).require_offsets(batch_id).fingerprint


@pytest.mark.parametrize("compact", [False, True])
def test_equal_offsets_of_a_file_source_over_other_files_have_another_fingerprint(compact: bool) -> None:
    one = file_source_checkpoint(compact=compact)
    other = file_source_checkpoint(compact=compact, files="b.csv")

    assert one.read("offsets/3") == other.read("offsets/3")
    assert fingerprint(one) != fingerprint(other)


def test_compaction_of_a_file_source_does_not_change_the_fingerprint() -> None:
    assert fingerprint(file_source_checkpoint(compact=True)) == fingerprint(file_source_checkpoint(compact=False))


def test_a_replay_over_other_files_under_equal_offsets_is_refused() -> None:
    world = World(batches=((1,),))
    store = world.checkpoint
    conf = f'{{"batchTimestampMs":{PLANNED_MS},"end":0}}'
    store.create("offsets/0", f'v1\n{conf}\n{{"end":0,"logOffset":0}}'.encode())
    store.create("sources/0/0", b'v1\n{"path":"a","timestamp":1,"batchId":0}')
    assert world.life().live()
    world.checkpoint.delete(["commits/0"])
    overwrite(store, "sources/0/0", b'v1\n{"path":"b","timestamp":1,"batchId":0}')
    run = recover(world)

    with pytest.raises(HistoryError, match="under the same id"):
        run.begin_staging(0, planned_ms=PLANNED_MS)


# Entries that Spark deletes from its checkpoint.


def test_a_gate_whose_commit_spark_deleted_opens_through_a_later_one() -> None:
    world = World(batches=((3,), (2,), (1,)), lagging=True)
    world.life(dies("before create", "release.json")).live()
    world.checkpoint.delete(["commits/0", "commits/1"])

    recover(world)

    world.check_end(crashes=0)


def test_offsets_that_spark_deleted_do_not_hold_an_old_batch_back() -> None:
    world = World(batches=((3,), (2,), (1,)), lagging=True)
    world.life(dies("before create", "release.json")).live()
    entry = world.checkpoint.read("offsets/0")
    world.checkpoint.delete(["offsets/0", "commits/0"])

    recover(world)

    world.checkpoint.create("offsets/0", entry)  # the judge compares its end
    world.check_end(crashes=0)


@pytest.mark.parametrize("entry", [b"", b"v", b"v1", b"v1\n", b'v1\n{"nextBatch'])
def test_a_commit_that_is_not_whole_opens_no_gate(entry: bytes) -> None:
    world = World(batches=((3,),))
    store = world.checkpoint
    store.create("commits/0", entry)

    assert not Checkpoint(store).is_completed(0)


def test_files_beside_the_commits_are_no_commits() -> None:
    class Files:
        root = "checkpoint"

        def read(self, path: str) -> bytes:
            raise AssertionError(path)

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:  # noqa: ARG002
            return [".7.crc", ".8.7e57.tmp", "3", "9.tmp", "_SUCCESS"]

    assert Checkpoint(Files()).newest_commit() == 3


def test_a_checkpoint_of_another_query_is_refused_at_open_and_nothing_is_written() -> None:
    world = delivered()
    overwrite(world.checkpoint, "metadata", b'{"id": "another"}')
    before = everything(world.wal)

    with pytest.raises(HistoryError, match="belongs to query another"):
        world.life().open_run()

    assert everything(world.wal) == before


def test_a_checkpoint_without_metadata_cannot_bind_a_new_wal() -> None:
    world = World()
    run = world.life().open_run()
    world.checkpoint.create("offsets/0", offsets_of(0))

    with pytest.raises(HistoryError, match="holds no query id"):
        run.begin_staging(0, planned_ms=PLANNED_MS)

    assert world.wal.list("batches") == []


def test_a_batch_before_the_first_of_the_wal_is_refused() -> None:
    world = World(batches=((1,), (1,), (1,)))
    query = FakeQuery(world.checkpoint, lambda *_: [])
    for batch_id in (0, 1):
        query.start_batch(batch_id, batch_id)
        query.complete_batch(batch_id)
    assert world.life().live()
    world.roll_back(0)
    run = recover(world)
    world.checkpoint.create("offsets/1", offsets_of(1))

    with pytest.raises(HistoryError, match="begins with batch 2"):
        run.begin_staging(1, planned_ms=PLANNED_MS)


def test_a_gap_in_the_batch_ids_is_refused_when_it_is_staged() -> None:
    world = delivered()
    run = recover(world)
    world.checkpoint.create("offsets/5", offsets_of(5))

    with pytest.raises(HistoryError, match="batches 3 to 4 are missing in between"):
        run.begin_staging(5, planned_ms=PLANNED_MS)


def test_a_deleted_manifest_of_a_released_batch_is_told_from_one_that_never_was() -> None:
    world = World(batches=((3,), (2,)))
    world.life(dies("before sink")).live()
    folder = paths.batch(0)
    world.wal.delete([f"{folder}/{name}" for name in world.wal.list(folder) if name.startswith("manifest")])

    with pytest.raises(CorruptError, match=r"manifest-.* is gone, but it must have existed: .*release\.json"):
        recover(world)


def test_a_deleted_segment_stops_delivery_and_names_it() -> None:
    world = undelivered()
    world.wal.delete(segments(world)[1:])

    with pytest.raises(CorruptError, match="found nothing"):
        recover(world)

    assert world.facts.marked == set()


def records(world: World) -> list[str]:
    """One record of every kind that a start reads."""
    names = world.wal.list("", recursive=True)
    return [
        next(name for name in names if part in name)
        for part in ("wal.json", "manifest-", "release.json", "sinks/default/sink.json")
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_flipped_bit_in_a_record_is_never_taken_for_a_record(number: int) -> None:
    reference = undelivered()
    size = len(reference.wal.read(records(reference)[number]))

    for bit in range(number, (size - 1) * 8, 97):  # the newline at the end has no meaning
        world = undelivered()
        path = records(world)[number]
        damage(world, path, flip(world.wal.read(path), bit))
        before = world.rows

        with pytest.raises((CorruptError, ConfigError), match=path):
            recover(world)

        assert world.rows == before, "something was sent because of a damaged record"


def test_a_flipped_bit_in_the_newest_marker_is_found() -> None:
    world = delivered()
    path = paths.marker("default", 2)
    overwrite(world.wal, path, flip(world.wal.read(path), 300))

    with pytest.raises(CorruptError, match="markers"):
        recover(world)


@pytest.mark.parametrize("number", range(4))
def test_a_record_of_an_unknown_format_asks_for_the_version_that_wrote_it(number: int) -> None:
    world = undelivered()
    path = records(world)[number]
    envelope = json.loads(world.wal.read(path))
    damage(world, path, json.dumps({**envelope, "format": 7, "something": "new"}).encode())
    before = world.rows

    with pytest.raises(ConfigError, match=r"format 7, but this version of wal-sink reads format 6\. .*Use the version"):
        recover(world)

    assert world.rows == before


def test_the_line_of_configuration_does_not_change_the_fingerprint() -> None:
    store = World().checkpoint
    store.create("offsets/0", b'v1\n{"batchTimestampMs":1}\n{"end":7}\n-')
    store.create("offsets/1", b'v1\n{"batchTimestampMs":2,"conf":{"a":"b"}}\n{"end":7}\n-')
    store.create("offsets/2", b'v1\n{"batchTimestampMs":2}\n-\n{"end":7}')

    assert fingerprint(store, 0) == fingerprint(store, 1)
    assert fingerprint(store, 1) != fingerprint(store, 2)


def test_a_completed_newest_batch_without_offsets_is_refused() -> None:
    world = World(batches=((3,),))
    world.life(dies("before create", "release.json")).live()
    world.checkpoint.delete(["offsets/0"])

    with pytest.raises(HistoryError, match="has no offsets/0"):
        recover(world)


@pytest.mark.parametrize("entry", [b"{}", b"\x00\x00", b"v1\n\x00", b"v1\n[]", b"v1\n{]}", b"x1\n{}"])
def test_a_commit_that_is_none_is_named(entry: bytes) -> None:
    store = World().checkpoint
    store.create("commits/0", entry)

    with pytest.raises(CorruptError, match=r"commits/0: expected .*; restore the checkpoint"):
        Checkpoint(store).is_completed(0)


@pytest.mark.parametrize("text", [b"", b"v1", b'{"end":1}\n{}\n{}', b"\xff\xfe"])
def test_damaged_offsets_are_named(text: bytes) -> None:
    store = World().checkpoint
    store.create("offsets/0", text)

    with pytest.raises(CorruptError, match="offsets/0"):
        Checkpoint(store).offsets(0)


def test_every_refusal_of_a_history_is_one_error_family() -> None:
    assert issubclass(MissingBatchError, HistoryError)
    assert issubclass(HistoryError, WalSinkError)
