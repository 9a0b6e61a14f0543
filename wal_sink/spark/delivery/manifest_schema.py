"""Parser for the Spark schema in a manifest: the only place that parses a schema.

Anyone who can write to the WAL controls this text, so parsing it must not run any code. PySpark's
`StructType.fromJson` imports the module that a user-defined type names, and 4.0.0 unpickles the type's
`serializedClass`. So PySpark gets a copy with only the necessary fields, and only user-defined types whose class this
program has already loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pyspark.sql.types import StructType, UserDefinedType

from wal_sink.errors import ConfigError, CorruptError
from wal_sink.reporting.texts import told

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
