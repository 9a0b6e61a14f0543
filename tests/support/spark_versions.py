"""Every PySpark minor version that wal-sink allows, for tests that run a program on each.

The installed version is used as it is. Every other one is installed once, by pip, into `pyspark-<version>/` of the
user's cache (`XDG_CACHE_HOME`, else `~/.cache`, in `wal-sink/`; some 450 MB each). Its folder gets this name once it is
complete. Of several processes one installs, and the others wait. `python -m tests.support.spark_versions` fetches all.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.processes import POLL_S, Child, ChildError, python_environment
from tests.support.servers.jars import java
from tests.support.user_cache import user_cache

ALL_VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest patch of each minor version, oldest first. `test_spark_versions.py` compares it with pyproject."""
VERSIONS = ALL_VERSIONS if sys.version_info < (3, 12) else ALL_VERSIONS[1:]
"""Those that run with this Python: PySpark 3.5 needs one up to 3.11 for Arrow."""

INSTALL_LIMIT_S = 540.0
RUN_LIMIT_S = 240.0

each_version = pytest.mark.parametrize("version", VERSIONS)
"""Runs a test once on each version, as its argument `version`."""


def run_on(version: str, program: Path | str, *args: str | Path, log: Path, limit_s: float = RUN_LIMIT_S) -> str:
    """Run a program, a file's `Path` or source text, on this PySpark. Return its output; the exit code must be 0.

    It runs in a new process and session. `log` takes its output. None of its processes outlives this call.
    """
    with Child.python(program, *args, log=log, env=environment(version), limit_s=limit_s) as child:
        return child.succeed()


def environment(version: str) -> dict[str, str]:
    """Return the environment of a `Child` that uses this version, as does its Spark. Fetch the version if necessary."""
    from tests.support.programs.quick_java import QUICK  # noqa: PLC0415 - that module starts a child itself

    require(java() != "", "Spark needs Java 17 or newer: install a JDK (Debian: openjdk-17-jre-headless)")
    home = packages(version)
    rest = python_environment()["PYTHONPATH"]
    return {
        "PYTHONPATH": os.pathsep.join([str(home), rest]),
        "SPARK_HOME": str(home / "pyspark"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": QUICK,  # without the archive of classes, which belongs to the installed Spark
    }


def packages(version: str) -> Path:
    """Return the folder that has this PySpark as `pyspark/`. Skip or fail the test if the version is not available."""
    import pyspark  # noqa: PLC0415 - quick tests, which do without it, import this module

    installed = Path(pyspark.__file__).parent.parent
    if version == pyspark.__version__:
        return installed
    complete = user_cache() / f"pyspark-{version}"
    if not complete.is_dir():
        complete.parent.mkdir(parents=True, exist_ok=True)
        with _held(complete.with_name(f"pyspark-{version}.lock")):
            if not complete.is_dir():
                _install(version, complete)
    return complete


def _install(version: str, complete: Path) -> None:
    unfinished = complete.with_name(f"{complete.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process; the lock excludes all others
    log = complete.with_name(f"{complete.name}.log")
    quiet = ["--no-input", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    fast = ["--no-compile", "--config-settings=--build-option=--compression=stored"]  # of 450 MB that are built here
    pip = [sys.executable, "-m", "pip", "install", *quiet, *fast, "--no-deps", "--target", str(unfinished)]
    try:
        with Child([*pip, f"pyspark=={version}"], log=log, limit_s=INSTALL_LIMIT_S) as child:
            child.succeed()
        unfinished.rename(complete)
    except ChildError as error:
        require(False, f"pip could not fetch pyspark {version}, which needs a network once: {error}")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    log.unlink()


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold a lock of the machine, for a limited time. It is released if the process is killed."""
    deadline = time.monotonic() + INSTALL_LIMIT_S
    with lock.open("w") as file:
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{lock} was held by another process for {INSTALL_LIMIT_S} s")
            time.sleep(10 * POLL_S)
        yield


def _locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    for each in VERSIONS:
        sys.stdout.write(f"{each} {packages(each)}\n")
