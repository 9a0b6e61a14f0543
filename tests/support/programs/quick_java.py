"""Java options for tests. Their JVMs live for seconds, and loading Spark's classes would take most of that time.

`python -m tests.support.programs.quick_java` writes those classes, parsed and verified, to an archive (class data
sharing) that later JVMs map. Starting and ending a Spark then takes 8 s instead of 17 s. Without the archive, or with
the archive of another Java or Spark, a JVM starts slowly.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from tests.support.processes import CHECKOUT, Child

QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""The options of the demo (`examples.demo.job`): no optimising compiler, no verification of Spark's classes."""

_FOLDER = CHECKOUT / ".cache" / "java"
_TYPICAL_LIFE = """
import sys, tempfile
from pyspark.sql import SparkSession
conf = {"spark.driver.extraJavaOptions": sys.argv[1], "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
rows = spark.range(5).selectExpr("id", "cast(id as string) as name")
rows.mapInArrow(lambda batches: batches, "id long, name string").count()
spark.sparkContext.parallelize([1, 2], 2).map(lambda number: number).collect()
with tempfile.TemporaryDirectory() as folder:
    spark.range(5).write.parquet(folder + "/table")
    rows = spark.readStream.schema("id long").parquet(folder + "/table").writeStream
    rows = rows.foreachBatch(lambda df, batch: df.count()).option("checkpointLocation", folder + "/checkpoint")
    rows.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def archive() -> Path:
    """Return the path of the archive for this Java and this PySpark. It may not exist yet."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    made = Path(java).resolve() if java else Path()
    age = made.stat().st_mtime_ns if made.is_file() else 0
    # Without importing it: quick tests do without pyspark, and their plugins import this module.
    spark = importlib.util.find_spec("pyspark")
    version, place = importlib.metadata.version("pyspark"), spark.origin if spark else ""
    key = hashlib.sha256(f"{made} {age} {version} {place}".encode()).hexdigest()[:16]
    return _FOLDER / f"{key}.jsa"


QUICK_SPARK = f"{QUICK} -XX:SharedArchiveFile={archive()} -Xlog:cds=off -Xlog:cds+dynamic=off"
"""The options of Spark's drivers and executors. The archive is of no use to other JVMs."""


def main() -> None:
    """Write the archive if it does not exist."""
    wanted = archive()
    if wanted.exists():
        return
    wanted.parent.mkdir(parents=True, exist_ok=True)
    unfinished = wanted.with_suffix(f".{os.getpid()}")
    program = wanted.with_suffix(".py")
    program.write_text(_TYPICAL_LIFE)
    options = f"{QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off -Xlog:cds+dynamic=off"
    plain = {"JDK_JAVA_OPTIONS": ""}  # the usual options would name the archive that is written here
    with Child.python(program, options, log=wanted.with_suffix(".log"), env=plain, limit_s=180) as child:
        child.wait_for_all()  # the JVM outlives its Python, and writes the archive at its end
    if unfinished.exists():
        unfinished.replace(wanted)
    else:
        told = f"Java wrote no archive of its classes (see {child.log}): the tests will start more slowly\n"
        if os.environ.get("WAL_SINK_TEST_ALL"):
            raise SystemExit(told)
        sys.stdout.write(told)


if __name__ == "__main__":
    main()
