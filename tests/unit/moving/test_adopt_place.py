"""`adopt` of a WAL that was moved or copied by hand: the earlier place is refused, and never do two places open."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from msgspec import structs

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder, out_of_use
from tests.unit.moving.test_copy import memory
from wal_sink.checking.verify import Check
from wal_sink.errors import ConfigError, CorruptError, FencedError, HeldError
from wal_sink.moving.adopt import PlacePlan, adopt_place, place_order, plan_place
from wal_sink.moving.situation import Batches, PlaceFound, There, look_at_place
from wal_sink.recovery.inventory import require_wal
from wal_sink.recovery.location import check_location
from wal_sink.recovery.sink_changes import retire
from wal_sink.repair.journal import Order, begin, find_unfinished, read_journal
from wal_sink.stores.base import Store
from wal_sink.testing import Crash, FaultyStore
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.records import SinkRecord, encode

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


def adopted(pair: Pair, *, log: Log | None = None, recorded: Log | str | None = None, why: str = "",
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


def test_a_sink_that_got_batches_there_and_was_retired_there_would_get_them_twice() -> None:
    pair = copied()
    place = Place(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    place.stream(place.open({"a": Recorder()}), 3)
    end_roles(pair.wal)
    retire(log_on(pair.wal), "a", drop_pending=0, take_over=TakeOver.IF_GONE)

    seen = found(pair)
    assert seen is not None
    assert [(share.sink, share.twice) for share in seen.sinks] == [("a", Batches(2, 3, 10))]

    pair.there.create(paths.retired("a"), pair.wal.read(paths.retired("a")))
    seen = found(pair)
    assert seen is not None
    assert seen.sinks == ()


@pytest.mark.parametrize("is_here", [True, False])
def test_nobody_knows_what_a_sink_got_that_was_forgotten_there_and_one_forgotten_here_gets_nothing(
    is_here: bool,
) -> None:
    pair = copied()
    place = pair.there if is_here else pair.wal
    place.create(paths.forgotten("a"), b"")
    place.delete([paths.sink("a")])

    seen = found(pair)

    assert seen is not None
    assert (seen.there, seen.sinks) == (There.SAME_WAL, ())
    assert seen.sinks_unknown_because == ("" if is_here else "sink 'a' was forgotten there")


def test_batches_of_a_replay_there_are_not_meant_for_a_sink_here() -> None:
    pair = copied()
    record = log_on(pair.wal).require(SinkRecord, paths.sink("a"))
    for store in (pair.wal, pair.there):
        store.create(paths.sink("replay"), encode(structs.replace(record, name="replay", is_replay=True)))
    seen = found(pair)
    assert seen is not None
    assert [share.sink for share in seen.sinks] == ["a"]


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
    with pytest.raises(ConfigError, match="but it still lies there"):  # it could be looked at after all
        adopt_place(log_on(pair.there), order, plan_place(seen), "no rights", take_over=TakeOver.IF_GONE)
    with out_of_use(pair.wal):
        adopt_place(log_on(pair.there), order, plan_place(seen), "no rights", take_over=TakeOver.IF_GONE)
    assert opens(pair.there, pair)


def duplicate(wal: Store, *left_out: str) -> Store:
    store = memory()
    for path in wal.list("", recursive=True):
        if not path.startswith(left_out or ("-",)):
            store.create(path, wal.read(path))
    return store


def test_a_copy_of_a_place_that_was_moved_to_a_third_one_is_refused_and_the_third_place_is_named() -> None:
    """A backup that was put back, of a WAL that was moved: the moved one lives, and would deliver the same batches."""
    pair = copied()
    again = Pair(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    again.there = duplicate(pair.wal)
    seen = found(again)
    assert seen is not None
    adopted(pair)

    named = rf"{again.there.root} holds a copy of a WAL: {pair.wal.root}, .* moved to {pair.there.root}\. "
    for _ in range(2):
        with pytest.raises(ConfigError, match=named):
            adopted(again)
    with pytest.raises(ConfigError, match=named):  # it was moved since this one looked
        adopt_place(log_on(again.there), place_order(""), plan_place(seen), log_on(pair.wal), take_over=TakeOver.ALWAYS)

    assert [opens(each, pair) for each in (pair.wal, pair.there, again.there)] == [False, True, False]
    assert read_journal(log_on(again.there)) == []


def test_where_the_third_place_is_lost_the_copy_is_adopted_once_the_earlier_place_is_ended() -> None:
    pair = copied()
    again = Pair(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    again.there = duplicate(pair.wal)
    adopted(pair)
    pair.wal.delete([paths.WAL])
    adopted(again)
    assert opens(again.there, pair)


def test_the_same_wal_with_a_damaged_sink_is_the_same_wal_and_is_ended() -> None:
    pair = copied()
    place = Place(wal=pair.wal, checkpoint=pair.checkpoint, rows=pair.rows)
    place.stream(place.open({"a": Recorder(), "b": Recorder()}, start_from="earliest"), 3)
    end_roles(pair.wal)
    data = pair.wal.read(paths.sink("a"))
    pair.wal.delete([paths.sink("a")])
    pair.wal.create(paths.sink("a"), data[:-3] + b"xxx")

    seen = found(pair)

    assert seen is not None
    assert (seen.there, seen.unknown_because, [share.sink for share in seen.sinks]) == (There.SAME_WAL, "", ["b"])
    assert "sinks/a/sink.json" in seen.sinks_unknown_because
    adopted(pair)
    assert (pair.wal.list(paths.MOVES), opens(pair.there, pair)) == (["0000000001.json"], True)


def test_a_damaged_move_at_the_earlier_place_is_told_and_never_passed_over() -> None:
    pair = copied()
    pair.wal.create(paths.move(1), b"no record")
    seen = found(pair)
    assert seen is not None
    assert (seen.there, "moves/0000000001.json" in seen.sinks_unknown_because) == (There.SAME_WAL, True)
    with pytest.raises(CorruptError, match=r"moves/0000000001\.json"):
        adopted(pair)
    assert read_journal(log_on(pair.there)) == []


def killed_before_it_noted_anything(pair: Pair) -> None:
    def die(what: str, where: str) -> None:
        if what == "after create" and where.startswith(paths.REPAIRS):
            raise Crash

    with pytest.raises(Crash):
        adopted(pair, log=log_on(pair.there, die))


def test_a_place_that_held_the_wal_and_cannot_be_reached_now_stops_the_command() -> None:
    pair = copied()
    killed_before_it_noted_anything(pair)

    for _ in range(2):
        with pytest.raises(ConfigError, match="nobody can look there now: no route to host"):
            adopted(pair, recorded="no route to host")
    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (True, False)

    adopted(pair)
    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (False, True)
    assert read_journal(log_on(pair.there))[0].state == "done"


def test_where_it_is_lost_for_good_a_declared_move_lets_the_command_end() -> None:
    pair = copied()
    killed_before_it_noted_anything(pair)
    log = log_on(pair.there)
    with out_of_use(pair.wal):
        check_location(log, require_wal(log, "the test"), moved=True, moved_from=pair.wal.root)
    adopted(pair, recorded="no route to host")
    assert read_journal(log_on(pair.there))[0].state == "done"


def test_a_place_that_can_be_reached_again_is_ended_by_the_command_that_could_not_look_at_first() -> None:
    pair = copied()
    log = log_on(pair.there)
    seen = found(pair, "no rights")
    assert seen is not None
    begin(log, place_order(""), asdict(plan_place(seen)))

    adopted(pair, log=log)

    assert (opens(pair.wal, pair), opens(pair.there, pair)) == (False, True)


def test_a_place_that_was_emptied_since_the_command_was_first_called_is_left_alone() -> None:
    pair = copied()
    killed_before_it_noted_anything(pair)
    pair.wal.delete(pair.wal.list("", recursive=True))
    adopted(pair)
    assert opens(pair.there, pair)


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
