"""Checks of a table and of columns: can a segment become a file of the table as it is?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink_backends.common.segment_files import check_declared, check_names

NAME_MAPPING = "schema.name-mapping.default"
_IS: Any = pa.types
_SCHEMES = frozenset({"", "file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs"})
"""Of stores that show a file only when it is whole."""
_UNCOMPARED = frozenset({"id", "element-id", "key-id", "value-id", "doc"})
_PARTS = ("element", "key", "value")
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
    return {
        "type": "struct",
        "schema-id": 0,
        "fields": [_field(one, ids, f"{what}: column {one.name!r}") for one in schema],
    }


def check_table(metadata: Any, what: str) -> None:
    """Refuse a table that needs more of its files than a segment has. Raises `PermanentError`."""
    for problem in _problems(metadata):
        raise PermanentError(
            f"{what}: {problem}. IcebergSink hands segments over as they are. Use another table, or write this one "
            "with Iceberg's own writer (wrap.foreach_batch)"
        )


def check_columns(metadata: Any, what: str, schema: pa.Schema) -> list[str]:
    """Refuse columns that the table lacks or declares in another way. Returns those that may hold no NULL.

    Raises `PermanentError`.
    """
    wanted, declared = _kinds(table_schema(schema, what)["fields"]), _kinds(_declared(metadata))
    required = [field.name for field in metadata.schema().fields if field.required]
    check_declared(declared, wanted, required, what)
    _check_mapping(metadata, [*wanted], what)
    return required


def name_mapping(metadata: Any) -> str:
    """The names by which columns are found in files without ids, such as segments."""
    return json.dumps(_mapping(_declared(metadata)))


def _check_mapping(metadata: Any, columns: Sequence[str], what: str) -> None:
    """Refuse a table whose name mapping hides these columns of a segment. Raises `PermanentError`."""
    if (text := metadata.properties.get(NAME_MAPPING)) is None:
        return
    given = json.loads(text)
    for wanted in _mapping(_declared(metadata)):
        if (name := wanted["names"][0]) in columns and not _covers(given, [wanted]):
            raise PermanentError(
                f"{what}: the table's property {NAME_MAPPING} does not lead to column {name!r}, so readers would find "
                "NULL in its place. Add the column to the property, or remove the property: the next commit sets it"
            )


def _covers(given: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    """Return whether each name is mapped to the same id, at any depth."""
    return all(
        any(
            one["names"][0] in other["names"]
            and one["field-id"] == other.get("field-id")
            and _covers(other.get("fields", []), one.get("fields", []))
            for other in given
        )
        for one in wanted
    )


def _problems(metadata: Any) -> Iterator[str]:
    schema = metadata.schema()
    if metadata.format_version not in (1, 2):
        yield f"its format version is {metadata.format_version}; supported are 1 and 2"
    if metadata.spec().fields:
        yield f"it is partitioned by {', '.join(field.name for field in metadata.spec().fields)}"
    if schema.identifier_field_ids:
        yield f"it has identifier columns: {', '.join(sorted(schema.identifier_field_names()))}"
    if (scheme := urlsplit(metadata.location).scheme) not in _SCHEMES:
        yield f"its files are on {scheme}://, which is not supported"
    for field in schema.fields:
        if field.initial_default is not None or field.write_default is not None:
            yield f"column {field.name!r} has a default value"


def _declared(metadata: Any) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(metadata.schema().model_dump_json())["fields"]
    return fields


def _mapping(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The name mapping of columns, as Iceberg's JSON."""
    return [
        {"field-id": field["id"], "names": [field["name"]], "fields": _mapping(_inner(field["type"]))}
        for field in fields
    ]


def _inner(kind: Any) -> list[dict[str, Any]]:
    """The parts of a nested type, as fields."""
    if isinstance(kind, str):
        return []
    parts = ({"id": kind[f"{name}-id"], "name": name, "type": kind[name]} for name in _PARTS if name in kind)
    return kind.get("fields") or [*parts]


def _kinds(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {field["name"]: _bare(field["type"]) for field in fields}


def _bare(kind: Any) -> Any:
    """A type without ids and comments."""
    if isinstance(kind, list):
        return [_bare(each) for each in kind]
    if not isinstance(kind, dict):
        return kind.replace(" ", "") if isinstance(kind, str) else kind
    return {name: _bare(each) for name, each in kind.items() if name not in _UNCOMPARED}


def _field(field: Any, ids: Iterator[int], what: str) -> dict[str, Any]:
    return {"id": next(ids), "name": field.name, "type": _iceberg_type(field.type, ids, what), "required": False}


def _iceberg_type(kind: Any, ids: Iterator[int], what: str) -> Any:
    if _IS.is_list(kind) or _IS.is_large_list(kind):
        element = _iceberg_type(kind.value_type, ids, what)
        return {"type": "list", "element-id": next(ids), "element": element, "element-required": False}
    if _IS.is_map(kind):
        key, value = _iceberg_type(kind.key_type, ids, what), _iceberg_type(kind.item_type, ids, what)
        named = {"key-id": next(ids), "key": key, "value-id": next(ids), "value": value}
        return {"type": "map", **named, "value-required": False}
    if _IS.is_struct(kind) and len({field.name.lower() for field in kind}) == kind.num_fields > 0:
        return {"type": "struct", "fields": [_field(field, ids, what) for field in kind]}
    if _IS.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    raise PermanentError(f"{what} is {kind}, which Iceberg has in another form or not at all. Cast it in the query")
