"""Names in a WAL: whose each of them is, which of them a rename may still take, and what is said of unserved sinks."""

from __future__ import annotations

import pytest

from tests.house.log import Log, NameRecord, OwnerRecord, RenamedRecord, RetiredRecord, SinkRecord, paths
from tests.house.protocol import read_names
from tests.support.repairs import end_roles, log_on
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.protocol.sinks import KnownSink, describe_unserved, keep_name, pending_batches, refuse_retired
from wal_sink.settings import Delivery


def two_sinks(through: int = 1) -> tuple[Place, Log]:
    """A WAL with the sinks a and b, of which both have everything, and nobody serves either."""
    place = Place()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), through)
    end_roles(place.wal)
    return place, log_on(place.wal)


def renamed(log: Log, folder: str, *names: str) -> None:
    """The records of a sink that got these names, one after the other."""
    for number, name in enumerate(names, 1):
        log.create(paths.renamed(name), RenamedRecord(name=name, folder=folder, **log.stamp()))
        log.create(paths.owner(name), OwnerRecord(name=name, folder=folder, **log.stamp()))
        log.create(paths.sink_name(folder, number), NameRecord(number=number, name=name, **log.stamp()))


def registered(log: Log, name: str, *, first_batch: int = 0, through: int | None = None) -> None:
    record = SinkRecord(
        name=name, sink_kind="plain", first_batch=first_batch, through=through, identity="", **log.stamp()
    )
    log.create(paths.sink(name), record)


def test_a_sink_is_found_by_its_present_name_and_told_by_it_under_an_old_one() -> None:
    _, log = two_sinks()
    renamed(log, "b", "c", "d")

    names = read_names(log)

    assert names.sinks == (KnownSink("a", "a", is_retired=False), KnownSink("b", "d", is_retired=False))
    assert [names.folder_of(name) for name in ("a", "d", "new")] == ["a", "b", None]
    with pytest.raises(ConfigError, match=r"sink 'b' was renamed to 'd'\. Use that name"):
        names.folder_of("b")
    with pytest.raises(ConfigError, match=r"sink 'd' is not called 'c' \(any more\).*wal-sink sinks rename WAL d c"):
        names.folder_of("c")


def test_only_the_name_of_a_registered_sink_that_no_rename_wants_is_settled() -> None:
    _, log = two_sinks()
    renamed(log, "b", "c")
    log.create(paths.renamed("a"), RenamedRecord(name="a", folder="b", **log.stamp()))  # both want it
    log.store.create(f"{paths.SINKS}/gone/notes.txt", b"")

    assert read_names(log).settled == {"b"}


def test_the_names_of_a_wal_cost_two_listings_and_one_for_each_sink_and_a_rename_three_more_requests() -> None:
    place, _ = two_sinks()
    asked: list[str] = []
    log = log_on(place.wal, lambda what, path: asked.append(f"{what} {path}"))

    read_names(log)
    assert [each for each in asked if each.startswith("before")] == [
        f"before list {path}" for path in ("sinks", "sinks/a", "sinks/b")
    ]

    renamed(log_on(place.wal), "b", "c")
    asked.clear()
    read_names(log)
    assert [each.removeprefix("before ") for each in asked if each.startswith("before")] == [
        *("list sinks", "list sinks/a", "list sinks/b", "list sinks/c"),
        *(f"read {paths.owner('c')}", "list sinks/b/names", f"read {paths.sink_name('b', 1)}"),
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_the_owner_of_a_name_that_a_listing_misses_is_read_or_missed(*, is_late: bool) -> None:
    """Without it, the new name would be that of a new sink, which gets everything a second time."""
    place, log = two_sinks()
    renamed(log, "b", "c")
    listing = place.wal.list

    def without_the_new_name(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return [name for name in listing(prefix, after=after, recursive=recursive) if name != "c/"]

    place.wal.list = without_the_new_name  # type: ignore[method-assign]
    if is_late:
        assert read_names(log).leads_to == {"c": "b"}
        return
    place.wal.delete([paths.owner("c")])
    with pytest.raises(
        CorruptError, match=r"sinks/c/owner\.json is gone.*sinks/b/names/, where the name of the sink is recorded,"
    ):
        read_names(log)


def test_a_name_that_a_new_sink_and_a_rename_want_is_that_of_the_first_to_say_so() -> None:
    place, log = two_sinks()
    before = read_names(log)
    for name in ("c", "d"):
        registered(log, name)
        log.create(paths.renamed(name), RenamedRecord(name=name, folder="b", **log.stamp()))
    log.create(paths.owner("d"), OwnerRecord(name="d", folder="b", **log.stamp()))

    keep_name(log, before, "c")
    with pytest.raises(ConfigError, match=rf"sink 'd' of {place.wal.root}: another sink was just renamed to this name"):
        keep_name(log, before, "d")

    owner = log.require(OwnerRecord, paths.owner("c"))
    assert (owner.name, owner.folder) == ("c", "c")


def test_a_name_that_no_rename_wants_is_kept_without_a_record_and_a_known_one_without_a_request() -> None:
    place, _ = two_sinks()
    asked: list[str] = []
    log = log_on(place.wal, lambda what, path: asked.append(f"{what} {path}"))
    names = read_names(log)
    asked.clear()

    keep_name(log, names, "b")
    assert asked == []
    keep_name(log, names, "new")
    assert [each for each in asked if each.startswith("before")] == ["before list sinks/new"]


def test_a_retired_sink_is_refused_with_its_name_and_last_batch() -> None:
    place, log = two_sinks()
    refuse_retired(log, "b", "b")
    log.create(paths.retired("b"), RetiredRecord(through=1, run_id="r", **log.stamp()))

    with pytest.raises(
        ConfigError, match=rf"^sink 'shown' of {place.wal.root} was retired at .* after batch 1 \(see .*sinks/b/retired"
    ):
        refuse_retired(log, "b", "shown")
    refuse_retired(log, "a", "a")


@pytest.mark.parametrize(("through", "is_retired"), [(1, True), (2, False)])
def test_an_unserved_sink_that_has_its_last_batch_is_retired_and_any_other_is_told(
    *, through: int, is_retired: bool
) -> None:
    place, log = two_sinks()
    registered(log, "c", first_batch=2, through=through)

    said = describe_unserved(log, KnownSink("c", "c", is_retired=False))

    found = log.find(RetiredRecord, paths.retired("c"))
    assert (said == "", found is not None and found.through == 1) == (is_retired, is_retired)
    assert said.startswith("" if is_retired else f"sink 'c' of {place.wal.root} is registered, but this run does not")


def test_of_a_sink_without_a_registration_nothing_is_said() -> None:
    _, log = two_sinks()

    assert describe_unserved(log, KnownSink("gone", "gone", is_retired=False)) == ""


def test_a_renamed_sink_is_served_from_its_first_folder_under_its_new_name() -> None:
    place, log = two_sinks()
    renamed(log, "b", "c")
    log.create(paths.retired("a"), RetiredRecord(through=1, run_id="r", **log.stamp()))
    place.requests.clear()

    run = place.open({"c": Delivery(Recorder(), start_from="earliest")})

    served = run.committers[0].served_sink
    assert (run.committers[0].name, served.name, served.shown) == ("b", "b", "c")
    reads = [request for request in place.requests if request.startswith("read sinks/b/retired")]
    assert len(reads) == 1, "only once its term is claimed: the listing shows no record"


def test_a_retired_sink_is_refused_before_a_term_is_claimed_and_another_one_is_served() -> None:
    place, log = two_sinks()
    renamed(log, "b", "c")
    log.create(paths.retired("b"), RetiredRecord(through=1, run_id="r", **log.stamp()))
    before = place.wal.list(paths.TERMS, recursive=True)

    with pytest.raises(ConfigError, match=f"^sink 'c' of {place.wal.root} was retired at"):
        place.open({"c": Delivery(Recorder(), start_from="earliest")})

    assert place.wal.list(paths.TERMS, recursive=True) == before
    assert place.open({"a": Recorder()}).committers[0].served_sink.name == "a"


def test_the_batches_that_a_sink_lacks_begin_with_its_first_and_end_with_its_last() -> None:
    _, log = two_sinks(through=4)
    registered(log, "c", first_batch=1, through=3)
    registered(log, "d", first_batch=3)

    assert [pending_batches(log, name) for name in "abcd"] == [[], [], [1, 2, 3], [3, 4]]
