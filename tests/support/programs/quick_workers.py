"""The daemon for tests from which Spark forks its Python workers. It imports pandas and Arrow before it forks.

Spark's own daemon imports neither. Then every worker imports both, and walks all of it after every task to collect
garbage. That takes a third of the processor time of a short-lived Spark. Each worker imports wal-sink itself.
"""

from __future__ import annotations

import gc
import shlex

QUICK_CONF = {
    "spark.python.daemon.module": "tests.support.programs.quick_workers",
    # Otherwise, tasks of DataFrames and tasks of RDDs have separate daemons and separate workers.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
SUBMIT = shlex.join([*(word for pair in QUICK_CONF.items() for word in ("--conf", "=".join(pair))), "pyspark-shell"])
"""The same as PYSPARK_SUBMIT_ARGS, for programs that do not use the Spark of the tests."""


def main() -> None:
    """Import the packages, then run Spark's own daemon."""
    import pandas as pd  # noqa: F401, PLC0415 - imported for the workers, like the next three
    import pyarrow.compute  # noqa: PLC0415
    import pyarrow.parquet  # noqa: F401, PLC0415
    import pyspark.worker  # noqa: F401, PLC0415
    from pyspark.daemon import manager  # noqa: PLC0415

    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
