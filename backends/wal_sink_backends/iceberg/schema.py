"""Checks of a table and of columns: can a segment become a file of the table as it is?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink_backends.common.segment_files import check_names

NAME_MAPPING = "schema.name-mapping.default"
_IS: Any = pa.types
_SCHEMES = frozenset({"", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs"})
"""Of stores that show a file only when it is whole."""
_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
}


def table_schema(schema: pa.Schema, what: str) -> dict[str, Any]:
    """The schema of a table for rows of this Arrow schema, as Iceberg's JSON. Every column may be NULL.

    Raises `PermanentError` for a name or type that Iceberg does not have, or has in another form.
    """
    check_names(schema.names, what)
    ids = count(1)
    return {"type": "struct", "schema-id": 0, "fields": [_field(one, ids, f"{what}: column {one.name!r}") for one in schema]}


def check_table(metadata: Any, what: str) -> None:
    """Refuse a table that needs more of its files than a segment has. Raises `PermanentError`."""
    for problem in _problems(metadata):
        raise PermanentError(
            f"{what}: {problem}. IcebergSink hands segments over as they are. Use another table, or write this one with "
            "Iceberg's own writer (wrap.foreach_batch)"
        )


def check_columns(metadata: Any, schema: pa.Schema, what: str) -> list[str]:
    """Refuse columns that the table lacks or declares in another way. Returns those that may hold no NULL.

    Raises `PermanentError`.
    """
    wanted, declared = _declared(table_schema(schema, what)), _declared(metadata.schema().model_dump())
    folded = {name.lower(): name for name in declared}
    for name, kind in wanted.items():
        if name not in declared:
            other = folded.get(name.lower())
            found = f"only {other!r}, in another case" if other else f"only {sorted(declared)}"
            raise PermanentError(
                f"{what}: the table has no column {name!r}, {found}. Add it to the table, or drop or rename it in the "
                "query"
            )
        if declared[name] != kind:
            raise PermanentError(
                f"{what}: column {name!r} is {_told(declared[name])} in the table and {_told(kind)} in the batch. Cast "
                "it in the query, or use another table"
            )
    required = [field.name for field in metadata.schema().fields if field.required]
    for name in required:
        if name not in wanted or not isinstance(declared[name], str):
            raise PermanentError(
                f"{what}: column {name!r} of the table is NOT NULL, and the batch lacks it or it is nested, so that "
                "nothing proves it. Drop the constraint, or add the column in the query"
            )
    return required
