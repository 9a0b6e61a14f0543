"""A copy that is in use is never taken for an unfinished one: no command deletes the batches that it staged since."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.support.small_run import Place, Recorder, out_of_use
from tests.unit.moving.test_copy import a_place, content, copied, dying_at, end, log_of, memory, plan
from wal_sink.errors import ConfigError, CorruptError, ObjectLost
from wal_sink.inspection import read_status
from wal_sink.moving.copy import TargetState, copy_wal
from wal_sink.recovery.inventory import take
from wal_sink.recovery.location import check_location
from wal_sink.stores.memory import MemoryStore
from wal_sink.testing import Crash
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver


def used(*, move: bool = True, keeps: tuple[str, ...] = ()) -> tuple[Place, MemoryStore]:
    """A WAL, and its copy, on which a query staged batches that no sink has. Then the copy lost `wal.json`."""
    place, there = a_place(), memory()
    source, target = log_of(place.wal), log_of(there)
    copy_wal(source, target, plan(source, target), move=TakeOver.IF_GONE if move else None)
    if not move:
        with out_of_use(place.wal):
            check_location(target, take(target).wal, moved=True, moved_from=place.wal.root)  # type: ignore[arg-type]
    new = Place(wal=there, checkpoint=place.checkpoint, rows=place.rows)
    run = new.open({"a": Recorder(), "b": Recorder()})
    for _ in new.query().batches(run, 5):
        pass
    end(run)
    assert max(target.numbers(paths.BATCHES)) > max(source.numbers(paths.BATCHES))
    there.delete([path for path in (paths.WAL, paths.COPIED) if path not in keeps])
    return place, there


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize("keeps", [(paths.COPIED,), ()])
def test_a_copy_in_use_that_lost_its_record_keeps_every_batch(move: bool, keeps: tuple[str, ...]) -> None:
    place, there = used(move=move, keeps=keeps)
    before = there.list("", recursive=True)

    for again in (None, TakeOver.IF_GONE):
        source, target = log_of(place.wal), log_of(there)
        with pytest.raises(ObjectLost, match=r"was used .*wal\.json"):
            copy_wal(source, target, plan(source, target), move=again)

    assert [name for name in there.list("", recursive=True) if "probe" not in name] == before
    there.create(paths.WAL, place.wal.read(paths.WAL))  # the way out
    late = Recorder()
    run = Place(wal=there, checkpoint=place.checkpoint, rows=place.rows).open({"a": late, "b": Recorder()})
    run.deliver_all()
    assert sorted(set(late.batches)) == [2, 3, 4]


def test_a_wal_that_goes_on_beside_its_used_copy_makes_no_difference() -> None:
    """Both have the same terms by name; their content tells. Everything else that is younger is lost, too."""
    place, there = used(move=False)
    run = place.open({"a": Recorder(), "b": Recorder()})
    run.become_stager()
    end(run)
    known = content(place.wal)
    there.delete([path for path in there.list("", recursive=True) if path not in known and path != paths.COPY])
    there.create(begun := paths.begun("a", 3, "t", 0), b"{}")
    before = content(there)

    with pytest.raises(CorruptError, match=r"terms/.*is not equal .* If no query and no drain ever ran"):
        copied(place.wal, there)

    assert before.items() <= content(there).items()
    assert begun in before


def test_the_verbs_do_not_advise_to_delete_a_copy_that_may_be_in_use() -> None:
    _, there = used(keeps=(paths.COPIED,))

    with pytest.raises(ObjectLost, match=r"wal\.json is gone, or .*Do not delete this folder.*wal-sink copy") as found:
        read_status(there)

    assert "Or delete" not in str(found.value)


def test_an_earlier_version_takes_a_used_copy_for_a_wal_that_lost_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.recovery.inventory._refuse_unfinished_copy", lambda *_: None)
    _, there = used(keeps=(paths.COPIED,))
    with pytest.raises(ObjectLost, match=r"wal\.json is gone"):
        read_status(there)


def killed_before_its_record() -> tuple[Place, MemoryStore]:
    """A copy that was killed between the record that all is copied and `wal.json`."""
    place, there = a_place(), memory()

    def hook(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.WAL):
            raise Crash(where)

    with pytest.raises(Crash):
        copied(place.wal, there, target=hook)
    assert there.read(paths.COPIED)
    return place, there


def test_a_copy_that_was_killed_before_its_last_object_is_completed() -> None:
    place, there = killed_before_its_record()

    assert plan(log_of(place.wal), log_of(there)).state is TargetState.UNFINISHED
    copied(place.wal, there)

    assert content(there) == content(place.wal)
    assert there.read(paths.COPIED)


def collect_first(place: Place) -> None:
    place.wal.create(paths.low_water(0), place.wal.read(paths.WAL))
    first = paths.batch(0)
    place.wal.delete([f"{first}/{name}" for name in place.wal.list(first, recursive=True)])


def test_it_is_completed_too_if_the_wal_went_on_and_wherever_that_is_killed() -> None:
    points = itertools.count()
    place, there = killed_before_its_record()
    collect_first(place)
    copied(place.wal, there, target=lambda *_: _count(points))
    assert content(there) == content(place.wal)
    for number in range(0, next(points), 3):
        place, there = killed_before_its_record()
        collect_first(place)
        with pytest.raises(Crash):
            copied(place.wal, there, target=dying_at(number))
        copied(place.wal, there)
        assert content(there) == content(place.wal)


def _count(points: itertools.count[int]) -> None:
    next(points)


def test_a_copy_that_another_process_completed_meanwhile_is_not_continued() -> None:
    """Somebody answers the question of the command an hour later."""
    place, there = a_place(), memory()
    with pytest.raises(Crash):
        copied(place.wal, there, target=dying_at(60))
    source, target = log_of(place.wal), log_of(there)
    late = plan(source, target)
    assert late.state is TargetState.UNFINISHED
    copied(place.wal, there)
    there.create(paths.manifest(9, 1, 1), there.read(paths.WAL))

    with pytest.raises(ConfigError, match=r"is a complete copy of .* changed since"):
        copy_wal(source, target, late)

    assert there.read(paths.manifest(9, 1, 1))


LETTER = f"{paths.dead_letter_folder('a', 0)}/000009-000000000000-000000000001.parquet"


@pytest.mark.parametrize(
    "path",
    [paths.manifest(7, 1, 1), paths.marker("a", 7), paths.low_water(7), paths.term("stager", 9), LETTER, "batches/x"],
)
def test_only_what_a_collection_deletes_is_deleted_from_an_unfinished_copy(path: str) -> None:
    place, there = half(lambda _: None)
    there.create(path, b"{}")
    before = content(there)

    with pytest.raises(ObjectLost, match=rf"{path}.*Nothing was copied or deleted"):
        copied(place.wal, there)

    assert content(there) == before


def test_objects_that_any_process_may_delete_are_deleted_from_an_unfinished_copy() -> None:
    place, there = half(collect_first)
    freely = [paths.begun("a", 7, "t", 0), paths.error("a", 4), paths.lease("committer-a", 1, 1), paths.marker("a", 0)]
    for path in freely:
        if path not in there.list("", recursive=True):
            there.create(path, b"{}")
    place.wal.delete([paths.marker("a", 0)])

    copied(place.wal, there)

    assert content(there) == content(place.wal)


def half(then: Callable[[Place], None]) -> tuple[Place, MemoryStore]:
    place, there = a_place(), memory()
    with pytest.raises(Crash):
        copied(place.wal, there, target=dying_at(110))
    then(place)
    return place, there
