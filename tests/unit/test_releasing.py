"""The release of a batch: made once, adopted if it says the same, refused if the objects contradict each other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.simulation.small_run import Place, Recorder
from wal_sink import paths
from wal_sink.errors import CorruptError, DivergentReplay, HistoryError
from wal_sink.records import Manifest, Release, decode, encode
from wal_sink.run import Run


def with_batch(place: Place, sink: Recorder) -> Run:
    """A run with one complete batch to release."""
    run = place.open({"a": sink})
    next(place.query().batches(run, 1))
    return run


def release_of(place: Place) -> Release:
    return decode(Release, place.wal.read(paths.release(0)), "the release")


def another(place: Place, **changed: object) -> bytes:
    """What another run would have released of batch 0, but for what is `changed`."""
    manifest = decode(Manifest, place.wal.read(paths.manifest(0, 1, 1)), "the manifest")
    named = {"term": 1, "attempt": 1, "fingerprint": manifest.fingerprint, "rule": manifest.rule, **changed}
    return encode(Release(batch_id=0, run_id="other", id="x", created="now", **named))  # type: ignore[arg-type]


def before_the_release(place: Place, act: Callable[[], None]) -> None:
    """Do something at the moment the run is about to create its release."""
    create = place.wal.create

    def first_act(path: str, data: bytes) -> None:
        if path == paths.release(0):
            place.wal.create = create  # type: ignore[method-assign]
            act()
        create(path, data)

    place.wal.create = first_act  # type: ignore[method-assign]


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
    before_the_release(place, lambda: place.wal.create(paths.release(0), another(place)))

    run.deliver_all()

    assert sink.batches == [0]
    assert release_of(place).run_id == "other"


def test_a_release_of_other_source_offsets_made_at_the_same_moment_is_refused() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_the_release(place, lambda: place.wal.create(paths.release(0), another(place, fingerprint="f" * 64)))

    with pytest.raises(DivergentReplay, match=r"batch 0 of .* holds it with source offsets ffffffffffff,"):
        run.deliver_all()

    assert sink.chunks == []


def test_a_release_that_vanishes_while_it_is_read_stops_delivery() -> None:
    place, sink = Place(), Recorder()
    run = with_batch(place, sink)
    before_the_release(place, lambda: place.wal.create(paths.release(0), another(place)))
    read = place.wal.read

    def deleted_after_the_first_look(path: str) -> bytes:
        data = read(path)
        if path == paths.release(0):
            place.wal.delete([path])
        return data

    place.wal.read = deleted_after_the_first_look  # type: ignore[method-assign]

    with pytest.raises(CorruptError, match=r"release\.json vanished while it was read"):
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


def test_a_run_releases_a_batch_once_however_many_sinks_it_serves() -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Recorder()})
    next(place.query().batches(run, 1))
    place.requests.clear()

    run.deliver_all()

    assert [name for name in place.requests if paths.release(0) in name] == [f"create {paths.release(0)}"]


def test_an_own_release_that_memory_forgot_is_still_ones_own() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    run.shared.releaser.release(0, run.history.staged(0))
    run.shared.releaser.forget_through(0)

    released = run.shared.releaser.release(0, None)

    assert released is not None
    assert released.run_id == run.log.run_id
    assert released.manifest == run.history.staged(0)


def test_anothers_release_stays_anothers() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    place.wal.create(paths.release(0), another(place))

    released = run.shared.releaser.release(0, None)

    assert released is not None
    assert released.run_id == "other"


# What the checkpoint says once the release is there.


def asked_of_the_checkpoint(place: Place, run: Run) -> list[str]:
    asked: list[str] = []
    read = place.checkpoint.read

    def noting(path: str) -> bytes:
        asked.append(path)
        return read(path)

    place.checkpoint.read = noting  # type: ignore[method-assign]
    run.shared.releaser.release(0, run.history.staged(0))
    return asked


def test_offsets_that_say_when_they_were_planned_tell_all_in_one_read() -> None:
    place = Place()

    assert asked_of_the_checkpoint(place, with_batch(place, Recorder())) == ["offsets/0"]


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
        run.shared.releaser.release(0, msgspec.structs.replace(staged, offsets=without_time))


def test_other_offsets_under_a_released_batch_are_refused_by_its_number() -> None:
    place = Place()
    run = with_batch(place, Recorder())
    place.checkpoint.delete(["offsets/0"])
    place.checkpoint.create("offsets/0", b'v1\n{}\n{"end":77}')

    with pytest.raises(DivergentReplay, match="batch 0 of memory://"):
        run.shared.releaser.release(0, run.history.staged(0))
