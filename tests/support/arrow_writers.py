"""A writer of a Python data source that takes record batches, which Spark has since 4.1. Workers import it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tests.support.data_source_writers import CommittingWriter

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowWriter(CommittingWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        columns = (batch.column("id") for batch in iterator)
        return self.written([int(number.as_py() or 0) for column in columns for number in column])
