"""What the user's writer already has, and a WAL would override without a word. Driver only.

`DataStreamWriter` shows nothing of what it was given, so the JVM's private fields are read (the same in Spark 4.0 to
4.3). A field that cannot be read is an error: the checkpoint of an old query would be replaced silently, and all of its
history delivered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import name_of
from wal_sink.spark.session.checkpoint_files import checkpoint_location
from wal_sink.spark.session.locations import Place, compare
from wal_sink.spark.session.private import understood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from wal_sink.sinks.base import BatchSink, Sink

CHECKPOINT = "checkpointLocation"
_FOREACH_BATCH = "foreachBatch"
_COMPLETE = "Complete"
_NO_SINKS: Mapping[str, Sink | BatchSink] = MappingProxyType({})

_logger = logger_of(__name__)

_ours: WeakKeyDictionary[DataStreamWriter, Any] = WeakKeyDictionary()
"""The function of ours that a writer was started with, since one may be started again."""


def remember_ours(writer: DataStreamWriter) -> None:
    """Note that the function which the writer has now is ours."""
    _ours[writer] = _Fields(writer).read("foreachBatchWriter")


def refuse_leftovers(
    writer: DataStreamWriter, spark: SparkSession, checkpoint: str, sinks: Mapping[str, Sink | BatchSink] = _NO_SINKS
) -> None:
    """Refuse a writer that was given another target or another checkpoint. Raises `ConfigError`. No request.

    `checkpoint` is the full address that the WAL was given. Trigger, output mode and query name are kept as they are;
    a warning names each of `sinks` to which complete mode would bring the same rows again and again.
    """
    fields = _Fields(writer)
    found = fields.option(CHECKPOINT)
    # Both are addresses that the user wrote: where it is left open whether they are the same, one of them is to go.
    if found is not None and compare(spark, checkpoint_location(found, spark), checkpoint) is not Place.SAME:
        raise ConfigError(
            f'the writer has option("{CHECKPOINT}", "{mask_url(found)}"), but WalSink was given checkpoint '
            f"{mask_url(checkpoint)}, which would replace it: with another checkpoint the query begins anew. Remove "
            "the option, or give WalSink that checkpoint. Nothing was started"
        )
    if (target := _target(writer, fields)) is not None:
        raise ConfigError(
            f"the writer has {target}, which WalSink would override: the rows go where WalSink delivers them; "
            "remove it. Nothing was started"
        )
    if str(fields.read("outputMode")) == _COMPLETE:
        _warn_of_repeats({name: sink for name, sink in sinks.items() if not sink.replaces_rows})


def _warn_of_repeats(appending: Mapping[str, Sink | BatchSink]) -> None:
    for name, sink in appending.items():
        _logger.warning(
            "the query's output mode is complete: each batch holds the whole result, not what changed. Sink %r (%s) "
            "adds the rows of each batch to those of earlier ones. Use a sink that replaces rows by their key, "
            "wrap.spark_writer(format, options, mode='overwrite') or wrap.foreach_batch(fn); or outputMode('update') "
            "or 'append', which bring each row when it changes or is final",
            name,
            name_of(sink),
        )


def _target(writer: DataStreamWriter, fields: _Fields) -> str | None:
    function, source = fields.read("foreachBatchWriter"), fields.read("source")
    ours = _ours.get(writer)
    if function is not None and not (ours is not None and function.equals(ours)):
        return f"{_FOREACH_BATCH}(…)"
    if fields.read("foreachWriter") is not None:
        return "foreach(…)"
    if source not in {_FOREACH_BATCH, fields.default_source()}:
        return f'format("{source}")'
    if (path := fields.option("path")) is not None:
        return f'path("{mask_url(path)}") as an option'
    for name, call in (("partitioningColumns", "partitionBy"), ("clusteringColumns", "clusterBy")):
        if fields.is_given(name):
            return f"{call}(…)"
    return None


class _Fields:
    """The private fields of a writer's JVM half. Raises `ConfigError` for one that cannot be read."""

    def __init__(self, writer: DataStreamWriter) -> None:
        self._session = cast("Any", writer)._spark  # noqa: SLF001 - PySpark has no public way
        self._half = cast("Any", writer)._jwrite  # noqa: SLF001

    def read(self, name: str) -> Any:
        with self._understood(name):
            field = self._half.getClass().getDeclaredField(name)
            field.setAccessible(True)
            return field.get(self._half)

    def option(self, name: str) -> str | None:
        """An option as given, whatever its case; None if it was not."""
        options = self.read("extraOptions")
        with self._understood("extraOptions"):
            found = options.get(name)
            return str(found.get()) if found.isDefined() else None

    def is_given(self, name: str) -> bool:
        """Whether a field that holds Scala's `Option` holds something."""
        found = self.read(name)
        with self._understood(name):
            return bool(found.isDefined())

    def default_source(self) -> str:
        """The format of a writer that was given none."""
        with self._understood("default format"):
            return str(self._session._jsparkSession.sessionState().conf().defaultDataSourceName())  # noqa: SLF001

    def _understood(self, name: str) -> AbstractContextManager[None]:
        return understood(self._session.version, f"what the writer already has ({name}), which would be overridden")
