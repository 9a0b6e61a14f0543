"""Objects that vanish from a WAL, as a bucket's rule or a partial copy takes them: an error, never silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wal_sink.protocol.collect
from tests.house.log import MARGIN, Log, Move, SinkRecord, Term, encode, paths
from tests.house.operate import WalFacts, read_batches, read_status
from tests.house.sinks import Chunk, Rejected
from tests.house.stores import ObjectMissing
from tests.simulation.histories.lives import lower_retention
from tests.simulation.world import Life, World
from tests.support.processes import CHECKOUT
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, CorruptError, DeliveryError, FencedError
from wal_sink.operate.replay import DeadLetters
from wal_sink.protocol.inventory import TABLE, Lost, refuse_left, require, require_wal
from wal_sink.settings import Delivery, Retry
from wal_sink.sinks.base import idempotent
from wal_sink.testing import simulated_runtime


def lose(place: Place | World, *folders: str) -> None:
    """Delete objects, or everything in a folder."""
    names = place.wal.list("", recursive=True)
    place.wal.delete([name for name in names for folder in folders if name == folder or name.startswith(f"{folder}/")])


def undelivered(batches: int = 2) -> Place:
    """A WAL of complete batches, of which its sink has none."""
    place = Place()
    list(place.query().batches(place.open({"a": Recorder()}), batches))
    return place


def test_without_its_own_record_a_wal_that_has_batches_is_not_new() -> None:
    """The oldest object is the first that a rule such as "expire after 30 days" takes."""
    place, sink = undelivered(), Recorder()
    lose(place, paths.WAL)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        place.open({"a": sink})
    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        read_status(place.wal)

    assert sink.chunks == []


def test_without_its_own_record_a_wal_is_not_new_for_a_process_that_opened_it_while_it_was_new() -> None:
    """It would make the record again, with a later first batch, and skip those before."""
    place = Place()
    early = place.open({"a": Recorder()})
    list(place.query().batches(place.open({"a": Recorder()}), 1))
    lose(place, paths.WAL)
    query = place.query()
    query.start_batch(1, 1)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        query.stage(early, 1)

    assert paths.WAL not in place.wal.list("")


def test_objects_that_belong_to_no_sink_and_no_role_are_no_trace() -> None:
    place = Place()
    early = place.open({"a": Recorder()})
    for stray in ("sinks/notes.txt", "terms/notes.txt", f"{paths.terms('committer-a')}/copy/0000000002.json"):
        place.wal.create(stray, b"mine")
    query = place.query()
    query.start_batch(0, 0)

    assert query.stage(early, 0)
    assert require_wal(early.log, "").sinks == ("a",)


def test_folders_that_hold_no_object_are_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """MinIO lists the folders of deleted objects of a versioned bucket for ever: a WAL could not begin anew there."""
    place = Place()
    found = place.wal.list
    empty = {
        "": ["batches/", "low-water/", "moves/", "sinks/"],
        "batches": [f"{0:019}/"],
        "sinks": ["a/"],
        "sinks/a": ["markers/", "progress/"],
    }

    def listed(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        there = found(prefix, after=after, recursive=recursive)
        return there if recursive or after else sorted({*there, *empty.get(prefix, ())})

    monkeypatch.setattr(place.wal, "list", listed)

    first, second = Recorder(), Recorder()
    place.stream(place.open({}), 0)
    place.stream(place.open({"a": first, "b": second}, start_from="earliest"), 1)
    assert first.batches == second.batches == [0, 1]


def test_a_folder_that_became_a_checkpoint_meanwhile_is_no_wal() -> None:
    place = Place()
    early = place.open({"a": Recorder()})
    place.wal.create("offsets/0", b"v1")
    query = place.query()
    query.start_batch(0, 0)

    with pytest.raises(ConfigError, match="holds offsets/, so it is the checkpoint of a query"):
        query.stage(early, 0)


def test_without_its_registration_a_sink_is_not_new_wherever_it_is_said_to_begin() -> None:
    place, sink = undelivered(), Recorder()
    lose(place, paths.sink("a"))

    with pytest.raises(CorruptError, match=r"sinks/a/sink\.json is gone"):
        place.open({"a": Delivery(sink, start_from="next")})

    assert sink.chunks == []


def test_without_its_terms_a_transactional_target_does_not_refuse_its_only_sender() -> None:
    world = World("transactional", batches=((3,), (2,)))
    for _ in range(3):
        world.life().open_run()
    life = world.life()
    run = life.open_run()
    next(life.batches(run))
    life.deliver_all(run)
    lose(world, "terms")

    assert world.life().live()

    world.check_end(crashes=1)


def test_without_its_terms_a_process_that_still_lives_is_fenced_all_the_same() -> None:
    world = World(batches=((3,), (2,)), zombies=True)
    old = world.life()
    run = old.open_run()
    next(old.batches(run))
    old.deliver_all(run)
    lose(world, "terms")

    new: Life = world.life()
    new.open_run()

    with pytest.raises(Exception, match="was superseded"):
        run.committers[0].term.check(world.wal)


def run_and_collect(batches: int, *, kept: int = 2) -> Place:
    """A WAL whose sink has every batch, and the first of them were collected."""
    place = Place()
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(kept)), batches - 1)
    assert place.wal.list(paths.LOW_WATER)
    return place


@pytest.fixture
def collects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 1)


# The WAL's own record.


@pytest.mark.parametrize("left", ["batches", "low-water", "sinks/a/markers", "sinks/a/dead-letters", "moves"])
def test_any_object_of_a_batch_shows_that_the_record_was_there(left: str) -> None:
    place = Place()
    place.wal.create(f"{left}/0000000000000000007.json", b"{}")

    with pytest.raises(
        CorruptError, match=rf"wal\.json is gone, but it must have existed: {left.split('/', maxsplit=1)[0]}.*/"
    ):
        place.open({})


@pytest.mark.parametrize("oldest", [2, 3])
def test_terms_that_do_not_begin_with_the_first_show_that_objects_were_deleted(oldest: int) -> None:
    place = Place()
    for _ in range(3):
        place.open({})
    lose(place, *(paths.term(paths.STAGER_ROLE, number) for number in range(1, oldest)))

    with pytest.raises(CorruptError, match=rf"wal\.json is gone.*terms/stager/0+{oldest}\.json is the oldest term"):
        place.open({})


def test_sinks_and_terms_without_a_record_are_a_start_before_the_first_batch() -> None:
    place, sink = Place(), Recorder()
    for _ in range(2):
        place.open({"a": Recorder()})

    place.stream(place.open({"a": sink}), 1)

    assert sink.batches == [0, 1]


def test_a_suspicion_is_read_once_more_before_it_is_an_error() -> None:
    """Another process stages the first batch between the two looks of this one."""
    place = Place()
    other, listed = place.open({"a": Recorder()}), place.wal.list

    def staged_meanwhile(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        if prefix == "":
            place.wal.list = listed  # type: ignore[method-assign]
            place.stream(other, 0)
        return listed(prefix, after=after, recursive=recursive)

    place.wal.list = staged_meanwhile  # type: ignore[method-assign]

    assert place.open({"a": Recorder()}).history.wal is not None


def test_a_record_that_every_later_object_needs_is_read_once_more_too() -> None:
    place = undelivered()
    record, read, misses = place.wal.read(paths.WAL), place.wal.read, [1]

    def missing_at_first(path: str) -> bytes:
        if path == paths.WAL and misses:
            raise ObjectMissing(f"{path}, look {misses.pop()}")
        return read(path)

    place.wal.read = missing_at_first  # type: ignore[method-assign]

    assert require_wal(Log(place.wal, simulated_runtime(), "run"), "the content of batches/").wal_id.encode() in record
    misses.append(2)
    assert place.open({"a": Recorder()}).history.wal is not None
    assert not misses


def test_an_object_that_must_exist_is_read_once_more_before_it_is_missed() -> None:
    place = undelivered()
    read, misses = place.wal.read, [paths.sink("a")]

    def missing_at_first(path: str) -> bytes:
        if path in misses:
            misses.remove(path)
            raise ObjectMissing(path)
        return read(path)

    place.wal.read = missing_at_first  # type: ignore[method-assign]
    log = Log(place.wal, simulated_runtime(), "run")

    assert require(log, SinkRecord, paths.sink("a"), Lost.SINK, "sinks/a/").name == "a"
    with pytest.raises(CorruptError, match=r"sinks/b/sink\.json is gone, .*: sinks/b/ is made after it"):
        require(log, SinkRecord, paths.sink("b"), Lost.SINK, "sinks/b/")


def test_a_drain_that_is_asked_for_all_that_is_complete_finds_the_record_gone() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    assert run.history.wal is None
    place.stream(place.open({"b": Recorder()}), 0)
    lose(place, paths.WAL)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        run.advance(run.committers[0], search=True)


def test_dead_letters_tell_that_there_was_a_record() -> None:
    place = Place()
    run = place.open({"a": Delivery(Recorder(lambda _: Rejected({0: "no"})), on_rejected="dead_letter")})
    place.stream(run, 0)
    log = Log(place.wal, simulated_runtime(), "replay")
    letters = DeadLetters(log, name="a")
    lose(place, paths.WAL)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        letters.replay(Recorder())
    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        DeadLetters(log, name="a")


# Registrations.


def test_the_error_names_the_object_the_causes_and_the_ways_out() -> None:
    place = undelivered()
    lose(place, paths.sink("a"))

    with pytest.raises(CorruptError) as told:
        place.open({"a": Recorder()})

    said = str(told.value)
    for part in (
        "sinks/a/sink.json",
        "terms/committer-a/",
        "expire after 30 days",
        "a part of this WAL",
        "restore",
    ):
        assert part in said
    assert "sinks/<name>/forgotten" in said


@pytest.mark.parametrize("lost", [("sinks/a", "terms/committer-a"), ("sinks/a",), ("sinks/a/sink.json",)])
def test_a_registration_is_known_from_the_record_and_from_terms(lost: tuple[str, ...]) -> None:
    place = undelivered()
    lose(place, *lost)

    for sinks in ({"a": Recorder()}, {}, {"b": Delivery(Recorder(), start_from="next")}):
        with pytest.raises(CorruptError, match=r"sinks/a/sink\.json is gone.*existed: (wal|terms|sinks)"):
            place.open(sinks)
    with pytest.raises(CorruptError, match=r"sinks/a/sink\.json is gone"):
        read_status(place.wal)


def test_a_registration_is_known_from_what_the_sink_has() -> None:
    place = Place()
    place.stream(place.open({}), 0)
    place.stream(place.open({"late": Delivery(Recorder(), start_from="earliest")}), 1)
    lose(place, paths.sink("late"), "terms/committer-late")

    with pytest.raises(CorruptError, match=r"sinks/late/sink\.json is gone.*sinks/late/markers/"):
        place.open({"late": Delivery(Recorder(), start_from="earliest")})
    with pytest.raises(CorruptError, match=r"sinks/late/sink\.json is gone"):
        read_batches(WalFacts(place.wal))
    place = Place()
    list(place.query().batches(place.open({"a": Recorder(), "b": Recorder()}), 1))
    lose(place, "sinks/a")
    with pytest.raises(CorruptError, match=r"sinks/a/sink\.json is gone"):
        place.open({"a": Recorder(), "b": Recorder()})


@pytest.mark.parametrize("looks", [1, 2])
def test_a_registration_that_another_makes_meanwhile_is_the_one(looks: int) -> None:
    place, missed = undelivered(), list[str]()
    record, read = place.wal.read(paths.sink("a")), place.wal.read
    lose(place, paths.sink("a"))

    def made_meanwhile(path: str) -> bytes:
        try:
            return read(path)
        except ObjectMissing:
            if path == paths.sink("a"):
                missed.append(path)
                if len(missed) == looks:
                    place.wal.create(path, record)
            raise

    place.wal.read = made_meanwhile  # type: ignore[method-assign]

    assert place.open({"a": Recorder()}).committers[0].next_batch() == 0


def test_a_sink_is_forgotten_by_an_act_that_leaves_a_trace() -> None:
    place = undelivered()
    lose(place, "sinks/a")
    place.wal.create(paths.forgotten("a"), b"")

    other = Recorder()
    place.open({"b": Delivery(other, start_from="earliest")}).deliver_all()

    assert other.batches == [0, 1]
    assert {sink.name for sink in read_status(place.wal).sinks if sink.kind != "?"} == {"b"}
    with pytest.raises(ConfigError, match=r"sink 'a' of .* was forgotten .*Use another name"):
        place.open({"a": Delivery(Recorder(), start_from="earliest")})


@pytest.mark.parametrize("with_low_water", [True, False])
@pytest.mark.usefixtures("collects_often")
def test_where_no_sink_is_known_a_release_or_low_water_tells_that_there_was_one(with_low_water: bool) -> None:
    place = Place()
    place.stream(place.open({}), 0)
    settings = lower_retention(2 if with_low_water else 100)
    place.stream(place.open({"a": Delivery(Recorder(), start_from="earliest")}, settings=settings), 5)
    lose(place, "sinks", "terms")

    tells = "low-water" if with_low_water else "batches"
    with pytest.raises(CorruptError, match=f"sinks/ is gone, but it must have existed: {tells}"):
        place.open({"b": Delivery(Recorder(), start_from="earliest")})


def test_a_sink_that_vanishes_while_the_run_goes_on_stops_the_collection() -> None:
    place = Place()
    place.open({"b": Recorder()})
    run = place.open({"a": Recorder()}, settings=lower_retention(2))
    lose(place, "sinks/b")

    way_out = r"what this run has seen of the sink is made after it.*sinks/<name>/forgotten"
    with pytest.raises(CorruptError, match=rf"sinks/b/sink\.json is gone.*existed: {way_out}"):
        run._collector.collect(run.committers[0].term)


# Terms.


@pytest.mark.parametrize("kept", [(), ("terms/stager",)])
def test_lost_terms_are_claimed_above_what_a_marker_names(kept: tuple[str, ...]) -> None:
    place = Place()
    run = [place.open({"a": Recorder()}) for _ in range(20)][-1]
    place.stream(run, 0)
    lose(place, *{"terms/committer-a", "terms/stager"}.difference(kept))

    new = place.open({"a": Recorder()})

    assert new.committers[0].term.number == 20 + MARGIN + 1
    for term in (run.committers[0].term, run._stager._term if run._stager else run.committers[0].term):
        with pytest.raises(FencedError):
            term.check(place.wal)


def fail(_: object) -> None:
    raise ConnectionError("down")


# Markers, low water, releases, manifests.


@pytest.mark.usefixtures("collects_often")
@pytest.mark.parametrize("lost", ["sinks/a/markers", paths.marker("a", 5)])
def test_low_water_tells_which_marker_a_sink_had(lost: str) -> None:
    place = run_and_collect(6)
    lose(place, lost)

    with pytest.raises(CorruptError, match=r"sinks/a/markers/0+5\.json is gone.*low-water/"):
        place.open({"a": Recorder()})


def test_a_release_tells_which_marker_its_sink_had() -> None:
    place, sink = Place(), Recorder()
    place.stream(place.open({"a": Recorder()}), 1)
    lose(place, "sinks/a/markers")

    with pytest.raises(CorruptError, match=r"sinks/a/markers/0+\.json is gone.*batches/0+1/release\.json"):
        place.open({"a": sink}).deliver_all()

    assert sink.chunks == []


def test_a_sink_that_ignores_repeats_is_sent_again_what_it_ignores() -> None:
    place = Place()
    keys: set[str] = set()

    @idempotent
    def take(chunk: Chunk) -> None:
        keys.add(chunk.key)

    place.stream(place.open({"a": take}), 2)
    lose(place, "sinks/a/markers")

    place.open({"a": take}).deliver_all()

    assert len(keys) == 3


def test_a_newest_marker_that_is_listed_and_never_there_is_told() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)
    place.wal.list = listing(place, paths.markers("a"), ["0000000000000000007.json"])  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"markers/0+7\.json is gone.*listed a moment ago"):
        place.open({"a": Recorder()})


def listing(place: Place, folder: str, names: list[str]) -> Callable[..., list[str]]:
    listed = place.wal.list

    def answer(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return names if prefix == folder else listed(prefix, after=after, recursive=recursive)

    return answer


def test_a_marker_of_a_batch_that_is_not_there_tells_that_it_was() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 2)
    lose(place, "batches")

    with pytest.raises(CorruptError, match=r"batches/0+2/ is gone.*sinks/a/markers/0+2\.json"):
        place.open({"a": Recorder()})


@pytest.mark.usefixtures("collects_often")
def test_the_oldest_batch_tells_that_low_water_was_there() -> None:
    place = run_and_collect(6)
    lose(place, paths.LOW_WATER)

    for look in (
        lambda: place.open({"a": Recorder()}),
        lambda: read_status(place.wal),
        lambda: read_batches(WalFacts(place.wal)),
    ):
        with pytest.raises(CorruptError, match=r"low-water/0+3\.json is gone.*batches/0+4/ is the oldest"):
            look()

    place = run_and_collect(6)
    place.wal.create(f"{paths.batch(0)}/left", b"")
    lose(place, paths.batch(4))
    with pytest.raises(CorruptError, match=r"batches/0+5/ is the oldest"):
        place.open({"a": Recorder()})


@pytest.mark.usefixtures("collects_often")
def test_low_water_that_moves_between_two_looks_is_none_that_was_lost() -> None:
    place = run_and_collect(6)
    listed = place.wal.list
    empty: list[list[str]] = [[]]

    def earlier(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        if prefix == paths.LOW_WATER and empty:
            return empty.pop()
        return listed(prefix, after=after, recursive=recursive)

    place.wal.list = earlier  # type: ignore[method-assign]

    assert place.open({"a": Recorder()}).committers[0].marked_through == 5


@pytest.mark.parametrize("lost", [1, 2], ids=["an earlier one", "the newest"])
@pytest.mark.parametrize("sinks", [{"a": Recorder()}, {}])
def test_a_marked_batch_whose_release_is_gone_is_not_staged_as_a_new_one(sinks: dict[str, object], lost: int) -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 2)
    lose(place, paths.release(lost))
    place.checkpoint.delete([f"commits/{lost}", "commits/2", *(["offsets/2"] if lost == 1 else [])])
    run = place.open(sinks)

    with pytest.raises(CorruptError, match=rf"batches/0+{lost}/release\.json is gone.*a sink has every batch up to 2"):
        next(place.query().batches(run, 3))


def test_a_batch_whose_release_is_gone_is_released_anew_and_no_chunk_is_sent_again() -> None:
    place = Place(rows=lambda _: [6])
    first = Recorder(lambda chunk: fail(chunk) if chunk.rows[0] == 4 else None)
    run = place.open({"a": Delivery(first, retry=Retry(attempts=1))})
    list(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    lose(place, paths.release(0))
    second = Recorder()

    place.open({"a": second}).deliver_all()

    assert [chunk.rows[0] for chunk in (*first.chunks, *second.chunks)] == [0, 2, 4]


def test_a_released_batch_whose_manifest_is_gone_is_told() -> None:
    place = Place()
    run = place.open({"a": Delivery(Recorder(fail), retry=Retry(attempts=1))})
    list(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    manifest = next(name for name in place.wal.list(paths.batch(0)) if name.startswith("manifest"))
    lose(place, f"{paths.batch(0)}/{manifest}")

    with pytest.raises(CorruptError, match=rf"{manifest} is gone.*release\.json"):
        place.open({"a": Recorder()}).deliver_all()


# The table.


def test_the_table_in_the_documentation_is_the_one_in_the_code() -> None:
    text = (CHECKOUT / "docs/FORMAT.md").read_text()
    _, _, section = text.partition("## What absence means")
    rows = [
        line.strip("| ").split(" | ") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")
    ]

    assert rows == [[f"`{lost}`", rule.evidence, rule.verdict] for lost, rule in TABLE.items()]
    assert list(TABLE) == list(Lost)


def test_the_error_of_a_place_that_was_left_names_the_present_one() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    place.wal.delete([paths.WAL])
    move = Move(number=1, location="memory://lake/new", moved_from=place.wal.root, id="m", created="now")
    place.wal.create(paths.move(1), encode(move))
    with pytest.raises(
        CorruptError, match=r"wal.json is gone.*according to .*moves.* this WAL lies at memory://lake/new"
    ):
        require_wal(Log(place.wal, simulated_runtime(), "run"), "batches/")


def test_a_claim_right_after_the_listed_terms_proves_that_the_wal_was_not_left_and_any_other_asks() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 0)
    wal, term = run.history.wal, Term("committer-a", 5)
    lose(place, paths.WAL)

    refuse_left(run.log, wal, [(term, [3, 4])])
    refuse_left(run.log, None, [(term, [])])
    for listed in ([], [3], [4, 5], [6]):
        with pytest.raises(
            CorruptError, match=r"existed: the record that this process read when it began is made after"
        ):
            refuse_left(run.log, wal, [(term, listed)])


def test_a_record_that_is_gone_when_it_is_needed_is_told_with_what_needs_it() -> None:
    run = Place().open({"a": Recorder()})
    with pytest.raises(
        CorruptError, match=rf"wal\.json is gone.* existed: the content of {paths.BATCHES}/ is made after"
    ):
        run.history.require_wal()
