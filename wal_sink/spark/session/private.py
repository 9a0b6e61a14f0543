"""The one way to Spark's private interface, where it has no public one.

A name that is gone, or an answer that is not the expected one, is an error, never "nothing there".
`docs/ASSUMPTIONS.md` tells for each name what is taken for granted of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError
from wal_sink.redaction import redacted

KNOWN_VERSIONS = "4.0 to 4.3"
"""Where what wal-sink asks for was read, and is tested (`tests/integration/test_identity_versions.py`)."""


@contextmanager
def understood(version: str, what: str) -> Iterator[None]:
    """Turn an answer that no known Spark gives into a `ConfigError` that names this one: never into "nothing there".

    `what`: what Spark was asked, after "does not tell wal-sink".
    """
    try:
        yield
    except (Py4JError, PySparkException, AttributeError, TypeError, ValueError) as error:
        said = redacted(str(error).partition("\n")[0])
        raise ConfigError(
            f"Spark {version} does not tell wal-sink {what} ({type(error).__name__}: {said}). wal-sink knows Spark "
            f"{KNOWN_VERSIONS}: use one of these, or a newer wal-sink. Nothing was staged or started"
        ) from error


def private(thing: object, name: str) -> Any:
    """What PySpark keeps under a private name. Raises `ConfigError` if this version of PySpark has no such name."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        owner = thing if isinstance(thing, type) else type(thing)
        raise ConfigError(
            f"{owner.__module__}.{owner.__qualname__} has no {name} in PySpark {_version()}, and wal-sink needs it: "
            "use a version of PySpark that README.md names, or a newer wal-sink"
        ) from error


def _version() -> str:
    from pyspark import __version__  # noqa: PLC0415 - who asks for a name of PySpark's has imported it

    return __version__
