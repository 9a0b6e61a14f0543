"""`gc` on a WAL that lost objects: it deletes nothing that the WAL needs, now or once a lost object was restored."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.unit.repair.test_gc import ROWS, check_whole, dying, half_collected, littered, settled
from tests.unit.settling.test_settle import memory
from tests.unit.settling.test_settle import settled as settle
from wal_sink.checking.verify import Check
from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.errors import ObjectLost, StoreError, WalSinkError
from wal_sink.repair.debris import DEAD_ATTEMPTS
from wal_sink.repair.gc import GcPlan, gc, gc_order, plan_gc
from wal_sink.repair.need import NO_CHECKPOINT, SparkSide
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Release


def refuse(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "no"))


def staged_only() -> Place:
    """Incident 4: the query staged all batches and ended. No sink has any."""
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    for _ in place.query().batches(run, 4):
        pass
    end_roles(place.wal)
    return place


def half_delivered() -> Place:
    """Two batches are delivered, two are pending. Of the next one there is an attempt without a manifest."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder(), "b": Recorder()}), 1)
    end_roles(place.wal)
    run = place.open({})
    for _ in place.query().batches(run, 4):
        pass
    end_roles(place.wal)
    dying(place, "before create manifest-", 4)
    return place


def crashed() -> Place:
    """The query died while it staged the newest batch, twice."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 1)
    end_roles(place.wal)
    for _ in range(2):
        dying(place, "before create manifest-", 2)
    return place


def spark_of(place: Place) -> SparkSide:
    return SparkSide(lambda: place.checkpoint)


def found_by_gc(place: Place, spark: SparkSide | None = None) -> GcPlan:
    return plan_gc(log_on(place.wal), spark or spark_of(place))


def clean(place: Place, spark: SparkSide | None = None) -> None:
    """Do the same as the command."""
    log, spark = log_on(place.wal), spark or spark_of(place)
    gc(log, gc_order(log, why="tidy"), plan_gc(log, spark), spark)


def lose(store: Store, lost: Iterable[str]) -> dict[str, bytes]:
    kept = {path: store.read(path) for path in lost}
    store.delete(kept)
    return kept


def restore(store: Store, kept: dict[str, bytes]) -> None:
    for path, data in kept.items():
        if path.rpartition("/")[2] not in store.list(path.rpartition("/")[0]):
            store.create(path, data)


def manifests(place: Place, batch_id: int) -> list[str]:
    folder = paths.batch(batch_id)
    return [f"{folder}/{name}" for name in place.wal.list(folder) if paths.parse_manifest(name) is not None]


def left(plan: GcPlan) -> dict[int, bool]:
    return {each.batch_id: each.is_damaged for each in plan.left_alone}


# --- the incident


@pytest.mark.parametrize("batch_id", range(4))
@pytest.mark.parametrize("checkpoint", ["there", "lost", "not given"])
def test_the_segments_of_a_batch_whose_manifest_was_lost_stay(batch_id: int, checkpoint: str) -> None:
    place = staged_only()
    lost = lose(place.wal, manifests(place, batch_id))
    if checkpoint == "lost":
        place.checkpoint.delete(place.checkpoint.list("", recursive=True))
    spark = NO_CHECKPOINT if checkpoint == "not given" else spark_of(place)

    plan = found_by_gc(place, spark)
    clean(place, spark)

    assert plan.kinds == {}
    is_proven = batch_id < 3 or checkpoint == "there"
    assert (plan.damaged, left(plan)) == (int(is_proven), {batch_id: is_proven})
    restore(place.wal, lost)
    check_whole(place.wal)


def test_a_lost_manifest_is_told_also_while_the_stager_lives() -> None:
    place = staged_only()
    lose(place.wal, manifests(place, 1))
    terms = paths.terms(paths.STAGER_ROLE)
    place.wal.delete(f"{terms}/{name}" for name in place.wal.list(terms) if ".ended" in name)

    plan = found_by_gc(place)

    assert (plan.damaged, plan.kinds) == (1, {})
    assert "its manifest is lost: Spark completed the batch, since batch 3 came after it" in plan.left_alone[0].why


def test_an_earlier_manifest_is_no_proof_that_a_later_one_was_never_made() -> None:
    """Spark ran a batch twice, and completed it by the second manifest, which was lost."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    end_roles(place.wal)
    dying(place, "after create manifest-", 1)
    run = place.open({})
    for _ in place.query().batches(run, 4):
        pass
    end_roles(place.wal)
    first, second = manifests(place, 1)
    lost = lose(place.wal, [second])

    plan = found_by_gc(place)
    clean(place)

    assert (plan.damaged, plan.kinds, left(plan)) == (1, {}, {1: True})
    assert first in manifests(place, 1)
    restore(place.wal, lost)
    check_whole(place.wal)


# --- the newest batch, of which only the checkpoint tells


def test_attempts_at_a_batch_that_spark_runs_again_are_debris() -> None:
    place = crashed()

    assert {kind: count.objects for kind, count in found_by_gc(place).kinds.items()} == {DEAD_ATTEMPTS: 4}
    clean(place)
    assert found_by_gc(place) == GcPlan({})
    later = Recorder()
    place.stream(place.open({"a": later}), 3)
    assert set(later.batches) == {2, 3}
    check_whole(place.wal)


def _unreadable() -> CheckpointFiles:
    raise StoreError("no right to read the checkpoint")


def _write(place: Place, path: str, data: bytes) -> None:
    place.checkpoint.delete([path])
    place.checkpoint.create(path, data)


SILENT: dict[str, Callable[[Place], object]] = {
    "older": lambda place: place.checkpoint.delete(["commits/1"]),
    "much older": lambda place: place.checkpoint.delete(["commits/1", "commits/0", "offsets/2"]),
    "not planned": lambda place: place.checkpoint.delete(["offsets/2"]),
    "planned without a time": lambda place: _write(place, "offsets/2", b'v1\n{}\n{"end":2}'),
    "planned by an unknown version": lambda place: _write(place, "offsets/2", b'v9\n{"batchTimestampMs":7}\n{"end":2}'),
    "planned by a damaged entry": lambda place: _write(place, "offsets/2", b"no"),
    "of another query": lambda place: _write(place, "metadata", json.dumps({"id": "another"}).encode()),
    "new": lambda place: place.checkpoint.delete(place.checkpoint.list("", recursive=True)),
    "damaged": lambda place: _write(place, "metadata", b"no"),
}


@pytest.mark.parametrize("spoil", SILENT.values(), ids=SILENT)
def test_a_checkpoint_that_proves_nothing_keeps_the_attempts(spoil: Callable[[Place], object]) -> None:
    place = crashed()
    spoil(place)

    plan = found_by_gc(place)

    assert (plan.kinds, plan.damaged, left(plan)) == ({}, 0, {2: False})


def test_a_checkpoint_that_cannot_be_read_keeps_the_attempts() -> None:
    plan = found_by_gc(crashed(), SparkSide(_unreadable))

    assert (plan.kinds, left(plan)) == ({}, {2: False})
    assert plan.left_alone[0].why.endswith("no right to read the checkpoint")


def test_a_checkpoint_that_adopt_made_for_drains_keeps_the_attempts() -> None:
    """Nobody runs the next batch again with it, and the one whose manifest was lost was complete."""
    place, folder = staged_only(), memory()
    kept = lose(place.wal, manifests(place, 3))
    settle(place, folder)

    for _ in range(2):
        plan = found_by_gc(place, SparkSide(lambda: folder))
        assert (plan.kinds, left(plan)) == ({}, {3: False})
        assert "made this checkpoint for drains" in plan.left_alone[0].why
        clean(place, SparkSide(lambda: folder))

    restore(place.wal, kept)
    check_whole(place.wal)
    later = Recorder()
    place.stream(place.open({"a": later}), 4)
    assert set(later.batches) == {0, 1, 2, 3, 4}


def test_a_checkpoint_is_not_opened_unless_a_batch_needs_it() -> None:
    for make in (staged_only, settled, littered, half_collected):
        plan = found_by_gc(make(), SparkSide(lambda: pytest.fail("opened")))
        assert plan.left_alone == ()


def test_a_batch_that_is_completed_while_gc_looks_is_not_damaged() -> None:
    place = crashed()
    run = place.open({})

    def goes_on() -> CheckpointFiles:
        for _ in place.query().batches(run, 3):
            pass
        return place.checkpoint

    plan = found_by_gc(place, SparkSide(goes_on))

    assert (plan.left_alone, {kind: count.objects for kind, count in plan.kinds.items()}) == ((), {DEAD_ATTEMPTS: 4})
    check_whole(place.wal)


# --- a batch that must have been released


@pytest.mark.parametrize("evidence", ["marker", "progress", "dead letter"])
def test_a_batch_whose_release_was_lost_keeps_everything(evidence: str) -> None:
    """The manifest that was released may be another than the newest, and may be lost too."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    end_roles(place.wal)
    dying(place, "before create manifest-", 1)
    if evidence == "marker":
        place.stream(place.open({"a": Recorder()}), 2)
    else:
        delivery = Delivery(Recorder(refuse), on_rejected="dead_letter")
        run = place.open({"a": delivery if evidence == "dead letter" else Recorder()})
        for _ in place.query().batches(run, 2):
            pass
        run.deliver_all()
        place.wal.delete([paths.marker("a", 1)])
        if evidence == "dead letter":
            folder = paths.progress_batches("a")
            place.wal.delete(f"{folder}/{name}" for name in place.wal.list(folder, recursive=True))
    end_roles(place.wal)
    place.wal.delete([paths.release(1)])

    plan = found_by_gc(place)

    assert (plan.kinds, plan.damaged, left(plan)) == ({}, 1, {1: True})
    assert "release.json is lost: a sink has the batch, or began it" in plan.left_alone[0].why


def test_a_batch_without_release_between_two_released_ones_keeps_everything() -> None:
    place = settled()
    place.wal.delete([paths.release(1), *manifests(place, 1)])

    plan = found_by_gc(place)

    assert (plan.kinds, left(plan)) == ({}, {1: True})


def test_a_lost_segment_of_the_released_attempt_keeps_the_other_attempts() -> None:
    """They may be the only copy of its rows."""
    place = settled()
    release = log_on(place.wal).require(Release, paths.release(1))
    manifest = log_on(place.wal).require(Manifest, paths.manifest(1, release.term, release.attempt))
    place.wal.delete([manifest.segments[0].path])

    plan = found_by_gc(place)

    assert (plan.kinds, left(plan)) == ({}, {1: True})
    assert "is lost" in plan.left_alone[0].why


def test_a_batch_that_a_sink_passed_over_since_nothing_was_left_is_not_damaged() -> None:
    place = settled()
    folder = paths.batch(1)
    place.wal.delete(f"{folder}/{name}" for name in place.wal.list(folder, recursive=True))
    place.wal.create(paths.skipped(1), b"")

    assert found_by_gc(place).left_alone == ()


def test_an_attempt_after_a_lost_progress_of_a_large_batch_is_damage_too() -> None:
    """The progress of a large batch lies in shards."""
    place = staged_only()
    place.wal.create(f"{paths.progress_batches('a')}/shard-3/{paths.batch_name(2)}/000003-000000000001.json", b"x")

    assert left(found_by_gc(place)) == {0: True, 1: True, 2: True}


def test_a_release_and_a_manifest_that_do_not_belong_together_keep_everything() -> None:
    place = settled()
    log = log_on(place.wal)
    release = log.require(Release, paths.release(1))
    place.wal.delete([paths.release(1)])
    log.create(paths.release(1), msgspec.structs.replace(release, fingerprint="0" * 64))

    assert left(found_by_gc(place)) == {1: True}


def test_a_batch_that_is_being_collected_is_not_damaged() -> None:
    """Collection raised low water, and deleted the manifest, while gc looked at the batch."""
    place = staged_only()
    place.stream(place.open({"a": Recorder()}), 6)
    end_roles(place.wal)

    def collect(what: str, where: str) -> None:
        if (what, where) == ("before list", paths.batch(1)) and manifests(place, 1):
            log_on(place.wal).raise_low_water(1, {"a": 6})
            place.wal.delete([*manifests(place, 1), paths.release(1)])

    plan = plan_gc(log_on(place.wal, collect), spark_of(place))

    assert plan.left_alone == ()


def test_a_sink_of_which_nothing_but_its_terms_is_left_stops_gc() -> None:
    place = half_collected()
    folder = f"{paths.SINKS}/b"
    place.wal.delete([f"{folder}/{name}" for name in place.wal.list(folder, recursive=True)])

    with pytest.raises(ObjectLost):
        found_by_gc(place)


def test_a_sink_without_registration_and_terms_stops_gc() -> None:
    """It joined after `wal.json` was made, so only its markers tell of it."""
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": Recorder()}), 0)
    place.stream(place.open({"a": Recorder(), "late": Delivery(Recorder(), start_from="earliest")}), 1)
    role = paths.terms(paths.committer_role("late"))
    place.wal.delete([paths.sink("late"), *(f"{role}/{name}" for name in place.wal.list(role))])

    with pytest.raises(ObjectLost):
        found_by_gc(place)


def test_only_some_of_many_damaged_batches_are_named() -> None:
    place = Place(rows=lambda _: [1])
    run = place.open({})
    for _ in place.query().batches(run, 30):
        pass
    end_roles(place.wal)
    lose(place.wal, [path for batch_id in range(25) for path in manifests(place, batch_id)])

    plan = found_by_gc(place)

    assert (plan.damaged, len(plan.left_alone)) == (25, 20)


# --- every object, and every two


MAKERS = [staged_only, half_delivered, crashed, littered, settled, half_collected]


def _deleted(place: Place, lost: Sequence[str]) -> None:
    """gc while some objects are lost, then the objects are restored: the WAL is as whole as it was."""
    kept = lose(place.wal, lost)
    with contextlib.suppress(WalSinkError):  # it says which object is lost
        clean(place)
    restore(place.wal, kept)


@pytest.mark.no_cover
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("together", [1, 2])
def test_whatever_a_restored_object_needs_is_still_there(make: Callable[[], Place], together: int) -> None:
    objects = make().wal.list("", recursive=True)
    groups = list(itertools.combinations(range(len(objects)), together))
    for group in groups[:: max(1, len(groups) // 50)]:
        place = make()
        names = place.wal.list("", recursive=True)
        lost = [names[number] for number in group]
        _deleted(place, lost)
        completed = max(int(name) for name in place.checkpoint.list("commits"))
        marked = max(log_on(place.wal).numbers(paths.markers("a")), default=-1)
        check_whole(place.wal, through=completed)  # Spark runs the next batch again in any case
        later = Recorder()
        place.stream(place.open({"a": later}), completed + 1)
        assert set(later.batches) == set(range(marked + 1, completed + 2)), lost
        check_whole(place.wal)
        assert list(Check(place.wal).run()) == [], lost


@pytest.mark.no_cover
def test_killed_at_any_request_gc_of_a_damaged_wal_needs_no_more() -> None:
    def make() -> Place:
        place = half_delivered()
        lose(place.wal, manifests(place, 2))
        return place

    for place in killed_everywhere(make, lambda place: place.wal, lambda log, place: gc(
        log, gc_order(log, why="x"), plan_gc(log, spark_of(place)), spark_of(place)
    )):  # fmt: skip
        [segments] = [name for name in place.wal.list(paths.batch(2)) if name.endswith("/")]
        assert len(place.wal.list(f"{paths.batch(2)}/{segments[:-1]}")) == len(ROWS)
