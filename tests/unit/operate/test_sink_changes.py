"""Sinks that are removed or renamed: they stop no collection unseen, and nothing is delivered twice or left out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import msgspec
import pytest

import wal_sink.protocol.collect
from tests.house.log import Log, RenamedRecord, RetiredRecord, SinkRecord, TakeOver, WalRecord, claim, note_end, paths
from tests.house.operate import WalFacts, read_batch, read_status, rename, retire
from tests.house.protocol import Run, read_names
from tests.house.sinks import Rejected, slot_name
from tests.simulation.histories.lives import lower_retention
from tests.support.forgetting import Forgetful, Target, rows_of
from tests.support.logged import said_here
from tests.support.small_run import Place, Recorder, before_create
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import ConfigError, CorruptError, DeliveryError, FencedError, HeldError, PermanentError
from wal_sink.operate.replay import DeadLetters
from wal_sink.protocol.sinks import keep_name, settle
from wal_sink.settings import Delivery, Retry
from wal_sink.testing import FaultyStore, simulated_runtime

KEPT = 4
_seeds = itertools.count(5000)


@pytest.fixture
def collects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)


def log_of(place: Place) -> Log:
    return Log(place.wal, simulated_runtime(next(_seeds)), "tool")


def end(place: Place, *names: str) -> None:
    """As if the processes that served these sinks had ended in order."""
    log = log_of(place)
    for name in names:
        role = paths.committer_role(name)
        note_end(log, role, max(log.numbers(paths.terms(role))))


def low_water(place: Place) -> int:
    return log_of(place).low_water()


def two_sinks(through: int = 2) -> Place:
    """A WAL with the sinks a and b, of which both have everything, and nobody serves either."""
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(KEPT)), through)
    end(place, "a", "b")
    return place


def retired(place: Place, name: str, drop_pending: int = 0) -> None:
    retire(log_of(place), name, drop_pending=drop_pending, take_over=TakeOver.IF_GONE)


def renamed(place: Place, old: str, new: str) -> None:
    rename(log_of(place), old, new, take_over=TakeOver.IF_GONE)


def test_a_wal_without_a_batch_is_not_changed() -> None:
    """What is written there made every later start miss `wal.json`."""
    place = Place()
    place.open({"a": Recorder()})
    end(place, "a")
    before = place.wal.list("", recursive=True)

    changes: list[Callable[[], None]] = [lambda: renamed(place, "a", "b"), lambda: retired(place, "a")]
    for change in changes:
        with pytest.raises(ConfigError, match=r"holds no wal\.json yet"):
            change()

    assert place.wal.list("", recursive=True) == before
    assert DeadLetters(log_of(place), name="a").replay(lambda _: None).letters == 0
    place.stream(place.open({"a": Recorder()}), 0)


# --- a sink that is left out


@pytest.mark.usefixtures("collects_often")
def test_a_start_without_a_registered_sink_is_warned_that_nothing_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """Low water stood still for ever, and nothing said so."""
    place = two_sinks()
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 12)

    assert low_water(place) == -1
    (said,) = [record.getMessage() for record in caplog.records if "does not serve it" in record.getMessage()]
    assert f"sink 'b' of {place.wal.root} is registered, but this run does not serve it" in said
    assert re.search(
        r"\(.*:\d+ served it since .*: ended\)\. The WAL deletes nothing after batch 2 "
        r"until this sink has more batches",
        said,
    )
    assert "wal-sink sinks rename WAL b NEW" in said
    assert "wal-sink sinks retire WAL b" in said


def test_a_sink_without_a_batch_or_a_term_is_warned_of_too(caplog: pytest.LogCaptureFixture) -> None:
    place = two_sinks()
    place.open({"c": Delivery(Recorder(), start_from="next")})
    place.wal.delete([paths.term(paths.committer_role("c"), 1)])

    place.open({"a": Recorder(), "b": Recorder()})

    assert "sink 'c'" in caplog.text
    assert (
        "this run does not serve it. The WAL deletes nothing after batch 2 until this sink has more batches"
        in caplog.text
    )


def test_a_sink_that_a_process_of_this_machine_serves_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    place = two_sinks()
    place.open({})  # a run that only stages
    claim(log_of(place), paths.committer_role("b"))

    place.open({"a": Recorder()})

    assert said_here(caplog) == []


def test_a_term_that_cannot_be_read_stops_no_query(caplog: pytest.LogCaptureFixture) -> None:
    """Terms count by their names. Of its holder nothing is known, so that a command asks before it takes over."""
    place = two_sinks()
    path = paths.term(paths.committer_role("b"), 1)
    place.wal.delete([path])
    place.wal.create(path, b"damaged")

    place.open({"a": Recorder()})

    assert "a process served it since an unknown time: unknown" in caplog.text
    assert [sink.state for sink in read_status(place.wal).sinks] == ["running", "unknown"]
    with pytest.raises(HeldError, match="it is not known whether that process ended"):
        retired(place, "b")


# --- retiring


@pytest.mark.usefixtures("collects_often")
def test_a_sink_that_is_retired_while_others_run_holds_nothing_back_from_then_on() -> None:
    place = two_sinks()
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    place.stream(run, 8)
    assert low_water(place) == -1

    retired(place, "b", drop_pending=6)
    place.stream(run, 12)

    assert low_water(place) == 12 - KEPT
    sinks = [(sink.name, sink.state, sink.delivered_through) for sink in read_status(place.wal).sinks]
    assert sinks == [("a", "running", 12), ("b", "retired", 2)]  # the markers of the second were deleted


def test_batches_that_a_sink_lacks_are_named_and_given_up_only_with_their_number() -> None:
    place = two_sinks()
    place.stream(place.open({"a": Recorder()}), 5)
    before = place.wal.list("", recursive=True)

    with pytest.raises(
        ConfigError, match=r"sink 'b' .* has not delivered 3 batches .* \(batches 3 to 5\).*--drop-pending 3"
    ):
        retired(place, "b", drop_pending=2)
    assert place.wal.list("", recursive=True) == before

    done = retire(log_of(place), "b", drop_pending=3, take_over=TakeOver.IF_GONE)
    assert (done.name, done.through, done.dropped) == ("b", 2, (3, 4, 5))
    kept = log_of(place).require(RetiredRecord, paths.retired("b"))
    assert (kept.through, kept.dropped, kept.run_id) == (2, (3, 4, 5), "tool")


def test_a_sink_whose_registration_is_gone_is_not_retired() -> None:
    """It is not known with which batch it began, so not what it lacks either."""
    place = two_sinks()
    place.wal.delete([paths.sink("b")])

    with pytest.raises(
        CorruptError, match=r"sinks/b/sink\.json is gone.*: sinks/b/ is made after it.*sinks/<name>/forgotten"
    ):
        retired(place, "b")


def test_batches_staged_while_a_sink_is_retired_are_not_given_up() -> None:
    place = two_sinks()
    run = place.open({"a": Recorder()})
    create = place.wal.create

    def another_batch(path: str, data: bytes) -> None:
        create(path, data)
        if path == paths.term(paths.committer_role("b"), 2):
            place.wal.create = create  # type: ignore[method-assign]
            place.stream(run, 3)

    place.wal.create = another_batch  # type: ignore[method-assign]

    with pytest.raises(ConfigError, match=r"sink 'b' .* has not delivered 1 batch .*\(batch 3\)"):
        retired(place, "b")
    assert paths.RETIRED not in place.wal.list("sinks/b")


@pytest.mark.parametrize("again", ["b", "c"])
def test_a_retired_sink_is_not_served_again_and_the_error_tells_the_ways(again: str) -> None:
    place = two_sinks()
    if again == "c":
        renamed(place, "b", "c")
    retired(place, again)

    with pytest.raises(ConfigError, match=rf"sink '{again}' .* was retired at .* after batch 2 .*start_from='next'"):
        place.open({again: Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(ConfigError, match=rf"sink '{again}' .* was retired at"):
        retired(place, again, drop_pending=1)
    with pytest.raises(ConfigError, match=rf"sink '{again}' .* was retired at"):
        renamed(place, again, "d")


def test_a_sink_that_is_served_is_neither_retired_nor_renamed() -> None:
    place = two_sinks()
    run = place.open({"b": Recorder()})

    with pytest.raises(HeldError, match=r"sink 'b' .* is running on this machine"):
        retired(place, "b")
    with pytest.raises(HeldError, match=r"sink 'b' .* is running on this machine"):
        renamed(place, "b", "c")
    assert place.wal.list("sinks/c") == []
    run.end()
    retired(place, "b")


def test_retiring_fences_a_process_that_still_lives_though_its_terms_are_gone() -> None:
    place = two_sinks()
    run = place.open({"b": Recorder()})
    place.wal.delete([paths.term(paths.committer_role("b"), number) for number in (1, 2)])

    retired(place, "b")

    with pytest.raises(FencedError, match="committer-b"):
        run.committers[0].term.check(place.wal)


def test_a_process_that_starts_while_the_sink_is_retired_does_not_serve_it() -> None:
    """It looked before the record was there, and claims its term after that."""
    place = two_sinks()
    before_create(place.wal, paths.term(paths.committer_role("b"), 2), lambda: retired(place, "b"))

    with pytest.raises(ConfigError, match=r"sink 'b' .* was retired at"):
        place.open({"b": Recorder()})


def test_retiring_beside_a_process_that_starts_says_so() -> None:
    """It claimed its term and looked before the record was there."""
    place = two_sinks()
    before_create(place.wal, paths.retired("b"), lambda: place.open({"b": Recorder()}))

    with pytest.raises(FencedError, match="committer-b"):
        retired(place, "b")


def test_a_sink_that_is_not_there_is_not_retired_or_renamed() -> None:
    place = two_sinks()

    with pytest.raises(ConfigError, match="has no sink 'x'; it has 'a', 'b'"):
        retired(place, "x")
    with pytest.raises(ConfigError, match="has no sink 'x'; it has 'a', 'b'"):
        renamed(place, "x", "y")


# --- renaming


def test_a_renamed_sink_goes_on_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Under another name it was new: it was refused, or, with start_from, it got everything a second time."""
    place, sink = two_sinks(), Recorder()
    renamed(place, "b", "c")

    place.stream(place.open({"a": Recorder(), "c": Delivery(sink, start_from="earliest")}), 4)

    assert sink.batches == [3, 4]
    assert "does not serve it" not in caplog.text
    names = [(found.name, found.folder, found.delivered_through) for found in read_status(place.wal).sinks]
    assert names == [("a", "a", 4), ("c", "b", 4)]
    detail = read_batch(WalFacts(place.wal), 4)
    assert detail is not None
    assert [(found.sink, found.complete) for found in detail.delivered] == [("a", True), ("c", True)]


def test_an_error_names_a_renamed_sink_as_its_program_does() -> None:
    place = two_sinks()
    renamed(place, "b", "c")

    with pytest.raises(DeliveryError, match=r"^batch 3, sink 'c': "):
        place.stream(place.open({"a": Recorder(), "c": Recorder(lambda _: False)}), 4)


def test_a_target_finds_its_positions_again_under_the_new_name() -> None:
    place, target = Place(), Target()
    place.stream(place.open({"a": Forgetful(target)}), 1)
    end(place, "a")
    renamed(place, "a", "table")

    place.stream(place.open({"table": Forgetful(target)}), 3)

    wal = log_of(place).require(WalRecord, paths.WAL)
    assert {commit.slot for commit in target.commits} == {slot_name(wal.wal_id, "a", 0)}
    assert target.rows == rows_of(*[[1]] * 4)


def test_a_batch_that_was_begun_under_the_old_name_goes_on_under_the_new_one() -> None:
    """Of its three chunks the first was sent and recorded."""
    place = Place(rows=lambda _: [6])
    first = Recorder(lambda chunk: _fail() if chunk.start else None)
    run = place.open({"a": first}, retry=Retry(attempts=1))
    list(place.query().batches(run, 1))
    with pytest.raises(DeliveryError, match="enough"):
        run.deliver_all()
    end(place, "a")
    renamed(place, "a", "b")
    second = Recorder()

    place.open({"b": second}).deliver_all()

    assert [chunk.start for chunk in first.chunks + second.chunks] == [0, 2, 4]


def _fail() -> None:
    raise PermanentError("enough")


def test_a_two_phase_sink_takes_part_in_staging_under_its_first_name() -> None:
    place, vault = Place(), Vault()
    place.stream(place.open({"a": VaultSink(vault)}), 0)
    end(place, "a")
    renamed(place, "a", "b")

    place.stream(place.open({"b": VaultSink(vault)}), 1)

    detail = read_batch(WalFacts(place.wal), 1)
    assert detail is not None
    assert list(detail.manifest.prepared) == ["a"]
    assert [found.complete for found in detail.delivered] == [True]


def test_an_old_name_is_refused_with_the_new_one() -> None:
    place = two_sinks()
    renamed(place, "b", "c")
    renamed(place, "c", "d")

    with pytest.raises(ConfigError, match="sink 'b' was renamed to 'd'"):
        place.open({"b": Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(ConfigError, match=r"sink 'd' is not called 'c' \(any more\)"):
        place.open({"c": Delivery(Recorder(), start_from="earliest")})


def test_a_sink_may_be_called_again_what_it_was_called() -> None:
    place, sink = two_sinks(), Recorder()
    for old, new in (("b", "c"), ("c", "d"), ("d", "c"), ("c", "b")):
        renamed(place, old, new)
        assert [found.name for found in read_status(place.wal).sinks] == ["a", new]

    place.stream(place.open({"b": sink}), 3)

    assert sink.batches == [3]


def test_a_name_that_another_sink_has_or_had_is_taken() -> None:
    place = two_sinks()
    renamed(place, "b", "c")
    before = place.wal.list("", recursive=True)

    for taken in ("b", "c"):
        with pytest.raises(ConfigError, match=f"another sink has, or had, the name '{taken}'"):
            renamed(place, "a", taken)
    assert place.wal.list("", recursive=True) == before
    with pytest.raises(ConfigError, match="is not a valid sink name"):
        renamed(place, "a", "x/y")


def test_of_two_names_given_at_once_one_counts() -> None:
    place = two_sinks()
    before_create(place.wal, paths.sink_name("b", 1), lambda: renamed(place, "b", "d"))

    with pytest.raises(HeldError, match="was renamed by another process at the same time"):
        renamed(place, "b", "c")
    assert [found.name for found in read_status(place.wal).sinks] == ["a", "d"]


def test_one_name_given_to_two_sinks_at_once_is_that_of_one() -> None:
    place = two_sinks()
    before_create(place.wal, paths.renamed("c"), lambda: renamed(place, "a", "c"))

    with pytest.raises(ConfigError, match="another sink has, or had, the name 'c'"):
        renamed(place, "b", "c")
    assert [found.name for found in read_status(place.wal).sinks] == ["c", "b"]


def new_sink(place: Place, name: str) -> tuple[Run, Recorder]:
    sink = Recorder()
    return place.open({name: Delivery(sink, start_from="next")}, settings=lower_retention(KEPT)), sink


@pytest.mark.usefixtures("collects_often")
def test_a_rename_to_a_name_that_is_being_registered_leaves_the_name_to_the_new_sink() -> None:
    """Its records locked the new sink out at its next start, and nothing was deleted any more."""
    place = two_sinks()
    begun: list[tuple[Run, Recorder]] = []
    before_create(place.wal, paths.renamed("c"), lambda: begun.append(new_sink(place, "c")))

    with pytest.raises(ConfigError, match="another sink has, or had, the name 'c'"):
        renamed(place, "b", "c")

    (run, sink), names = begun[0], [found.name for found in read_status(place.wal).sinks]
    assert names == ["a", "b", "c"]
    place.stream(run, 3)
    run.end()
    everyone = {name: Delivery(Recorder(), start_from="next") for name in "ab"}
    place.stream(place.open({**everyone, "c": sink}, settings=lower_retention(KEPT)), 12)
    assert sink.batches == list(range(3, 13))
    assert low_water(place) == 11 - KEPT  # collected when the first of them had batch 12
    end(place, *"abc")
    for old, new in (("a", "c"), ("b", "c")):
        with pytest.raises(ConfigError, match="another sink has, or had, the name 'c'"):
            renamed(place, old, new)


def test_of_a_rename_and_a_registration_that_see_each_other_the_first_to_say_so_has_the_name() -> None:
    place = two_sinks()
    log = log_of(place)
    names = read_names(log)

    def register() -> None:
        record = log.require(SinkRecord, paths.sink("b"))
        log.create(paths.sink("c"), msgspec.structs.replace(record, name="c", **log.stamp()))
        keep_name(log, names, "c")

    before_create(place.wal, paths.owner("c"), register)

    with pytest.raises(ConfigError, match="another sink has, or had, the name 'c'"):
        renamed(place, "b", "c")
    run, sink = new_sink(place, "c")
    place.stream(run, 3)
    assert sink.batches == [0, 1, 2, 3]  # its registration begins with the first
    assert [found.name for found in read_status(place.wal).sinks] == ["a", "b", "c"]


@pytest.mark.usefixtures("collects_often")
def test_no_new_sink_begins_under_a_name_that_was_given_and_its_registration_holds_nothing_back() -> None:
    place = two_sinks()
    before_create(place.wal, paths.sink("c"), lambda: renamed(place, "b", "c"))

    with pytest.raises(ConfigError, match="another sink was just renamed to this name"):
        new_sink(place, "c")

    assert [found.name for found in read_status(place.wal).sinks] == ["a", "c"]
    sinks = {"a": Recorder(), "c": Recorder()}
    place.stream(place.open(sinks, settings=lower_retention(KEPT)), 12)
    assert sinks["c"].batches == list(range(3, 13))
    assert low_water(place) == 11 - KEPT
    end(place, "b")
    for old, new in (("c", "d"), ("d", "c")):
        renamed(place, old, new)
    assert [found.name for found in read_status(place.wal).sinks] == ["a", "c"]


def test_a_start_settles_whose_name_it_is_where_neither_said_so() -> None:
    """Both processes died in between."""
    place = two_sinks()
    new_sink(place, "c")[0].end()
    log = log_of(place)
    log.create(paths.renamed("c"), RenamedRecord(name="c", folder="b", **log.stamp()))
    assert [found.name for found in read_status(place.wal).sinks] == ["a", "b", "c"]

    run, sink = new_sink(place, "c")
    place.stream(run, 3)

    assert sink.batches == [3]
    with pytest.raises(ConfigError, match="another sink has, or had, the name 'c'"):
        renamed(place, "b", "c")
    assert settle(log, "c", "b") == "c", "a rename that goes on only now comes too late"


@pytest.mark.parametrize("missing", [paths.owner("c"), paths.sink_name("b", 1)])
def test_a_rename_that_was_interrupted_leaves_the_old_name_and_is_repeated(missing: str) -> None:
    place, sink = two_sinks(), Recorder()

    def crash(what: str, where: str) -> None:
        if what == "before create" and where == missing:
            raise KeyboardInterrupt

    log = Log(FaultyStore(place.wal, crash), simulated_runtime(next(_seeds)), "tool")
    with pytest.raises(KeyboardInterrupt):
        rename(log, "b", "c", take_over=TakeOver.IF_GONE)
    with pytest.raises(ConfigError, match=r"sink 'b' is not called 'c'.*wal-sink sinks rename WAL b c"):
        place.open({"c": Delivery(Recorder(), start_from="earliest")})
    assert [found.name for found in read_status(place.wal).sinks] == ["a", "b"]

    renamed(place, "b", "c")
    place.stream(place.open({"c": sink}), 3)

    assert sink.batches == [3]


def test_a_foreign_object_among_the_names_of_a_sink_is_none_of_them() -> None:
    place = two_sinks()
    place.wal.create(f"{paths.sink_names('b')}/notes.txt", b"by hand")

    assert [found.name for found in read_status(place.wal).sinks] == ["a", "b"]


def test_dead_letters_are_found_under_the_new_name() -> None:
    place = Place()
    refusing = Delivery(Recorder(lambda _: Rejected({0: "no"})), on_rejected="dead_letter")
    place.stream(place.open({"a": refusing}), 0)
    end(place, "a")
    renamed(place, "a", "b")

    assert DeadLetters(log_of(place), name="b").replay(Recorder()).rows == 1
    with pytest.raises(ConfigError, match="sink 'a' was renamed to 'b'"):
        DeadLetters(log_of(place), name="a")


def test_a_record_of_a_rename_that_is_gone_is_missed() -> None:
    """The new name would be that of a new sink, which gets everything a second time."""
    place = two_sinks()
    renamed(place, "b", "c")
    place.wal.delete([paths.renamed("c"), paths.owner("c")])

    with pytest.raises(
        CorruptError, match=r"sinks/c/owner\.json is gone.*sinks/b/names/, where the name of the sink is recorded,"
    ):
        place.open({"c": Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(CorruptError, match=r"sinks/c/owner\.json is gone"):
        read_status(place.wal)


def test_a_record_of_a_rename_that_shows_a_little_later_is_there() -> None:
    place = two_sinks()
    renamed(place, "b", "c")
    listing = place.wal.list

    def hidden_once(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        if prefix == "sinks":
            place.wal.list = listing  # type: ignore[method-assign]
            return [name for name in listing(prefix) if name != "c/"]
        return list(listing(prefix, after=after, recursive=recursive))

    place.wal.list = hidden_once  # type: ignore[method-assign]

    names = read_names(log_of(place))

    assert [found.name for found in names.sinks] == ["a", "c"]
    assert names.folder_of("c") == "b"


def test_without_rows_in_the_wal_a_retired_sink_is_none_that_needs_them() -> None:
    place, vault = two_sinks(), Vault()
    retired(place, "a")
    delivery = Delivery(VaultSink(vault, keep_segments=False), start_from="next")

    with pytest.raises(ConfigError, match=r"sinks \['b'\] cannot prepare rows .*wal-sink sinks retire"):
        place.open({"v": delivery})
    retired(place, "b")
    place.stream(place.open({"v": delivery}), 3)

    assert read_status(place.wal).sinks[-1].delivered_through == 3
