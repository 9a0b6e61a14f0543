"""Settings of a Spark session, read as Spark uses them. No other module reads them.

With a second argument, `spark.conf.get` returns that even where Spark has a default: a setting that nobody changed then
looks like one that is not known. So `tests/documents/test_repository.py` refuses that form everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal_sink.reporting.texts import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNKNOWN = ("SQL_CONF_NOT_FOUND", "NoSuchElementException")
"""Parts of the error with which each version of Spark says that it does not know a setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as Spark uses it now."""

    value: str | None
    """The value that was set, else Spark's default; None if there is neither."""
    is_known: bool = True
    """False: this version of Spark has no such setting. A core setting counts as unknown until it is set."""

    @property
    def is_true(self) -> bool:
        """Whether Spark reads it as true."""
        return self.value is not None and self.value.strip().lower() == "true"

    def __str__(self) -> str:
        if not self.is_known:
            return "not known"
        return "not set" if self.value is None else self.value


def setting_of(spark: SparkSession, key: str) -> Setting:
    """Read one setting of a session. Raises Spark's error if it cannot be read."""
    try:
        return Setting(spark.conf.get(key))
    except Exception as error:
        if any(part in f"{type(error).__name__}: {text_of(error)}" for part in _UNKNOWN):
            return Setting(None, is_known=False)
        raise


@contextmanager
def changed(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Change a setting for a while, and leave it as it was: one that was not set is unset again."""
    was_set = spark.conf.get(key, None)  # only here, Spark's own default is not wanted
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if was_set is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, was_set)
