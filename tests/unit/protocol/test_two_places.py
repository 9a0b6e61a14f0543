"""A WAL that was moved: never do two places both deliver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house.log import MARGIN, Holding, Move, TakeOver, WalRecord, claim, decode, holder_of, paths
from tests.house.protocol import GonePlace, Run, ServedSink, check_location
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.repairs import end_roles, log_on, remade
from tests.support.small_run import Place, Recorder, served_sink
from wal_sink.errors import ConfigError, CorruptError, FencedError, HeldError, StoreError
from wal_sink.settings import Settings
from wal_sink.testing import Crash, FaultyStore, simulated_runtime


def streamed(through: int = 1) -> Place:
    """A WAL whose query ended. Its sink has every batch."""
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, through)
    run.end()
    end_roles(place.wal)
    return place


def copied(place: Place) -> Place:
    """The same objects at another place."""
    copy = Place(checkpoint=place.checkpoint)
    for name in place.wal.list("", recursive=True):
        copy.wal.create(name, place.wal.read(name))
    return copy


def opened(copy: Place, moved_from: str | GonePlace, take_over: TakeOver = TakeOver.ALWAYS) -> Run:
    run = Run(copy.wal, copy.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime())
    run.open([served_sink(run, "a", Recorder())], moved_from=moved_from, take_over=take_over)
    return run


def record_of(place: Place) -> WalRecord:
    return decode(WalRecord, place.wal.read(paths.WAL), "it")


def location(place: Place) -> str:
    newest = max(log_on(place.wal).numbers(paths.MOVES))
    return decode(Move, place.wal.read(paths.move(newest)), "it").location


def test_a_start_at_the_copy_is_refused_while_the_original_is_there_and_changes_neither() -> None:
    place = streamed()
    copy = copied(place)
    before = place.wal.list("", recursive=True), copy.wal.list("", recursive=True)

    for said in (place.wal.root, GonePlace(place.wal.root)):
        with pytest.raises(ConfigError, match=r"wal\.json still lies at .* Both places would deliver"):
            opened(copy, said)

    assert (place.wal.list("", recursive=True), copy.wal.list("", recursive=True)) == before


def test_the_refusal_tells_what_the_original_got_since() -> None:
    place = streamed()
    copy = copied(place)
    place.stream(place.open({"a": Recorder()}), 2)
    first = min(set(place.wal.list("", recursive=True)).difference(copy.wal.list("", recursive=True)))

    with pytest.raises(ConfigError, match=rf"Only there: \d+ objects, first {first}\. So this copy"):
        opened(copy, place.wal.root)


def test_an_original_whose_names_cannot_be_listed_is_refused_too() -> None:
    place = streamed()
    copy, wal = copied(place), record_of(place)

    def fail(what: str, where: str) -> None:
        if what == "before list" and where == "":
            raise StoreError("no right to list")

    with pytest.raises(ConfigError, match="It is not known whether this copy is complete: no right to list"):
        moved(copy, wal, place, fail)


def test_of_two_copies_of_one_original_only_the_first_opens() -> None:
    place = streamed()
    first, second = copied(place), copied(place)
    place.wal.delete([paths.WAL])

    opened(first, place.wal.root)

    for said in (place.wal.root, GonePlace(place.wal.root)):
        with pytest.raises(ConfigError, match=rf"says that the WAL was moved to {first.wal.root}"):
            opened(second, said)
    opened(first, place.wal.root)  # nothing is left to do


def test_of_two_copies_that_start_at_the_same_time_only_one_opens() -> None:
    place = streamed()
    first, second = copied(place), copied(place)
    wal = record_of(place)
    place.wal.delete([paths.WAL])
    is_first = [True]

    def overtaken(what: str, where: str) -> None:
        if what == "before create" and where == paths.move(1) and is_first.pop():
            is_first.append(False)
            check_location(log_on(second.wal), wal, moved=False, moved_from=place.wal.root)

    with pytest.raises(ConfigError, match=f"says that the WAL was moved to {second.wal.root}"):
        moved(first, wal, place, overtaken)

    assert (location(second), first.wal.list(paths.MOVES)) == (second.wal.root, [])


def test_killed_at_any_request_the_same_start_goes_on_and_no_other_place_opens() -> None:
    def make() -> tuple[Place, Place, Place]:
        place = streamed()
        return place, copied(place), copied(place)

    make_again, number, killed = remade(make), 0, True
    while killed:
        place, copy, other = make_again()
        wal, killed = record_of(place), False
        place.wal.delete([paths.WAL])
        try:
            moved(copy, wal, place, die_at(number))
        except Crash:
            number, killed = number + 1, True
        with pytest.raises(CorruptError, match=r"wal\.json is gone"):
            place.open({"a": Recorder()})
        with pytest.raises(ConfigError, match="Two copies of one WAL"):
            copied(copy).open({"a": Recorder()})
        moved(copy, wal, place)
        with pytest.raises(ConfigError, match="says that the WAL was moved to"):
            moved(other, wal, place)
    assert number > 20


def die_at(number: int) -> Callable[[str, str], None]:
    left = iter(range(number))

    def die(_what: str, _where: str) -> None:
        if next(left, None) is None:
            raise Crash

    return die


def moved(
    copy: Place,
    wal: WalRecord,
    place: Place,
    hook: Callable[[str, str], None] | None = None,
    *,
    take_over: TakeOver = TakeOver.ALWAYS,
) -> None:
    """Declare the move. `hook` gets every request to either place."""
    with pytest.MonkeyPatch.context() as patch:
        if hook is not None:
            patch.setattr("wal_sink.protocol.location.open_store", lambda _: FaultyStore(place.wal, hook))
        is_moved = f"{paths.MOVES}/" in copy.wal.list("")
        check_location(log_on(copy.wal, hook), wal, moved=is_moved, moved_from=place.wal.root, take_over=take_over)


def test_a_restored_record_does_not_open_the_original_again() -> None:
    place = streamed()
    copy, record = copied(place), place.wal.read(paths.WAL)
    place.wal.delete([paths.WAL])
    opened(copy, place.wal.root)

    place.wal.create(paths.WAL, record)

    with pytest.raises(ConfigError, match=f"recorded location of this WAL is {copy.wal.root}"):
        place.open({"a": Recorder()})


def test_a_process_that_still_serves_the_original_is_fenced_and_delivers_nothing_more() -> None:
    place, recorder = Place(), Recorder()
    run = place.open({"a": recorder})
    place.stream(run, 1)
    copy = copied(place)
    place.wal.delete([paths.WAL])

    with pytest.raises(HeldError, match="Stop that process first"):
        opened(copy, place.wal.root, TakeOver.IF_GONE)
    opened(copy, place.wal.root)

    with pytest.raises(FencedError):
        place.stream(run, 2)
    assert recorder.batches == [0, 1]


def test_a_start_that_is_refused_beside_a_live_stager_fences_no_other_role() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 0)
    run.end()
    copy = copied(place)
    place.wal.delete([paths.WAL])
    before = place.wal.list(paths.TERMS, recursive=True)

    with pytest.raises(HeldError, match="stager of"):
        opened(copy, place.wal.root, TakeOver.IF_GONE)

    assert place.wal.list(paths.TERMS, recursive=True) == before


@pytest.mark.parametrize("is_delivered", [False, True])
def test_an_original_that_went_on_after_the_copy_was_made_is_not_left_behind(*, is_delivered: bool) -> None:
    place = streamed()
    copy = copied(place)
    run = place.open({"a": Recorder()})
    next(iter(place.query().batches(run, 3)))
    if is_delivered:
        run.deliver_all()
    run.end()
    end_roles(place.wal)
    place.wal.delete([paths.WAL])
    before = place.wal.list("", recursive=True)

    with pytest.raises(
        ConfigError,
        match=rf"^{copy.wal.root} lacks \d+ objects of {place.wal.root}, .*batches/0+2/.*copy the WAL again",
    ):
        opened(copy, place.wal.root)

    assert place.wal.list("", recursive=True) == before  # nobody was fenced
    opened(copied_again(place, copy), place.wal.root)


def copied_again(place: Place, copy: Place) -> Place:
    there = copy.wal.list("", recursive=True)
    for name in place.wal.list("", recursive=True):
        if name not in there:
            copy.wal.create(name, place.wal.read(name))
    return copy


def test_a_process_that_delivers_between_the_look_and_its_end_is_noticed() -> None:
    place, recorder = Place(), Recorder()
    run = place.open({"a": recorder})
    place.stream(run, 1)
    copy, wal = copied(place), record_of(place)
    place.wal.delete([paths.WAL])
    goes_on = [True]

    def deliver(what: str, where: str) -> None:
        if what == "before create" and where.startswith(paths.TERMS) and goes_on:
            goes_on.clear()
            place.stream(run, 2)

    with pytest.raises(ConfigError, match=rf"lacks \d+ objects of {place.wal.root}, .*copy the WAL again"):
        moved(copy, wal, place, deliver)

    assert recorder.batches == [0, 1, 2]
    assert copy.wal.list(paths.MOVES) == []


def test_nobody_serves_the_original_after_the_move() -> None:
    place = streamed()
    copy, log = copied(place), log_on(place.wal)
    place.wal.delete([paths.WAL])

    opened(copy, place.wal.root)

    newest = {role: max(log.numbers(paths.terms(role))) for role in (paths.STAGER_ROLE, paths.committer_role("a"))}
    assert set(newest.values()) == {2}
    assert {holder_of(log, role, number).state for role, number in newest.items()} == {Holding.ENDED}


def test_a_role_of_the_original_whose_terms_vanish_is_fenced_far_ahead() -> None:
    place, role = streamed(), paths.committer_role("a")
    copy, wal = copied(place), record_of(place)
    place.wal.delete([paths.WAL])

    def lose(what: str, where: str) -> None:
        if (what, where) == ("before list", paths.terms(role)):
            place.wal.delete([f"{where}/{name}" for name in place.wal.list(where)])

    moved(copy, wal, place, lose)

    assert max(log_on(place.wal).numbers(paths.terms(role))) == 1 + MARGIN


def test_a_process_that_serves_the_original_since_the_look_is_not_fenced_without_a_word() -> None:
    place, role = streamed(), paths.committer_role("a")
    copy, wal = copied(place), record_of(place)
    place.wal.delete([paths.WAL])

    def serve(what: str, where: str) -> None:
        if (what, where) == ("before create", paths.term(role, 2)):
            claim(log_on(place.wal), role)

    with pytest.raises(HeldError, match="is running on this machine"):
        moved(copy, wal, place, serve, take_over=TakeOver.UNLESS_RUNNING)

    assert copy.wal.list(paths.MOVES) == []


# --- out of sight


def test_absence_is_no_proof_unless_a_person_names_the_place(tmp_path: Path) -> None:
    place = streamed()
    copy = copied(place)
    place.wal.delete(place.wal.list("", recursive=True))

    with pytest.raises(ConfigError, match=rf": nothing lies there\. If.*moved_from_gone='{place.wal.root}'"):
        opened(copy, place.wal.root)
    with pytest.raises(ConfigError, match="moved_from_gone is file://"):
        opened(copy, GonePlace(str(tmp_path)))
    assert copy.wal.list(paths.MOVES) == []

    opened(copy, GonePlace(place.wal.root))

    assert location(copy) == copy.wal.root
    assert place.wal.list("", recursive=True) == []


def test_absence_is_no_proof_at_a_place_on_another_kind_of_store_or_with_another_wal() -> None:
    place = streamed()
    for said, why in (
        ("s3://lake/wal", "another kind of store"),
        (MemoryStore(StoreSpec("memory://new/wal")).root, "nothing lies there"),
    ):
        wal = WalRecord(wal_id="w", query_id="q", checkpoint="c", first_batch=0, location=said, id="x", created="now")
        with pytest.raises(ConfigError, match=why):
            check_location(log_on(copied(place).wal), wal, moved=False, moved_from=said)
    wal = WalRecord(
        wal_id="w", query_id="q", checkpoint="c", first_batch=0, location=place.wal.root, id="x", created="now"
    )
    with pytest.raises(ConfigError, match=r": another WAL lies there now\. If"):
        check_location(log_on(copied(place).wal), wal, moved=False, moved_from=place.wal.root)


def test_a_place_that_fails_is_out_of_sight() -> None:
    place = streamed()
    copy, wal = copied(place), record_of(place)
    place.wal.delete([paths.WAL])

    def fail(what: str, where: str) -> None:
        if what == "before create" and where.startswith(paths.TERMS):
            raise StoreError("no right to write")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.protocol.location.open_store", lambda _: FaultyStore(place.wal, fail))
        with pytest.raises(ConfigError, match=r"no right to write.*moved_from_gone"):
            check_location(log_on(copy.wal), wal, moved=False, moved_from=place.wal.root)
        check_location(log_on(copy.wal), wal, moved=False, moved_from=GonePlace(place.wal.root))

    assert location(copy) == copy.wal.root


def test_a_new_wal_in_the_making_at_the_earlier_address_is_left_alone() -> None:
    place = streamed()
    copy, wal = copied(place), record_of(place)
    place.wal.delete(place.wal.list("", recursive=True))
    new = Place(wal=place.wal).open({"b": Recorder()})
    before = place.wal.list("", recursive=True)

    with pytest.raises(ConfigError, match=r": nothing of this WAL lies there\. If"):
        check_location(log_on(copy.wal), wal, moved=False, moved_from=place.wal.root)
    check_location(log_on(copy.wal), wal, moved=False, moved_from=GonePlace(place.wal.root))

    assert place.wal.list("", recursive=True) == before
    new.end()


@pytest.mark.parametrize("is_killed", [False, True], ids=["moved", "removed, and moved once it is open"])
def test_a_process_that_began_before_the_move_delivers_nothing_after_it(*, is_killed: bool) -> None:
    """The move comes before any request of the start. A claim before the move's is fenced, one after it refused."""
    ends = [_ended_beside_a_move(at, is_killed=is_killed) for at in range(_requests_of_a_start())]

    assert {FencedError, CorruptError} == set(ends)


def _requests_of_a_start() -> int:
    place = streamed()
    place.requests.clear()
    place.open({"a": Recorder()})
    return len(place.requests)


def _ended_beside_a_move(at: int, *, is_killed: bool) -> type[Exception]:
    place, got, asked = Place(), Recorder(), list[str]()
    run = place.open({"a": Recorder()})
    list(place.query().batches(run, 3))  # complete, and not delivered
    run.end()
    end_roles(place.wal)
    copy = copied(place)

    def move(what: str, where: str) -> None:
        asked.extend([where] if what.startswith("before") else [])
        if len(asked) > at and paths.WAL in place.wal.list(""):
            place.wal.delete([paths.WAL])
            if not is_killed:
                opened(copy, place.wal.root)

    late = Run(
        FaultyStore(place.wal, move), place.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime(seed=7)
    )
    with pytest.raises((FencedError, CorruptError)) as caught:
        _serve_once(late, served_sink(late, "a", got), then=lambda: is_killed and opened(copy, place.wal.root))
    assert got.chunks == []
    return caught.type


def _serve_once(run: Run, sink: ServedSink, *, then: Callable[[], object]) -> None:
    run.open([sink])
    run.become_stager()
    then()
    run.deliver_all()


def test_a_run_that_stages_only_and_becomes_the_stager_after_the_move_is_refused() -> None:
    place = streamed()
    copy, late = copied(place), place.open({}, stages=False)
    place.wal.delete([paths.WAL])
    opened(copy, place.wal.root)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        late.become_stager()
