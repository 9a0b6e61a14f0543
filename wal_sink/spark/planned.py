"""When Spark planned the batch that is running: what tells its own `offsets` entry from another query's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError

from wal_sink.spark.query import running_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def planned_ms(df: DataFrame, batch_id: int) -> int | None:
    """The planning time of the batch `df` holds, inside `foreachBatch`; None if this Spark does not tell.

    Milliseconds since 1970, as Spark writes them into `offsets/<batch>` (`batchTimestampMs`) and keeps them in the
    execution it runs (read off Spark 4.3: `StreamExecution.lastExecution.offsetSeqMetadata`).
    """
    query = running_query(df)
    if query is None:
        return None
    try:
        execution = cast("Any", query)._jsq.streamingQuery().lastExecution()  # noqa: SLF001 - PySpark has no public way
        if execution is None or execution.currentBatchId() != batch_id:
            return None
        return int(execution.offsetSeqMetadata().batchTimestampMs())
    except (Py4JError, TypeError, ValueError):  # another version of Spark: the stager asks the store instead
        return None
