"""The daemon that Spark forks its Python workers from, for tests: with pandas and Arrow imported before it forks.

Spark's own daemon imports neither, so that every worker does, and walks all of it again to collect garbage after every
task: a third of the processor time of a Spark that lives for seconds. What is wal-sink's, each worker imports itself.
"""

from __future__ import annotations

import gc
import shlex

QUICK_CONF = {
    "spark.python.daemon.module": "tests.support.programs.quick_workers",
    # Else tasks of DataFrames and of RDDs have a daemon each, and workers of their own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
SUBMIT = shlex.join([*(word for pair in QUICK_CONF.items() for word in ("--conf", "=".join(pair))), "pyspark-shell"])
"""The same as PYSPARK_SUBMIT_ARGS, for programs whose Spark is not the tests'."""


def main() -> None:
    """Import, and leave the rest to Spark's own."""
    import pandas as pd  # noqa: F401, PLC0415 - imported for the workers, as are the next, not for who reads the above
    import pyarrow.compute  # noqa: PLC0415
    import pyarrow.parquet  # noqa: F401, PLC0415
    import pyspark.worker  # noqa: F401, PLC0415
    from pyspark.daemon import manager  # noqa: PLC0415

    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
