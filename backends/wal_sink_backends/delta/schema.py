"""Checks of a table and of columns: can a segment become a file of the table as it is?"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from wal_sink.errors import PermanentError
from wal_sink_backends.common.segment_files import check_declared, check_names

Field: TypeAlias = dict[str, Any]
"""A column in Delta's JSON."""
_IS: Any = pa.types
_NTZ = "timestampNtz"
_READERS, _WRITERS = frozenset({1, 2, 3}), frozenset({1, 2, 3, 4, 5, 7})
_FEATURES = frozenset(
    {
        *("appendOnly", "changeDataFeed", "deletionVectors", _NTZ, "v2Checkpoint"),
        *("checkConstraints", "columnMapping", "generatedColumns", "invariants"),
    }
)
"""Features that ask nothing of an added file, and those of the second line, which are looked for in the table."""
_COMPUTED = re.compile(r'"(delta\.invariants|delta\.generationExpression|delta\.identity\.\w+|__CHAR_VARCHAR\w+)"')
"""In the metadata of a column: it is computed, or checked when it is written."""
_FORGETS = "delta.setTransactionRetentionDuration"
_FORBIDDEN = frozenset(" ,;{}()\n\t=")
"""Characters that Spark refuses in the names of a table without column mapping."""
_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def table_schema(schema: pa.Schema, what: str) -> dict[str, Any]:
    """The schema of a table for rows of this Arrow schema, as Delta's JSON. Every column may be NULL.

    Raises `PermanentError` for a name or type that Delta does not have, or has in another form.
    """
    check_names(schema.names, what)
    return {"type": "struct", "fields": [_field(one.name, one.type, f"{what}: column {one.name!r}") for one in schema]}


def check_table(table: Any, what: str) -> None:
    """Refuse a table that needs more of its files than a segment has. Raises `PermanentError`."""
    for problem in _problems(table):
        raise PermanentError(
            f"{what}: {problem}. DeltaSink hands segments over as they are. Use another table, or write this one with "
            "Delta's own writer (wrap.foreach_batch)"
        )


def check_mergeable(table: Any, what: str) -> None:
    """Refuse a table of which deltalake can replace no rows. Raises `PermanentError`."""
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        raise PermanentError(f"{what}: the table has delta.appendOnly=true. Remove it, or pass mode='append'")
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise PermanentError(
            f"{what}: the table has the feature deletionVectors, which deltalake cannot read. Drop the feature, or use "
            "Delta's own MERGE (wrap.foreach_batch)"
        )


def new_columns(table: Any, schemas: Iterable[pa.Schema], never: Collection[str | None], what: str) -> list[Field]:
    """The columns that a table lacks and may get, so that it takes rows of all these schemas.

    None is one of `never`, has the name of another one in another case, or needs a feature that the table lacks.
    """
    fields = _fields(table)
    first = len(fields)
    for schema in schemas:
        known = {field["name"].lower() for field in fields}
        lacking = [field for field in table_schema(schema, what)["fields"] if field["name"].lower() not in known]
        fields += [one for one in lacking if one["name"] not in never and not _lacks_feature(table, one)]
    return fields[first:]


def check_columns(table: Any, schema: pa.Schema, what: str, added: Sequence[Field] = ()) -> list[str]:
    """Refuse columns that the table, with those `added`, lacks or declares in another way. Returns those that may hold
    no NULL. Raises `PermanentError`.
    """
    fields = [*_fields(table), *added]
    required = [field["name"] for field in fields if not field["nullable"]]
    declared, wanted = (
        {field["name"]: field["type"] for field in each} for each in (fields, table_schema(schema, what)["fields"])
    )

    def how_to_add(name: str) -> str:
        field = {"name": name, "type": wanted[name]}
        statement = f"ALTER TABLE … ADD COLUMNS (`{name}` {_sql_type(wanted[name])})"
        if _lacks_feature(table, field):
            return f" (ALTER TABLE … SET TBLPROPERTIES ('delta.feature.{_NTZ}' = 'supported'), then {statement})"
        return f" ({statement}, or evolve='add')"

    check_declared(declared, wanted, required, what, how_to_add)
    return required


def columns_with_bounds(table: Any) -> list[str]:
    """The columns of a table for which a reader may look for bounds."""
    return [field["name"] for field in _fields(table) if field["type"] != "binary" and isinstance(field["type"], str)]


def _problems(table: Any) -> Iterator[str]:
    metadata, protocol = table.metadata(), table.protocol()
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if reader not in _READERS or writer not in _WRITERS:
        yield f"its reader version is {reader} and its writer version {writer}, which are not supported"
    if unknown := {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _FEATURES:
        yield f"it has the features {', '.join(sorted(unknown))}, which are not supported"
    if metadata.partition_columns:
        yield f"it is partitioned by {', '.join(metadata.partition_columns)}"
    for name, value in sorted(metadata.configuration.items()):
        if name.startswith("delta.constraints."):
            yield f"it has the constraint {name.removeprefix('delta.constraints.')}"
        if name == "delta.columnMapping.mode" and value != "none":
            yield f"it has column mapping by {value}"
        if name == _FORGETS:
            yield f"with {name}={value} other writers drop the position of this sink"
    if found := _COMPUTED.search(table.schema().to_json()):
        yield f"it has a column with {found[1]}"


def _fields(table: Any) -> list[Field]:
    """The columns of a table, without comments."""
    found: dict[str, Any] = json.loads(
        table.schema().to_json(), object_hook=lambda each: each | {"metadata": {}} if "metadata" in each else each
    )
    fields: list[Field] = found["fields"]
    return fields


def _lacks_feature(table: Any, field: Field) -> bool:
    """Whether a column needs a feature that the table does not have. It shuts out readers that do not know it."""
    return '"timestamp_ntz"' in json.dumps(field["type"]) and _NTZ not in (table.protocol().writer_features or ())


def _sql_type(kind: Any) -> str:
    """A type of Delta's JSON in a statement."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_sql_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_sql_type(kind['keyType'])}, {_sql_type(kind['valueType'])}>"
    inside = (f"`{each['name']}`: {_sql_type(each['type'])}" for each in kind["fields"])
    return f"struct<{', '.join(inside)}>"


def _field(name: str, kind: Any, what: str) -> dict[str, Any]:
    if _FORBIDDEN & {*name}:
        raise PermanentError(f"{what}: Delta has no name {name!r}, with a blank, a tab, a newline or one of ,;{{}}()=")
    return {"name": name, "type": _delta_type(kind, what), "nullable": True, "metadata": {}}


def _delta_type(kind: Any, what: str) -> Any:
    if _IS.is_list(kind) or _IS.is_large_list(kind):
        return {"type": "array", "elementType": _delta_type(kind.value_type, what), "containsNull": True}
    if _IS.is_map(kind):
        key, value = _delta_type(kind.key_type, what), _delta_type(kind.item_type, what)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if _IS.is_struct(kind) and len({field.name.lower() for field in kind}) == kind.num_fields > 0:
        return {"type": "struct", "fields": [_field(field.name, field.type, what) for field in kind]}
    if _IS.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    raise PermanentError(f"{what} is {kind}, which Delta has in another form or not at all. Cast it in the query")
