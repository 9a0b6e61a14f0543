"""A standalone Spark cluster on this machine: a master and two workers, each with its own address.

Spark runs a speculative copy only on another host than the original, so the workers listen on 127.0.0.2 and 127.0.0.3.
Every process belongs to a `Child`, which ends it by its id. An executor belongs to the session of its worker.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.components import note_started
from tests.support.processes import Child, python_environment

HOSTS = ("127.0.0.2", "127.0.0.3")
START_S = 90.0
_SPARK_HOME = Path(pyspark.__file__).parent
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class Standalone:
    """A running cluster. `url` is the master's. The workers are in the order of `HOSTS`."""

    url: str
    master: Child
    workers: Sequence[Child]


@contextlib.contextmanager
def standalone(folder: Path, *, cores: int = 2) -> Iterator[Standalone]:
    """Start a cluster whose logs and work files are in `folder`. It ends with the block in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        args = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(_deployed("master.Master", args, folder / "master.log", "127.0.0.1"))
        master.wait_until(lambda: _MASTER_URL.search(master.output) is not None, "the master listens", START_S)
        found = _MASTER_URL.search(master.output)
        assert found is not None
        workers = []
        for host in HOSTS:
            args = ["--host", host, "--port", "0", "--webui-port", "0", "-c", str(cores), "-m", "1g"]
            args += ["--work-dir", str(folder / f"work-{host}"), found[1]]
            workers.append(stack.enter_context(_deployed("worker.Worker", args, folder / f"{host}.log", host)))
        for worker in workers:
            worker.wait_for_output("Successfully registered with master", START_S)
        note_started("Spark standalone cluster", pyspark.__version__)
        yield Standalone(found[1], master, workers)


def _deployed(kind: str, args: Sequence[str], log: Path, host: str) -> Child:
    program = _SPARK_HOME / "bin" / "spark-class"
    extra = {"SPARK_HOME": str(_SPARK_HOME), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
    return Child([program, f"{_DEPLOY}.{kind}", *args], log=log, env=python_environment(extra))
