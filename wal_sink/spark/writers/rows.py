"""Arrow rows as PySpark `Row`s, with the Python types that Spark's own writers get. Needs pyspark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType


def spark_rows(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """The rows of `table`, whose columns are those of `schema` in order; on an executor or the driver.

    As in PySpark, instants become naive `datetime`s in this process's time zone, structs become `Row`s and maps
    `dict`s. The names are those of the schema, including equal and dotted ones.
    """
    yield from _conversion().convert(table, schema)


def _conversion() -> Any:
    """PySpark's own converter. In 4.0 it lies in the package of Spark Connect (source)."""
    try:
        from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415 - moved between versions
    except ImportError:
        from pyspark.sql.connect import conversion  # noqa: PLC0415

        return cast("Any", conversion).ArrowTableToRowsConversion
    return ArrowTableToRowsConversion
