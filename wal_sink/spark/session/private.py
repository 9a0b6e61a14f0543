"""The single access to Spark's private interface, used where Spark has no public one.

A missing name or an unexpected answer is an error; it never counts as "nothing there". `docs/ASSUMPTIONS.md` lists what
wal-sink assumes about each name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError
from wal_sink.redaction import redacted
from wal_sink.spark.session.versions import KNOWN_VERSIONS


@contextmanager
def understood(version: str, what: str) -> Iterator[None]:
    """Turn an answer that no known Spark gives into a `ConfigError` that names this version.

    Such an answer never counts as "nothing there". `what`: the subject of the question; the message says "does not tell
    wal-sink" before it.
    """
    try:
        yield
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError) as error:
        said = redacted(str(error).partition("\n")[0])
        raise ConfigError(
            f"Spark {version} does not let wal-sink read {what} ({type(error).__name__}: {said}). wal-sink knows Spark "
            f"{KNOWN_VERSIONS}: use one of these, or a newer wal-sink. Nothing was staged or started"
        ) from error


def private(thing: object, name: str) -> Any:
    """The value of a private attribute of PySpark. Raises `ConfigError` if this version of PySpark lacks the name."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        owner = thing if isinstance(thing, type) else type(thing)
        raise ConfigError(
            f"{owner.__module__}.{owner.__qualname__} has no {name} in PySpark {_version()}, but wal-sink needs it. "
            "Use a version of PySpark that README.md names, or a newer wal-sink"
        ) from error


def _version() -> str:
    from pyspark import __version__  # noqa: PLC0415 - a caller that has an object of PySpark has imported it

    return __version__
