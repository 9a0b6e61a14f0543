"""Many small batches into a Delta table: `python -m benchmarks.small_batches --batches 600 --rows 50`.

Prints the files and versions of the table, and the seconds from Spark's completion of a batch to the version that shows
its rows: by the times of the files `commits/N` and of the log's entries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.clock import Stopwatch
from benchmarks.session import Session
from benchmarks.workloads import Workload, table_of, write_file
from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends.delta import DeltaSink


def main() -> None:
    """Run the query to its end, then print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_batches", description=__doc__)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--rows", type=int, default=50, help="of each batch")
    parser.add_argument("--every-s", type=float, default=0.0, help="a batch as often; default: one after the other")
    parser.add_argument("--roll-bytes", type=int, help="as of Delivery")
    parser.add_argument("--roll-s", type=float, help="as of Delivery")
    options = parser.parse_args()
    rolls = {name: value for name, value in vars(options).items() if name.startswith("roll_") and value is not None}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = Session(place)
        stack.callback(session.stop)
        work = Workload(place / "input", options.rows * options.batches, files_per_batch=1)
        for number in range(options.batches):
            write_file(work.folder, number, table_of(number * options.rows, options.rows))
        took_s = _run(session, work, options.every_s, rolls, place)
        _tell(place, took_s)


def _run(session: Session, work: Workload, every_s: float, rolls: Mapping[str, Any], place: Path) -> float:
    spark = session()
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", work.batches)  # their times are read at the end
    to = Delivery(DeltaSink(str(place / "table"), create=True), **rolls)
    writer, watch = work.stream(spark).writeStream, Stopwatch()
    settings = Settings(retention_batches=work.batches)
    with WalSink(to, wal=str(place / "wal"), checkpoint=str(place / "checkpoint"), settings=settings) as sink:
        if every_s:
            sink.start(writer.trigger(processingTime=f"{every_s} seconds")).processAllAvailable()
        else:
            sink.run(writer.trigger(availableNow=True))
    return watch.seconds()


def _tell(place: Path, took_s: float) -> None:
    shown, files = list(_versions(place / "table")), list((place / "table").glob("*.parquet"))
    completed = {int(path.name): path.stat().st_mtime for path in (place / "checkpoint" / "commits").glob("[0-9]*")}
    waits = sorted(
        next(at_s for last, at_s in shown if last >= batch_id) - done_s for batch_id, done_s in completed.items()
    )
    far = waits[int(len(waits) * 0.95)]
    print(f"{len(completed)} batches in {took_s:.0f} s: {len(shown)} commits, {len(files)} files")
    print(
        f"seconds from completion to visible: {statistics.median(waits):.2f} (median), {far:.2f} (95 of 100), "
        f"{waits[-1]:.2f} (most)"
    )


def _versions(table: Path) -> Iterator[tuple[int, float]]:
    """The newest batch of each version of our sink, and the time of its entry."""
    for entry in sorted((table / "_delta_log").glob("*.json")):
        found = [json.loads(line).get("txn", {}) for line in entry.read_text().splitlines()]
        batches = [told["version"] for told in found if told.get("appId", "").count("/") == 2]
        if batches:
            yield batches[0], entry.stat().st_mtime


if __name__ == "__main__":
    main()
