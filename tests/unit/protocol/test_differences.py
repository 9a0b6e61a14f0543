"""The inputs of a batch that differ are named: the message of `HistoryError` says which, and the next step."""

from __future__ import annotations

import json

import pytest

from tests.house.log import Log, Manifest, SegmentRef, encode, paths
from tests.house.protocol import Checkpoint
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.small_run import Place, Recorder
from wal_sink.errors import HistoryError
from wal_sink.protocol.history import difference
from wal_sink.testing import simulated_runtime

BATCH = 7
PLANNED_MS = 1_767_225_600_000


def entry(*sources: str, planned_ms: int | None = PLANNED_MS) -> str:
    metadata = {} if planned_ms is None else {"batchTimestampMs": planned_ms}
    return "\n".join(["v1", json.dumps(metadata), *sources])


def file_log(number: int, *names: str) -> bytes:
    files = (json.dumps({"path": f"s3://in/{name}", "timestamp": 5, "batchId": number}) for name in names)
    return "\n".join(["v1", *files]).encode()


class World:
    """A WAL with the manifest of one batch, and a checkpoint."""

    def __init__(self, name: str, offsets: str, *, rows: int = 40, passed_over: bool = False) -> None:
        self.wal, self.checkpoint = (MemoryStore(StoreSpec(f"memory://{name}/{part}")) for part in ("wal", "c"))
        ref = SegmentRef(path="p", id="i", rows=rows, bytes=1, crc32=1)
        manifest = Manifest(
            batch_id=BATCH, term=1, attempt=2, run_id="r", fingerprint="f", offsets=offsets,
            columns=("a",), spark_schema="", chunk_rows=9, segments=() if passed_over else (ref,),
            passed_over=passed_over, id="m", created="now",
        )  # fmt: skip
        self.wal.create(paths.manifest(BATCH, 1, 2), encode(manifest))

    def has(self, path: str, data: str | bytes) -> World:
        self.checkpoint.create(path, data.encode() if isinstance(data, str) else data)
        return self

    def told(self) -> str:
        log = Log(self.wal, simulated_runtime(), "run")
        return difference(log, Checkpoint(self.checkpoint), BATCH, (1, 2))


def test_other_files_under_the_same_offset_are_named(request: pytest.FixtureRequest) -> None:
    """The incident: `offsets/7` is literally equal, and `maxFilesPerTrigger` was changed after a restore."""
    same = '{"logOffset":7}'
    world = World(request.node.name, entry(same))
    world.has("offsets/6", entry('{"logOffset":6}'))
    world.has(f"offsets/{BATCH}", entry(same, planned_ms=PLANNED_MS + 1_500))
    world.has("sources/0/7", file_log(7, *(f"part-{number:05d}" for number in range(7, 11))))
    assert world.told() == (
        "The WAL has 40 rows of it, in 1 segment, planned at 2026-01-01T00:00:00.000+00:00. "
        "The batch in the checkpoint was planned at 2026-01-01T00:00:01.500+00:00. "
        "Source 0 reads files: now 4 files under the same offset (part-00007 to part-00010)"
    )


def test_other_offsets_of_a_source_are_shown(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry('{"orders":{"0":70}}', '{"b":1}', planned_ms=None))
    world.has(f"offsets/{BATCH}", entry('{"orders":{"0":280}}', '{"b":1}'))
    assert world.told().endswith(
        "planned at an unknown time. The batch in the checkpoint was planned at 2026-01-01T00:00:00.000+00:00. Source "
        '0: the WAL has {"orders":{"0":70}}, the checkpoint {"orders":{"0":280}}'
    )


def test_a_source_that_is_new_and_long_offsets_are_told_briefly(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry("x" * 500, "-", "1", "2", "3"))
    world.has(f"offsets/{BATCH}", entry("y", "z", "4", "5", "6"))
    told = world.told()
    assert f"Source 0: the WAL has {'x' * 120}… (500 characters), the checkpoint y" in told
    assert "Source 1: the WAL has no offset, the checkpoint z" in told
    assert told.endswith("2 more sources differ")
    world = World(f"{request.node.name}-3", entry("1", "2", "3"))
    assert "more source" not in world.has(f"offsets/{BATCH}", entry("4", "5", "6")).told()


def test_an_offset_of_120_characters_is_shown_whole(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry("x" * 120))
    world.has(f"offsets/{BATCH}", entry("y" * 121))
    assert world.told().endswith(f"the WAL has {'x' * 120}, the checkpoint {'y' * 120}… (121 characters)")


def test_a_single_file_under_another_offset(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry('{"logOffset":6}'))
    world.has("offsets/6", entry('{"logOffset":6}')).has(f"offsets/{BATCH}", entry('{"logOffset":7}'))
    world.has("sources/0/7", file_log(7, "a.txt"))
    assert world.told().endswith("Source 0 reads files: now 1 file (a.txt)")


def test_a_batch_that_reads_no_file(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry('{"logOffset":5}'))
    world.has("offsets/6", entry('{"logOffset":6}')).has(f"offsets/{BATCH}", entry('{"logOffset":6}'))
    assert world.told().endswith("Source 0 reads files: now 0 files (none)")


def test_a_batch_that_no_query_ran_and_an_entry_that_is_gone(request: pytest.FixtureRequest) -> None:
    assert World(request.node.name, entry("x"), passed_over=True).told() == (
        "The WAL has it as a batch that no query ran. The checkpoint has no entry of the batch any more"
    )


def test_a_manifest_or_an_entry_that_cannot_be_read_is_told(request: pytest.FixtureRequest) -> None:
    world = World(request.node.name, entry("x")).has(f"offsets/{BATCH}", "v9\n{}\nx")
    assert world.told().startswith("The difference cannot be shown: memory://")
    world.wal.delete([paths.manifest(BATCH, 1, 2)])
    assert "The difference cannot be shown: " in world.told()


def test_the_error_says_how_other_input_comes_about_and_what_to_do() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)
    run = place.open({"a": Recorder()})
    query = place.query()
    query.roll_back(-1)
    query.start_batch(0, 77)

    with pytest.raises(HistoryError) as found:
        query.stage(run, 0)

    text = str(found.value)
    assert "The WAL has 1 row of it, in 1 segment, planned at " in text
    assert "Source 0: the WAL has " in text
    assert "maxFilesPerTrigger, maxOffsetsPerTrigger" in text
    assert "set the option back, and restore the whole checkpoint again" in text
