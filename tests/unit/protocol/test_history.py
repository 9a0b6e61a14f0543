"""The history of a WAL, as a run knows it: its owner, its batches, and which of the run's own batches are pending."""

from __future__ import annotations

import msgspec
import pytest

from tests.house.log import NOTHING, Manifest, Move, Stamp, WalRecord, decode, encode, paths
from tests.house.protocol import Run
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import SYSTEM
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.protocol.checkpoint import Offsets
from wal_sink.protocol.history import KEPT_MANIFESTS, pass_over
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery, FaultyStore, simulated_runtime


def staged(place: Place, run: Run, *batch_ids: int) -> None:
    query = place.query()
    for batch_id in batch_ids:
        query.start_batch(batch_id, batch_id)
        query.stage(run, batch_id)


def memory_store() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://history-{SYSTEM.new_id()}"))


def wal_of(place: Place) -> WalRecord:
    return decode(WalRecord, place.wal.read(paths.WAL), "the WAL's record")


# Whose it is.


def test_the_record_of_a_wal_says_whose_it_is_and_where_it_begins() -> None:
    place = Place()
    run = place.open({})
    assert run.history.wal is None

    staged(place, run, 0)

    wal = wal_of(place)
    assert run.history.wal == wal
    assert (wal.query_id, wal.checkpoint, wal.first_batch) == (
        run.checkpoint.query_id(), place.checkpoint.root, 0,
    )  # fmt: skip
    assert wal.wal_id not in {"", wal.id}


def test_of_two_who_create_a_wal_at_once_both_go_by_the_one_that_is_there() -> None:
    place = Place()
    first, second = place.open({"a": Recorder()}), place.open({"a": Recorder()})
    staged(place, first, 0)

    place.requests.clear()
    assert second.history.bind(0) is False, "the other made it"
    looks = ("read wal.json", "list ", "list terms", "list sinks", "list moves")
    assert sorted(place.requests) == sorted(looks), "each once"
    staged(place, second, 0)

    assert second.history.wal == first.history.wal == wal_of(place)
    place.requests.clear()
    assert second.history.bind(1) is False
    assert place.requests == []


def test_a_wal_that_another_query_created_meanwhile_is_refused() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(0, 0)
    other = WalRecord(wal_id="w", query_id="another", checkpoint="c", first_batch=0, location="", id="x", created="")
    place.wal.create(paths.WAL, encode(other))

    with pytest.raises(HistoryError, match="belongs to query another, but the checkpoint"):
        place.query().stage(run, 0)

    assert place.wal.list(paths.BATCHES) == []


@pytest.mark.parametrize("was_moved", [False, True])
def test_a_record_that_is_made_at_the_same_time_is_checked_as_one_that_was_there(was_moved: bool) -> None:
    place = Place()
    run = place.open({})
    query = place.query()
    query.start_batch(0, 0)
    create, stamp = place.wal.create, Stamp(id="x", created="now")

    def another_is_first(path: str, data: bytes) -> None:
        if path == paths.WAL:
            record = decode(WalRecord, data, path)
            create(path, encode(msgspec.structs.replace(record, location="s3://other/wal", **stamp)))
            if was_moved:
                create(
                    paths.move(1), encode(Move(number=1, location=record.location, moved_from="s3://other", **stamp))
                )
        create(path, data)

    place.wal.create = another_is_first  # type: ignore[method-assign]

    if was_moved:
        assert query.stage(run, 0)
        return
    with pytest.raises(ConfigError, match="the recorded location of this WAL is s3://other/wal"):
        query.stage(run, 0)
    assert place.wal.list(paths.BATCHES) == []


def test_a_running_query_that_is_not_the_wals_own_is_refused_whatever_the_checkpoint_said_before() -> None:
    place = Place()
    run = place.open({})
    run.history.refuse_other_query("the first query")
    staged(place, run, 0)
    own = wal_of(place).query_id
    run.history.refuse_other_query(own)

    with pytest.raises(HistoryError, match=f"belongs to query {own}, but the checkpoint .* belongs to query another"):
        run.history.refuse_other_query("another")


def test_a_wal_that_was_bound_before_its_first_batch_could_be_staged_is_known_at_a_start() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(0, 0)
    assert run.history.bind(0)
    wal = run.history.require_wal()
    drain = Run(place.wal, place.checkpoint, Settings(), runtime=simulated_runtime(seed=4714))

    drain.open()

    assert drain.history.wal == wal


def test_a_new_wal_whose_query_completed_batches_that_nobody_staged_is_told_so() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    run.history.refuse_unstaged()
    query = place.query()
    for batch_id in range(2):
        query.start_batch(batch_id, batch_id)
        query.complete_batch(batch_id)

    with pytest.raises(HistoryError, match=r"batches 0 to 1 of .* none of these batches was staged"):
        run.history.refuse_unstaged()

    later = place.open({"a": Recorder()})
    later.history.refuse_unstaged()  # a WAL may be new where a checkpoint is old


def test_the_first_batch_since_a_new_wal_was_opened() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    assert [run.history.first_since_opened(batch_id) for batch_id in (0, 3)] == [0, 0]
    query = place.query()
    query.start_batch(0, 0)
    query.complete_batch(0)

    later = place.open({"a": Recorder()})
    assert [later.history.first_since_opened(batch_id) for batch_id in (0, 1, 2)] == [0, 1, 1]
    place.stream(later, 1)
    assert place.open({"a": Recorder()}).history.first_since_opened(9) == 9, "it is not new any more"


def test_a_new_wal_that_another_process_stages_into_lacks_nothing() -> None:
    place = Place()
    drainer, stager = place.open({"a": Recorder()}), place.open({"b": Recorder()})
    query = place.query()
    query.start_batch(0, 0)
    query.stage(stager, 0)
    query.complete_batch(0)

    drainer.history.refuse_unstaged()
    stager.history.refuse_unstaged()
    later, asked = place.open({"a": Recorder()}), list[str]()
    for run in (stager, later):  # these know the WAL
        run.checkpoint._files = FaultyStore(place.checkpoint, lambda what, where: asked.append(f"{what} {where}"))
        run.history.refuse_unstaged()
    assert asked == []


def test_a_wal_that_vanishes_while_it_is_created_is_an_error() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(0, 0)
    create, read = place.wal.create, place.wal.read

    def another_was_first(path: str, data: bytes) -> None:
        create(path, b"another's")
        create(path, data)

    def deleted_after_the_first_look(path: str) -> bytes:
        data = read(path)
        if path == paths.WAL:
            place.wal.delete([path])
        return data

    place.wal.create = another_was_first  # type: ignore[method-assign]
    place.wal.read = deleted_after_the_first_look  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"wal\.json disappeared while it was read"):
        run.history.bind(0)


def test_a_batch_before_the_first_of_a_wal_is_refused_and_the_first_is_not() -> None:
    place = Place()
    list(place.query().batches(place.open({}), 3))
    place.wal.delete(place.wal.list("", recursive=True))
    run = place.open({})
    assert (run.history.first_batch, run.history.accounted_through) == (0, NOTHING)
    staged(place, run, 3)
    assert run.history.first_batch == 3

    with pytest.raises(HistoryError, match="the WAL begins with batch 3"):
        run.history.bind(2)

    assert not run.history.bind(3)
    assert run.history.require_wal().first_batch == 3


def test_the_owner_of_the_checkpoint_is_read_until_it_is_this_query() -> None:
    place = Place()
    run = place.open({})
    assert not run.history.is_owned_by("mine")
    FakeQuery(place.checkpoint, lambda *_: [], query_id="mine").start_batch(0, 0)
    assert run.history.is_owned_by("mine")
    assert not run.history.is_owned_by("another")

    place.checkpoint.delete(["metadata"])

    assert run.history.is_owned_by("mine")


def test_a_checkpoint_that_was_replaced_is_refused_when_its_owner_is_read_again() -> None:
    place = Place()
    run = place.open({})
    staged(place, run, 0)
    run.history.load_owner()
    place.checkpoint.delete(["metadata"])
    place.checkpoint.create("metadata", b'{"id": "another"}')

    assert run.history.load_owner() == run.history.wal
    with pytest.raises(HistoryError, match="belongs to query another"):
        run.history.ask_owner_again()


# Batches that it holds.


def test_the_newest_batch_known_is_the_newest_with_a_trace_or_low_water() -> None:
    place = Place()
    run = place.open({})
    assert (run.history.newest_known, run.history.has_batches) == (NOTHING, False)
    staged(place, run, 0)
    assert (run.history.newest_known, run.history.has_batches) == (0, True)
    place.wal.create(paths.release(7), b"")
    run.history.load_batches()
    assert run.history.newest_known == 7
    run.log.raise_low_water(9)

    later = place.open({})

    assert later.history.newest_known == 9
    place.requests.clear()
    later.history.load_batches()
    assert place.requests == [f"list {paths.LOW_WATER}", f"list {paths.BATCHES}"], "the record was read before"


# Pending batches.


def test_what_a_run_staged_is_pending_until_every_sink_has_it() -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Recorder()})
    list(place.query().batches(run, 2))
    sizes = [manifest.bytes for batch in (0, 1) if (manifest := run.history.staged(batch))]
    assert run.history.pending(before=2) == (2, sum(sizes))
    assert run.history.pending(before=1) == (1, sizes[0])

    run.advance(run.committers[0])
    assert run.history.pending(before=2) == (2, sum(sizes))
    run.advance(run.committers[1])

    assert run.history.pending(before=2) == (1, sizes[1])
    assert run.history.pending(before=1)[0] == 0
    assert run.history.pending(before=2)[0] == 1
    assert run.history.staged(0) is None
    assert run.history.staged(1) is not None


def test_a_batch_that_began_here_is_the_newest_known_unless_a_newer_one_is() -> None:
    history = Place().open({}).history

    history.note_begun(3)
    assert history.newest_known == 3
    history.note_begun(2)
    assert history.newest_known == 3


def test_without_sinks_nothing_is_pending() -> None:
    place = Place()
    run = place.open({})

    list(place.query().batches(run, 2))

    assert run.history.pending(before=10) == (0, 0)
    assert run.history.staged(1) is None


def a_manifest(run: Run, batch_id: int, attempt: int = 1) -> Manifest:
    return Manifest(
        batch_id=batch_id,
        term=1,
        attempt=attempt,
        run_id="r",
        fingerprint="f",
        offsets="o",
        columns=(),
        spark_schema="",
        chunk_rows=1,
        segments=(),
        **run.log.stamp(),
    )


def test_the_number_of_kept_manifests_is_bounded_and_a_new_attempt_replaces_its_own() -> None:
    run = Place().open({})
    for batch_id in range(KEPT_MANIFESTS + 1):
        run.history.note_staged(a_manifest(run, batch_id))
    assert run.history.staged(KEPT_MANIFESTS - 1) is not None
    assert run.history.staged(KEPT_MANIFESTS) is None

    again = a_manifest(run, 3, attempt=2)
    run.history.note_staged(again)

    assert run.history.staged(3) == again
    assert run.history.pending(before=10_000)[0] == KEPT_MANIFESTS + 1


def test_a_checkpoint_without_a_query_is_refused_as_one_of_no_query_yet() -> None:
    place = Place()
    staged(place, place.open({}), 0)
    place.checkpoint.delete(["metadata"])

    with pytest.raises(HistoryError, match="belongs to no query yet \\(it is new or was deleted\\)"):
        place.open({})


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_error_for_another_query_tells_what_the_wal_holds_and_its_sinks_have(*, is_damaged: bool) -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 1)
    list(place.query().batches(run, 4))
    place.checkpoint.delete(["metadata"])
    if is_damaged:
        place.wal.delete([paths.marker("a", 1)])
        place.wal.create(paths.marker("a", 1), b"no record")
    told = (
        r"\. It is not known which batches its sinks lack\b"
        if is_damaged
        else r"\. This WAL holds batches up to 3, sink 'a' has batches up to 1\b"
    )

    with pytest.raises(HistoryError, match=told):
        place.open({})


def test_a_wal_that_was_bound_and_holds_no_batch_is_told_as_one_that_holds_those_before_its_first() -> None:
    place = Place()
    run = place.open({})
    place.query().start_batch(3, 3)
    assert run.history.bind(3)
    place.checkpoint.delete(["metadata"])

    with pytest.raises(HistoryError, match=r"\. This WAL holds batches up to 2\. Before a new WAL"):
        place.open({})


def test_a_batch_that_no_query_ran_gets_a_manifest_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Place().open({})
    monkeypatch.setattr(run.checkpoint, "repartition", lambda _: Offsets("the entry", "the fingerprint"))

    made = pass_over(run.log, run.checkpoint, 3)

    assert made is not None
    assert made == run.log.require(Manifest, paths.manifest(3, 0, 0))
    assert (made.batch_id, made.term, made.attempt, made.passed_over) == (3, 0, 0, True)
    assert (made.offsets, made.fingerprint, made.run_id) == ("the entry", "the fingerprint", run.log.run_id)
    assert (made.columns, made.spark_schema, made.chunk_rows, made.segments) == ((), "", 1, ())


# Folders that were exchanged, and a WAL that begins late.


def test_a_wal_and_a_checkpoint_that_were_exchanged_are_refused_and_nothing_is_written() -> None:
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 2)
    before = {store.root: store.list("", recursive=True) for store in (place.wal, place.checkpoint)}

    with pytest.raises(ConfigError, match=r"holds commits/ and metadata and offsets/, .* and checkpoint exchanged\?"):
        Run(place.checkpoint, place.wal, Settings()).open()

    after = {store.root: store.list("", recursive=True) for store in (place.wal, place.checkpoint)}
    probes = {name for name in after[place.checkpoint.root] if name.startswith("probe/")}
    assert after | {place.checkpoint.root: sorted({*after[place.checkpoint.root]} - probes)} == before


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "commits/0"])
def test_the_folder_of_a_checkpoint_is_no_wal_whatever_part_of_it_is_left(name: str) -> None:
    wal = memory_store()
    wal.create(name, b"v1\n{}")

    with pytest.raises(ConfigError, match="it is the checkpoint of a query and cannot be a WAL"):
        Run(wal, memory_store(), Settings()).open()


def test_the_folder_of_a_wal_is_no_checkpoint_of_a_new_wal() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)

    with pytest.raises(ConfigError, match=r"holds wal\.json, so it is the folder of a WAL and cannot be a checkpoint"):
        Run(memory_store(), place.wal, Settings()).open()


@pytest.mark.parametrize("complete", [1, 3])
def test_a_new_wal_that_begins_behind_complete_batches_warns_once(
    complete: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Before: a deleted WAL whose batches were not delivered was replaced in silence."""
    place = Place()
    query = place.query()
    for batch_id in range(complete):
        query.start_batch(batch_id, batch_id)
        query.complete_batch(batch_id)

    run = place.open({"a": Recorder()})
    place.stream(run, 5)

    (told,) = (record.getMessage() for record in caplog.records if "is a new WAL" in record.getMessage())
    assert (
        f"{place.wal.root} is a new WAL and begins with batch {complete}. Spark completed the batches before it" in told
    )
