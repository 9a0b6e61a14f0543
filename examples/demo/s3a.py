"""Spark's own S3 connector (S3A), which its pip package lacks: fetched once into `.cache`, with Maven or with Spark.

Only the few modules of Amazon's SDK that S3A needs (about 15 MB), not its bundle (some 600 MB).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.demo.s3_server import KEY, KEY_ID, REGION
from wal_sink.spark import check_java

SDK_VERSIONS = {"3.5.0": "2.35.4"}
"""By version of Hadoop: the version of Amazon's SDK it was built with, as its own `hadoop-project` says."""
CACHE = Path(".cache")
_FETCH_LIMIT_S = 150.0
_BUNDLE = "software.amazon.awssdk:bundle"
_SPARK_HAS = re.compile(r"(?:^|_)(?:netty-(?!nio-client)|slf4j-|commons-|httpc|jcl-)")
"""Other versions of these on Spark's class path break it (measured: netty)."""

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>wal-sink</groupId><artifactId>demo</artifactId>
<version>1</version><dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = """
<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
<exclusions><exclusion><groupId>software.amazon.awssdk</groupId><artifactId>bundle</artifactId></exclusion></exclusions>
</dependency>"""
_RESOLVE = """
import sys
from pyspark.sql import SparkSession
ivy, packages, excludes = sys.argv[1:]
conf = {"spark.jars.ivy": ivy, "spark.jars.packages": packages, "spark.jars.excludes": excludes,
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SparkSession.builder.master("local[1]").config(map=conf).getOrCreate().stop()
"""


def s3a_jars(say: Callable[[str], None], cache: Path = CACHE) -> Path | None:
    """The folder of S3A's jars, fetched now if need be; None, having said why, if they cannot be had."""
    hadoop = _hadoop_version()
    sdk = SDK_VERSIONS.get(hadoop)
    if sdk is None:
        say(f"which SDK belongs to the S3 connector of Hadoop {hadoop} is not known here")
        return None
    folder = (cache / f"s3a-{hadoop}").absolute()
    if folder.is_dir():
        return folder
    say(f"fetching Spark's S3 connector for Hadoop {hadoop}, once, into {cache}")
    coordinates = [f"org.apache.hadoop:hadoop-aws:{hadoop}"]
    coordinates += [f"software.amazon.awssdk:{name}:{sdk}" for name in ("s3-transfer-manager", "sts", "apache-client")]
    scratch = cache.absolute() / f"s3a-{hadoop}-{os.getpid()}"
    try:
        return _fetched(coordinates, scratch, folder, say)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def s3a_conf(jars: Path, endpoint: str) -> dict[str, str]:
    """Spark's configuration for the demo's server. The keys come by the environment, see `s3a_environment`."""
    return {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def s3a_environment() -> dict[str, str]:
    """Where S3A looks for keys by itself."""
    return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": KEY, "AWS_REGION": REGION, "AWS_SESSION_TOKEN": ""}


def _hadoop_version() -> str:
    found = importlib.util.find_spec("pyspark")
    places = found.submodule_search_locations if found else None
    jars = [path.name for place in places or [] for path in (Path(place) / "jars").glob("hadoop-client-api-*.jar")]
    return jars[0].removeprefix("hadoop-client-api-").removesuffix(".jar") if jars else "unknown"


def _fetched(coordinates: Sequence[str], scratch: Path, folder: Path, say: Callable[[str], None]) -> Path | None:
    scratch.mkdir(parents=True)
    for what, fetch in (("Maven", _by_maven), ("Spark's resolver", _by_spark)):
        trouble = fetch(coordinates, scratch)
        jars = [path for path in scratch.rglob("*.jar") if not _SPARK_HAS.search(path.name)]
        if not trouble and any("hadoop-aws" in path.name for path in jars):
            chosen = scratch / "chosen"
            chosen.mkdir()
            for path in jars:
                shutil.copy(path, chosen / path.name)
            chosen.replace(folder)
            return folder
        say(f"{what}: {trouble or 'brought no S3 connector'}")
    return None


def _by_maven(coordinates: Sequence[str], scratch: Path) -> str:
    """Download with Maven, whose settings may name mirrors; returns what went wrong, empty if nothing did."""
    maven = shutil.which("mvn")
    if maven is None:
        return "there is no mvn on PATH"
    triples = [coordinate.split(":") for coordinate in coordinates]
    dependencies = "".join(_DEPENDENCY.format(group=g, artifact=a, version=v) for g, a, v in triples)
    pom = scratch / "pom.xml"
    pom.write_text(_POM.format(dependencies=dependencies))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'maven'}"]
    return _run([maven, "-q", "-B", "-f", str(pom), *goal])


def _by_spark(coordinates: Sequence[str], scratch: Path) -> str:
    """Download as `spark.jars.packages` does, in a Spark that is started for nothing else."""
    check_java()
    return _run([sys.executable, "-c", _RESOLVE, str(scratch / "ivy"), ",".join(coordinates), _BUNDLE])


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own programs
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__} after at most {_FETCH_LIMIT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    named = [line for line in lines if "ERROR" in line or "Exception" in line]
    return (named or lines or ["it failed without a word"])[0][:200]
