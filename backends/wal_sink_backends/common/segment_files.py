"""Segments that become files of a lake's table as they are: names of columns, and the handles of the files.

Handles lie in WALs: their form must stay as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import PermanentError
from wal_sink_backends.common.statistics import statistics_of

IfRolledBack: TypeAlias = Literal["refuse", "accept"]
"""Stop, or go on, if the table was taken back to a state before the newest batch, or nobody can tell."""
ReadFooter = Callable[[str], tuple[Any, pa.Schema]]
"""A function that returns footer and Arrow schema of the Parquet file at a path."""
_COLUMNS_WITH_STATISTICS = (32, 8, 0)
"""Columns that get statistics in a file: the first number with which the handle is short enough."""
_LONGEST_HANDLE = 4000
_MOST_SCHEMAS = 100


class SegmentFile(msgspec.Struct):
    """The handle of a segment: its file in the table."""

    path: str
    size: int
    columns: str
    """A digest of its Arrow schema."""
    statistics: str


def refuse_missing(what: str, *, create: bool) -> None:
    """Refuse a table that does not exist, unless the sink makes it. Raises `PermanentError`."""
    if not create:
        raise PermanentError(f"{what}: this table does not exist. Create it, or pass create=True")


def check_names(columns: Sequence[str], what: str) -> None:
    """Refuse columns that have other names in segments. Raises `PermanentError`."""
    lower = [name.lower() for name in columns]
    for name in columns:
        if not name or "." in name or lower.count(name.lower()) > 1:
            raise PermanentError(
                f"{what}: column {name!r} has no name, a dot in it, or the name of another column in another case. "
                "Segments, which become files of the table, do not keep such names. Rename it in the query"
            )


def check_declared(
    declared: Mapping[str, Any],
    wanted: Mapping[str, Any],
    required: Sequence[str],
    what: str,
    how_to_add: Callable[[str], str] = lambda _: "",
) -> None:
    """Refuse columns that a table lacks or declares with another type, and `required` ones that a batch lacks.

    Nested types are JSON. Raises `PermanentError`, for a missing column with the text of `how_to_add`.
    """
    folded = {name.lower(): name for name in declared}
    for name, kind in wanted.items():
        if name not in declared:
            other = folded.get(name.lower())
            found = f"only {other!r}, in another case" if other else f"only {sorted(declared)}"
            how = "" if other else how_to_add(name)
            raise PermanentError(
                f"{what}: the table has no column {name!r}, {found}. Add it to the table{how}, or drop or rename it in "
                "the query"
            )
        if declared[name] != kind:
            raise PermanentError(
                f"{what}: column {name!r} is {_told(declared[name])} in the table and {_told(kind)} in the batch. Cast "
                "it in the query, or use another table"
            )
    for name in required:
        if name not in wanted or isinstance(declared[name], dict):
            raise PermanentError(
                f"{what}: column {name!r} of the table is NOT NULL, and the batch lacks it or it is nested, so that "
                "nothing proves it. Drop the constraint, or add the column in the query"
            )


def schema_of_segment(data: bytes) -> tuple[Any, pa.Schema]:
    """Footer and Arrow schema of a segment."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        return file.metadata, file.schema_arrow


def handle_of(path: str, data: bytes) -> str:
    """The handle of a segment that was written to this path."""
    footer, schema = schema_of_segment(data)
    columns = _remember(hashlib.blake2b(schema.serialize().to_pybytes(), digest_size=16).hexdigest(), schema)
    handle = ""
    for most in _COLUMNS_WITH_STATISTICS:
        statistics = json.dumps(statistics_of(footer, schema, most), ensure_ascii=False)
        handle = msgspec.json.encode(SegmentFile(path, len(data), columns, statistics)).decode()
        if len(handle) <= _LONGEST_HANDLE:
            break
    return handle


def file_of(handle: str) -> SegmentFile:
    """The file that a handle stands for."""
    return msgspec.json.decode(handle, type=SegmentFile)


def schema_of(file: SegmentFile, read_footer: ReadFooter) -> pa.Schema:
    """The Arrow schema of a file. Its footer is read only if this process did not see the schema before."""
    if file.columns not in _schemas:
        _remember(file.columns, read_footer(file.path)[1])
    return _schemas[file.columns]


def refuse_nulls(
    files: Sequence[SegmentFile],
    read_footer: ReadFooter,
    what: str,
    required: Callable[[pa.Schema], Sequence[str]],
) -> None:
    """Refuse files with NULLs in columns that may have none. `required` returns these columns, after it compared the
    columns of some files with those of the table. Raises `PermanentError`.
    """
    for columns in dict.fromkeys(file.columns for file in files):
        alike = [file for file in files if file.columns == columns]
        for name in required(schema_of(alike[0], read_footer)):
            for file in alike:
                if _nulls(file, name, read_footer) != 0:
                    raise PermanentError(
                        f"{what}: column {name!r} of the table is NOT NULL, and {file.path} has NULLs in it. "
                        "Filter these rows in the query, or drop the constraint"
                    )


def _nulls(file: SegmentFile, name: str, read_footer: ReadFooter) -> int | None:
    found: dict[str, int] = json.loads(file.statistics)["nullCount"]
    if name not in found:  # of a wide table, whose statistics do not fit into a handle
        footer, schema = read_footer(file.path)
        found = statistics_of(footer, schema, len(schema))["nullCount"]
    return found.get(name)


def _told(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


_schemas: dict[str, pa.Schema] = {}
"""Arrow schemas of files that this process wrote or read, by their digests: a commit then reads no footer."""


def _remember(columns: str, schema: pa.Schema) -> str:
    if len(_schemas) >= _MOST_SCHEMAS:
        _schemas.clear()
    _schemas[columns] = schema
    return columns
