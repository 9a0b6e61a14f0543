"""A driver that the chaos ends in every way. It runs a real Spark query into one WAL with three sinks.

`tests.chaos.lives` runs it as `python -m tests.chaos.driver '{"root": …}'`, in a separate process. The JSON is a `Job`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import wal_sink.spark.committers
import wal_sink.walsink
from tests.chaos.dying import HalfSteps
from tests.chaos.targets import EXACT, IDEMPOTENT, PLAIN, SCHEMA, TABLE, Plain, Targets
from tests.house.sinks import BatchSink, CommitSink, Sink, sink_from_url
from tests.support.fixtures.spark import SPARK_CONF, stage_partitions_apart
from tests.support.processes import end_with_parent
from tests.support.programs.quick_java import QUICK_SPARK
from tests.support.streams import Home
from tests.support.waiting import wait_until
from wal_sink import Delivery, Retry, Settings, WalSink
from wal_sink_backends import FilesSink, SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ROWS = 10
STOP = "stop"
"""A driver ends its query by `query.stop()` once its root holds this file."""
TURN = "turn-"
"""The name of a file, before its number. A driver with several turns begins the next one once its file exists."""
POLL_S = 0.02
GRACE_S = 3.0
"""The time for which a failing driver waits for the chunk in flight. Shorter than the default of 30 s."""

CLUSTER_CONF = {"spark.cores.max": "2", "spark.executor.cores": "1", "spark.executor.memory": "512m"}
"""One executor with one core on each of two hosts."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of one driver."""

    root: str
    ending: Literal["live", "once", "turns"] = "live"
    """`live` runs until it is killed, `once` over the present files, `turns` over the present files at each turn."""
    where: Literal["driver", "executors"] = "driver"
    """The place where the plain and the idempotent sink run."""
    master: str = "local[2]"
    partitions: int = 1
    """Segments per batch. With several, tasks write them; a single one is packed by the driver."""
    answer_s: float = 0.0
    """The time that the plain target takes to acknowledge a chunk."""
    staging_s: float = 0.0
    """The time that each partition takes to evaluate."""
    die_at_link: int = 0
    """Die just before (odd) or just after (even) the driver links one of its objects to its name. 0: never."""
    max_attempts: int = 8
    """Attempts at a batch without any progress."""
    deadly: str = ""
    """The plan by which executors die, see `tests.chaos.executors`."""
    lake: str = ""
    """The URL of a lake table that gets the rows in place of the SQLite table."""
    begins_with: str = ""
    """The name of a file in the root. The driver has a Spark with executors, and waits until the file exists."""

    @property
    def place(self) -> Home:
        return Home(Path(self.root))

    @property
    def has_cluster(self) -> bool:
        """Whether the executors belong to a standalone cluster, and not to the driver."""
        return self.master.startswith("spark://")

    def argument(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """Run the job until its end, or until another process kills this one."""
    end_with_parent()
    job = Job(**json.loads(sys.argv[1]))
    wal_sink.spark.committers.GRACE_S = GRACE_S
    spark = _session(job)
    if job.partitions > 1:
        stage_partitions_apart()
    if job.die_at_link:
        HalfSteps(deadly=job.die_at_link).watch()
    if job.begins_with:
        spark.sparkContext.parallelize([0], 1).count()
        _say(f"application {spark.sparkContext.applicationId}")
    _say("ready")
    if job.begins_with:
        wait_until((Path(job.root) / job.begins_with).exists, "the file with which it begins", timeout_s=3600.0)
    try:
        {"live": _live, "once": _once, "turns": _turns}[job.ending](spark, job)
    except BaseException as error:
        _say(f"left by {type(error).__name__}: {error}")
        raise


def _session(job: Job) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - tests that need no Spark import this module

    conf: dict[str, Any] = {
        **SPARK_CONF,
        "spark.driver.extraJavaOptions": f'{QUICK_SPARK} "-Djava.io.tmpdir={os.environ.get("TMPDIR", "/tmp")}"',  # noqa: S108
        "spark.hadoop.hadoop.tmp.dir": f"{job.root}/spark/hadoop",
        "spark.local.dir": f"{job.root}/spark/local",
        "spark.sql.warehouse.dir": f"{job.root}/spark/warehouse",
        # Lost executors are the subject: neither the application nor a task may fail because of them.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
    }
    if job.has_cluster:
        conf |= CLUSTER_CONF
    session = SparkSession.builder.master(job.master).appName("wal-sink chaos").config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _live(spark: SparkSession, job: Job) -> None:
    def stop() -> None:
        wait_until((Path(job.root) / STOP).exists, "the file that stops the query", timeout_s=3600.0)
        while True:  # the file may come before the query starts
            for query in spark.streams.active:
                query.stop()
            time.sleep(POLL_S)

    threading.Thread(target=stop, daemon=True).start()
    with _sink(job) as sink:
        sink.run(_rows(spark, job).writeStream)


def _once(spark: SparkSession, job: Job) -> None:
    with _sink(job) as sink:
        sink.run(_rows(spark, job).writeStream.trigger(availableNow=True))


def _turns(spark: SparkSession, job: Job) -> None:
    """Run all turns in one Spark. This is much faster than a process for each."""
    number = 0
    while True:
        wait_until((Path(job.root) / f"{TURN}{number}").exists, "the next turn", timeout_s=3600.0)
        try:
            _once(spark, job)
            _say(f"turn {number}: done")
        except Exception as error:  # noqa: BLE001 - the test wants to know how it ended
            _say(f"turn {number}: {type(error).__name__}: {error}")
        number += 1


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    rows = job.place.feed.stream(spark, SCHEMA)
    if job.partitions > 1:
        rows = rows.repartition(job.partitions)
    if job.deadly:
        from tests.chaos.executors import dying_while_staging  # noqa: PLC0415 - it imports this module

        return rows.mapInArrow(dying_while_staging(Path(job.root), job.deadly), SCHEMA)
    return rows.mapInArrow(partial(_slowly, job.staging_s), SCHEMA) if job.staging_s else rows


def _slowly(pause_s: float, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(pause_s / 2)
        yield batch
        time.sleep(pause_s / 2)


def _sink(job: Job) -> WalSink:
    targets = Targets(Path(job.root))
    plain = Plain(targets.plain, job.answer_s)
    exact: Sink | BatchSink = sink_from_url(job.lake) if job.lake else SqlSink(f"sqlite:///{targets.database}", TABLE)
    if job.deadly:
        from tests.chaos.executors import DyingLake, DyingPlain, DyingSql  # noqa: PLC0415 - it imports this module

        plain = DyingPlain(targets.plain, job.answer_s, Path(job.root), job.deadly)
        exact = (
            DyingLake(exact, Path(job.root), job.deadly)
            if isinstance(exact, CommitSink)
            else DyingSql(f"sqlite:///{targets.database}", TABLE, Path(job.root), job.deadly)
        )
    delivery = partial(Delivery, retry=Retry(attempts=job.max_attempts))
    where = "executors" if job.deadly or job.has_cluster else job.where if job.lake else "driver"
    to = {
        EXACT: delivery(exact, guarantee="exactly_once", where=where),
        IDEMPOTENT: delivery(FilesSink(str(targets.files)), guarantee="exactly_once", where=job.where),
        PLAIN: delivery(plain, where=job.where),
    }
    return job.place.sink(to, settings=Settings(chunk_rows=CHUNK_ROWS))


def _say(text: str) -> None:
    """Print one line for the process that started this driver."""
    print(text.replace("\n", " "), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
