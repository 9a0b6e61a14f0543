"""A newcomer's Java and Python are explained before Spark fails on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.lasting import Lasting
from tests.support.processes import Child
from wal_sink.errors import ConfigError
from wal_sink.spark import check_java, prepare_python
from wal_sink.spark.cluster import WorkerPython, _packages_of, _refuse_other_code
from wal_sink.spark.environment import java_feature_version

PYTHON = "PYSPARK_PYTHON"
CHECKING_DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession
from wal_sink.errors import ConfigError
from wal_sink.spark.cluster import WORKER_MODULES, check_workers

os.environ.update(json.loads(sys.argv[1]))
if not os.environ["PYSPARK_PYTHON"]:
    del os.environ["PYSPARK_PYTHON"]
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
try:
    worker = check_workers(spark, (*WORKER_MODULES, *sys.argv[2:]))
    print("WORKER", worker.executable)
    print("ROWS", spark.range(3).mapInArrow(lambda batches: batches, "id long").count())
except ConfigError as error:
    print("CONFIG", error)
spark.stop()
"""


def _java(home: Path, version: str, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    """Make a folder that looks like a Java: its `java` says `version`, and lists modules on request."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    listing = "".join(f"echo {name}@{version}\n" for name in (modules or "").split())
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then\n{listing or ":"}\nelse\n'
        f"echo Picked up JAVA_TOOL_OPTIONS: -Dx=1 >&2\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nfi\n"
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_392", 8), ("9-internal", 9), ("11.0.2", 11)],
)
def test_the_feature_release_is_read_from_every_style_of_version(text: str, version: int) -> None:
    assert java_feature_version(text) == version


@pytest.mark.processes
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20", "16"])
def test_an_old_java_is_refused(tmp_path: Path, version: str) -> None:
    home = _java(tmp_path / "jdk", version)
    with pytest.raises(ConfigError, match=rf"needs Java 17 or newer; .*bin/java .*is Java {version}.*Install a JDK"):
        check_java({"JAVA_HOME": str(home)})


def test_no_java_at_all_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set and PATH holds no java.*Install a JDK"):
        check_java({"PATH": str(tmp_path)})


def test_a_wrong_java_home_is_explained_although_path_holds_a_java(tmp_path: Path) -> None:
    on_path = _java(tmp_path / "jdk", "17")
    with pytest.raises(
        ConfigError, match=r"JAVA_HOME is .*/wrong, but this folder contains no program bin/java.*Unset JAVA_HOME"
    ):
        check_java({"JAVA_HOME": str(tmp_path / "wrong"), "PATH": f"{on_path}/bin"})


@pytest.mark.processes
def test_a_java_without_the_vector_module_is_refused(tmp_path: Path) -> None:
    home = _java(tmp_path / "jdk", "21.0.4", modules="java.base java.logging")
    with pytest.raises(ConfigError, match=r"built without the module jdk\.incubator\.vector"):
        check_java({"JAVA_HOME": str(home)})


def test_workers_get_this_interpreter_unless_the_user_named_one() -> None:
    environ: dict[str, str] = {}
    assert prepare_python(environ) == sys.executable
    assert environ == {"PYSPARK_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of the driver's version without any package."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    return home / "bin" / "python"


@pytest.mark.spark
def test_a_worker_without_packages_is_explained(other_sparks: Lasting, bare_python: Path) -> None:
    output = other_sparks.run(CHECKING_DRIVER, json.dumps({PYTHON: str(bare_python)}))
    assert f"CONFIG Spark's workers run {bare_python}" in output
    assert "pyarrow (ModuleNotFoundError: No module named 'pyarrow'); pandas (" in output
    assert f"Your options: set PYSPARK_PYTHON={sys.executable}" in output


@pytest.mark.spark
def test_a_module_that_only_this_wal_needs_is_named(other_sparks: Lasting) -> None:
    output = other_sparks.run(CHECKING_DRIVER, "{}", "no_such_filesystem")
    assert "cannot import these modules: no_such_filesystem (ModuleNotFoundError" in output
    assert "pyarrow (" not in output


@pytest.mark.processes
@pytest.mark.spark
def test_the_default_python_is_corrected_in_local_mode(tmp_path: Path, bare_python: Path) -> None:
    path = os.pathsep.join([str(bare_python.parent), os.environ["PATH"]])
    environ = {"PATH": path}  # of the JVM, which starts the workers
    with Child.python(CHECKING_DRIVER, json.dumps({PYTHON: ""}), log=tmp_path / "log", env=environ) as driver:
        output = driver.succeed()
    assert f"WORKER {sys.executable}" in output
    assert "ROWS 3" in output


@pytest.mark.spark
def test_a_python_that_does_not_exist_is_explained(other_sparks: Lasting, tmp_path: Path) -> None:
    output = other_sparks.run(CHECKING_DRIVER, json.dumps({PYTHON: str(tmp_path / "python")}))
    assert f"CONFIG Spark could not start its workers' Python '{tmp_path}/python'" in output


@pytest.mark.spark
def test_another_minor_version_is_explained(other_sparks: Lasting, tmp_path: Path, bare_python: Path) -> None:
    """A Python that claims another version, because a machine seldom has two."""
    (tmp_path / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "Version = collections.namedtuple('Version', 'major minor micro releaselevel serial')\n"
        "sys.version_info = Version(3, 9, 1, 'final', 0)\n"
    )
    wrapper = tmp_path / "python3.9"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {bare_python} "$@"\n')
    wrapper.chmod(0o755)
    output = other_sparks.run(CHECKING_DRIVER, json.dumps({PYTHON: str(wrapper)}))
    assert f"CONFIG Spark's workers run {wrapper} (Python 3.9), but PySpark needs the driver's minor version" in output


# Another wal-sink in the workers.


def _package(folder: Path, name: str, text: str) -> Path:
    (folder / name / "inner").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "inner" / "code.py").write_text(text)
    return folder


@pytest.mark.processes
def test_a_package_has_the_same_digest_in_a_folder_and_in_a_zip_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _package(tmp_path / "here", "some_package", "x = 1")
    other = _package(tmp_path / "other", "some_package", "x = 2")
    subprocess.run(
        [sys.executable, "-m", "zipfile", "--create", tmp_path / "all.zip", folder / "some_package"], check=True
    )
    digests = []
    for place in (folder, tmp_path / "all.zip", other):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(place))
            digests.append(_packages_of()(["some_package", "no_such_package"])["some_package"][1])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["wal_sink", "wal_sink_backends"])
def test_workers_with_another_version_of_a_package_are_refused(name: str) -> None:
    found = dict(_packages_of()(["wal_sink", "wal_sink_backends"]))
    assert set(found) == {"wal_sink", "wal_sink_backends"}
    context = cast("Any", SimpleNamespace(master="spark://host:7077"))
    same = WorkerPython("python", "3.11.7", {}, "one", found)
    _refuse_other_code(context, [same, WorkerPython("python", "3.11.7", {}, "bare", {})])
    other = WorkerPython("python", "3.11.7", {}, "two", {**found, name: ("/elsewhere", "0123456789ab")})
    with pytest.raises(ConfigError, match=rf"on host two, whose {name} in /elsewhere is another version"):
        _refuse_other_code(context, [same, other])
