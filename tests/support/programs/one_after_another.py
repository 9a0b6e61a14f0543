"""Runs programs that a test gives it, one after the other, in one process: `tests.support.lasting` describes it.

The arguments are a folder, and `one` or `each`: one Spark for all programs, or one for each. The program number N is in
the file `N.json` of the folder, which holds a source text, its name and its arguments.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.lasting import ended
from tests.support.processes import end_with_parent
from tests.support.waiting import wait_until

LONGEST_S = 24 * 3600.0


def main(folder: Path, sparks: str) -> None:
    """Run one program after the other until this process is ended."""
    end_with_parent()
    for number in count():
        order = folder / f"{number}.json"
        wait_until(order.exists, "another program", timeout_s=LONGEST_S)
        found = json.loads(order.read_text())
        environment = dict(os.environ)
        code = run(found["name"], found["source"], found["args"])
        os.environ.clear()
        os.environ.update(environment)
        _clean_up(one_spark=sparks == "one")
        print(f"\n{ended(number)} {code}", flush=True)  # noqa: T201 - its test waits for this line


def run(name: str, source: str, args: list[str]) -> int:
    """Run a program as Python would. Return the exit code."""
    module = ModuleType("__main__")  # pickle carries what is defined here to workers
    module.__file__ = name
    sys.modules["__main__"], sys.argv = module, [name, *args]
    try:
        exec(compile(source, name, "exec"), vars(module))  # noqa: S102 - a program of a test
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the next program needs this process
        traceback.print_exc()
        return 1
    return 0


def _clean_up(*, one_spark: bool) -> None:
    """End the queries of the program, and its Spark or what it set in its session."""
    from pyspark import SparkContext  # noqa: PLC0415 - some programs start no Spark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    session = SparkSession.getActiveSession()
    for query in session.streams.active if session else ():
        query.stop()
    if not one_spark:
        if session:
            session.stop()
        _forget_configuration(SparkContext._jvm)
        return
    if session is None:
        return
    given = dict(session.sparkContext.getConf().getAll())
    for row in session.sql("SET").collect():
        if given.get(row.key) != row.value:
            with suppress(Exception):  # one that cannot be changed was not changed by the program
                session.conf.set(row.key, given[row.key]) if row.key in given else session.conf.unset(row.key)


def _forget_configuration(jvm: Any) -> None:
    """Remove what the first program was started with: its JVM keeps it as the default of every later Spark."""
    for name in list(jvm.java.lang.System.getProperties().stringPropertyNames()) if jvm else ():
        if name.startswith("spark.") and not name.startswith(("spark.app.name", "spark.submit.")):
            jvm.java.lang.System.clearProperty(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
