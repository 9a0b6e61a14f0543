"""A query over Spark Connect: its driver is another process, which stages through `format("wal_sink")`.

Driver here means the client. Nothing in this module needs a JVM or py4j in the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.redaction import mask_url, redacted
from wal_sink.reporting.texts import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "wal_sink"
CHECKPOINT = "checkpointLocation"
OVER_CONNECT = (
    "Over Spark Connect, pass the query's writer to WalSink.run or WalSink.start, without your foreachBatch; "
    'or stage with writeStream.format("wal_sink"), and deliver with: wal-sink drain … --follow.'
)
_FUNCTIONS = ("foreach_writer", "foreach_batch")


def is_connect(thing: object) -> bool:
    """Whether an object of PySpark is one of Spark Connect, by its module."""
    return "connect" in type(thing).__module__.split(".")


def start_over_connect(writer: DataStreamWriter, options: Mapping[str, str]) -> StreamingQuery:
    """Start a query that stages on the server. Raises `ConfigError` for a writer that has another target already.

    The writer keeps its trigger, output mode and query name.
    """
    _refuse_leftovers(writer, options[CHECKPOINT])
    return writer.format(FORMAT).options(**dict(options)).start()


def stop_over_connect(query: StreamingQuery) -> None:
    """Stop a query on its server and wait for its end. Raises `WalSinkError` if the server does not say that it
    stopped.
    """
    try:
        query.stop()
    except Exception as error:  # errors of gRPC and of PySpark
        raise WalSinkError(
            f"the server of Spark Connect did not confirm that the query {query.id} stopped: "
            f"{redacted(text_of(error))}. The query may still run there and stage batches. The WAL keeps them. Look at "
            "the server, then start the query again, or deliver what was staged: wal-sink drain"
        ) from error


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
