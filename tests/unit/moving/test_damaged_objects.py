"""Copying a WAL with a damaged object: as it is if no sink needs its batch, and an error otherwise."""

from __future__ import annotations

import logging
import re

import msgspec
import pytest

from tests.support.small_run import Place, Recorder
from tests.unit.moving.test_copy import a_place, content, copied, end, log_of, memory, segment_of
from wal_sink.errors import CorruptError
from wal_sink.settings import Delivery
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal import paths
from wal_sink.wal.records import Marker, SinkRecord, encode


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


@pytest.mark.parametrize("path", [paths.release(0), "segment"])
def test_so_is_every_other_object_of_a_batch_that_every_sink_had(path: str) -> None:
    place, there = a_place(), memory()
    damage(place, path := segment_of(place) if path == "segment" else path)

    done = copied(place.wal, there)

    assert content(there) == content(place.wal)
    assert done.damaged == (path,)


@pytest.mark.parametrize("path", ["sinks/a/sink.json", paths.marker("a", 0), "batches/x/y.json"])
def test_no_damaged_object_of_anything_else_is_copied(path: str) -> None:
    place = a_place()
    if path not in content(place.wal):
        place.wal.create(path, b"{}" * 20)
    damage(place, path)
    with pytest.raises(CorruptError):
        copied(place.wal, memory())


def test_a_segment_that_a_sink_needs_is_an_error() -> None:
    place, there = a_place(), memory()
    damage(place, segment_of(place, 2))
    with pytest.raises(CorruptError):
        copied(place.wal, there)
    assert paths.WAL not in there.list("")


def test_a_damaged_segment_of_a_spread_batch_is_copied_too() -> None:
    place, there = a_place(2, rows=lambda _: [1] * (paths.SPREAD_FROM + 1)), memory()
    path = next(name for name in content(place.wal) if re.match(r"batches/shard-./0{19}/", name))
    damage(place, path)
    assert copied(place.wal, there).damaged == (path,)


def test_a_sink_that_begins_after_the_batch_does_not_need_it() -> None:
    place = a_place()
    late = place.open({"a": Recorder(), "b": Recorder(), "late": Delivery(Recorder(), start_from="next")})
    first = late.log.require(SinkRecord, paths.sink("late")).first_batch
    end(late)
    damage(place, path := segment_of(place))

    assert first > 0
    assert copied(place.wal, memory()).damaged == (path,)


def test_a_skipped_batch_does_not_keep_the_others_from_being_copied() -> None:
    """The reason for a skip is often such a damage."""
    place = a_place()
    damage(place, path := segment_of(place, 2))
    log = log_of(place.wal)
    for sink in "ab":
        marker = log.require(Marker, paths.marker(sink, 1))
        place.wal.create(paths.marker(sink, 2), encode(msgspec.structs.replace(marker, batch_id=2, skipped=True)))
    assert copied(place.wal, memory()).damaged == (path,)


def test_a_damaged_answer_of_the_store_is_not_kept_in_the_copy() -> None:
    """An object that reads well the next time is not damaged."""
    place, there = a_place(), memory()
    changed = segment_of(place)
    reads, read = [0], place.wal.read

    class Wrong(MemoryStore):
        def read(self, path: str) -> bytes:
            data = read(path)
            reads[0] += path == changed
            return data[:-1] + b"?" if path == changed and reads[0] == 1 else data

    wrong = Wrong(StoreSpec(place.wal.root))
    with pytest.raises(CorruptError):
        copied(wrong, there)
    assert reads[0] == 2
    assert paths.WAL not in there.list("")
    assert copied(place.wal, there).damaged == ()
    assert there.read(changed) == place.wal.read(changed)


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
