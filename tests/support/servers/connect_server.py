"""A server of Spark Connect on this machine, from the installed pyspark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.support.components import note_started
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.processes import Child, python_environment
from tests.support.servers.ports import free_port
from tests.support.servers.standalone import SPARK_HOME

START_S = 240.0
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class ConnectServer:
    """A running server. `url` is the address that `SparkSession.builder.remote` takes."""

    url: str
    port: int
    process: Child


@contextlib.contextmanager
def connect_server(
    folder: Path, conf: Mapping[str, str] | None = None, *, port: int | None = None
) -> Iterator[ConnectServer]:
    """Start a server whose log is in `folder`. It ends with the block in any case, with all its workers.

    `port`: that of a server that has ended, so that its clients find this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    settings = {
        **{key: str(value) for key, value in SPARK_CONF.items()},
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **(conf or {}),
    }
    args = [f"--conf={key}={value}" for key, value in settings.items()]
    program: list[str | Path] = [
        SPARK_HOME / "bin" / "spark-submit",
        "--master",
        "local[2]",
        *args,
        "--class",
        _SERVER,
        "spark-internal",
    ]
    environment = python_environment({"SPARK_HOME": str(SPARK_HOME)})
    with Child(program, log=folder / "connect.log", env=environment) as child:
        child.wait_for_output("Spark Connect server started at", START_S)
        note_started("Spark Connect server", version("pyspark"))
        yield ConnectServer(f"sc://127.0.0.1:{port}", port, child)
