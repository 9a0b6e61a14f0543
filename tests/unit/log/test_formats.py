"""A record of another format is refused by name, older or newer; WALs with every kind of record lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.log import FORMAT, Record, paths
from tests.house.protocol import Collector
from tests.house.sinks import Ability
from tests.house.stores import MemoryStore
from tests.support.golden.wal_writer import WRITERS, written
from tests.support.golden.wals import GoldenWal
from wal_sink.errors import ConfigError
from wal_sink.log import records, sink_records
from wal_sink.operate.replay import DeadLetters

OTHERS = (FORMAT - 1, FORMAT + 1)
_EACH = pytest.mark.parametrize("kind", WRITERS)


def refused(path: str, found: int) -> str:
    return rf"{path}: format {found}, but this version of wal-sink reads format {FORMAT}\. Use the version of wal-sink"


def put(wal: MemoryStore, path: str, envelope: dict[str, Any], found: int) -> None:
    """Give an object another format."""
    wal.delete([path])
    wal.create(path, json.dumps({**envelope, "format": found}).encode())


def kinds_of_records() -> Iterator[type[Record]]:
    """Every record there is."""
    found = [*vars(records).values(), *vars(sink_records).values()]
    return (kind for kind in found if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record)


def envelopes(world: GoldenWal) -> dict[str, Any]:
    names = [name for name in world.wal.list("", recursive=True) if name.endswith(".json")]
    return {name: json.loads(world.wal.read(name)) for name in names}


def letters_of(world: GoldenWal, name: str) -> list[int]:
    """Ids of the rows that lie among a sink's dead letters and were not sent again."""
    letters = [letter for letter in DeadLetters(world.log(), name=name).all() if not letter.replayed]
    return [row for letter in letters for row in letter.chunk.table.column("id").to_pylist() if row is not None]


def test_the_written_wals_hold_every_kind_of_record_and_sink() -> None:
    found = [each for kind in WRITERS for each in envelopes(written(kind)).values()]

    assert {each["kind"] for each in found} == {kind.kind for kind in kinds_of_records()}
    assert {each["format"] for each in found} == {FORMAT}
    assert {each["body"]["sink_kind"] for each in found if each["kind"] == "sink"} == {str(kind) for kind in Ability}


@_EACH
def test_a_wal_with_every_kind_of_record_is_drained_to_its_end(kind: str) -> None:
    """Each row once: what has arrived is known, what was half-delivered goes on, what is incomplete waits."""
    world = written(kind)
    complete = max(int(name) for name in world.checkpoint.list("commits"))
    run = world.drain()

    assert [committer.marked_through for committer in run.committers] == [complete] * len(world.sinks)
    for name in world.sinks:
        rows = [*world.targets[name].rows, *letters_of(world, name)]
        assert sorted(rows) == world.ids(through=complete), name


@_EACH
def test_a_wal_with_every_kind_of_record_goes_on_and_is_collected(kind: str) -> None:
    """The batch that was incomplete is run again; then nothing of what was delivered before is left."""
    world = written(kind)
    old = max(world.rows)
    staged = max(int(name) for name in world.checkpoint.list("offsets"))
    run = world.process()
    run.deliver_all()
    if str(staged) not in world.checkpoint.list("commits"):
        world.stage(run, staged)
        world.query().complete_batch(staged)
    world.partitions = []
    for number in range(old + 1, old + 3):
        assert world.batch(run, 2) == number
        run.gate.search()
        run.deliver_all()

    assert Collector(run.shared, retention_batches=1).collect(run.committers[0].term) == old + 1
    left = [name for name in world.wal.list("", recursive=True) if name.endswith(".parquet")]
    assert {name for name in left if f"{old + 2:019d}" not in name and "dead-letters" not in name} == set()
    assert not [name for name in world.wal.list(paths.BATCHES, recursive=True) if f"{old:019d}" in name]
    world.process()  # which aborts what nobody will commit
    for name in world.sinks:
        rows = [*world.targets[name].rows, *letters_of(world, name)]
        assert sorted(rows) == world.ids(), name
        assert world.targets[name].held == {}


@_EACH
def test_an_object_of_another_format_is_refused_by_name(kind: str) -> None:
    world = written(kind)
    kinds = {kind.kind: kind for kind in kinds_of_records()}
    for path, envelope in envelopes(world).items():
        for found in OTHERS:
            put(world.wal, path, envelope, found)
            with pytest.raises(ConfigError, match=refused(path, found)):
                world.log().find(kinds[envelope["kind"]], path)


MANIFEST = "the manifest of a batch that is complete and not released"


@pytest.mark.parametrize(
    "name",
    [
        paths.WAL,
        paths.sink("plain"),
        MANIFEST,
        paths.release(2),
        paths.marker("plain", 1),
        paths.marker("ledger", 1),
    ],
)
@pytest.mark.parametrize("found", OTHERS)
def test_a_start_refuses_another_format(name: str, found: int) -> None:
    """Progress is no part of this: its names say all."""
    world = written("kinds")
    if name == MANIFEST:
        (name,) = (path for path in envelopes(world) if path.startswith(f"{paths.batch(3)}/manifest-"))
    put(world.wal, name, envelopes(world)[name], found)
    with pytest.raises(ConfigError, match=refused(name, found)):
        world.drain()
