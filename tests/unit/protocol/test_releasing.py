"""The release of a batch: made once, adopted if it says the same, refused if the objects contradict each other."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tests.house.log import Manifest, Move, Release, decode, encode, paths
from tests.house.protocol import Run
from tests.support.logged import said_here
from tests.support.small_run import Place, Recorder, before_create
from wal_sink.errors import CorruptError, HistoryError
from wal_sink.protocol.stage import compare_replay, released_row_count
from wal_sink.testing import FaultyStore


def with_batch(place: Place, sink: Recorder) -> Run:
    """A run with one complete batch to release."""
    run = place.open({"a": sink})
    next(place.query().batches(run, 1))
    return run


def release_of(place: Place) -> Release:
    return decode(Release, place.wal.read(paths.release(0)), "the release")


def another(place: Place, **changed: object) -> bytes:
    """Return the release that another run would have made of batch 0, with these fields `changed`."""
    manifest = decode(Manifest, place.wal.read(paths.manifest(0, 1, 1)), "the manifest")
    named = {"term": 1, "attempt": 1, "fingerprint": manifest.fingerprint, "sink": "a", **changed}
    return encode(Release(batch_id=0, run_id="other", id="x", created="now", **named))  # type: ignore[arg-type]


def test_a_release_names_the_manifest_its_source_offsets_and_the_run() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    staged = run.history.staged(0)

    run.deliver_all()

    assert staged is not None
    release = release_of(place)
    assert (release.batch_id, release.term, release.attempt) == (0, staged.term, staged.attempt)
    assert (release.fingerprint, release.run_id) == (staged.fingerprint, run.log.run_id)


def test_a_release_that_another_makes_at_the_same_moment_is_adopted() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_create(place.wal, paths.release(0), lambda: place.wal.create(paths.release(0), another(place)))

    run.deliver_all()

    assert sink.batches == [0]
    assert release_of(place).run_id == "other"


def test_of_two_attempts_the_one_that_another_process_released_first_is_delivered() -> None:
    """The other attempt has no rows, so that any row would be of the one that lost."""
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)

    def release_the_other() -> None:
        own = decode(Manifest, place.wal.read(paths.manifest(0, 1, 1)), "the manifest")
        place.wal.create(paths.manifest(0, 1, 2), encode(replace(own, attempt=2, segments=())))
        place.wal.create(paths.release(0), another(place, attempt=2))

    before_create(place.wal, paths.release(0), release_the_other)
    run.deliver_all()
    assert release_of(place).attempt == 2
    assert sink.batches == []


def test_a_release_of_other_source_offsets_made_at_the_same_moment_is_refused() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_create(
        place.wal, paths.release(0), lambda: place.wal.create(paths.release(0), another(place, fingerprint="f" * 64))
    )

    with pytest.raises(HistoryError, match=r"batch 0 of .* holds this batch with source offsets ffffffffffff,"):
        run.deliver_all()

    assert sink.chunks == []


def test_a_release_that_vanishes_while_it_is_read_stops_delivery() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_create(place.wal, paths.release(0), lambda: place.wal.create(paths.release(0), another(place)))
    read = place.wal.read

    def deleted_after_the_first_look(path: str) -> bytes:
        data = read(path)
        if path == paths.release(0):
            place.wal.delete([path])
        return data

    place.wal.read = deleted_after_the_first_look  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"release\.json disappeared while it was read"):
        run.deliver_all()
    assert sink.chunks == []


def test_a_manifest_that_is_not_of_its_release_stops_delivery() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, Recorder())
    place.wal.create(paths.release(0), another(place, fingerprint="f" * 64))
    del run

    with pytest.raises(CorruptError, match="name different source offsets"):
        place.open({"a": sink}).deliver_all()
    assert sink.chunks == []


def test_an_own_release_that_memory_forgot_is_still_ones_own() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    run.shared.releaser.release(0, run.history.staged(0), sink="a")
    run.shared.releaser.forget_through(0)

    released = run.shared.releaser.release(0, None, sink="a")

    assert released is not None
    assert released.run_id == run.log.run_id
    assert released.manifest == run.history.staged(0)


def test_a_batch_is_released_once_for_all_sinks_of_a_run() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    released = run.shared.releaser.release(0, run.history.staged(0), sink="a")
    place.requests.clear()

    assert run.shared.releaser.release(0, run.history.staged(0), sink="b") is released

    assert place.requests == []


# The checkpoint, before and after the release is created.


def test_the_release_of_a_batch_that_another_run_staged_costs_two_reads_of_its_entry() -> None:
    place = Place()
    list(place.query().batches(place.open({"a": Recorder()}), 2))
    run, asked = place.open({"a": Recorder()}), list[str]()
    run.checkpoint._files = FaultyStore(place.checkpoint, lambda what, path: asked.append(f"{what} {path}"))

    assert run.shared.releaser.release(1, None, sink="a") is not None

    reads = [what.removeprefix("before read ") for what in asked if what.startswith("before ")]
    assert reads == ["offsets/1", "commits/1", "offsets/1"]


def test_an_entry_that_is_none_is_told_by_its_address() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    place.checkpoint.delete(["offsets/0"])
    place.checkpoint.create("offsets/0", b"v1")

    with pytest.raises(CorruptError, match=f"^{run.checkpoint.root}/offsets/0: "):
        run.shared.releaser.release(0, run.history.staged(0), sink="a")


def test_offsets_that_do_not_say_so_leave_open_whose_they_are() -> None:
    """As a WAL may hold them that was staged by an older version of Spark or of wal-sink."""
    place = Place()
    run = with_batch(place, Recorder())
    staged = run.history.staged(0)
    assert staged is not None
    without_time = 'v1\n{}\n{"end":0}'
    place.checkpoint.delete(["offsets/0", "metadata"])
    place.checkpoint.create("offsets/0", without_time.encode())
    place.checkpoint.create("metadata", b'{"id": "another"}')

    with pytest.raises(HistoryError, match="belongs to query another"):
        run.shared.releaser.release(0, msgspec.structs.replace(staged, offsets=without_time), sink="a")


def test_other_offsets_under_a_released_batch_are_refused_by_its_number() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    place.checkpoint.delete(["offsets/0"])
    place.checkpoint.create("offsets/0", b'v1\n{}\n{"end":77}')

    with pytest.raises(HistoryError, match="batch 0 of memory://"):
        run.shared.releaser.release(0, run.history.staged(0), sink="a")


# How many rows were released.


def test_the_rows_of_a_released_batch_are_those_of_its_manifest() -> None:
    place = Place(rows=lambda _: [2, 3])
    run = with_batch(place, Recorder())
    assert released_row_count(run.log, 0) is None
    run.deliver_all()
    assert released_row_count(run.log, 0) == 5

    place.wal.delete([paths.manifest(0, 1, 1)])

    assert released_row_count(run.log, 0) is None


def test_the_rows_of_a_replay_are_compared_with_the_released_ones(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(rows=lambda _: [2, 3])
    run = with_batch(place, Recorder())
    run.deliver_all()

    compare_replay(run.log, 0, 5, what="batch 0")
    assert not said_here(caplog), "the replay has the same rows"

    compare_replay(run.log, 0, 4, what="batch 0")
    assert "batch 0: the replay had 4 rows, but 5 rows were released" in caplog.text

    place.wal.delete([paths.release(0)])
    compare_replay(run.log, 0, 4, what="batch 0")
    assert "batch 0: the replay had 4 rows. They were not compared" in caplog.text


def lost_manifest() -> Place:
    """A batch that a query staged and Spark completed. Its manifest was deleted."""
    place = Place()
    next(place.query().batches(place.open({"a": Recorder()}), 1))
    place.wal.delete([paths.manifest(0, 1, 1)])
    return place


def test_a_lost_manifest_is_told_with_what_is_left_and_with_every_way_out() -> None:
    place = lost_manifest()

    with pytest.raises(HistoryError, match=r"must wait\. Some of its rows are still there\. Likely") as caught:
        place.open({"a": Recorder()}).deliver_all()

    told = str(caught.value)
    for part in ("restore the manifest", "delete marker", "from a backup", "wal-sink verify", "wal-sink skip"):
        assert part in told
    assert "new WAL" not in told  # it would give up every other pending batch
    assert "moved" not in told


def test_a_batch_of_which_nothing_is_left_is_told_so() -> None:
    place = lost_manifest()
    folder = paths.batch(0)
    place.wal.delete(f"{folder}/{name}" for name in place.wal.list(folder, recursive=True))

    with pytest.raises(HistoryError, match=r"must wait\. This folder holds no rows either\. Likely causes: a life"):
        place.open({"a": Recorder()}).deliver_all()


def test_a_batch_that_a_moved_wal_lacks_may_lie_at_its_earlier_place() -> None:
    place = lost_manifest()
    run = place.open({"a": Recorder()})
    move = Move(number=1, location=place.wal.root, moved_from="file:///srv/wal", **run.log.stamp())
    place.wal.create(paths.move(1), encode(move))

    with pytest.raises(HistoryError, match="moved here from file:///srv/wal, and the query still stages there"):
        run.deliver_all()
