"""Objects that vanish from a WAL, as a bucket's rule or a partial copy takes them: an error, never silence."""

from __future__ import annotations

import pytest

from tests.simulation.small_run import Place, Recorder
from tests.simulation.world import Life, World
from wal_sink import paths
from wal_sink.errors import CorruptError
from wal_sink.inspection import read_status
from wal_sink.settings import Delivery


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
    """The eldest object is the first that a rule such as "expire after 30 days" takes."""
    place, sink = undelivered(), Recorder()
    lose(place, paths.WAL)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        place.open({"a": sink})

    assert sink.chunks == []


def test_nor_is_it_for_who_looks_at_it() -> None:
    place = undelivered()
    lose(place, paths.WAL)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        read_status(place.wal)


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
    life.deliver(run)
    lose(world, "terms")

    assert world.life().live()

    world.check_end(crashes=1)


def test_without_its_terms_a_process_that_still_lives_is_fenced_all_the_same() -> None:
    world = World(batches=((3,), (2,)), zombies=True)
    old = world.life()
    run = old.open_run()
    next(old.batches(run))
    old.deliver(run)
    lose(world, "terms")

    new: Life = world.life()
    new.open_run()

    with pytest.raises(Exception, match="was succeeded"):
        run.committers[0].term.check(world.wal)
