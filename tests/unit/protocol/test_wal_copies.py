"""Two copies of WAL and checkpoint, side by side: what notices, and when.

A copy is refused when it is opened (`test_location.py`). Here somebody has said that the original
is gone, and it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.house.stores import StoreSpec, open_store
from tests.support.small_run import Place, Recorder
from wal_sink.errors import ConfigError

if TYPE_CHECKING:
    from tests.support.servers.s3_server import S3Server

from dataclasses import dataclass, field

from tests.house.protocol import GonePlace, Run
from tests.house.sinks import Chunk
from tests.support.small_run import served_sink
from wal_sink import HistoryError, TransactionalSink
from wal_sink.settings import Settings
from wal_sink.sinks import LedgerEntry, Position
from wal_sink.testing import simulated_runtime


@dataclass
class Target:
    """The target of both copies: rows, and a ledger that moves with them."""

    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    rows: list[tuple[int, int]] = field(default_factory=list)


class Ledger(TransactionalSink):
    def __init__(self, target: Target) -> None:
        self.target = target

    def last(self, slot: str) -> Position | None:
        stored = self.target.ledger.get(slot)
        return stored.position if stored else None

    def write(self, chunk: Chunk) -> None:
        if not LedgerEntry.is_known(self.target.ledger.get(chunk.position.slot), chunk, "this target"):
            self.target.rows += [(row["batch"], row["row"]) for row in chunk.table.to_pylist()]
            self.target.ledger[chunk.position.slot] = LedgerEntry.of(chunk)


def copy_of(place: Place, to: Place | None = None) -> Place:
    """Both folders, at another place."""
    made = to or Place()
    for store, other in ((place.wal, made.wal), (place.checkpoint, made.checkpoint)):
        for name in store.list("", recursive=True):
            other.create(name, store.read(name))
    return made


def opened_copy(place: Place, sink: object, original: Place) -> Run:
    """Open a copy as the WAL that was moved. The original is out of sight then, and comes back."""
    run = Run(place.wal, place.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime(seed=77))
    content = {name: original.wal.read(name) for name in original.wal.list("", recursive=True)}
    original.wal.delete(list(content))
    run.open([served_sink(run, "a", sink)], moved_from=GonePlace(original.wal.root))
    for name, data in content.items():
        original.wal.create(name, data)
    run.become_stager()
    return run


def test_a_copy_of_both_folders_is_refused_when_it_is_opened() -> None:
    original = Place()
    original.stream(original.open({"a": Recorder()}), 1)

    with pytest.raises(ConfigError, match="Two copies of one WAL"):
        copy_of(original).open({"a": Recorder()})


@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_transactional_target_lets_only_one_of_two_copies_write_a_batch(first: str) -> None:
    target, original = Target(), Place()
    runs = {"original": (original, original.open({"a": Ledger(target)}))}
    original.stream(runs["original"][1], 1)
    copy = copy_of(original)
    runs["copy"] = (copy, opened_copy(copy, Ledger(target), original))
    second = next(name for name in runs if name != first)

    place, run = runs[first]
    place.stream(run, 3)
    place, run = runs[second]
    with pytest.raises(HistoryError, match="or a copy of the WAL delivers too"):
        place.stream(run, 3)

    assert target.rows == [(batch, 0) for batch in range(4)]


def test_a_plain_target_gets_the_rows_of_both_copies_and_nobody_notices() -> None:
    """As ASSUMPTIONS.md says: without a ledger in the target nothing that the copies share could tell."""
    original, recorder = Place(), Recorder()
    run = original.open({"a": recorder})
    original.stream(run, 1)
    copy = copy_of(original)
    copied = opened_copy(copy, recorder, original)

    original.stream(run, 2)
    copy.stream(copied, 2)

    assert recorder.batches == [0, 1, 2, 2]


@pytest.mark.s3
def test_a_copy_on_s3_is_refused(s3_server: S3Server, s3_url: str) -> None:
    original = Place(wal=cast("Any", open_store(StoreSpec(f"{s3_url}/one", s3_server.storage_options))))
    original.stream(original.open({"a": Recorder()}), 0)
    other = Place(wal=cast("Any", open_store(StoreSpec(f"{s3_url}/two", s3_server.storage_options))))

    with pytest.raises(
        ConfigError, match=r"/two holds the WAL .* recorded location of this WAL is .*/one: this is another place"
    ):
        copy_of(original, other).open({"a": Recorder()})
