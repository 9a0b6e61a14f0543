"""Batches into a table of a lake: our sink, and a `foreachBatch` that appends with the same library.

Processor time counts, of Spark's JVM, its Python workers and this process together: from the start of a query
to its end. The bytes beside it are those that the same processes wrote to files, as the kernel counts them, and all
that they read, from files and from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import deltalake
import psutil
from pyiceberg.catalog import load_catalog

from benchmarks.clock import processor_seconds
from benchmarks.measure import NAME, Contest, Contestant, Unit
from benchmarks.workloads import Workload
from wal_sink import WalSink
from wal_sink.sinks.base import CommitSink
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.iceberg import IcebergSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SMALL, WRITTEN, READ = "-small", "-written", "-read"
"""Ends of the keys of contests: small batches, and what the runs of another contest wrote and read."""
ICEBERG_TABLE = "lake.orders"
Way: TypeAlias = Callable[[Path, Workload], None]


@dataclass(frozen=True, slots=True)
class Lake:
    """A format of tables. Each function gets the folder of a table."""

    key: str
    title: str
    rival: str
    sink: Callable[[Path], CommitSink]
    appending: Callable[[Path], Callable[[pa.Table], object]]
    """Returns what appends rows, and makes the table with the first ones."""
    rows: Callable[[Path], int]


def _appending_to_delta(folder: Path) -> Callable[[pa.Table], object]:
    return partial(deltalake.write_deltalake, str(folder), mode="append")


def _rows_of_delta(folder: Path) -> int:
    added: Any = deltalake.DeltaTable(str(folder)).get_add_actions(flatten=True)
    return sum(added.column("num_records").to_pylist())


def _catalog(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def _appending_to_iceberg(folder: Path) -> Callable[[pa.Table], object]:
    catalog, tables = load_catalog("default", **_catalog(folder)), list[Any]()
    catalog.create_namespace("lake")

    def append(rows: pa.Table) -> None:
        if not tables:
            tables.append(catalog.create_table(ICEBERG_TABLE, rows.schema))
        tables[0].append(rows)

    return append


def _rows_of_iceberg(folder: Path) -> int:
    table = load_catalog("default", **_catalog(folder)).load_table(ICEBERG_TABLE)
    return sum(task.file.record_count for task in table.scan().plan_files())


LAKES = (
    Lake(
        "delta",
        "a Delta table",
        "foreachBatch + write_deltalake",
        lambda folder: DeltaSink(str(folder), create=True),
        _appending_to_delta,
        _rows_of_delta,
    ),
    Lake(
        "iceberg",
        "an Iceberg table",
        "foreachBatch + table.append",
        lambda folder: IcebergSink(ICEBERG_TABLE, catalog=_catalog(folder), create=True),
        _appending_to_iceberg,
        _rows_of_iceberg,
    ),
)


@dataclass(frozen=True, slots=True)
class LakeContests:
    """Makes the contests for one session."""

    session: Callable[[], SparkSession]
    _moved: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Megabytes that the newest run wrote and read, by contest and contestant."""

    def contests(self, small: Workload, large: Workload) -> Iterator[Contest]:
        for lake in LAKES:
            for key, work in ((lake.key, large), (lake.key + SMALL, small)):
                yield from self._contests(lake, key, work)

    def _contests(self, lake: Lake, key: str, work: Workload) -> Iterator[Contest]:
        """The contest of processor time, and those of the bytes of its runs."""
        ways: dict[str, Way] = {NAME: partial(self._ours, lake), lake.rival: partial(self._rival, lake)}
        title = f"{work.rows // work.batches:,} rows a batch into {lake.title}"
        timed = [Contestant(name, partial(self._run, lake, (key, name), way, work)) for name, way in ways.items()]
        yield Contest(key, f"{title}: processor time", Unit.PROCESSOR_S, tuple(timed))
        for place, end in enumerate((WRITTEN, READ)):
            counted = [Contestant(name, partial(self._bytes, (key, name), place)) for name in ways]
            yield Contest(key + end, f"{title}: {end[1:]}", Unit.MEGABYTES, tuple(counted))

    def _run(self, lake: Lake, run: tuple[str, str], way: Way, work: Workload, place: Path) -> float:
        self.session()
        began, moved = sum(processor_seconds().values()), _moved()
        way(place, work)
        took_s, after = sum(processor_seconds().values()) - began, _moved()
        self._moved[run] = (after[0] - moved[0]) / 1e6, (after[1] - moved[1]) / 1e6
        work.require_all(lake.rows(place / "table"))
        return took_s

    def _bytes(self, run: tuple[str, str], number: int, place: Path) -> float:  # noqa: ARG002 - of the run before
        return self._moved[run][number]

    def _ours(self, lake: Lake, place: Path, work: Workload) -> None:
        with WalSink(lake.sink(place / "table"), wal=str(place / "wal"), checkpoint=str(place / "checkpoint")) as sink:
            sink.run(work.stream(self.session()).writeStream.trigger(availableNow=True))

    def _rival(self, lake: Lake, place: Path, work: Workload) -> None:
        append = lake.appending(place / "table")

        def write(df: DataFrame, _: int) -> None:
            append(df.toArrow())

        writer = work.stream(self.session()).writeStream.foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(place / "checkpoint")).start().awaitTermination()


def _moved() -> tuple[int, int]:
    """The bytes so far that this process and all below it wrote to files, and read. Zeros where nobody counts them."""
    own, written, read = psutil.Process(), 0, 0
    for process in [own, *own.children(recursive=True)]:
        counted: Any = process.io_counters() if hasattr(process, "io_counters") else None
        written += counted.write_bytes if counted else 0
        read += counted.read_chars if counted else 0
    return written, read
