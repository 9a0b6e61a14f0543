"""The schemas that can be staged, checked before the query starts, and names that Spark resolves.

Real names, nullability and metadata lie in the manifest.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

from wal_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_CASTS = {
    "YearMonthIntervalType": "cast it to a number of months or to a string",
    "CalendarIntervalType": "use a day-time interval, or cast it to a string",
    "CharType": "cast it to a string",
    "VarcharType": "cast it to a string",
}
"""By the name of the class: PySpark 3.5 has no CalendarIntervalType."""


def check_schema(schema: StructType) -> None:
    """Raise `ConfigError` naming the path of every field that no segment can hold. Runs on the driver; no Spark job.

    Paths look like `a.b[].c`; `m[key]` and `m[value]` are the two sides of a map. Unusual names stand in backticks.
    """
    if not schema.fields:
        raise ConfigError(
            "The DataFrame has no columns, and rows without columns would be lost silently: select at least one column"
        )
    problems = [problem for field in schema.fields for problem in _problems(_quoted(field.name), field)]
    if problems:
        raise ConfigError(f"This DataFrame cannot be staged: {'; '.join(problems)}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark has for these columns: exact types, and UTC for timestamps. No Spark job."""
    known = inspect.signature(to_arrow_schema).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {}
    return to_arrow_schema(schema, **utc)


def positional_names(schema: StructType) -> list[str]:
    """`c0`, `c1`, …: names that Spark resolves, whatever the real ones are."""
    return [f"c{place}" for place in range(len(schema.fields))]


def are_resolved_by_name(schema: StructType) -> bool:
    """Whether `mapInArrow` can find each column by its name; it cannot with duplicate, dotted and backticked names.

    Measured with PySpark 4.3. Such names need a projection, which costs 5 ms per batch.
    """
    names = schema.names
    return all(map(_PLAIN.fullmatch, names)) and len({name.lower() for name in names}) == len(names)


def positional(schema: StructType) -> StructType:
    """The schema with positional column names. Types, nullability, metadata and names inside structs stay the same."""
    names = positional_names(schema)
    return StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(names, schema.fields, strict=True)
        ]
    )


def schema_json(schema: StructType) -> str:
    """The schema as the manifest keeps it, in Spark's own JSON; `wal_sink.spark.delivery.manifest_schema` reads it."""
    return schema.json()


def not_null_paths(schema: StructType) -> list[str]:
    """The path of every field, at any depth, that the schema declares 'not null', except keys of maps."""
    found: list[str] = []
    fields = [(_quoted(field.name), field) for field in schema.fields]
    while fields:
        path, field = fields.pop(0)
        if not field.nullable and not path.endswith("[key]"):
            found.append(path)
        fields.extend(_inner_fields(path, field.dataType))
    return found


def _problems(path: str, field: StructField) -> Iterator[str]:
    if isinstance(field.dataType, spark_types.NullType) and not field.nullable:
        yield (
            f"{path} is void and declared 'not null'. Arrow does not support this. Cast the column to the intended type"
        )
        return
    yield from _type_problems(path, field.dataType)


def _type_problems(path: str, kind: DataType) -> Iterator[str]:
    for base in type(kind).__mro__:
        if way_out := _CASTS.get(base.__name__):
            yield f"{path} is of type {kind.simpleString()!r}. Arrow does not support this type. Way out: {way_out}"
    if isinstance(kind, UserDefinedType):
        yield from _type_problems(path, kind.sqlType())
    if isinstance(kind, StructType):
        yield from _struct_problems(path, kind)
    for inner_path, inner in _inner_fields(path, kind):
        yield from _problems(inner_path, inner)


def _struct_problems(path: str, kind: StructType) -> Iterator[str]:
    if not kind.fields:
        yield f"{path} is a struct without fields. Parquet cannot store such a struct. Drop the column or add a field"
    counts = Counter(field.name for field in kind.fields)  # 'a' beside 'A' works, unlike at the top
    for name in sorted(name for name, count in counts.items() if count > 1):
        yield (
            f"{path} has {counts[name]} fields named {name!r}. Arrow does not support this. Rename all of them except "
            "one"
        )


def _inner_fields(path: str, kind: DataType) -> Iterator[tuple[str, StructField]]:
    """The fields directly inside a type, each with its path."""
    if isinstance(kind, StructType):
        yield from ((f"{path}.{_quoted(field.name)}", field) for field in kind.fields)
    elif isinstance(kind, ArrayType):
        yield f"{path}[]", StructField("element", kind.elementType, kind.containsNull)
    elif isinstance(kind, MapType):
        yield f"{path}[key]", StructField("key", kind.keyType, nullable=False)
        yield f"{path}[value]", StructField("value", kind.valueType, kind.valueContainsNull)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"
