"""Whose rows a DataFrame holds: those of the batch that runs, or of an earlier one alone. Driver only.

Spark gives each batch to `foreachBatch` as a plan over one RDD, and whatever is made of it keeps that leaf. A DataFrame
that was kept from an earlier batch has the session of its query as well, so nothing else tells the two apart.
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
"""How many batches of a run are remembered: a DataFrame that is older shows nothing."""


class BatchRows:
    """The RDDs of the batches that one run of a query came with."""

    def __init__(self) -> None:
        """No batch yet."""
        self._run_id = ""
        self._batches: dict[int, int] = {}
        """By the id of its RDD, which a new SparkContext would give again: only those of one run."""

    def refuse_earlier(self, df: DataFrame, caller: QueryIdentity) -> None:
        """Raise `ConfigError` if `df` holds rows of an earlier batch, and none of the caller's.

        One that holds neither is the user's own: a table, or rows that were written and read back.
        """
        if self._run_id != caller.run_id:
            self._run_id, self._batches = caller.run_id, {}
        self._batches[caller.rows_id] = caller.batch_id
        if len(self._batches) > _REMEMBERED:
            del self._batches[next(iter(self._batches))]
        with understood(df.sparkSession.version, "which batch a DataFrame is made of"):
            found = _rows_in(df)
        earlier = [self._batches[rows] for rows in found if rows in self._batches]
        if earlier and caller.rows_id not in found:
            raise ConfigError(
                f"batch {caller.batch_id}: the DataFrame given to stage() holds rows of batch {earlier[-1]}, and none "
                "of this batch. Give it the DataFrame that foreachBatch was given with this batch id, or one made of "
                "it. Nothing was staged"
            )


def _rows_in(df: DataFrame) -> list[int]:
    """The ids of the RDDs that a DataFrame's plan reads."""
    leaves = cast("Any", df)._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - PySpark has no public way
    each = [leaves.apply(index) for index in range(leaves.size())]
    return [int(leaf.rdd().id()) for leaf in each if leaf.getClass().getName() == _LEAF]
