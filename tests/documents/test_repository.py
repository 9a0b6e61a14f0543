"""Guards over the repository itself: what may not be named in it, and what the core may not import."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import wal_sink
from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT, python_environment

FORBIDDEN = {
    "the host of a package registry": "|".join(
        re.escape(name + "." + domain)
        for name, domain in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("npmjs", "org"),
            ("maven" + ".apache", "org/maven2"),
        ]
    ),
    "a path of one machine": "|".join("/" + name + "/" for name in ("root", "work")) + "|/home/[a-z]|/Users/[A-Za-z]",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_names(what: str) -> None:
    pattern = re.compile(rf"(?<![\w./:}}-])(?:{FORBIDDEN[what]})" if "path" in what else FORBIDDEN[what])
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"{what} is named in\n" + "\n".join(found)


OWN_DEFAULT = re.compile(r"\.conf\.get\(\s*[^(),]+,|\bconf\.get\(\s*[^(),]+,\s*None")
MAY_ASK_WITHOUT_SPARKS_DEFAULT = "wal_sink/spark/session/configuration.py"


def test_no_setting_of_spark_is_read_with_a_default_of_ours() -> None:
    """A second argument of `conf.get` hides Spark's default: a setting that is on by default then looks like none."""
    found = [
        f"{path.relative_to(CHECKOUT)}: {match[0]}"
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(CHECKOUT).as_posix() != MAY_ASK_WITHOUT_SPARKS_DEFAULT
        for match in OWN_DEFAULT.finditer(path.read_text())
    ]
    assert not found, "use setting_of or changed of wal_sink.spark.session.configuration in\n" + "\n".join(found)


@pytest.mark.parametrize(
    "call", ["spark.conf.{}(key, None)", 'self.spark.conf.{}(\n KEY, "false")', "conf.{}(k, None)"]
)
def test_a_default_of_ours_is_recognised(call: str) -> None:
    assert OWN_DEFAULT.search(call.format("get"))
    assert not OWN_DEFAULT.search("spark.conf.get(key) or spark.sparkContext.getConf().get(key, '1g')")


OF_SPARK = ("wal_sink/spark/", "wal_sink/cli/__main__.py")
"""The room that may import Spark; and a module that runs the command when it is imported."""
NOT_AT_THEIR_TOP = (
    "wal_sink/spark/__init__.py",
    "wal_sink/spark/placement.py",
    "wal_sink/spark/streaming_query.py",
    "wal_sink/spark/session/checkpoint_files.py",
)
"""Modules of that room that import Spark only inside functions: they are imported before Spark is needed."""


def _core_modules() -> list[str]:
    files = [path.relative_to(CHECKOUT) for path in (CHECKOUT / "wal_sink").rglob("*.py")]
    core = [file for file in files if file.as_posix() in NOT_AT_THEIR_TOP or not file.as_posix().startswith(OF_SPARK)]
    return sorted(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in core)


_IMPORTING_EACH = """
import os, sys
import fsspec, msgspec, pandas, pyarrow.compute, pyarrow.parquet  # what every core module may import: once for all
import wal_sink  # Python imports it before any module of it
failed = 0
for module in sys.argv[1:]:
    if os.fork() == 0:
        __import__(module)
        print(module, *sorted({'pyspark', 'wal_sink_backends'} & set(sys.modules)), flush=True)
        os._exit(0)  # without tidying up, which takes longer than the import
    failed |= os.wait()[1]
sys.exit(failed != 0)
"""
"""Imports each module in a process that has imported only `wal_sink` before, and prints what it should not bring."""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """By module of the core, what importing it imports of what it may not."""
    command = [sys.executable, "-c", _IMPORTING_EACH, *_core_modules()]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {module: names for module, *names in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize("module", _core_modules())
def test_the_core_imports_neither_pyspark_nor_a_backend(module: str, imported: dict[str, list[str]]) -> None:
    assert imported[module] == []


def test_the_public_names_are_sorted_and_exist() -> None:
    assert list(wal_sink.__all__) == sorted(wal_sink.__all__)
    for name in wal_sink.__all__:
        assert getattr(wal_sink, name) is not None
