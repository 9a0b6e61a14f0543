"""A PySpark `ForeachWriter`, or a function of one `Row`, as a sink. Needs pyspark where it runs, but no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import SegmentSink, SinkContext
from wal_sink.spark.rows import dumped, readable, rows_of, unpickled
from wal_sink.spark.schema import schema_from_json, type_modules
from wal_sink.support.arguments import check_ran
from wal_sink.support.logs import logger_of

if TYPE_CHECKING:
    from pyspark.sql import Row

    from wal_sink.sinks.chunk import Chunk

_logger = logger_of(__name__)


class ForeachWriterSink(SegmentSink):
    """Calls the writer as PySpark does: for each segment `open`, `process` for each row, `close`.

    On executors each segment gets a fresh copy of the writer, as each task does in PySpark. With `where="driver"`, or
    without a Spark session, the user's object itself is used, for one segment after the other.
    """

    needs_tasks = True

    def __init__(self, writer: object, *, name: str, idempotent: bool) -> None:
        """Raises `ConfigError` if `DataStreamWriter.foreach` would not take `writer`."""
        _check(writer)
        self._writer = writer
        self._name = name
        self._payload: bytes | None = None
        self._schema_json = ""
        self._zone: str | None = None
        self._type_modules: tuple[str, ...] = ()
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.foreach_writer({self._name})"

    def wrapped_object(self) -> object:
        """The user's writer."""
        return self._writer

    describe = __repr__

    def __getstate__(self) -> dict[str, object]:
        payload = self._payload or dumped(self._writer)
        modules = self._type_modules or type_modules()  # the modules of the process that the user started
        return {**vars(self), "_writer": None, "_payload": payload, "_type_modules": modules}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Unpickle the writer at once, so that the check on an executor finds a writer that cannot be unpickled."""
        vars(self).update(state)
        self._writer = unpickled(cast("bytes", state["_payload"]))

    def open(self, context: SinkContext) -> None:
        """Remember the schema of the batch's rows. Raises `PermanentError` if it was staged without Spark."""
        if not context.spark_schema:
            raise PermanentError(f"batch {context.batch_id} was staged without Spark, so it has no Spark schema")
        self._schema_json = context.spark_schema
        self._zone = None if context.on_executor else context.time_zone

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        """Call `open`, `process` for each row, and `close`. An error is raised after `close` got it."""
        writer = self._writer if self._payload is None else unpickled(self._payload)
        schema = schema_from_json(self._schema_json, what=f"batch {batch_id}", modules=self._type_modules)
        rows = readable(partial(rows_of, zone=self._zone), (chunk.table for chunk in chunks), schema)
        if callable(writer):
            for row in rows:
                check_ran("the function", writer(row))
        else:
            _process(writer, ordinal, batch_id, rows)


def _process(writer: Any, ordinal: int, batch_id: int, rows: Iterable[Row]) -> None:
    """Call the writer as PySpark does: `close` follows every `open` that returned, with any result."""
    wanted = writer.open(ordinal, batch_id) if hasattr(writer, "open") else True
    check_ran("open", wanted)
    if wanted is None:
        _logger.warning(
            "%s.open(%s, %s) returned None. PySpark treats None as False, so the rows are skipped",
            type(writer).__name__,
            ordinal,
            batch_id,
        )
    close: Callable[[BaseException | None], object] = getattr(writer, "close", _nothing)
    try:
        if wanted:
            for row in rows:
                check_ran("process", writer.process(row))
    except BaseException as error:
        close(error)
        raise
    check_ran("close", close(None))


def _check(writer: object) -> None:
    if isinstance(writer, type):
        raise ConfigError(f"{writer.__name__} is a class: pass an instance, {writer.__name__}(…)")
    if callable(writer):
        return
    kind = type(writer).__name__
    if not hasattr(writer, "process"):
        raise ConfigError(f"{kind} has no process(row): expected a ForeachWriter or a function of one Row")
    for method in ("open", "process", "close"):
        if not callable(getattr(writer, method, _nothing)):
            raise ConfigError(f"{kind}.{method} cannot be called: expected a method")


def _nothing(_: BaseException | None) -> None:
    return
