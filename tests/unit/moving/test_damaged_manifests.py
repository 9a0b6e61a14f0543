"""Copying a WAL with a damaged manifest: as it is if nobody needs it, and an error otherwise."""

from __future__ import annotations

import logging

import pytest

from tests.support.small_run import Place
from tests.unit.moving.test_copy import a_place, content, copied, end, memory, segment_of
from wal_sink.errors import CorruptError
from wal_sink.wal import paths


def manifest(place: Place, batch_id: int) -> str:
    found = place.wal.list(paths.batch(batch_id))
    return f"{paths.batch(batch_id)}/{next(name for name in found if name.startswith('manifest'))}"


def damage(place: Place, path: str) -> None:
    data = bytearray(place.wal.read(path))
    data[-20] ^= 1
    place.wal.delete([path])
    place.wal.create(path, bytes(data))


def test_a_damaged_manifest_that_every_sink_had_is_copied_as_it_is_and_told(caplog: pytest.LogCaptureFixture) -> None:
    place, there = a_place(), memory()
    damage(place, path := manifest(place, 0))

    with caplog.at_level(logging.WARNING):
        done = copied(place.wal, there)

    assert content(there) == content(place.wal)
    assert done.damaged == (path,)
    assert caplog.text.count("It was copied as it is") == 1


def test_one_that_a_sink_needs_is_an_error_that_tells_what_to_do() -> None:
    place, there = a_place(), memory()
    damage(place, path := manifest(place, 2))

    with pytest.raises(CorruptError, match=rf"{path}: .*restore the object"):
        copied(place.wal, there)
    assert paths.WAL not in there.list("")


@pytest.mark.parametrize("path", [paths.release(0), "segment", "sinks/a/sink.json"])
def test_no_other_damaged_object_is_copied(path: str) -> None:
    place = a_place()
    damage(place, segment_of(place) if path == "segment" else path)
    with pytest.raises(CorruptError):
        copied(place.wal, memory())


def test_without_a_sink_every_batch_is_needed() -> None:
    place = Place(rows=lambda _: [2])
    run = place.open({})
    next(place.query().batches(run, 1))
    end(run)
    damage(place, manifest(place, 0))
    with pytest.raises(CorruptError):
        copied(place.wal, memory())


def test_a_sink_that_lacks_the_batch_keeps_it_from_being_copied() -> None:
    place = a_place()
    place.wal.delete([paths.marker("b", 1)])
    damage(place, manifest(place, 1))
    with pytest.raises(CorruptError):
        copied(place.wal, memory())
