"""WALs of earlier versions: every later one looks into them, goes on with them, collects them, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.targets import Plain, Target
from tests.support.golden.wal_writer import WRITERS, written
from tests.support.golden.wals import GOLDEN, GoldenWal, load
from wal_sink.committer.collection import Collector
from wal_sink.errors import ConfigError
from wal_sink.inspection import read_status
from wal_sink.replay import DeadLetters
from wal_sink.sinks.guarantees import Ability
from wal_sink.testing import FaultyStore
from wal_sink.wal import paths, records, repair_records, sink_records
from wal_sink.wal.records import Record

FILES = sorted(GOLDEN.glob("*/*.json"))
_EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")


def kinds_of_records() -> Iterator[type[Record]]:
    """Every record there is."""
    found = [*vars(records).values(), *vars(sink_records).values(), *vars(repair_records).values()]
    return (kind for kind in found if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record)


def envelopes(world: GoldenWal) -> dict[str, Any]:
    names = [name for name in world.wal.list("", recursive=True) if name.endswith(".json")]
    return {name: json.loads(world.wal.read(name)) for name in names}


def letters_of(seen: dict[str, Any], name: str) -> list[int]:
    """Ids of the rows that lie among a sink's dead letters and were not sent again."""
    return [row for letter in seen["dead letters"].get(name, []) if not letter["replayed"] for row in letter["ids"]]


def lacks(found: Any, told: Any, where: str = "") -> list[str]:
    """Where `found` does not say what `told` says. It may say more, as later versions do; sinks come in any order."""
    if isinstance(told, dict) and isinstance(found, dict):
        return [line for key in told for line in lacks(found.get(key), told[key], f"{where}/{key}")]
    if isinstance(told, list) and isinstance(found, list) and len(found) == len(told):
        pairs = zip(_by_sink(found, where), _by_sink(told, where), strict=True)
        return [line for at, (one, other) in enumerate(pairs) for line in lacks(one, other, f"{where}/{at}")]
    return [] if found == told else [f"{where}: {found!r}, expected {told!r}"]


def _by_sink(things: list[Any], where: str) -> list[Any]:
    if where.endswith("/delivered_to"):
        return sorted(things)
    key = {"sinks": "name", "delivered": "sink"}.get(where.rpartition("/")[2])
    return sorted(things, key=lambda each: str(each[key])) if key else things


def test_there_are_some_of_every_kind_of_record_sink_and_format() -> None:
    worlds = [load(path)[0] for path in FILES]
    found = [(name, each) for world in worlds for name, each in envelopes(world).items()]

    assert {each["kind"] for _, each in found} == {kind.kind for kind in kinds_of_records()}
    assert {each["format"] for _, each in found} == {1, 2, 3}
    assert {each["body"]["sink_kind"] for _, each in found if each["kind"] == "sink"} == {str(kind) for kind in Ability}
    assert {each["body"].get("rule", 1) for _, each in found if each["kind"] == "manifest"} == {1, 2}


@_EACH
def test_one_shows_what_it_showed_to_those_who_wrote_it(path: Path) -> None:
    world, seen = load(path)
    assert lacks(world.seen(), seen) == []


@_EACH
def test_looking_changes_nothing(path: Path) -> None:
    world, _ = load(path)
    met: list[str] = []
    store = FaultyStore(world.wal, lambda what, where: met.append(f"{what} {where}"))
    read_status(store)
    assert met
    assert not [what for what in met if what.startswith(("before create", "before delete", "before segment"))]


@_EACH
def test_one_is_drained_to_its_end(path: Path) -> None:
    """Each row once: what has arrived is known, what was half-delivered goes on, what is incomplete waits."""
    world, _ = load(path)
    complete = max(int(name) for name in world.checkpoint.list("commits"))
    run = world.drain()

    seen = world.seen()
    assert [committer.marked_through for committer in run.committers] == [complete] * len(world.sinks)
    for name in world.sinks:
        rows = [*world.targets[name].rows, *letters_of(seen, name)]
        assert sorted(rows) == world.ids(through=complete), name


@_EACH
def test_one_goes_on_and_is_collected(path: Path) -> None:
    """The batch that was incomplete is run again; then nothing of what was delivered before is left."""
    world, _ = load(path)
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
    seen = world.seen()
    for name in world.sinks:
        rows = [*world.targets[name].rows, *letters_of(seen, name)]
        assert sorted(rows) == world.ids(), name
        assert world.targets[name].held == {}


@_EACH
def test_its_dead_letters_are_sent_again(path: Path) -> None:
    world, seen = load(path)
    world.drain()
    before = world.seen()
    for name in seen["dead letters"]:
        target = Target()
        letters = DeadLetters(world.log(), name=name)
        letters.replay(Plain(target, world.hook), unknown=True)
        assert sorted(target.rows) == sorted(letters_of(before, name))
    after = world.seen()
    assert [name for name in seen["dead letters"] if letters_of(after, name)] == []


@_EACH
def test_an_object_of_a_newer_format_is_refused_by_name(path: Path) -> None:
    """Whatever record it is; and where a start reads it, the start is refused."""
    world, _ = load(path)
    kinds = {kind.kind: kind for kind in kinds_of_records()}
    for name, envelope in envelopes(world).items():
        data = world.wal.read(name)
        world.wal.delete([name])
        world.wal.create(name, data.replace(f'"format":{envelope["format"]}'.encode(), b'"format":4', 1))
        with pytest.raises(ConfigError, match=rf"{name}: format 4, but this version of wal-sink reads format"):
            world.log().find(kinds[envelope["kind"]], name)
        world.wal.delete([name])
        world.wal.create(name, data)


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
def test_a_start_refuses_a_newer_format(name: str) -> None:
    """Progress is no part of this: its names say all, and the manifest of its batch says in which format they are."""
    world, _ = load(max(path for path in FILES if path.stem == "kinds"))
    if name == MANIFEST:
        (name,) = (found for found in envelopes(world) if found.startswith(f"{paths.batch(3)}/manifest-"))
    data = world.wal.read(name)
    world.wal.delete([name])
    world.wal.create(name, data.replace(data[: data.index(b",")], b'{"format":4', 1))
    with pytest.raises(ConfigError, match=rf"{name}: format 4, but this version of wal-sink reads format"):
        world.drain()


@pytest.mark.parametrize("kind", WRITERS)
def test_the_present_code_still_writes_what_its_goldens_hold(kind: str) -> None:
    """Objects of the same names, but for ids. If this fails, a format changed: add goldens of a new version."""
    newest = max((path.parent.name for path in FILES), key=lambda version: int(version.partition("-")[0]))
    was, _ = load(GOLDEN / newest / f"{kind}.json")
    now = written(kind, f"{newest}-anew")
    assert set(now.wal.list("", recursive=True)) == set(was.wal.list("", recursive=True))
    for name, envelope in envelopes(now).items():
        before = json.loads(was.wal.read(name))
        assert (envelope["format"], envelope["kind"]) == (before["format"], before["kind"])
        assert set(envelope["body"]) == set(before["body"]), name
