"""The driver that chaos ends in every way: a real Spark query into one WAL with three sinks. Told by a JSON argument.

Run as `python -m tests.chaos.driver '{"root": …}'`, in a process of its own, by `tests.chaos.lives`.
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

import wal_sink.walsink
from tests.chaos.dying import HalfSteps
from tests.chaos.targets import EXACT, IDEMPOTENT, PLAIN, SCHEMA, TABLE, Plain, Targets
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.processes import end_with_parent
from tests.support.programs.quick_java import QUICK_SPARK
from tests.support.streams import Home, wait_until
from wal_sink import Delivery, Settings, WalSink
from wal_sink_backends import FilesSink, SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ROWS = 10
STOP = "stop"
"""While this file lies in the root, a driver ends its query by `query.stop()`."""
TURN = "turn-"
"""A driver that lives for several turns begins the next when its file is there, and prints how it went."""
POLL_S = 0.02
GRACE_S = 3.0
"""How long a driver that ends by an error waits for the chunk in hand: shorter than the default of 30 s."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one driver is told."""

    root: str
    ending: Literal["live", "once", "turns"] = "live"
    """Runs until it is ended; once over what is there; over what is there each time it is told to."""
    where: Literal["driver", "executors"] = "driver"
    """Where the plain and the idempotent sink run."""
    master: str = "local[2]"
    partitions: int = 1
    """Segments of a batch."""
    answer_s: float = 0.0
    """How long the plain target takes to say that it has a chunk."""
    staging_s: float = 0.0
    """How long each partition takes to evaluate."""
    die_at_link: int = 0
    """Die just before (odd) or just after (even) the driver gives one of its objects its name; 0: never."""
    max_attempts: int = 8
    """How often a batch is tried without any progress."""
    deadly: str = ""
    """The plan after which executors die, see `tests.chaos.executors`."""

    @property
    def place(self) -> Home:
        return Home(Path(self.root))

    def argument(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """Run as told, until the end or until somebody kills this process."""
    end_with_parent()
    job = Job(**json.loads(sys.argv[1]))
    wal_sink.walsink.GRACE_S = GRACE_S
    spark = _session(job)
    if job.die_at_link:
        HalfSteps(deadly=job.die_at_link).watch()
    _say("ready")
    try:
        {"live": _live, "once": _once, "turns": _turns}[job.ending](spark, job)
    except BaseException as error:
        _say(f"left by {type(error).__name__}: {error}")
        raise


def _session(job: Job) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - children of tests that need no Spark import this module

    conf: dict[str, Any] = {
        **SPARK_CONF,
        "spark.driver.extraJavaOptions": f'{QUICK_SPARK} "-Djava.io.tmpdir={os.environ.get("TMPDIR", "/tmp")}"',  # noqa: S108
        "spark.hadoop.hadoop.tmp.dir": f"{job.root}/spark/hadoop",
        "spark.local.dir": f"{job.root}/spark/local",
        "spark.sql.warehouse.dir": f"{job.root}/spark/warehouse",
        # Lost executors are what is being tried: neither may the application end for them, nor may a task.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
    }
    session = SparkSession.builder.master(job.master).appName("wal-sink chaos").config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _live(spark: SparkSession, job: Job) -> None:
    def stop() -> None:
        wait_until((Path(job.root) / STOP).exists, "the file that stops", timeout_s=3600.0)
        while True:  # it may come before the query does
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
    """One run after the other in one Spark: much quicker than a process each."""
    number = 0
    while True:
        wait_until((Path(job.root) / f"{TURN}{number}").exists, "the next turn", timeout_s=3600.0)
        try:
            _once(spark, job)
            _say(f"turn {number}: done")
        except Exception as error:  # noqa: BLE001 - how it ended is what is asked
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
    plain, exact = Plain(targets.plain, job.answer_s), SqlSink(f"sqlite:///{targets.database}", TABLE)
    if job.deadly:
        from tests.chaos.executors import DyingPlain, DyingSql  # noqa: PLC0415 - it imports this module

        plain = DyingPlain(targets.plain, job.answer_s, Path(job.root), job.deadly)
        exact = DyingSql(f"sqlite:///{targets.database}", TABLE, Path(job.root), job.deadly)
    delivery = partial(Delivery, max_attempts=job.max_attempts)
    to = {
        EXACT: delivery(exact, guarantee="exactly_once", where="executors" if job.deadly else "driver"),
        IDEMPOTENT: delivery(FilesSink(str(targets.files)), guarantee="exactly_once", where=job.where),
        PLAIN: delivery(plain, where=job.where),
    }
    return job.place.sink(to, settings=Settings(chunk_rows=CHUNK_ROWS))


def _say(text: str) -> None:
    """Tell whoever started this driver, in one line."""
    print(text.replace("\n", " "), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
