"""`adopt` of a WAL that was moved or copied by hand: the earlier place is refused, and never do two places open."""

from __future__ import annotations

import pytest

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.moving.test_copy import memory
from wal_sink.checking.verify import Check
from wal_sink.errors import ConfigError, FencedError, HeldError
from wal_sink.moving.adopt import PlacePlan, adopt_place, place_order, plan_place
from wal_sink.moving.situation import Batches, PlaceFound, There, look_at_place
from wal_sink.recovery.inventory import require_wal
from wal_sink.repair.journal import Order, begin, find_unfinished, read_journal
from wal_sink.stores.base import Store
from wal_sink.testing import FaultyStore
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log

ROWS = [3, 2]


class Pair(Place):
    """A WAL and the place to which its objects were copied by hand."""

    there: Store


def copied(*, gone: bool = False) -> Pair:
    """A WAL of two batches, which sink `a` has, and its copy. `gone`: the WAL itself was deleted."""
    pair = Pair(rows=lambda _: ROWS)
    pair.stream(pair.open({"a": Recorder()}), 1)
    end_roles(pair.wal)
    pair.there = memory()
    for path in pair.wal.list("", recursive=True):
        pair.there.create(path, pair.wal.read(path))
    if gone:
        pair.wal.delete(pair.wal.list("", recursive=True))
    return pair


def found(pair: Pair, recorded: Log | str | None = None) -> PlaceFound | None:
    log = log_on(pair.there)
    return look_at_place(log, require_wal(log, "the test"), log_on(pair.wal) if recorded is None else recorded)


def adopted(pair: Pair, *, log: Log | None = None, recorded: Log | None = None, why: str = "",
            take_over: TakeOver = TakeOver.IF_GONE) -> None:  # fmt: skip
    """Do the same as the command."""
    log, recorded = log or log_on(pair.there), recorded or log_on(pair.wal)
    order = place_order(why)
    entry = find_unfinished(log, order)
    if entry is not None:
        plan = PlacePlan(**entry.plan)
    else:
        seen = look_at_place(log, require_wal(log, "the test"), recorded)
        assert seen is not None
        plan = plan_place(seen)
    adopt_place(log, order, plan, recorded, take_over=take_over)


def opens(wal: Store, pair: Pair) -> bool:
    """Whether a query starts on this WAL."""
    try:
        Place(wal=wal, checkpoint=pair.checkpoint, rows=pair.rows).open({"a": Recorder()})  # type: ignore[arg-type]
    except ConfigError as error:
        assert "Two copies of one WAL" in str(error)  # noqa: PT017
        return False
    end_roles(wal)
    return True


def test_the_wal_opens_at_its_new_place_and_the_earlier_one_is_refused() -> None:
    pair = copied()
    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (True, False)

    adopted(pair, why="a larger disk")

    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (False, True)
    assert found(pair) is None
    [entry] = read_journal(log_on(pair.there))
    assert (entry.state, entry.begun.why) == ("done", "a larger disk")
    assert list(Check(pair.there).run()) == []


def test_an_earlier_place_that_is_gone_is_left_alone() -> None:
    pair = copied(gone=True)

    adopted(pair)

    assert pair.wal.list("", recursive=True) == []
    assert opens(pair.there, pair)


def test_what_the_sinks_got_at_the_earlier_place_since_is_twice_and_what_only_that_place_holds_is_never() -> None:
    pair = copied()
    place = Place(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    run = place.open({"a": Recorder(), "late": Recorder()}, start_from="earliest")
    place.stream(run, 3)
    list(place.query().batches(run, 5))
    end_roles(pair.wal)

    seen = found(pair)

    assert seen is not None
    assert seen.there is There.SAME_WAL
    late, a = sorted(seen.sinks, key=lambda share: share.through)
    assert (a.sink, a.through) == ("a", 1)
    assert (a.twice, a.never) == (Batches(2, 3, 10), Batches(2, 4, 15))
    assert (late.sink, late.through, late.never) == ("late", -1, Batches(2, 4, 15))


def test_killed_at_any_request_to_the_wal_no_two_places_open_and_the_same_command_completes_it() -> None:
    def act(log: Log, pair: Pair) -> None:
        adopted(pair, log=log)

    for pair in killed_everywhere(copied, lambda pair: pair.there, act):
        assert_one_place_at_most(pair)


def test_nor_at_any_request_to_the_earlier_place() -> None:
    def act(recorded: Log, pair: Pair) -> None:
        adopted(pair, recorded=recorded)

    for pair in killed_everywhere(copied, lambda pair: pair.wal, act):
        assert_one_place_at_most(pair)


def assert_one_place_at_most(pair: Pair) -> None:
    end_roles(pair.wal)
    end_roles(pair.there)
    assert list(Check(pair.there).run()) == []
    assert not (opens(pair.wal, pair) and opens(pair.there, pair))
    if find_unfinished(log_on(pair.there), place_order("")) or found(pair):
        adopted(pair)
    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (False, True)


def test_a_process_that_may_serve_the_earlier_place_is_fenced_only_if_told_so() -> None:
    pair = copied()
    place = Place(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    run = place.open({"a": Recorder()})
    list(place.query().batches(run, 3))
    with pytest.raises(HeldError, match="is running on this machine"):
        adopted(pair)
    assert read_journal(log_on(pair.there)) == []

    adopted(pair, take_over=TakeOver.ALWAYS)

    with pytest.raises(FencedError):
        run.deliver_all()


def test_a_copy_with_an_unfinished_repair_is_adopted_before_the_repair_is_completed() -> None:
    """The repair refuses a WAL that lies elsewhere, so it cannot be first."""
    pair = copied()
    begin(log_on(pair.there), Order("skip", {}, ("terms/committer-a/",)), {})
    adopted(pair)
    assert opens(pair.there, pair)


def test_a_place_that_holds_another_wal_is_refused() -> None:
    pair = copied(gone=True)
    other = Place(rows=lambda _: ROWS)
    other.stream(other.open({"a": Recorder()}), 0)
    with pytest.raises(ConfigError, match="another WAL lies there"):
        adopted(pair, recorded=log_on(other.wal))


def test_the_unknown_is_told() -> None:
    pair = copied()
    seen = found(pair, "it is on another kind of store")
    assert seen is not None
    assert (seen.there, seen.unknown_because) == (There.UNKNOWN, "it is on another kind of store")

    def refuse(what: str, _where: str) -> None:
        raise ConfigError(f"no permission to {what}")

    seen = found(pair, Log(FaultyStore(pair.wal, refuse), log_on(pair.wal).runtime, "repair"))
    assert seen is not None
    assert (seen.there, "no permission" in seen.unknown_because) == (There.UNKNOWN, True)
    order = place_order("")
    adopt_place(log_on(pair.there), order, plan_place(seen), None, take_over=TakeOver.IF_GONE)
    assert opens(pair.there, pair)


def test_an_earlier_place_that_was_moved_to_a_third_one_stays_refused() -> None:
    pair = copied()
    adopted(pair)
    again = Pair(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    again.there = memory()
    for path in pair.there.list("", recursive=True):
        if not path.startswith((paths.MOVES, paths.REPAIRS)):
            again.there.create(path, pair.there.read(path))

    adopted(again)

    assert [opens(each, pair) for each in (pair.wal, again.there)] == [False, True]


def test_a_move_that_another_process_records_at_the_same_moment_wins() -> None:
    pair = copied()
    done: list[str] = []

    def first(what: str, where: str) -> None:
        if what == "before create" and where.startswith(paths.MOVES) and not done:
            done.append(where)
            third = Pair(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
            third.there = memory()
            for path in pair.there.list("", recursive=True):
                if not path.startswith(paths.REPAIRS):
                    third.there.create(path, pair.there.read(path))
            adopted(third)

    with pytest.raises(ConfigError, match="another process has just moved this WAL to"):
        adopted(pair, recorded=log_on(pair.wal, first))
    assert not opens(pair.there, pair)
