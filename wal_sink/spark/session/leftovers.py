"""Settings of the user's writer that a WAL would override silently: they are refused. Driver only.

`DataStreamWriter` has no getters, so the JVM's private fields are read (they are the same in Spark 3.5 to 4.3). A field
that cannot be read is an error: otherwise the checkpoint of an old query would be replaced silently, and its whole
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
"""Our function that each writer was started with. A writer may be started again, and must then not be refused."""


def remember_ours(writer: DataStreamWriter) -> None:
    """Remember that the function which the writer has now is ours."""
    _ours[writer] = _Fields(writer).read("foreachBatchWriter")


def refuse_leftovers(
    writer: DataStreamWriter, spark: SparkSession, checkpoint: str, sinks: Mapping[str, Sink | BatchSink] = _NO_SINKS
) -> None:
    """Refuse a writer that already has another target or another checkpoint. Raises `ConfigError`. Sends no request.

    `checkpoint` is the full address that the WAL was given. Trigger, output mode and query name stay as they are. With
    output mode complete, a warning names each of `sinks` that would get the same rows in every batch.
    """
    fields = _Fields(writer)
    found = fields.option(CHECKPOINT)
    # The user wrote both addresses. If it is undecided whether they name one folder, the user must remove one of them.
    if found is not None and compare(spark, checkpoint_location(found, spark), checkpoint) is not Place.SAME:
        raise ConfigError(
            f'the writer has option("{CHECKPOINT}", "{mask_url(found)}"), but WalSink was given the checkpoint '
            f"{mask_url(checkpoint)}. The checkpoint of WalSink would replace the checkpoint of the writer, and the "
            f"query would start from the beginning. To keep the checkpoint of the writer, pass {mask_url(found)} to "
            "WalSink. To use the checkpoint of WalSink, remove the option. Nothing was started"
        )
    if (target := _target(writer, fields)) is not None:
        raise ConfigError(
            f"the writer has {target}. WalSink would override this setting, because WalSink decides where the rows go. "
            "Remove this setting from the writer. Nothing was started"
        )
    if str(fields.read("outputMode")) == _COMPLETE:
        _warn_of_repeats({name: sink for name, sink in sinks.items() if not sink.replaces_rows})


def _warn_of_repeats(appending: Mapping[str, Sink | BatchSink]) -> None:
    for name, sink in appending.items():
        _logger.warning(
            "the query's output mode is complete: each batch holds the whole result, not only the changes. Sink %r "
            "(%s) adds the rows of each batch to those of earlier ones. Use a sink that replaces rows by their key, "
            "wrap.spark_writer(format, options, mode='overwrite') or wrap.foreach_batch(fn). Or use "
            "outputMode('update') or 'append', because these modes send a row only when it changes or is final",
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
        if hasattr(writer, call) and fields.is_given(name):  # Spark 3.5 has no clusterBy, so nobody can have called it
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
        """The value of an option, its name in any case; None if it was not given."""
        options = self.read("extraOptions")
        with self._understood("extraOptions"):
            found = options.get(name)
            return str(found.get()) if found.isDefined() else None

    def is_given(self, name: str) -> bool:
        """Whether a field of Scala's type `Option` has a value."""
        found = self.read(name)
        with self._understood(name):
            return bool(found.isDefined())

    def default_source(self) -> str:
        """The format of a writer that has no explicit one."""
        with self._understood("default format"):
            return str(self._session._jsparkSession.sessionState().conf().defaultDataSourceName())  # noqa: SLF001

    def _understood(self, name: str) -> AbstractContextManager[None]:
        return understood(self._session.version, f"a setting of the writer ({name}) that would be overridden")
