"""Large batches lie in shards, which stand before the batch: what is written where, found again and collected."""

from __future__ import annotations

from collections import Counter

import pytest

import wal_sink.committer.collection
from tests.simulation.histories.lives import lower_retention
from tests.simulation.scenarios import LONG, backlogs, collections, crashes, successions
from tests.simulation.world import World
from tests.support.small_run import Place, Recorder, numbers
from tests.support.two_phase import begun, restaged, restarted, shown
from tests.support.vault import Vault, VaultSink
from wal_sink.inspection import read_batch, read_batches, read_manifest, read_rows, read_status
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Delivery
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing import Crash
from wal_sink.testing.simulation.fake_query import stage_tables
from wal_sink.wal import paths
from wal_sink.wal.log import Stamp
from wal_sink.wal.records import BegunRecord, Manifest, PreparedRecord, Progress, TokenRecord

KEPT = 4
STAMP = Stamp(id="0" * 32, created="now")


@pytest.fixture
def large_from_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 2 and later ones go into shards, and the progress of more than 2 chunks."""
    monkeypatch.setattr(paths, "SPREAD_FROM", 2)


@pytest.fixture
def collects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)


def wide(partitions: int = 20, rows: int = 3) -> Place:
    """Batches of so many segments, of two chunks each."""
    return Place(rows=lambda _: [rows] * partitions)


def of_rows(*rows: int) -> Place:
    return Place(rows=lambda _: list(rows))


def in_shards(place: Place, root: str = "") -> list[str]:
    return [path for path in place.wal.list("", recursive=True) if path.startswith(root) and "/shard-" in path]


def batches_of(names: list[str]) -> set[int]:
    return {int(part) for name in names for part in name.split("/") if len(part) == 19 and part.isdigit()}


def interrupted(place: Place, run: Run, batch_id: int, *, partitions: int) -> None:
    """An attempt at a batch that dies when all its segments are there, and its manifest is not."""
    query = place.query()
    query.start_batch(batch_id, batch_id)
    attempt = run.begin_staging(batch_id, planned_ms=query.planned_ms(batch_id))
    assert attempt is not None
    stage_tables(run, attempt, [numbers(batch_id, 3)] * partitions)


# Where things lie.


def test_up_to_the_limit_nothing_lies_in_a_shard() -> None:
    folder = paths.attempt_folder(7, 1, 2)
    last = paths.SPREAD_FROM - 1
    assert paths.segment(folder, last, 3, "x") == f"{folder}/{last:06d}-0003-x.parquet"
    assert paths.begun("a", 7, "t", last) == f"{paths.begun_folder('a')}/{7:019d}-t.json"
    assert paths.progress("a", 7, 10_000, 5) == f"{paths.progress_folder('a', 7)}/010000-000000000005.json"


def test_partitions_from_the_limit_on_have_a_shard_before_the_batch() -> None:
    folder = paths.attempt_folder(7, 1, 2)
    first = paths.SPREAD_FROM
    assert paths.segment(folder, first + 3, 0, "x") == (
        f"batches/shard-3/{7:019d}/0000000001-0000000002/{first + 3:06d}-0000-x.parquet"
    )
    heads = Counter(paths.segment(folder, first + n, 0, "x").split("/")[1] for n in range(1600))
    assert set(heads.values()) == {100}
    assert all(paths.is_shard(f"{head}/") for head in heads)
    assert paths.parse_segment(paths.segment(folder, first, 4, "x")) == (first, 4)


@pytest.mark.parametrize("name", ["shard-10/", "shard-a", "shard-g/", f"{7:019d}/", "notes/", ""])
def test_nothing_else_is_a_shard(name: str) -> None:
    assert not paths.is_shard(name)


def test_a_small_batch_costs_and_names_what_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for limit in (2, 1024):
        monkeypatch.setattr(paths, "SPREAD_FROM", limit)
        place = Place(rows=lambda _: [2, 2])
        run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
        place.stream(run, KEPT + 20)
        assert not in_shards(place)
        asked.append(Counter(name.partition(" ")[0] for name in place.requests))

    assert asked[0] == asked[1]


@pytest.mark.usefixtures("large_from_2")
def test_of_a_large_batch_only_what_exceeds_a_small_one_is_spread() -> None:
    place = wide()
    sink = Recorder()
    place.stream(place.open({"a": sink}), 0)

    manifest = read_manifest(place.wal, 0)
    assert manifest is not None
    assert manifest.spread
    where = [ref.path.split("/")[1] for ref in manifest.segments]
    assert where == [*[paths.batch_name(0)] * 2, *(paths.shard(number) for number in range(2, 20))]
    assert not place.wal.list(paths.progress_folder("a", 0))
    assert len(in_shards(place, "sinks/a/progress/")) == 40
    assert len(sink.chunks) == len(set(sink.keys)) == 40


def test_a_batch_of_few_segments_and_many_chunks_spreads_its_progress_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for chunks, spread in ((1024, False), (1025, True)):
        monkeypatch.undo()
        place = of_rows(2 * chunks - 2, 2)
        run = place.open({"a": Recorder()})
        next(place.query().batches(run, 1))
        staged = run.history.staged(0)
        assert staged is not None
        assert staged.spread is spread
        assert not in_shards(place)


@pytest.mark.usefixtures("large_from_2")
def test_whoever_looks_sees_a_large_batch_whole() -> None:
    place = wide()

    def stops(chunk: Chunk) -> object:
        if len(sink.chunks) == 13:
            raise Crash(chunk.key)
        return None

    sink = Recorder(stops)
    with pytest.raises(Crash):
        place.stream(place.open({"a": sink}), 0)

    detail = read_batch(place.wal, 0)
    assert detail is not None
    assert (detail.delivered[0].chunks, detail.delivered[0].rows) == (13, 6 * 3 + 2)
    assert len(read_rows(place.wal, detail.manifest, 1000).rows) == 60
    assert [(view.batch_id, view.segments, view.attempts) for view in read_batches(place.wal)] == [(0, 20, 1)]
    assert read_status(place.wal).newest_batch == 0


def sent_before_a_crash(place: Place) -> list[str]:
    """The keys of 25 of batch 0's 40 chunks, which a process that died sent."""
    sent: list[str] = []

    def dies_at_25(chunk: Chunk) -> None:
        if len(sent) == 25:
            raise Crash(chunk.key)
        sent.append(chunk.key)

    with pytest.raises(Crash):
        place.stream(place.open({"a": dies_at_25}), 0)
    return sent


@pytest.mark.usefixtures("large_from_2")
def test_who_takes_a_large_batch_over_goes_on_where_its_records_say() -> None:
    place = wide()
    sent = sent_before_a_crash(place)

    place.open({"a": lambda chunk: sent.append(chunk.key)}).deliver_all()

    assert len(sent) == len(set(sent)) == 40


def test_a_batch_staged_before_there_were_shards_is_taken_over_with_its_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = wide()
    sent = sent_before_a_crash(place)
    assert not in_shards(place)
    monkeypatch.setattr(paths, "SPREAD_FROM", 2)

    place.open({"a": lambda chunk: sent.append(chunk.key)}).deliver_all()

    assert len(sent) == len(set(sent)) == 40
    assert not in_shards(place)


# Collection.


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_an_orphan_in_a_shard_is_collected_though_its_batch_left_no_other_trace_there() -> None:
    """The attempt that wrote it died; the one that counts staged a small batch."""
    partitions = 1
    place = Place(rows=lambda _: [1] * partitions)
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    interrupted(place, run, 0, partitions=40)
    assert batches_of(in_shards(place)) == {0}
    assert len(in_shards(place)) == 38
    place.wal.delete(f"batches/{name}" for name in place.wal.list("batches", recursive=True) if "shard" not in name)

    place.stream(run, KEPT - 1)
    assert len(in_shards(place)) == 38, "the batch is not below low water yet"
    place.stream(run, KEPT)

    assert not in_shards(place)


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_orphans_of_lost_attempts_and_of_writers_that_wake_up_late_are_collected() -> None:
    place = wide()
    old = place.open({}, settings=lower_retention(KEPT))
    interrupted(place, old, 0, partitions=20)
    run = place.open({"a": Delivery(Recorder(), start_from="earliest")}, settings=lower_retention(KEPT))
    place.stream(run, KEPT)
    assert 0 not in batches_of(in_shards(place))
    late = paths.segment(paths.attempt_folder(0, 1, 1), 11, 0, "late")
    place.wal.create(late, b"")

    place.stream(run, KEPT + 1)

    assert late not in in_shards(place)


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_above_low_water_nothing_in_a_shard_is_touched() -> None:
    """Neither what a manifest names nor what none names (yet): an attempt may be under way."""
    place = wide()
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    for through in range(12):
        place.stream(run, through)
        interrupted(place, run, through + 1, partitions=20)
        low_water = max(-1, through - KEPT)
        assert batches_of(in_shards(place, "batches/")) == set(range(low_water + 1, through + 2))
        assert batches_of(in_shards(place, "sinks/")) == set(range(low_water + 1, through + 1))
        under_way = [name for name in in_shards(place, "batches/") if f"/{through + 1:019d}/" in name]
        assert len(under_way) == 18
        for batch_id in range(low_water + 1, through + 1):
            manifest = read_manifest(place.wal, batch_id)
            assert manifest is not None
            assert len(read_rows(place.wal, manifest, 1000).rows) == 60


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_an_absent_sink_keeps_what_lies_in_shards() -> None:
    place = wide()
    place.stream(place.open({"a": Recorder(), "b": Recorder()}, settings=lower_retention(KEPT)), 0)

    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 9)

    assert batches_of(in_shards(place)) == set(range(10))


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_what_is_no_batch_in_a_shard_is_left_alone() -> None:
    place = wide()
    strange = ["batches/shard-3/notes/x", "batches/shard-zz/0000000000000000000/x", "batches/shard-3/y"]
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    place.stream(run, 1)
    for path in strange:
        place.wal.create(path, b"")

    place.stream(run, 9)

    assert all(place.wal.read(path) == b"" for path in strange)


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_a_version_that_knows_no_shards_leaves_them_to_the_next_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    place = wide()
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    monkeypatch.setattr(paths, "is_shard", lambda _: False)
    place.stream(run, 9)
    assert batches_of(in_shards(place, "batches/")) == set(range(10))
    assert len(place.wal.list(paths.BATCHES)) == KEPT + paths.SHARDS
    monkeypatch.undo()
    monkeypatch.setattr(paths, "SPREAD_FROM", 2)
    monkeypatch.setattr(wal_sink.committer.collection, "COLLECT_EVERY_BATCHES", 1)

    place.stream(run, 10)

    assert batches_of(in_shards(place)) == set(range(11 - KEPT, 11))


@pytest.mark.usefixtures("large_from_2", "collects_often")
def test_every_thousand_that_is_deleted_comes_from_all_shards_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    place = wide(partitions=4 * paths.SHARDS + 2, rows=2)
    deleted: list[list[str]] = []
    run = place.open({"a": Recorder()}, settings=lower_retention(KEPT))
    delete = run.log.store.delete

    def noted(doomed: list[str]) -> None:
        deleted.append([path for path in doomed if "/shard-" in path])
        delete(doomed)

    monkeypatch.setattr(run.log.store, "delete", noted)
    place.stream(run, KEPT + 2)

    large = [paths for paths in deleted if paths]
    assert len(large) == 2 * 3  # of each batch its segments, and its progress
    for doomed in large:
        assert len(batches_of(doomed)) == 1
        pages = [doomed[start : start + paths.SHARDS] for start in range(0, len(doomed) - 2, paths.SHARDS)]
        assert all(len({path.split("/shard-")[1][0] for path in page}) == paths.SHARDS for page in pages)


@pytest.mark.usefixtures("collects_often")
def test_where_there_are_no_shards_a_collection_looks_for_none() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}, settings=lower_retention(KEPT)), 9)

    assert not [name for name in place.requests if "shard" in name]


# The same protocol.


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "transactional", "segment"])
@pytest.mark.parametrize("family", [crashes, backlogs, successions])
def test_whole_families_of_histories_hold_in_shards(family: object, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SPREAD_FROM", 1)
    worlds = (each[0] if isinstance(each, tuple) else each for each in family(kind))  # type: ignore[operator]
    spread = sum(bool(world.wal.list("batches/shard-1")) for world in worlds)
    assert spread >= 20


@pytest.mark.no_cover
@pytest.mark.usefixtures("collects_often")
@pytest.mark.parametrize("kind", ["plain", "at_most_once", "transactional"])
def test_a_crash_at_any_point_of_a_collection_of_shards_keeps_the_invariants(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "SPREAD_FROM", 0)
    worlds = list(collections(kind))
    assert len(worlds) >= 60
    for world in worlds:
        world.add_batch((1,))  # what a crash left of the last collection goes with the next
        assert world.life().live()
        left = [name for name in world.wal.list("", recursive=True) if "/shard-" in name]
        assert batches_of(left) == {len(LONG)}


def test_the_world_notices_a_shard_that_is_collected_too_early() -> None:
    world = World()
    world.judge.deleting(paths.segment(paths.attempt_folder(3, 1, 1), 5_000, 0, "x"))
    with pytest.raises(AssertionError, match="I6"):
        world.check_end(crashes=0)


# Two-phase sinks.


@pytest.mark.usefixtures("large_from_2")
def test_what_a_large_batch_begins_lies_in_shards_and_is_tidied_away(vault: Vault) -> None:
    where = wide(partitions=5)
    run = where.open({"a": VaultSink(vault)})
    restaged(where, run, vault)
    assert len([name for name in begun(where) if paths.is_shard(name)]) == 3

    restarted(where, vault)

    assert shown(vault) == sorted([*range(3)] * 5)
    assert not vault.held
    assert begun(where) == []


@pytest.mark.usefixtures("large_from_2")
def test_what_was_prepared_at_delivery_of_a_large_batch_is_found_and_not_aborted(vault: Vault) -> None:
    where = wide(partitions=5)
    where.stream(where.open({"a": Delivery(VaultSink(vault), where="driver")}), 0)
    assert len([name for name in in_shards(where) if "/prepared-" in name]) == 5

    restarted(where, vault)

    assert vault.aborts == []
    assert shown(vault) == sorted([*range(3)] * 5)
    assert begun(where) == []


# Records.

MANIFEST = Manifest(
    batch_id=0, term=1, attempt=1, run_id="r", fingerprint="f", offsets="o", columns=(), spark_schema="", chunk_rows=2,
    segments=(), **STAMP,
)  # fmt: skip


def test_records_belong_into_their_shard_or_beside_it_and_nowhere_else() -> None:
    progress = Progress(batch_id=1, ordinal=18, rows=4, segment_id="s", term=1, run_id="r", **STAMP)
    assert progress.belongs_at(paths.progress("a", 1, 18, 4))
    assert progress.belongs_at(paths.progress("a", 1, 18, 4, spread=True))
    assert not progress.belongs_at(paths.progress("a", 1, 18, 4, spread=True).replace("shard-2", "shard-3"))
    prepared = PreparedRecord(
        batch_id=1, ordinal=18, number=1, segment_id="s", transaction_id="t", handle="h", term=1, run_id="r", **STAMP
    )
    assert prepared.belongs_at(paths.prepared("a", 1, 18, 1))
    assert prepared.belongs_at(paths.prepared("a", 1, 18, 1, spread=True))
    assert not prepared.belongs_at(paths.prepared("a", 1, 17, 1, spread=True))
    record = BegunRecord(transaction_id="t", wal_id="w", batch_id=1, partition=5_000, file_index=0, **STAMP)
    token = TokenRecord(transaction_id="t", batch_id=1, token="x", **STAMP)  # noqa: S106 - what finds it again
    for partition in (0, 5_000):
        assert record.belongs_at(paths.begun("a", 1, "t", partition))
        assert token.belongs_at(paths.begun_token("a", 1, "t", partition))
    assert not record.belongs_at(paths.begun("a", 2, "t", 5_000))
    assert not token.belongs_at(paths.begun("a", 1, "t", 5_000))
