"""Wrapping existing writers: what already writes to your target, made to see the same rows again after any failure.

    WalSink(wrap.foreach_batch(write_orders), wal=…, checkpoint=…)

A wrapped writer keeps the guarantee it has by itself. What wal-sink adds: it is called only for batches whose
checkpoint Spark completed, in order, and every repeat of a batch brings exactly the rows of the first time. With
`idempotent=True` you state that repeating the same rows under the same batch id does no harm, which makes the whole
exactly once in effect.

| wrapped | called | repeats after a failure |
|---|---|---|
| `foreach_batch`, `spark_writer`, `data_source_writer` | on the driver, once a batch | the whole batch |
| `foreach_writer` | on executors, once a segment | the segment |

Importing this module does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wal_sink.arguments.targets import check_batch_function, check_row_writer
from wal_sink.arguments.values import check_options, name_of, one_of, spelled
from wal_sink.errors import ConfigError
from wal_sink.redaction import Redactor, named_secrets
from wal_sink.reporting.texts import text_of
from wal_sink.sinks.base import BatchSink, ReleasedBatch, SegmentSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkWriterError", "data_source_writer", "foreach_batch", "foreach_writer", "spark_writer"]

_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
_MODES = ("append", "overwrite")
_USELESS_MODES = ("ignore", "error", "errorifexists")


@spelled
def foreach_batch(fn: Callable[[DataFrame, int], object], *, idempotent: bool = False) -> BatchSink:
    """Your `foreachBatch` function as it is: `fn(df, batch_id)`, on the driver, once per batch and again per repeat.

    `df` is a batch DataFrame over the staged rows, with the exact schema of the streaming one, on any store, without
    Hadoop's connector for it. Use it as often as you like: it is never computed anew. Success is not raising; what
    `fn` returns is ignored, as Spark does. Raise `PermanentError` where trying again is pointless; after anything else
    the batch comes again, within the `Delivery`'s budgets. A call may last up to `Delivery.budget_s`.

    Raises `ConfigError` if `fn` cannot be called so, or would return before it has done anything (`async`, `yield`).
    """
    if not _is_function(fn):
        raise ConfigError(f"foreach_batch({name_of(fn)}): expected a function of a DataFrame and a batch id")
    check_batch_function(fn)
    return _ForeachBatchSink(fn, idempotent=idempotent)


@spelled
def foreach_writer(writer: object, *, idempotent: bool = False) -> SegmentSink:
    """Your `foreach` writer as it is: an object with `process(row)` and perhaps `open` and `close`, or a function.

    On executors (on the driver under `where="driver"`), for each segment: `open(segment's number, batch id)`; if that
    is true, `process(row)` for each row, a PySpark `Row`; then `close(None)`, or `close(error)` after a failure. As in
    PySpark, an `open` that returns False *or None* means that the rows are not wanted, and `close` still follows.

    A segment (`Settings.segment_bytes`) has to be through within `Delivery.attempt_timeout_s`. Number and batch id name
    the same rows in every repeat, unlike under Spark alone: a writer that remembers them may say `idempotent=True`.

    Raises `ConfigError` if `writer` is nothing that `DataStreamWriter.foreach` takes.
    """
    from wal_sink.spark.writers.foreach import ForeachWriterSink  # noqa: PLC0415 - the core imports no pyspark

    sink = ForeachWriterSink(writer, name=name_of(writer), idempotent=idempotent)
    check_row_writer(writer)
    return sink


@spelled
def spark_writer(
    format: str,  # noqa: A002 - Spark's own word
    options: Mapping[str, object] | None = None,
    *,
    mode: str = "append",
    idempotent: bool = False,
) -> BatchSink:
    """Any of Spark's batch writers: `df.write.format(format).options(**options).mode(mode).save()` per batch.

    `options` are the format's own, `path` among them where it wants one. They are never shown, and passwords among
    them are masked in the errors Spark raises. `mode` is `append`, or `overwrite` where each batch may replace what is
    there. Runs on the driver, as Spark jobs.

    Raises `ConfigError` for another mode: `ignore` and `error` would drop or refuse every batch after the first.
    """
    if not isinstance(format, str):
        raise ConfigError(
            "spark_writer: expected the name of a format first, then its options: spark_writer('jdbc', {\"url\": …})"
        )
    check_options(f"spark_writer({format!r}): options", options)
    if mode in _USELESS_MODES:
        raise ConfigError(
            f"spark_writer({format!r}): mode={mode!r}: expected 'append' or 'overwrite'; 'ignore' and 'error' would "
            "drop or refuse every batch after the first"
        )
    one_of(f"spark_writer({format!r}): mode", mode, _MODES)
    return _SparkWriterSink(format, options or _NO_OPTIONS, mode, idempotent=idempotent)


@spelled
def data_source_writer(writer: object, *, idempotent: bool = False) -> BatchSink:
    """The stream writer of a Python data source: a `DataSourceStreamWriter` or `DataSourceStreamArrowWriter`.

    `write(iterator)` runs on executors, once per segment, and must return a `WriterCommitMessage`;
    `commit(messages, batch_id)` then runs on the driver, without messages for an empty batch. If a `write` failed,
    `abort` gets the messages there are and None for the others; if `commit` failed, the same messages. Every call gets
    a fresh copy of `writer`. In `write`, the batch id is in the task's local property `streaming.sql.batchId`, as under
    Spark.

    Raises `ConfigError` if `writer` is no such object or cannot be pickled.
    """
    from wal_sink.spark.writers.data_source import DataSourceSink  # noqa: PLC0415 - the core imports no pyspark

    return DataSourceSink(writer, idempotent=idempotent)


class _ForeachBatchSink(BatchSink):
    replaces_rows = True  # if it shall: the function decides, as it does under Spark alone

    def __init__(self, function: Callable[[DataFrame, int], object], *, idempotent: bool) -> None:
        self._function = function
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.foreach_batch({name_of(self._function)})"

    def wrapped_object(self) -> object:
        """The function."""
        return self._function

    def describe(self) -> str:
        return repr(self)

    def write_batch(self, batch: ReleasedBatch) -> None:
        self._function(batch.read(), batch.batch_id)


class _SparkWriterSink(BatchSink):
    def __init__(self, format_name: str, options: Mapping[str, object], mode: str, *, idempotent: bool) -> None:
        self._format = format_name
        self._options: dict[str, Any] = dict(options)
        self._mode = mode
        self.replaces_rows = mode == "overwrite"
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.spark_writer({self._format!r}, mode={self._mode!r})"

    def describe(self) -> str:
        return repr(self)

    def write_batch(self, batch: ReleasedBatch) -> None:
        try:
            batch.read().write.format(self._format).options(**self._options).mode(self._mode).save()
        except Exception as error:
            redactor = Redactor(named_secrets(self._options))
            if redactor.cause(error) is not None:
                raise
            masked = redactor(text_of(error))
        else:
            return
        raise SparkWriterError(masked)  # outside of the handler: the original, with the secret, is no context of it


class SparkWriterError(Exception):
    """What Spark said when a wrapped writer failed, with a password masked."""


def _is_function(thing: object) -> bool:
    return callable(thing) and not isinstance(thing, type)
