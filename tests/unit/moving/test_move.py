"""Moving a WAL: the copy is the WAL, the earlier place is refused, and no process goes on there."""

from __future__ import annotations

import itertools

import pytest

from tests.support.small_run import Place, Recorder
from tests.unit.moving.test_copy import Hook, a_place, content, dying_at, end, log_of, memory, plan
from wal_sink.errors import ConfigError, FencedError, HeldError, MissingBatch
from wal_sink.moving.copy import Copied, copy_wal
from wal_sink.stores.base import Store
from wal_sink.testing import Crash
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.records import Move, encode


def small_place() -> Place:
    return a_place(1, rows=lambda _: [1])


def moved(
    wal: Store,
    there: Store,
    *,
    source: Hook | None = None,
    target: Hook | None = None,
    take_over: TakeOver = TakeOver.IF_GONE,
) -> Copied:
    whence, to = log_of(wal, source), log_of(there, target)
    return copy_wal(whence, to, plan(whence, to, take_over), move=take_over)


def opens(wal: Store, place: Place) -> bool:
    """Whether a query starts on this WAL. It stages nothing."""
    try:
        end(Place(wal=wal, checkpoint=place.checkpoint, rows=place.rows).open({"b": Recorder()}))  # type: ignore[arg-type]
    except ConfigError as error:
        assert "Two copies of one WAL" in str(error) or "is an unfinished copy" in str(error)  # noqa: PT017
        return False
    return True


def test_the_new_place_opens_as_it_is_and_the_old_one_is_refused() -> None:
    place, there = a_place(), memory()

    moved(place.wal, there)

    assert content(there) == content(place.wal)
    assert not opens(place.wal, place)
    assert opens(there, place)
    assert moved(there, third := memory()).objects  # and it can be moved again
    assert (opens(there, place), opens(third, place)) == (False, True)


def test_a_move_that_is_killed_anywhere_never_leaves_two_places_that_open_and_the_same_command_completes_it() -> None:
    points = {"source": itertools.count(), "target": itertools.count()}
    count_source, count_target = (lambda *_, each=each: _next(each) for each in points.values())
    moved(small_place().wal, memory(), source=count_source, target=count_target)
    for which, counted in points.items():
        for number in range(next(counted)):
            place, there = small_place(), memory()
            with pytest.raises(Crash):
                moved(place.wal, there, **{which: dying_at(number)})  # type: ignore[arg-type]
            is_wal = paths.WAL in there.list("")
            has_moved = bool([name for name in place.wal.list(paths.MOVES) if name != "copy.json"])
            assert has_moved or not is_wal
            if has_moved:
                assert not opens(place.wal, place)

            moved(place.wal, there, take_over=TakeOver.ALWAYS)  # the process that died is this one, which runs

            assert content(there) == content(place.wal)
            assert not opens(place.wal, place)
            assert opens(there, place)


def _next(points: itertools.count[int]) -> None:
    next(points)


def test_a_process_that_still_serves_the_wal_is_fenced() -> None:
    """Nobody knows whether it lives: `--take-over` was given."""
    place, there = Place(), memory()
    sink = Recorder()
    run = place.open({"a": sink})
    staged = place.query().batches(run, 3)
    next(staged)
    run.deliver_all()
    next(staged)

    moved(place.wal, there, take_over=TakeOver.ALWAYS)

    with pytest.raises(FencedError):
        run.deliver_all()
    assert sink.batches == [0]
    late = Recorder()
    Place(wal=there, checkpoint=place.checkpoint, rows=place.rows).open({"a": late}).deliver_all()
    assert late.batches == [1]


def test_a_batch_that_a_fenced_query_still_staged_is_brought_by_hand() -> None:
    """As docs/operations/moving.md says: a query that runs at the time of the move may stage one more."""
    place, there = Place(rows=lambda _: [3, 2]), memory()
    run = place.open({"a": Recorder()})
    staged = place.query().batches(run, 2)
    next(staged)
    run.deliver_all()

    moved(place.wal, there, take_over=TakeOver.ALWAYS)
    assert [next(staged), next(staged, None)] == [1, None]  # Spark completes it

    late = Recorder()
    new = Place(wal=there, checkpoint=place.checkpoint, rows=place.rows)
    with pytest.raises(MissingBatch, match="Spark completed batch 1"):
        new.open({"a": late}).deliver_all()
    folder = paths.batch(1)
    for name in place.wal.list(folder, recursive=True):
        there.create(f"{folder}/{name}", place.wal.read(f"{folder}/{name}"))
    new.open({"a": late}).deliver_all()
    assert set(late.batches) == {1}


def test_a_process_that_starts_at_the_old_place_meanwhile_is_noticed() -> None:
    """Wherever it starts: before the move is recorded it is found by its terms, afterwards it is refused."""
    requests = itertools.count()
    moved(small_place().wal, memory(), source=lambda *_: _next(requests))
    outcomes = set()
    for number in range(next(requests)):
        place, there, points = small_place(), memory(), itertools.count()

        def start(
            _what: str, _where: str, points: itertools.count[int] = points, number: int = number, place: Place = place
        ) -> None:
            if next(points) == number:
                outcomes.add("started" if opens(place.wal, place) else "refused")

        try:
            moved(place.wal, there, source=start)
        except HeldError as error:
            assert "changed while it was copied" in str(error)  # noqa: PT017 - a move that succeeds is right, too
            assert paths.WAL not in there.list("")
            outcomes.add("noticed")
        else:
            assert not opens(place.wal, place)
    assert outcomes == {"started", "refused", "noticed"}


def test_another_move_at_the_same_time_ends_this_one() -> None:
    place, there = a_place(), memory()

    def move_elsewhere(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.move(1)):
            record = Move(number=1, location="memory://elsewhere", moved_from=place.wal.root, id="x", created="now")
            place.wal.create(where, encode(record))

    with pytest.raises(HeldError, match=r"changed while it was copied \(at moves/0000000001\.json\)"):
        moved(place.wal, there, source=move_elsewhere)
    assert paths.WAL not in there.list("")


def test_a_wal_without_a_place_has_one_after_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    place, there = a_place(), memory()
    monkeypatch.setattr("wal_sink.moving.copy.current_location", lambda *_, **__: "")

    moved(place.wal, there)

    monkeypatch.undo()
    assert not opens(place.wal, place)
    assert opens(there, place)
