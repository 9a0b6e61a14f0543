"""A standalone Spark cluster on this machine: a master and two workers, each with its own address.

Spark runs a speculative copy only on another host than the original, so the workers listen on 127.0.0.2 and 127.0.0.3.
Every process belongs to a `Child`, which ends it by its id. An executor belongs to the session of its worker.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.support.components import note_started
from tests.support.processes import Child, is_running, python_environment
from tests.support.servers.ports import free_port

HOSTS = ("127.0.0.2", "127.0.0.3")
START_S = 240.0
_FOUND = find_spec("pyspark")  # found, not imported: quick tests read the names of chaos scenarios
assert _FOUND is not None
assert _FOUND.origin is not None
SPARK_HOME = Path(_FOUND.origin).parent
NO_LIMIT_OF_LOSSES = "-Dspark.deploy.maxExecutorRetries=-1"
"""Option of a master that never ends an application because its executors die."""
_REGISTERED = "Successfully registered with master"
_DEPLOY = "org.apache.spark.deploy"
_BACKEND = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Executor:
    """A living executor. Its name in Spark is the application and a number."""

    app: str
    number: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"executor {self.number} of {self.app} on {self.host}, process {self.pid}"

    def workers(self) -> list[int]:
        """Return its Python processes: the daemons, and the workers that they forked."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@dataclass
class Standalone:
    """A running cluster. `url` is the master's. The workers are in the order of `HOSTS`."""

    url: str
    master: Child
    workers: Sequence[Child]
    _new_master: Callable[[], Child]

    def executors(self) -> list[Executor]:
        """Return every living executor."""
        found = [_executor_in(pid) for worker in self.workers for pid in worker.members()]
        return [executor for executor in found if executor is not None]

    def worker_of(self, executor: Executor) -> Child:
        """Return the worker that started an executor."""
        return self.workers[HOSTS.index(executor.host)]

    def is_whole(self) -> bool:
        """Whether the master knows both workers as living ones. A worker that sleeps for a minute is none to it."""
        address = re.search(r"MasterWebUI.* started at (http://\S+)", self.master.output)
        if address is None:
            return False
        with urllib.request.urlopen(f"{address[1]}/json/", timeout=START_S) as answer:  # noqa: S310 - the master's
            return bool(json.load(answer)["aliveworkers"] == len(HOSTS))

    def restart_master(self, *, forgets: Path | None = None) -> None:
        """Kill the master and start another one at its address. Return when it listens.

        `forgets` is the folder from which the new one would recover. It is deleted.
        """
        self.master.kill()
        if forgets is not None:
            shutil.rmtree(forgets)
        self.master = self._new_master()


@contextlib.contextmanager
def standalone(
    folder: Path,
    *,
    cores: int = 2,
    memory: str = "1g",
    master_options: str = "",
    worker_environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Standalone]:
    """Start a cluster whose logs and work files are in `folder`. It ends with the block in any case.

    `cores` and `memory` are those of each worker. `master_options` are Java options of the master. Executors inherit
    `worker_environment`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:

        def new_master() -> Child:
            args = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
            log = folder / f"master-{len(list(folder.glob('master-*.log')))}.log"
            extra = {"SPARK_DAEMON_JAVA_OPTS": master_options}
            master = stack.enter_context(_deployed("master.Master", args, log, "127.0.0.1", extra))
            started = re.compile(rf"Starting Spark master at {re.escape(url)}\s")
            master.wait_until(lambda: started.search(master.output) is not None, "the master listens", START_S)
            return master

        master = new_master()
        workers = []
        for host in HOSTS:
            args = ["--host", host, "--port", "0", "--webui-port", "0", "-c", str(cores), "-m", memory]
            args += ["--work-dir", str(folder / f"work-{host}"), url]
            log = folder / f"{host}.log"
            workers.append(stack.enter_context(_deployed("worker.Worker", args, log, host, worker_environment)))
        for worker in workers:
            worker.wait_for_output(_REGISTERED, START_S)
        note_started("Spark standalone cluster", version("pyspark"))
        yield Standalone(url, master, workers, new_master)


def _deployed(kind: str, args: Sequence[str], log: Path, host: str, environment: Mapping[str, str]) -> Child:
    program = SPARK_HOME / "bin" / "spark-class"
    extra = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m", **environment}
    return Child([program, f"{_DEPLOY}.{kind}", *args], log=log, env=python_environment(extra))


def _executor_in(pid: int) -> Executor | None:
    """Return the executor that a process is; None for any other process."""
    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    if _BACKEND not in words or not is_running(pid):
        return None
    told = {name: words[words.index(name) + 1] for name in ("--app-id", "--executor-id", "--hostname")}
    return Executor(told["--app-id"], told["--executor-id"], told["--hostname"], pid)
