"""Check that a DataFrame holds rows of the running batch, not only of an earlier one. Driver only.

Spark gives each batch to `foreachBatch` as a plan over one RDD, and every DataFrame made from it keeps that leaf. A
DataFrame kept from an earlier batch also has the session of its query, so only the RDD distinguishes the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from wal_sink.errors import ConfigError
from wal_sink.spark.session.private import understood

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from wal_sink.spark.session.identity import QueryIdentity

_LEAF = "org.apache.spark.sql.execution.LogicalRDD"
_REMEMBERED = 1000
"""The number of batches of a run that are remembered. A DataFrame of an older batch is not recognised."""


class BatchRows:
    """The RDDs of the batches of one run of a query."""

    def __init__(self) -> None:
        """Begin without any batch."""
        self._run_id = ""
        self._batches: dict[int, int] = {}
        """Batch ids by the id of their RDD, for one run only: a new SparkContext gives the same RDD ids again."""

    def refuse_earlier(self, df: DataFrame, identity: QueryIdentity) -> None:
        """Raise `ConfigError` if `df` holds rows of an earlier batch, and none of the batch of `identity`.

        A DataFrame with rows of neither is the user's own: a table, or rows that were written and read back.
        """
        if self._run_id != identity.run_id:
            self._run_id, self._batches = identity.run_id, {}
        self._batches[identity.rows_id] = identity.batch_id
        if len(self._batches) > _REMEMBERED:
            del self._batches[next(iter(self._batches))]
        with understood(df.sparkSession.version, "which batch a DataFrame is made of"):
            found = _rows_in(df)
        earlier = [self._batches[rows] for rows in found if rows in self._batches]
        if earlier and identity.rows_id not in found:
            raise ConfigError(
                f"batch {identity.batch_id}: the DataFrame given to stage() holds rows of batch {earlier[-1]}, and "
                "none of this batch. Pass the DataFrame that foreachBatch received with this batch id, or a DataFrame "
                "made from it. Nothing was staged"
            )


def _rows_in(df: DataFrame) -> list[int]:
    """The ids of the RDDs that a DataFrame's plan reads."""
    leaves = cast("Any", df)._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - PySpark has no public way
    each = [leaves.apply(index) for index in range(leaves.size())]
    return [int(leaf.rdd().id()) for leaf in each if leaf.getClass().getName() == _LEAF]
