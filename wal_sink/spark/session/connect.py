"""A query over Spark Connect: its driver is another process, which stages through `format("wal_sink")`.

Driver here means the client. Nothing in this module needs a JVM or py4j in the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.redaction import mask_url, redacted
from wal_sink.reporting.logs import logger_of
from wal_sink.spark.session.remote_query import asked, is_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_logger = logger_of(__name__)

FORMAT = "wal_sink"
CHECKPOINT = "checkpointLocation"
OVER_CONNECT = (
    "Over Spark Connect, pass the query's writer to WalSink.run or WalSink.start, without your foreachBatch; "
    'or stage with writeStream.format("wal_sink"), and deliver with: wal-sink drain … --follow.'
)
_FIND_S = 30.0
"""How long a start without an answer waits for the list of queries."""
_FUNCTIONS = ("foreach_writer", "foreach_batch")


def is_connect(thing: object) -> bool:
    """Whether an object of PySpark is one of Spark Connect, by its module."""
    return "connect" in type(thing).__module__.split(".")


def start_over_connect(
    writer: DataStreamWriter, options: Mapping[str, str], query_id: Callable[[], str | None]
) -> StreamingQuery:
    """Start a query that stages on the server. Raises `ConfigError` for a writer that has another target already.

    The writer keeps its trigger, output mode and query name. `query_id` reads the id of the query from the checkpoint.
    If the answer of the start is lost, it is found out whether the query runs; `WalSinkError` if that is not known.
    """
    _refuse_leftovers(writer, options[CHECKPOINT])
    try:
        return writer.format(FORMAT).options(**dict(options)).start()
    except Exception as error:
        if is_answer(error):
            raise
        return _found_after(error, writer, query_id)
    except BaseException:
        _logger.warning(
            "the start of a query over Spark Connect was interrupted. Its server may run the query all the same, and "
            "stage batches. The WAL keeps them. Look at the server, or start the query again"
        )
        raise


def _found_after(error: Exception, writer: DataStreamWriter, query_id: Callable[[], str | None]) -> StreamingQuery:
    """The query that a start without an answer started. Raises `WalSinkError` if none is found."""
    said = _line(error)
    try:
        session: Any = writer._session  # type: ignore[attr-defined] # noqa: SLF001 - PySpark has no public way
        wanted, active = query_id(), asked(lambda: list(session.streams.active), _FIND_S)
    except Exception as problem:  # noqa: BLE001 - errors of gRPC, of PySpark, and of the checkpoint's store
        raise WalSinkError(
            f"the server of Spark Connect did not answer the start of the query: {said}. Nor does it say whether the "
            f"query runs: {_line(problem)}. The query may run there and stage batches. "
            "The WAL keeps them. Look at the server. Then start the query again: Spark refuses a second one on this "
            "checkpoint while the first one runs"
        ) from error
    if found := next((query for query in active if wanted is not None and query.id == wanted), None):
        _logger.warning(
            "the server of Spark Connect did not answer the start of the query (%s), but it runs the query %s, which "
            "is that of the checkpoint. This process goes on with it",
            said,
            wanted,
        )
        return cast("StreamingQuery", found)
    raise WalSinkError(
        f"the server of Spark Connect did not answer the start of the query: {said}. It runs no query of this session "
        "on this checkpoint now. Start the query again"
    ) from error


def _line(error: Exception) -> str:
    return redacted(error).partition("\n")[0]


def _refuse_leftovers(writer: DataStreamWriter, checkpoint: str) -> None:
    """Refuse settings of a writer that would be overridden silently. Sends no request."""
    try:
        operation: Any = writer._write_proto  # type: ignore[attr-defined] # noqa: SLF001 - PySpark has no public way
        found = dict(operation.options)
        target = operation.format, operation.path, operation.table_name
        has_function = any(operation.HasField(name) for name in _FUNCTIONS)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this version of PySpark does not tell which target the writer has ({type(error).__name__}: {error}). Use "
            "a version of PySpark that README.md names, or a newer wal-sink. Nothing was started"
        ) from error
    if (target[0] and target[0] != FORMAT) or any(target[1:]) or has_function:
        said = "a function" if has_function else f"the target {mask_url(next(filter(None, target)))}"
        raise ConfigError(f"the writer has {said} already. WalSink replaces it, so remove it. Nothing was started")
    of_writer = next((value for name, value in found.items() if name.lower() == CHECKPOINT.lower()), checkpoint)
    if of_writer != checkpoint:
        raise ConfigError(
            f'the writer has option("{CHECKPOINT}", "{mask_url(of_writer)}"), but WalSink was given the checkpoint '
            f"{mask_url(checkpoint)}. Pass the checkpoint to WalSink alone. Nothing was started"
        )
