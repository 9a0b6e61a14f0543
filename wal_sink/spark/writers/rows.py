"""Arrow rows as PySpark `Row`s, as Spark's own writers of data sources get them. Needs pyspark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType


def spark_rows(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """The rows of `table`, whose columns are those of `schema` in order; on an executor or the driver.

    As in PySpark, instants become naive `datetime`s in this process's time zone, structs become `Row`s and maps
    `dict`s. The names are those of the schema, including equal and dotted ones.
    """
    return iter(conversion().convert(table, schema))


def conversion() -> Any:
    """PySpark's own converter (source, 4.0 to 4.3)."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415 - PySpark 3.5 has no such module

    return ArrowTableToRowsConversion
