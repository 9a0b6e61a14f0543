"""Copying a WAL: complete and equal, or no WAL at all; killed, disturbed, damaged, and between stores of two kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, CorruptError, HeldError, ObjectLost, WalSinkError
from wal_sink.inspection import read_batches, read_status
from wal_sink.lifecycle.run import Run
from wal_sink.moving import objects
from wal_sink.moving.copy import Copied, CopyPlan, TargetState, copy_wal, plan_copy
from wal_sink.moving.folders import survey
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import Crash, FaultyStore, simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.log import Log

_numbers = itertools.count()
Hook = Callable[[str, str], None]


def refuse_first(chunk: Chunk) -> Rejected | None:
    return Rejected({0: "none"}) if chunk.batch_id == 0 else None


def a_place(batches: int = 3, rows: Callable[[int], list[int]] = lambda _: [3, 0, 2]) -> Place:
    """A WAL of some batches for two sinks, one with a dead letter; the last batch is pending for both."""
    place = Place(rows=rows)
    run = place.open({"a": Delivery(refuse_first, on_rejected="dead_letter"), "b": Recorder()})
    staged = place.query().batches(run, batches)
    for _ in range(batches - 1):
        next(staged)
        run.deliver_all()
    next(staged)
    end(run)
    return place


def end(run: Run) -> None:
    """The end of a query and of its process: this process runs on."""
    run.end()
    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))


def memory(name: str = "copy") -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://moving-{next(_numbers)}/{name}"))


def log_of(store: Store, hook: Hook | None = None) -> Log:
    return Log(store if hook is None else FaultyStore(store, hook), simulated_runtime(next(_numbers)), "copy")


def plan(source: Log, target: Log, take_over: TakeOver = TakeOver.IF_GONE) -> CopyPlan:
    return plan_copy(source, target, take_over=take_over)


def copied(wal: Store, there: Store, *, source: Hook | None = None, target: Hook | None = None) -> Copied:
    """Copy a WAL. The hooks see the requests to it and to the copy."""
    whence, to = log_of(wal, source), log_of(there, target)
    return copy_wal(whence, to, plan(whence, to))


def content(store: Store) -> dict[str, bytes]:
    names = [name for name in store.list("", recursive=True) if not name.startswith("probe/")]
    return {name: store.read(name) for name in names if name not in (paths.COPY, paths.COPIED)}


def test_a_copy_is_equal_and_complete() -> None:
    place, there = a_place(), memory()
    seen: list[tuple[int, int]] = []
    source, target = log_of(place.wal), log_of(there)

    found = plan(source, target)
    done = copy_wal(source, target, found, why="a new bucket", on_progress=lambda *each: seen.append(each))

    assert content(there) == content(place.wal)
    assert (found.state, found.found.batches) == (TargetState.EMPTY, 3)
    assert found.objects == done.objects == len(content(there))
    assert done.bytes == sum(map(len, content(there).values()))
    assert seen == sorted(seen)
    assert seen[-1][0] == done.objects - 1
    assert survey(target) == found.found
    assert b"a new bucket" in there.read(paths.COPY)


def test_a_copy_can_be_continued_and_looked_at() -> None:
    place, there = a_place(), memory()

    copied(place.wal, there)

    assert read_batches(there) == read_batches(place.wal)
    assert read_status(there).location == "memory://" + place.wal.root.removeprefix("memory://")
    other = Place(wal=there, checkpoint=place.checkpoint, rows=place.rows)
    with pytest.raises(ConfigError, match="moved_from"):
        other.open({"b": Recorder()})


def test_spread_batches_and_lost_attempts_are_copied() -> None:
    """A batch with shards, and a segment that no manifest names."""
    place, there = a_place(2, rows=lambda _: [1] * (paths.SPREAD_FROM + 3)), memory()
    lost = f"{paths.attempt_folder(1, 7, 7)}/000000-0000-left.parquet"
    place.wal.create(lost, b"no attempt")
    place.wal.create("probe/20260101T000000Z-x.json", b"{}")
    assert any("shard-" in name for name in content(place.wal))

    copied(place.wal, there)

    assert content(there) == content(place.wal)
    assert not there.list(paths.PROBE)


def operations(place: Place) -> tuple[int, int]:
    """Points at which a copy may die, in the source and in the target."""
    counts = {"source": 0, "target": 0}

    def counting(which: str) -> Hook:
        def count(_what: str, _where: str) -> None:
            counts[which] += 1

        return count

    copied(place.wal, memory(), source=counting("source"), target=counting("target"))
    return counts["source"], counts["target"]


def dying_at(number: int) -> Hook:
    points = itertools.count()

    def hook(what: str, where: str) -> None:
        if next(points) >= number:  # a dead process does nothing more
            raise Crash(f"{what} {where}")

    return hook


def test_a_copy_that_is_killed_anywhere_is_no_wal_and_is_completed_by_the_same_command() -> None:
    place = a_place()
    expected = content(place.wal)
    source, target = operations(place)
    assert source > 50
    assert target > 100
    for which, number in [*(("source", each) for each in range(source)), *(("target", each) for each in range(target))]:
        there = memory()
        with pytest.raises(Crash):
            copied(place.wal, there, **{which: dying_at(number)})
        if paths.WAL not in there.list(""):
            refused_as_unfinished(place, there)
        else:
            assert content(there) == expected
        copied(place.wal, there)
        assert content(there) == expected
        assert content(place.wal) == expected


def refused_as_unfinished(place: Place, there: MemoryStore) -> None:
    """A query that starts on a half copy is refused. Before the first object of the copy, there is nothing at all."""
    names = [name for name in there.list("", recursive=True) if not name.startswith("probe/")]
    if not names:
        return
    assert paths.COPY in names
    expected: tuple[type[WalSinkError], str] = (
        ConfigError,
        r"is an unfinished copy of the WAL in memory://.*wal-sink copy",
    )
    if paths.COPIED in names:  # only wal.json is missing, and it may have been there
        expected = (ObjectLost, r"wal\.json is gone, or the copy of the WAL in memory://.*wal-sink copy")
    with pytest.raises(expected[0], match=expected[1]):
        Place(wal=there, checkpoint=place.checkpoint).open({"a": Recorder()})


def test_an_earlier_version_takes_a_half_copy_for_a_wal_that_lost_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    place = a_place()
    monkeypatch.setattr("wal_sink.recovery.inventory._refuse_unfinished_copy", lambda *_: None)
    unfinished = 0
    for number in range(operations(place)[1]):
        there = memory()
        with pytest.raises(Crash):
            copied(place.wal, there, target=dying_at(number))
        names = {*there.list("", recursive=True)}
        if paths.COPY in names and paths.WAL not in names:
            unfinished += 1
            with pytest.raises(ObjectLost, match=r"wal\.json is gone"):
                Place(wal=there, checkpoint=place.checkpoint).open({"a": Recorder()})
    assert unfinished > 100


def test_what_is_there_is_compared_and_not_written_again() -> None:
    place, there = a_place(), memory()
    with pytest.raises(Crash):
        copied(place.wal, there, target=dying_at(90))
    begun = content(there)
    assert len(begun) > 10
    written: list[str] = []

    copied(place.wal, there, target=lambda what, where: written.append(where) if what == "before create" else None)

    assert not begun.keys() & set(written)
    assert content(there) == content(place.wal)


def test_a_finished_copy_is_left_alone_by_the_same_command() -> None:
    place, there = a_place(), memory()
    copied(place.wal, there)
    written: list[str] = []

    done = copied(place.wal, there, target=lambda what, where: written.append(f"{what} {where}"))

    assert done.objects == 0
    assert {each.split()[1] for each in written} <= {"list", "read"}
    there.create(paths.move(1), b"somebody opened it")
    with pytest.raises(ConfigError, match=r"is a complete copy of .* changed since \(in moves\)"):
        copied(place.wal, there)


def changes(place: Place) -> Iterator[Callable[[], None]]:
    """Steps of a query, a committer and a collection."""
    first = paths.batch(0)

    def collect() -> None:
        place.wal.create(paths.low_water(0), place.wal.read("wal.json"))
        place.wal.delete(f"{first}/{name}" for name in place.wal.list(first, recursive=True))

    newest = max(place.wal.list("sinks/a/markers"))
    yield lambda: place.wal.create(paths.marker("a", 2), place.wal.read(f"sinks/a/markers/{newest}"))
    yield lambda: place.wal.create(paths.manifest(3, 1, 1), place.wal.read("wal.json"))
    yield lambda: serve(place)
    yield collect
    yield lambda: place.wal.create(paths.low_water(0), place.wal.read("wal.json"))


def serve(place: Place) -> None:
    """Another process claims a term, and ends."""
    log = log_of(place.wal)
    term = claim(log, paths.STAGER_ROLE, was_held=True, take_over=TakeOver.ALWAYS)
    note_end(log, paths.STAGER_ROLE, term.number)


def test_a_wal_that_changes_between_any_two_requests_is_copied_as_it_was_at_one_moment_or_not_at_all() -> None:
    requests = operations(a_place())[0]
    outcomes = set()
    for kind, number in itertools.product(range(5), range(requests)):
        place, there = a_place(), memory()
        before, points = content(place.wal), itertools.count()
        change = list(changes(place))[kind]

        def hook(_what: str, _where: str, points: Any = points, number: int = number, change: Any = change) -> None:
            if next(points) == number:
                change()

        try:
            copied(place.wal, there, source=hook)
        except HeldError as error:
            assert "changed while it was copied" in str(error)  # noqa: PT017 - a copy that succeeds is right, too
            assert paths.WAL not in there.list("")
            outcomes.add("refused")
            copied(place.wal, there)
            assert content(there) == content(place.wal)
        else:
            after = content(place.wal)
            assert content(there) in (before, after)
            outcomes.add("before" if content(there) == before else "after")
    assert outcomes == {"refused", "before", "after"}


def test_objects_that_were_collected_between_two_parts_of_a_copy_are_deleted_from_it() -> None:
    place, there = a_place(), memory()
    with pytest.raises(Crash):
        copied(place.wal, there, target=dying_at(110))
    gone = [name for name in content(place.wal) if name.startswith(paths.batch(0))]
    assert set(gone) <= set(content(there))
    place.wal.create(paths.low_water(0), place.wal.read("wal.json"))  # a collection raises it first
    place.wal.delete(gone)

    copied(place.wal, there)

    assert content(there) == content(place.wal)


def test_a_damaged_object_is_named_and_not_copied() -> None:
    for fixed in ("sinks/a/sink.json", "low-water/x.json", None):
        place, there = a_place(), memory()
        path = fixed or segment_of(place, 2)  # every sink needs the batch
        damaged = place.wal.read(path)[:-9] if path in content(place.wal) else b"{}"
        place.wal.delete([path])
        place.wal.create(path, damaged)

        with pytest.raises(CorruptError, match=f"{path}: "):
            copied(place.wal, there)

        assert paths.WAL not in there.list("")
        assert path not in there.list("", recursive=True)


def test_a_changed_bit_in_a_record_is_found() -> None:
    place = a_place()
    data = bytearray(place.wal.read("sinks/a/sink.json"))
    data[data.index(b'"name"') + 8] ^= 1
    place.wal.delete(["sinks/a/sink.json"])
    place.wal.create("sinks/a/sink.json", bytes(data))

    with pytest.raises(CorruptError, match="the checksum of this sink record does not match"):
        copied(place.wal, memory())


def test_each_manifest_is_read_once_for_its_segments() -> None:
    place = a_place(20)
    read: list[str] = []

    copied(place.wal, memory(), source=lambda what, where: read.append(where) if what == "before read" else None)

    manifests = [path for path in read if "/manifest-" in path]
    assert len(manifests) == 2 * len(set(manifests)) == 2 * 20  # to be copied, and for the checksums


def segment_of(place: Place, batch_id: int = 0) -> str:
    folder = paths.batch(batch_id)
    return next(name for name in content(place.wal) if name.endswith(".parquet") and name.startswith(folder))


@pytest.mark.parametrize("path", ["sinks/a/sink.json", paths.WAL])
def test_another_object_in_the_target_is_an_error(path: str) -> None:
    """Also one that appears while the WAL is copied."""
    place, there = a_place(), memory()

    def hook(what: str, where: str) -> None:
        if (what, where) == ("before create", path):
            there.create(path, b"other")

    with pytest.raises(CorruptError, match=f"{path} is not equal to memory://"):
        copied(place.wal, there, target=hook)
    if path != paths.WAL:
        with pytest.raises(CorruptError, match=f"{path} is not equal to memory://"):
            copied(place.wal, there)


def test_a_store_that_keeps_other_bytes_is_found_out() -> None:
    place, there = a_place(), memory()

    def hook(what: str, where: str) -> None:
        if what == "after create" and where == "sinks/a/sink.json":
            there.delete([where])
            there.create(where, b"rotten")

    with pytest.raises(CorruptError, match=r"sinks/a/sink\.json is not equal"):
        copied(place.wal, there, target=hook)


def test_a_target_from_which_objects_disappear_is_no_wal() -> None:
    place, there = a_place(), memory()

    def hook(what: str, where: str) -> None:
        if (what, where) == ("before list", paths.BATCHES):
            there.delete(["sinks/a/sink.json"])

    with pytest.raises(ObjectLost, match=r"life-cycle rule.*The copy is not complete"):
        copied(place.wal, there, target=hook)
    assert paths.WAL not in there.list("")


def test_a_folder_with_anything_else_is_refused() -> None:
    place = a_place()
    cases: dict[str, tuple[str, ...]] = {
        "is not empty .*notes.txt": ("notes.txt",),
        "is not empty .*terms/": ("terms/stager/0000000001.json",),
    }
    for expected, names in cases.items():
        there = memory()
        for name in names:
            there.create(name, b"mine")
        with pytest.raises(ConfigError, match=expected):
            copied(place.wal, there)
        assert there.list("", recursive=True) == list(names)


def test_a_copy_of_another_wal_is_refused() -> None:
    place, other, there = a_place(), a_place(), memory()
    copied(other.wal, there)
    with pytest.raises(ConfigError, match="is a copy of another WAL"):
        copied(place.wal, there)


def test_a_foreign_object_in_an_unfinished_copy_is_not_deleted() -> None:
    place, there = a_place(), memory()
    with pytest.raises(Crash):
        copied(place.wal, there, target=dying_at(60))
    there.create("notes.txt", b"mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt, which .* does not know as a part of a WAL"):
        copied(place.wal, there)
    assert there.read("notes.txt") == b"mine"


def test_a_wal_with_something_unknown_in_its_root_is_refused() -> None:
    place = a_place()
    place.wal.create("future/x.json", b"{}")
    with pytest.raises(ConfigError, match="holds future/"):
        copied(place.wal, memory())


def test_two_copies_into_one_folder_at_once_make_one_copy_or_one_is_refused() -> None:
    place, other, there = a_place(), a_place(), memory()
    first, second, target = log_of(place.wal), log_of(other.wal), log_of(there)
    plans = plan(first, target), plan(second, target), plan(first, target)

    copy_wal(first, target, plans[0])
    with pytest.raises(ConfigError, match="another process has just begun to copy another WAL"):
        copy_wal(second, target, plans[1])
    assert copy_wal(first, target, plans[2]).objects == plans[2].objects
    assert content(there) == content(place.wal)


def test_a_wal_that_a_process_serves_is_not_copied() -> None:
    place, there = Place(), memory()
    run = place.open({"a": Recorder()})
    place.stream(run, 0)

    for take_over in (TakeOver.IF_GONE, TakeOver.UNLESS_RUNNING):
        with pytest.raises(HeldError, match="is running on this machine"):
            plan(log_of(place.wal), log_of(there), take_over)
    end(run)
    assert plan(log_of(place.wal), log_of(there)).objects > 5


def test_there_must_be_a_wal() -> None:
    with pytest.raises(ConfigError, match=r"holds no wal\.json: no batch was staged"):
        plan(log_of(memory()), log_of(memory()))


@pytest.mark.parametrize("there", ["wal", "wal/copy", ""])
def test_a_folder_that_is_not_apart_from_the_wal_is_refused(there: str, tmp_path: Path) -> None:
    source = open_store(StoreSpec(str(tmp_path / "wal")))
    with pytest.raises(ConfigError, match=r"are one folder, or one lies inside the other"):
        plan(log_of(source), log_of(open_store(StoreSpec(str(tmp_path / there)))))


def test_large_objects_are_copied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded: no window has more bytes than the limit, but for one object."""
    place, there = a_place(rows=lambda _: [2] * 5), memory()
    sizes = {name: len(data) for name, data in content(place.wal).items()}
    monkeypatch.setattr(objects, "WINDOW_BYTES", 2 * max(sizes.values()))
    monkeypatch.setattr(objects, "_RECORD_BYTES", max(sizes.values()))
    windows: list[list[str]] = []
    kept = objects._windows

    def noted(every: Any) -> Iterator[Any]:
        for window in kept(every):
            windows.append([each.path for each in window])
            yield window

    monkeypatch.setattr(objects, "_windows", noted)
    copied(place.wal, there)

    assert content(there) == content(place.wal)
    assert max(map(len, windows)) > 1
    for window in windows:
        assert len(window) == 1 or sum(sizes[path] for path in window) <= objects.WINDOW_BYTES


def test_ten_thousand_batches_cost_a_bounded_number_of_requests() -> None:
    place, there = a_place(), memory()
    record = place.wal.read("wal.json")
    for batch_id in range(3, 10_000):
        place.wal.create(paths.manifest(batch_id, 1, 1), record)
    counts = {"list": 0, "read": 0, "create": 0, "delete": 0}

    def count(what: str, _where: str) -> None:
        if what.startswith("before"):
            counts[what.split()[1]] += 1

    done = copied(place.wal, there, source=count, target=count)

    extra = 9_997
    assert done.objects > extra
    assert counts["create"] <= done.objects + 4
    assert counts["list"] <= 4 * (extra + 40)  # survey, copy and survey of the source, survey of the target
    assert counts["read"] <= 2 * (done.objects + 20)


def refused(source: Store, target: Store) -> str:
    """Repeat a copy that is complete."""
    try:
        copied(source, target)
    except WalSinkError as error:
        return str(error)
    return ""
