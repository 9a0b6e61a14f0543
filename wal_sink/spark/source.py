"""The data source `wal_sink`. Spark 4 finds it by itself through the package `pyspark_wal_sink`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource

from wal_sink.errors import ConfigError
from wal_sink.spark.environment import version_of
from wal_sink.spark.source_options import read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter
    from pyspark.sql.types import StructType

_WRITER = "DataSourceStreamArrowWriter"
"""The class exists since PySpark 4.1."""


class WalSinkDataSource(DataSource):
    """`df.writeStream.format("wal_sink")` stages each batch into a WAL; `spark.read.format("wal_sink")` reads one.

    Options of a query: `wal`, `checkpointLocation`, and if needed `storageOptions` (JSON), `chunkRows`, `chunkBytes`,
    `segmentBytes`. Another process delivers what is staged: `wal-sink drain WAL --to … --follow`.

    Options of a DataFrame: `wal` (or the path given to `load`), `storageOptions`, `fromBatch`, `toBatch`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "wal_sink"

    def schema(self) -> StructType:
        """The columns of the newest released batch, and three of wal-sink. Runs on the driver; reads the WAL."""
        from wal_sink.spark.source_reading import schema_of  # noqa: PLC0415 - writing needs none of it

        return schema_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`. Runs on the driver."""
        from wal_sink.spark.source_reading import WalReader  # noqa: PLC0415 - writing needs none of it

        return WalReader(read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802 - Spark's signature
        """The writer of one batch. Runs on the driver, and sends no request. In complete mode (`overwrite`), each batch
        holds the whole result.
        """
        version = version_of(pyspark.__version__)
        if not hasattr(datasource, _WRITER):
            raise ConfigError(
                f"format('wal_sink') needs Spark 4.1 or newer to write, and this is Spark {pyspark.__version__}. Use "
                "WalSink.start there"
            )
        from wal_sink.spark.source_writing import WalSinkWriter  # noqa: PLC0415 - PySpark 4.0 lacks its base class

        return WalSinkWriter(write_options(self.options), schema, version)
