"""The versions of Spark that wal-sink knows, and a Python without PySpark. Driver only; imports no pyspark itself."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

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
            "SPARK_HOME and PYTHONPATH: both must name one installation. Nothing was started"
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
