"""Arrow rows as PySpark `Row`s, as Spark's own writers of data sources get them. Needs pyspark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from wal_sink.errors import PermanentError
from wal_sink.reporting.texts import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

_UNREADABLE = (ValueError, OverflowError)  # what Arrow and `datetime` raise for a value that Python cannot hold


def readable(make: Any, tables: Iterable[pa.Table], schema: StructType) -> Iterator[Row]:
    """The rows that `make` gives of the tables of one segment. Raises `PermanentError`, which names a row and a column,
    for a value that Python cannot hold, such as a year after 9999.
    """

    def fails(column: pa.Table, field: StructField) -> bool:
        try:
            return not list(make(column, StructType([field])))
        except _UNREADABLE:
            return True

    first = 0
    for table in tables:
        try:
            yield from make(table, schema)
        except _UNREADABLE as error:
            columns = ((table.select([place]), field) for place, field in enumerate(schema))
            column, field = next(one for one in columns if fails(*one))
            row = next(row for row in range(table.num_rows) if fails(column.slice(row, 1), field))
            raise PermanentError(
                f"row {first + row} of the segment, column {field.name!r}: Python cannot hold the value "
                f"({told(error)}), with Spark alone neither. Cast the column in the query"
            ) from error
        first += table.num_rows


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
