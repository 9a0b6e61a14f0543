"""Jars that tests need and pip does not install. They are fetched once for all checkouts, into the user's cache.

Ivy, a part of PySpark, fetches them with its own settings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.components import require
from tests.support.processes import Child
from tests.support.user_cache import user_cache


class Module(NamedTuple):
    """One module of a repository of jars. The first available one of `versions` is used."""

    group: str
    name: str
    versions: tuple[str, ...]
    with_what_it_needs: bool = False


def jars(folder: str, modules: Sequence[Module]) -> Path:
    """Return `folder` in the user's cache, with the jars of these modules. Its name holds their version.

    Skip or fail the test if they are not available. They are collected in another folder, which is renamed once it is
    complete. Several processes may do so at a time.
    """
    require(java() != "", "fetching jars needs Java 17 or newer on the PATH, such as Debian's default-jre-headless")
    complete = user_cache() / folder
    if complete.is_dir():
        return complete
    unfinished = complete.with_name(f"{folder}.{os.getpid()}")
    unfinished.mkdir(parents=True, exist_ok=True)
    try:
        for module in modules:
            _fetch(module, unfinished)
        try:
            unfinished.rename(complete)
        except OSError:
            if not complete.is_dir():  # another process was first
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return complete


def java() -> str:
    """Return the program that starts a JVM. Empty if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java")
    return str(found) if found and Path(found).exists() else ""


def _fetch(module: Module, folder: Path) -> None:
    spark = importlib.util.find_spec("pyspark")  # found, not imported: quick tests do without it
    ivy = next(Path(spark.origin).parent.glob("jars/ivy-*.jar"), None) if spark and spark.origin else None
    require(ivy is not None, f"{module.name} needs Ivy, one of PySpark's jars: pip install pyspark")
    cache, log = folder.with_name(f"{folder.name}-ivy"), folder.with_name(f"{folder.name}.log")
    command: list[str | Path] = [java(), "-jar", str(ivy), "-confs", "default", "-cache", cache]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    command += [] if module.with_what_it_needs else ["-notransitive"]
    try:
        for version in module.versions:
            with Child([*command, "-dependency", module.group, module.name, version], log=log, limit_s=240) as child:
                if child.wait() == 0 and any(folder.glob(f"{module.name}-*.jar")):
                    log.unlink()
                    return
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    wanted = f"{module.group}:{module.name}:{' or '.join(module.versions)}"
    require(False, f"Ivy could not fetch {wanted}: see {log}; a network is needed once")
