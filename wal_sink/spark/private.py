"""What wal-sink asks of Spark's private interface, and what happens where the answer is not the expected one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from wal_sink.errors import ConfigError
from wal_sink.stores.spec import mask_url

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
        said = mask_url(str(error).partition("\n")[0])
        raise ConfigError(
            f"Spark {version} does not tell wal-sink {what} ({type(error).__name__}: {said}). wal-sink knows Spark "
            f"{KNOWN_VERSIONS}: use one of these, or a newer wal-sink. Nothing was staged or started"
        ) from error
