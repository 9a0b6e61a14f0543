"""Arrow rows as PySpark `Row`s, with the Python types that Spark's own writers get. Needs pyspark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark

from wal_sink.spark.session.versions import SPARK_3_5, version_of
from wal_sink.spark.writers.rows_of_3_5 import rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType


def spark_rows(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """The rows of `table`, whose columns are those of `schema` in order; on an executor or the driver.

    As in PySpark, instants become naive `datetime`s in this process's time zone, structs become `Row`s and maps
    `dict`s. The names are those of the schema, including equal and dotted ones.
    """
    if version_of(pyspark.__version__) == SPARK_3_5:
        return rows_of(table, schema)
    return iter(_conversion().convert(table, schema))


def _conversion() -> Any:
    """PySpark's own converter (source, 4.0 to 4.3)."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415 - PySpark 3.5 has no such module

    return ArrowTableToRowsConversion
