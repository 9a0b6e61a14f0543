"""Arrow rows as PySpark `Row`s, with the Python types Spark's own writers are given. Needs pyspark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType


def spark_rows(table: pa.Table, schema: StructType) -> Iterator[Row]:
    """The rows of `table`, whose columns are those of `schema` in order; on an executor or the driver.

    Instants become naive `datetime`s in this process's time zone, structs become `Row`s and maps `dict`s, as PySpark
    has it. The names are the schema's, equal and dotted ones too.
    """
    yield from _conversion().convert(table, schema)


def _conversion() -> Any:
    """PySpark's own converter, which 4.0 still keeps with Spark Connect (source)."""
    try:
        from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415 - moved between versions
    except ImportError:
        from pyspark.sql.connect import conversion  # noqa: PLC0415

        return cast("Any", conversion).ArrowTableToRowsConversion
    return ArrowTableToRowsConversion
