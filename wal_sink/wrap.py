"""Wrappers for existing writers: your writer gets the same rows again after any failure.

    WalSink(wrap.foreach_batch(write_orders), wal=…, checkpoint=…)

A wrapped writer keeps its own guarantee. wal-sink adds two promises. The writer is called only for batches whose
checkpoint Spark completed, in order. Every repeat of a batch has exactly the rows of the first call. With
`idempotent=True` you state that repeating the same rows under the same batch id does no harm. Delivery is then exactly
once in effect.

| wrapped | called | repeats after a failure |
|---|---|---|
| `foreach_batch`, `spark_writer`, `data_source_writer` | on the driver, once a batch | the whole batch |
| `foreach_writer` | on executors, once a segment | the segment |

A writer that is called once a batch runs in a clone of the query's session, for this sink alone.

Importing this module does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wal_sink.errors import ConfigError
from wal_sink.sinks.base import BatchSink, ReleasedBatch, SegmentSink
from wal_sink.support.arguments import check_batch_function, check_options, check_ran, check_row_writer, name_of, one_of
from wal_sink.support.secrets import Redactor, named_secrets
from wal_sink.support.texts import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkWriterError", "data_source_writer", "foreach_batch", "foreach_writer", "spark_writer"]

_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
_MODES = ("append", "overwrite")
_USELESS_MODES = ("ignore", "error", "errorifexists")


def foreach_batch(fn: Callable[[DataFrame, int], object], *, idempotent: bool = False) -> BatchSink:
    """Use your `foreachBatch` function unchanged: `fn(df, batch_id)`, on the driver, once per batch and per repeat.

    `df` is a batch DataFrame of the staged rows, with the exact schema of the streaming one. It works on any store,
    without Hadoop's connector for it. You may read it several times: the query is never computed again. A call without
    an exception is a success; its return value is ignored, as in Spark, unless it is code that did not run (a
    coroutine, a generator): that is an error. Raise `PermanentError` if a retry is pointless.
    After any other error the batch is sent again, within the budgets of its `Delivery`. A call may last up to
    `Retry.budget_s`.

    Raises `ConfigError` if `fn` cannot be called so, or if it would return before it did anything (`async`, `yield`).
    """
    if not _is_function(fn):
        raise ConfigError(f"foreach_batch({name_of(fn)}): expected a function of a DataFrame and a batch id")
    check_batch_function(fn)
    return _ForeachBatchSink(fn, idempotent=idempotent)


def foreach_writer(writer: object, *, idempotent: bool = False) -> SegmentSink:
    """Use your `foreach` writer unchanged: an object with `process(row)` and perhaps `open` and `close`, or a function.

    It runs on executors, and each row equals the one that Spark alone gives there. With `where="driver"`, or without a
    classic session, it runs in this process, and times have the time zone of the session that staged them.

    For each segment the calls are: `open(number of the segment, batch id)`; if that returns true, `process(row)` for
    each row, a PySpark `Row`; then `close(None)`, or `close(error)` after a failure. As in PySpark, an `open` that
    returns False *or None* skips the rows, and `close` still follows.

    All calls for one segment (`Settings.segment_bytes`) must end within `Retry.attempt_timeout_s`. Number and batch
    id name the same rows in every repeat, unlike with Spark alone. So a writer that remembers them may set
    `idempotent=True`.

    Raises `ConfigError` if `DataStreamWriter.foreach` would not take `writer`.
    """
    from wal_sink.spark.foreach_writer import ForeachWriterSink  # noqa: PLC0415 - the core imports no pyspark

    sink = ForeachWriterSink(writer, name=name_of(writer), idempotent=idempotent)
    check_row_writer(writer)
    return sink


def spark_writer(
    format: str,  # noqa: A002 - Spark's own word
    options: Mapping[str, object] | None = None,
    *,
    mode: str = "append",
    idempotent: bool = False,
) -> BatchSink:
    """Use any batch writer of Spark: `df.write.format(format).options(**options).mode(mode).save()` per batch.

    `options` are those of the format, including `path` if it needs one. They are never shown, and their passwords are
    masked in the errors that Spark raises. `mode` is `append`, or `overwrite` if each batch may replace the earlier
    rows. Runs on the driver, as Spark jobs.

    Raises `ConfigError` for another mode: `ignore` and `error` would drop or refuse every batch after the first.
    """
    if not isinstance(format, str):
        raise ConfigError(
            "spark_writer: expected the name of a format, then its options: spark_writer('jdbc', {\"url\": …})"
        )
    check_options(f"spark_writer({format!r}): options", options)
    if mode in _USELESS_MODES:
        raise ConfigError(
            f"spark_writer({format!r}): mode={mode!r}: expected 'append' or 'overwrite'. After the first batch, "
            "'ignore' would drop every batch, and 'error' would fail on every batch"
        )
    one_of(f"spark_writer({format!r}): mode", mode, _MODES)
    return _SparkWriterSink(format, options or _NO_OPTIONS, mode, idempotent=idempotent)


def data_source_writer(writer: object, *, idempotent: bool = False) -> BatchSink:
    """Use the stream writer of a Python data source: `DataSourceStreamWriter` or `DataSourceStreamArrowWriter`.

    `write(iterator)` runs on executors, once per segment, and must return a `WriterCommitMessage`. After that
    `commit(messages, batch_id)` runs on the driver; an empty batch has no messages. If a `write` failed, `abort` gets
    one entry per segment: its message, or None if it has none. If `commit` failed, `abort` gets the same messages as
    `commit`. Every call gets a fresh copy of `writer`. In `write`, the task's local property `streaming.sql.batchId`
    holds the batch id, as in Spark.

    Raises `ConfigError` if `writer` is no such object or cannot be pickled, and on Spark 3.5.
    """
    try:
        from wal_sink.spark.data_source_writer import DataSourceSink  # noqa: PLC0415 - the core imports no pyspark
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise ConfigError(
            "data_source_writer: this PySpark has no Python data sources, which Spark has since 4.0. Use Spark 4, or "
            "wrap.foreach_writer"
        ) from None
    return DataSourceSink(writer, idempotent=idempotent)


class _ForeachBatchSink(BatchSink):
    replaces_rows = True  # not known, and no warning is due: the function decides, as with Spark alone

    def __init__(self, function: Callable[[DataFrame, int], object], *, idempotent: bool) -> None:
        self._function = function
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.foreach_batch({name_of(self._function)})"

    def wrapped_object(self) -> object:
        """The user's function."""
        return self._function

    describe = __repr__

    def write_batch(self, batch: ReleasedBatch) -> None:
        check_ran("the function", self._function(batch.read(), batch.batch_id))


class _SparkWriterSink(BatchSink):
    def __init__(self, format_name: str, options: Mapping[str, object], mode: str, *, idempotent: bool) -> None:
        self._format = format_name
        self._options: dict[str, Any] = dict(options)
        self._mode = mode
        self.replaces_rows = mode == "overwrite"
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"wrap.spark_writer({self._format!r}, mode={self._mode!r})"

    describe = __repr__

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
        # Raised outside the handler: inside it, the original error, which shows the secret, would become its context.
        raise SparkWriterError(masked)


class SparkWriterError(Exception):
    """A failure of a wrapped Spark writer: Spark's message, with passwords masked."""


def _is_function(thing: object) -> bool:
    return callable(thing) and not isinstance(thing, type)
