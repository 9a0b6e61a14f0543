"""The schemas that can be staged, checked before the query starts, and the schema of a manifest.

Real names, nullability and metadata lie in the manifest. `schema_from_json` is the only place that parses them. Anyone
who can write to the WAL controls this text, so parsing it must not run any code. PySpark's `StructType.fromJson`
imports the module that a user-defined type names, and 4.0.0 unpickles the type's `serializedClass`. So PySpark gets a
copy with only the necessary fields, and only user-defined types whose class this program has already loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.support.texts import told

if TYPE_CHECKING:
    from wal_sink.log.records import Manifest

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
    """The schema as the manifest keeps it, in Spark's own JSON; `wal_sink.spark.schema` reads it."""
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
            yield f"{path} is of type {kind.simpleString()!r}. Arrow does not support this type: {way_out}"
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


_SPARKS_OWN = frozenset({"pyspark.ml.linalg", "pyspark.mllib.linalg"})
"""Modules of PySpark with user-defined types. Some other modules of PySpark start a session when they are imported."""
_SHOWN = 200


def schema_from_json(text: str, *, what: str, modules: Collection[str] = ()) -> StructType:
    """Parse the schema in a manifest, on the driver or an executor. Unpickles nothing.

    `what` names the batch in errors. `modules` may be imported for their user-defined types: a driver passes its
    `type_modules()` to executors. Raises `ConfigError` for a user-defined type whose class this program does not have,
    and for a type that this PySpark does not know; `CorruptError` for text that is no schema.
    """
    try:
        plain = _struct(json.loads(text), _Types(what, modules))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(
            f"{what}: the manifest's schema cannot be read: expected a struct in Spark's JSON, found "
            f"{text[:_SHOWN]!r} ({type(error).__name__}: {error}); restore the manifest"
        ) from error
    try:
        return StructType.fromJson(plain)
    except Exception as error:  # errors of PySpark, and any error of a user-defined type's __init__
        raise ConfigError(
            f"{what}: this PySpark cannot read the manifest's schema ({told(error)}). Use the version that staged the "
            "batch, or a newer version"
        ) from error


def schema_of_manifest(manifest: Manifest, where: str = "") -> StructType:
    """The schema of a manifest. Raises `ConfigError` if its batch was staged without Spark."""
    what = f"batch {manifest.batch_id}{where}"
    if not manifest.spark_schema:
        raise ConfigError(f"{what} was staged without Spark, so it has no Spark schema and cannot become a DataFrame")
    return schema_from_json(manifest.spark_schema, what=what)


def type_modules() -> tuple[str, ...]:
    """The modules of all user-defined types that this program has loaded, except its main module."""
    return tuple(sorted({kind.__module__ for kind in _subclasses(UserDefinedType)} - {"__main__"}))


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


class _Types:
    """The user-defined types that a schema may name."""

    def __init__(self, what: str, modules: Collection[str]) -> None:
        self._what = what
        self._importable = _SPARKS_OWN | frozenset(modules)

    def check(self, name: str) -> None:
        """Raise `ConfigError` unless `name` is a loaded class, which PySpark finds without an import."""
        module, _, class_name = name.rpartition(".")
        found = self._names_of(module).get(class_name)
        if not (isinstance(found, type) and issubclass(found, UserDefinedType)):
            raise ConfigError(
                f"{self._what}: the manifest's schema has the user-defined type {name!r}. This program does not have "
                "the class of this type. If you trust the type, import its module before you start (with wal-sink "
                "drain: in the module that --to names). wal-sink never imports or unpickles a type only because a "
                "manifest names it"
            )

    def _names_of(self, module: str) -> Mapping[str, object]:
        """The names in a loaded module. Without `getattr`, because a module's `__getattr__` would run code."""
        if module not in sys.modules and module in self._importable:
            with contextlib.suppress(ImportError):  # without the module, the class is missing too: `check` raises
                importlib.import_module(module)
        return getattr(sys.modules.get(module), "__dict__", {})


def _struct(value: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field(field, types) for field in value["fields"]]}


def _field(value: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    metadata = {"metadata": value["metadata"]} if "metadata" in value else {}
    return {
        "name": value["name"],
        "nullable": value.get("nullable", True),
        "type": _type(value["type"], types),
        **metadata,
    }


def _array(value: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    return {"type": "array", "elementType": _type(value["elementType"], types), "containsNull": value["containsNull"]}


def _map(value: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    sides = {side: _type(value[side], types) for side in ("keyType", "valueType")}
    return {"type": "map", **sides, "valueContainsNull": value["valueContainsNull"]}


def _user_defined(value: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    """The type without `serializedClass`, so that no version of PySpark can unpickle it."""
    name = str(value["pyClass"])
    types.check(name)
    return {"type": "udt", "pyClass": name}


_COMPLEX: Mapping[str, Callable[[Mapping[str, Any], _Types], dict[str, Any]]] = {
    "struct": _struct,
    "array": _array,
    "map": _map,
    "udt": _user_defined,
}


def _type(value: object, types: _Types) -> str | dict[str, Any]:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a type, found {value!r}")
    if value["type"] not in _COMPLEX:
        raise ValueError(f"wal-sink knows no type {value['type']!r}")
    return _COMPLEX[value["type"]](value, types)
