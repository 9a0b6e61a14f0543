"""Lives of processes with a two-phase sink: in memory, killed at a chosen point; and on a real disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tests.house.kit import Crash, Place, three_batches
from tests.house.stores import StoreSpec, open_store
from wal_sink import Settings
from wal_sink.testing.data.tables import Partitions, partitioned
from wal_sink.testing.simulation.process import Process, bury
from wal_sink_backends import TwoPhaseFilesSink

BATCH_ROWS = 300
PARTITIONS = 2
TEMPLATE = "{batch_id}/{partition}-{file_index}.{ext}"


def place_of(make_sink: Callable[[], object]) -> Place:
    """Return a place with three small batches for a sink."""
    place = Place(make_sink)
    place.batches.update(enumerate(partitioned(three_batches())))
    return place


def live(place: Place, *, dies_at: int = 0) -> list[str]:
    """Run one process to its end or to its n-th point. Return the points that it reached."""

    def hook(process: Process, name: str) -> None:
        if len(process.points) == dies_at:
            raise Crash(name)

    process = Process(place, hook=hook, lines=True)
    try:
        process.live_to_end()
    except Crash as crash:
        bury(process, crash)
    return process.points


def partitions_of(batch_id: int) -> Partitions:
    first = batch_id * BATCH_ROWS
    each = BATCH_ROWS // PARTITIONS
    return [
        pa.table({"id": range(start, start + each), "pad": ["x" * 50] * each})
        for start in range(first, first + BATCH_ROWS, each)
    ]


def completed(root: Path) -> int:
    """Return the number of batches that the query has completed."""
    return sum(1 for name in (root / "checkpoint" / "commits").glob("*") if name.name.isdecimal())


def live_on_disk(root: Path, seed: int, batches: int) -> None:
    """Stage and commit batches of a query whose WAL, checkpoint and files earlier lives left below a folder.

    No other life has this seed.
    """
    stores: dict[str, Any] = {name: open_store(StoreSpec(str(root / name))) for name in ("wal", "checkpoint")}
    place = Place(
        lambda: TwoPhaseFilesSink(str(root / "out"), name_template=TEMPLATE),
        settings=Settings(chunk_rows=40),
        seed=seed,
        wal=cast("Any", stores["wal"]),
        checkpoint=cast("Any", stores["checkpoint"]),
    )
    place.batches.update((batch_id, partitions_of(batch_id)) for batch_id in range(batches))
    print("ready")  # noqa: T201 - read by the test
    Process(place).live_to_end()
