"""A WAL compared with the positions of a target: behind, ahead, of another history, and targets that tell nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.house.log import Manifest, Release, decode, encode, paths
from tests.house.operate import AgainstTarget, Check, Fault, Finding, WalFacts
from tests.house.sinks import Position
from tests.house.stores import MemoryStore
from tests.support.golden.targets import LookedUp, Plain, Target, Transactional
from tests.support.golden.wals import GoldenWal
from tests.unit.operate.worlds import copied, replaced, world_of
from wal_sink.errors import ConfigError
from wal_sink.operate import against
from wal_sink.operate.look import find_staged


def hook(_what: str) -> None:
    """No process dies here."""


class World:
    """A WAL whose sink `ledger` has batch 2 half, and the target of this sink."""

    def __init__(self) -> None:
        whole: GoldenWal = world_of("kinds")
        self.wal: MemoryStore = copied(whole.wal)
        self.target: Target = replace(whole.targets["ledger"], ledger=dict(whole.targets["ledger"].ledger))
        self.slots = sorted(self.target.ledger)
        self.sink: Any = Transactional(self.target, hook)

    def put(self, number: int, **changed: Any) -> None:
        """Change the position of a slot."""
        term, batch, rows, segment = self.target.ledger[self.slots[number]]
        entry = {"term": term, "batch": batch, "rows": rows, "segment": segment, **changed}
        self.target.ledger[self.slots[number]] = (entry["term"], entry["batch"], entry["rows"], entry["segment"])

    def found(self, name: str = "ledger") -> list[Finding]:
        self.comparison = AgainstTarget(self.sink, name)
        return Check(self.wal, comparisons=[self.comparison]).run()

    def faults(self, name: str = "ledger") -> list[tuple[Fault, int | None, str | None]]:
        return [(found.fault, found.batch_id, found.sink) for found in self.found(name)]

    def left_out(self) -> str:
        return "; ".join(self.comparison.left_out())


@pytest.fixture
def world() -> World:
    return World()


def test_a_target_that_is_right(world: World) -> None:
    assert world.faults() == []
    assert world.left_out() == ""
    assert [batch for _, batch, _, _ in world.target.ledger.values()] == [2, 0]


def test_another_table_of_the_ledger_is_no_target_that_is_right(world: World) -> None:
    """The ledger has all positions, and the table may be empty."""
    world.sink.describe = lambda: "Transactional('db', 'other')"
    assert world.faults() == []
    assert "was registered for Transactional, which has its earlier rows" in world.left_out()


def test_a_target_that_is_behind(world: World) -> None:
    """It was restored from a backup: it lacks a batch that is marked."""
    manifest = find_staged(WalFacts(world.wal).log, 0).manifest
    assert manifest is not None
    world.put(0, batch=0, rows=3, segment=manifest.segments[0].id)
    (found,) = world.found()
    assert (found.fault, found.batch_id, found.sink) == (Fault.TARGET_BEHIND, 1, "ledger")
    assert "slot 0 is at batch 0, row 3, but 5 rows of batch 1 were delivered and marked" in found.what
    world.target.ledger.clear()
    assert world.faults() == [(Fault.TARGET_BEHIND, batch, "ledger") for batch in (1, 0)]
    assert "is at nothing" in world.found()[0].what


def test_a_target_that_is_ahead(world: World) -> None:
    """The WAL was restored to an older state, or a copy of it delivers."""
    world.put(1, batch=8)
    assert world.faults() == [(Fault.TARGET_AHEAD, 8, "ledger")]


def test_a_target_with_a_batch_that_is_not_released(world: World) -> None:
    world.wal.delete([path for path in world.wal.list("", recursive=True) if path.endswith("2/release.json")])
    found = [found for found in world.found() if found.sink == "ledger"]
    assert {(each.fault, each.batch_id) for each in found} == {(Fault.TARGET_AHEAD, 2)}
    assert "has not released that batch" in found[0].what


@pytest.mark.parametrize("changed", [{"segment": "f" * 32}, {"rows": 99}, {"batch": 1, "rows": 5}])
def test_a_target_of_another_history(world: World, changed: dict[str, Any]) -> None:
    world.put(0, **changed)
    assert [fault for fault, *_ in world.faults()] == [Fault.TARGET_OTHER]


def test_a_slot_that_the_batch_does_not_have(world: World) -> None:
    """Batch 1 has one segment, so the second slot cannot hold it."""
    world.put(1, batch=1, rows=2)
    assert (Fault.TARGET_OTHER, 1, "ledger") in world.faults()


def test_a_target_that_is_behind_a_batch_that_was_collected() -> None:
    """The slots of the last marked batch are compared; older ones may be of batches that are gone."""
    collected = world_of("collected")
    check = AgainstTarget(Transactional(collected.targets["ledger"], hook), "ledger")
    wal = copied(collected.wal)
    assert Check(wal, comparisons=[check]).run() == []
    (slot,) = collected.targets["ledger"].ledger
    old = Target(ledger={slot: (1, 2, 2, "e" * 32)})
    found = Check(wal, comparisons=[AgainstTarget(Transactional(old, hook), "ledger")]).run()
    assert [each.fault for each in found] == [Fault.TARGET_BEHIND]


def test_a_batch_that_is_marked_and_collected_meanwhile(world: World) -> None:
    """Between the marker and the positions, the batch in flight was finished and collected."""

    class Late(Transactional):
        def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
            found = super().positions(slots)
            world.wal.delete([path for path in world.wal.list("", recursive=True) if path.endswith("2/release.json")])
            return found

    world.sink = Late(world.target, hook)
    marker = paths.marker("ledger", 1)
    data = world.wal.read(marker)
    found = [each.fault for each in world.found() if each.sink == "ledger"]
    assert found == [Fault.TARGET_AHEAD]
    world.wal.create(paths.marker("ledger", 2), data)
    again = [each for each in world.found() if each.sink == "ledger"]
    assert Fault.TARGET_AHEAD not in [each.fault for each in again]


def test_a_target_that_gives_no_answer(world: World) -> None:
    class Unreachable(Transactional):
        def last(self, slot: str) -> Position | None:
            raise ConnectionError(f"{slot}: unreachable, password=hunter2")

    class Strange(Transactional):
        def positions(self, slots: Sequence[str]) -> Any:  # noqa: ARG002 - it answers nonsense
            return {}

    class Wrong(Transactional):
        def last(self, slot: str) -> Any:
            return slot

    for sink, said in (
        (Unreachable, "unreachable"),
        (Strange, "expected a mapping"),
        (Wrong, "expected None, or a Position"),
    ):
        world.sink = sink(world.target, hook)
        (found,) = world.found()
        assert found.fault is Fault.TARGET_OTHER
        assert said in found.what
        assert "hunter2" not in found.what


def test_a_target_that_keeps_no_positions_is_named(world: World) -> None:
    world.sink = Plain(world.target, hook)
    assert world.faults("plain") == []
    assert "a plain target cannot tell which rows it has" in world.left_out()


def test_an_unknown_sink(world: World) -> None:
    with pytest.raises(ConfigError, match="has no sink 'other'; it has 'batches'"):
        world.found("other")


def test_a_sink_that_was_forgotten(world: World) -> None:
    world.wal.create(paths.forgotten("ledger"), b"")
    assert world.faults() == []
    assert "the sink was forgotten" in world.left_out()


def test_a_wal_that_cannot_say_what_the_target_must_have(world: World) -> None:
    replaced(world.wal, paths.marker("ledger", 1), b"{}")
    assert Fault.DAMAGED in [fault for fault, *_ in world.faults()]
    assert "its newest marker cannot be read" in world.left_out()
    world.wal.delete([paths.WAL])
    world.found()
    assert "no wal.json" in world.left_out()


def test_names_that_cannot_be_read() -> None:
    collected = world_of("collected")
    wal = copied(collected.wal)
    replaced(wal, paths.sink_name("renamed", 1), b"{}")
    comparison = AgainstTarget(Transactional(collected.targets["ledger"], hook), "ledger")
    assert [found.fault for found in Check(wal, comparisons=[comparison]).run()] == [Fault.DAMAGED]
    assert "the names of the sinks cannot be read" in comparison.left_out()[0]


def test_a_sink_that_has_nothing_yet() -> None:
    world = GoldenWal("nothing yet", "checks", ["ledger"])
    run = world.process()
    world.batch(run, 2, is_completed=False)
    target = world.targets["ledger"]
    comparison = AgainstTarget(Transactional(target, hook), "ledger")
    assert Check(world.wal, comparisons=[comparison]).run() == []
    wal_id = Check(world.wal).log.store.read("wal.json").split(b'"wal_id":"')[1][:32].decode()
    target.ledger[f"{wal_id}/ledger/0"] = (1, 0, 2, "a" * 32)
    (found,) = Check(world.wal, comparisons=[comparison]).run()
    assert found.fault is Fault.TARGET_AHEAD


# --- targets that know chunks


class LookupWorld(World):
    """The same, with the sink `looked-up`. Its newest marked batch is 1, of three chunks."""

    def __init__(self) -> None:
        super().__init__()
        whole = world_of("kinds").targets["looked-up"]
        self.target = replace(whole, keys=list(whole.keys))
        self.sink = LookedUp(self.target, hook)

    def lose(self, number: int) -> str:
        """Let the target lose a chunk of batch 1."""
        manifest = find_staged(WalFacts(self.wal).log, 1).manifest
        assert manifest is not None
        key = [key for key in self.target.keys if key.startswith(manifest.segments[0].id)][number]
        self.target.keys.remove(key)
        return key


@pytest.fixture
def lookup() -> LookupWorld:
    return LookupWorld()


def test_a_target_that_knows_each_chunk(lookup: LookupWorld) -> None:
    assert (lookup.faults("looked-up"), lookup.left_out()) == ([], "")


def test_a_target_that_lacks_chunks(lookup: LookupWorld) -> None:
    lost = [lookup.lose(1), lookup.lose(1)]
    (found,) = lookup.found("looked-up")
    assert (found.fault, found.batch_id, found.sink) == (Fault.TARGET_BEHIND, 1, "looked-up")
    assert f"it lacks 2 chunks of batch 1, which is marked; the first: {lost[0]}" in found.what


def test_a_chunk_with_dead_letters_is_left_out(lookup: LookupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup.lose(1)
    letter = paths.dead_letter("looked-up", 1, 0, 2, 4, number=0)
    monkeypatch.setattr(Check, "_letters", lambda *_: [])  # what lies in it does not matter here
    lookup.wal.create(letter, b"")
    assert lookup.faults("looked-up") == []


def test_chunks_beyond_those_looked_up_are_left_out_by_number(
    lookup: LookupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "MOST_CHUNKS", 2)
    lookup.lose(0)
    assert lookup.faults("looked-up") == []
    assert "1 of 3 chunks of batch 1" in lookup.left_out()


def test_a_target_that_does_not_say_whether_it_has_a_chunk(lookup: LookupWorld) -> None:
    class Strange(LookedUp):
        def was_applied(self, key: str) -> Any:
            return f"{key}: perhaps"

    lookup.sink = Strange(lookup.target, hook)
    (found,) = lookup.found("looked-up")
    assert (found.fault, "expected True or False" in found.what) == (Fault.TARGET_OTHER, True)


def test_a_sink_of_another_kind_has_no_batch_to_look_up(lookup: LookupWorld) -> None:
    assert lookup.faults("plain") == []
    assert "no batch that was marked for a target of this kind" in lookup.left_out()


def test_a_manifest_whose_chunks_are_unknown(lookup: LookupWorld) -> None:
    release = decode(Release, lookup.wal.read(paths.release(1)), "")
    path = paths.manifest(1, release.term, release.attempt)
    manifest = decode(Manifest, lookup.wal.read(path), "")
    broken = msgspec.structs.replace(manifest.segments[0], chunk_ends=(3, 2))
    replaced(lookup.wal, path, encode(msgspec.structs.replace(manifest, segments=(broken,))))
    assert {found.where for found in lookup.found("looked-up")} == {path}
    assert "contradicts itself" in lookup.left_out()
