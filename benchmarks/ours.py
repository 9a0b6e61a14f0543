"""Our side of the contests: staging alone, and whole queries through a write-ahead log."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.backends.sql import TABLE, SqlBackend
from benchmarks.clock import Stopwatch, batch_ms, planned_s
from benchmarks.measure import NAME, Contestant
from benchmarks.sinks import CsvSink, NullSink, StampSink, skip
from benchmarks.workloads import Workload
from wal_sink import Delivery, Settings, Sink, WalSink, wrap
from wal_sink.log import paths
from wal_sink.log.records import Marker, decode
from wal_sink.log.segment_writer import SegmentLimits
from wal_sink.protocol.partitions import StagingContext
from wal_sink.spark.staging import stage_dataframe
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink_backends import FilesSink, SqlSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACE = "500 milliseconds"


@dataclass(frozen=True, slots=True)
class Ours:
    """Makes our contestants for one Spark session."""

    session: Callable[[], SparkSession]

    @property
    def spark(self) -> SparkSession:
        return self.session()

    def staging(self, work: Workload) -> Contestant:
        return Contestant(NAME, partial(self._stage, work))

    def null(self, work: Workload) -> Contestant:
        return self._query(work, lambda _: NullSink())

    def csv(self, work: Workload) -> Contestant:
        return self._query(work, lambda place: CsvSink(_made(place / "out")))

    def parquet(self, work: Workload) -> Contestant:
        return self._query(work, lambda place: FilesSink(str(place / "out"), format="parquet"))

    def sql(self, work: Workload, database: SqlBackend) -> Contestant:
        def rate(place: Path) -> float:
            return database.rate(
                work.rows, lambda name: self._seconds(work, SqlSink(database.url(name), TABLE), place), place
            )

        return Contestant(NAME, rate)

    def batch_time(self, work: Workload) -> Contestant:
        return Contestant(NAME, partial(self._batch_ms, work))

    def row_writer(self, work: Workload) -> tuple[Contestant, Contestant]:
        """The same function of a row, called by a Spark job and by the driver."""

        def time_ms(where: Literal["auto", "driver"], place: Path) -> float:
            return work.batch_ms(self._seconds(work, Delivery(wrap.foreach_writer(skip), where=where), place))

        return Contestant(NAME, partial(time_ms, "auto")), Contestant(
            f"{NAME}, in the driver", partial(time_ms, "driver")
        )

    def latency(self, work: Workload) -> tuple[Contestant, Contestant]:
        return (
            Contestant("batches back to back", partial(self._latency_ms, work, None)),
            Contestant(f"a batch every {PACE}", partial(self._latency_ms, work, PACE)),
        )

    def _stage(self, work: Workload, place: Path) -> float:
        df = work.batch(self.spark)
        settings = Settings()
        limits = SegmentLimits(settings.chunk_rows, settings.chunk_bytes, settings.segment_bytes)
        (place / "wal").mkdir(exist_ok=True)  # a run makes it when it opens the WAL; a task must find it
        watch = Stopwatch()
        context = StagingContext(folder="staged", limits=limits, columns=tuple(df.columns))
        refs = stage_dataframe(
            df, store=StoreSpec(str(place / "wal")), context=context, description="benchmark"
        ).segments
        took_s = watch.seconds()
        work.require_all(sum(ref.rows for ref in refs))
        return took_s

    def _query(self, work: Workload, sink: Callable[[Path], Sink]) -> Contestant:
        return Contestant(NAME, lambda place: work.rows / self._seconds(work, sink(place), place))

    def _seconds(self, work: Workload, sink: Sink | Delivery, place: Path) -> float:
        ended_s = self._run(work, sink, place)
        return ended_s - planned_s(place / "checkpoint")

    def _run(self, work: Workload, sink: Sink | Delivery, place: Path) -> float:
        """Run a whole query until everything is delivered; return the time of its end."""
        with self._wal(sink, place) as wal:
            wal.run(work.stream(self.spark).writeStream.trigger(availableNow=True))
            ended_s = Stopwatch.now_s()
        work.require_all(delivered_rows(StoreSpec(str(place / "wal"))))
        return ended_s

    def _batch_ms(self, work: Workload, place: Path) -> float:
        with self._wal(NullSink(), place) as wal:
            query = wal.start(work.stream(self.spark).writeStream.trigger(availableNow=True))
            query.awaitTermination()
        return batch_ms(query)

    def _latency_ms(self, work: Workload, pace: str | None, place: Path) -> float:
        """The median time from the file `commits/N` to the sink's call for batch N, without the first batch."""
        stamps = _made(place / "stamps")
        writer = work.stream(self.spark).writeStream
        with self._wal(StampSink(stamps), place) as wal:
            if pace is None:
                wal.run(writer.trigger(availableNow=True))
            else:
                wal.start(writer.trigger(processingTime=pace)).processAllAvailable()
        commits = place / "checkpoint" / "commits"
        waits = [
            (int(stamp.read_text()) - (commits / stamp.name).stat().st_mtime_ns) / 1e6
            for stamp in stamps.iterdir()
            if stamp.name != "0"
        ]
        return statistics.median(waits)

    def _wal(self, sink: Sink | Delivery, place: Path) -> WalSink:
        self.session()  # the session must exist before a log is opened
        return WalSink(sink, wal=str(place / "wal"), checkpoint=str(place / "checkpoint"))


def delivered_rows(log: StoreSpec) -> int:
    """The number of rows in all batches that are marked as delivered."""
    store = open_store(log)
    sinks = {name.partition("/")[0] for name in store.list(paths.SINKS, recursive=True)}
    folders = [paths.markers(sink) for sink in sinks]
    markers = [f"{folder}/{name}" for folder in folders for name in store.list(folder)]
    return sum(decode(Marker, store.read(path), path).rows for path in markers)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
