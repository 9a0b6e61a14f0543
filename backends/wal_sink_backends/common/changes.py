"""Rows of a change stream: which delete, which of several with one key counts, and which cannot be applied.

Each chunk is a separate transaction, and several tasks may send chunks of one batch. So nobody sees a whole batch, and
only the version of a row tells which of two events is the newer one, whatever their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.support.arguments import one_of
from wal_sink_backends.common.columns import array_of, as_numbers, is_text, text_bytes
from wal_sink_backends.common.sinks import warn_once

_compute: Any = pc
OnDelete: TypeAlias = Literal["delete", "mark"]
"""Delete the row, or set the column of `delete_when` and keep the row."""
OPERATIONS: Mapping[str, bool] = MappingProxyType({"c": False, "r": False, "u": False, "d": True})
"""Debezium's operations: whether one deletes."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How the rows of a change stream are read. Plain data, pickled with the sink."""

    key: tuple[str, ...]
    newer_by: tuple[str, ...]
    """Columns that together are the version of a row, the most important one first."""
    operation: str | None = None
    """A text column with Debezium's operations; it is not stored."""
    delete_when: str | None = None
    """A boolean column; stored only with `on_delete="mark"`."""
    on_delete: OnDelete = "delete"

    @classmethod
    def of(
        cls,
        what: str,
        *,
        key: Sequence[str] | None,
        newer_by: Sequence[str] | None,
        operation: str | None,
        delete_when: str | None,
        on_delete: str,
    ) -> Changes | None:
        """The arguments of a sink; None if it gets no change stream. Raises `ConfigError` for what cannot work.

        `key`: None if only the target knows it. `newer_by`: None if the target cannot compare rows.
        """
        one_of("on_delete", on_delete, get_args(OnDelete))
        if operation is None and delete_when is None:
            if on_delete != "delete":
                raise ConfigError(f"{what}: on_delete={on_delete!r} needs delete_when, a boolean column")
            return None
        if operation is not None and delete_when is not None:
            raise ConfigError(f"{what}: operation={operation!r} and delete_when={delete_when!r}: pass one of them")
        if on_delete == "mark" and delete_when is None:
            raise ConfigError(
                f"{what}: on_delete='mark' sets a boolean column, so it needs delete_when instead of operation, such "
                "as df.withColumn('is_deleted', col('op') == 'd')"
            )
        if (key is not None and not key) or (newer_by is not None and not newer_by):
            raise ConfigError(
                f"{what}: a change stream needs key and newer_by: chunks of a batch may arrive in any order, and only "
                "the version of a row tells which of two changes is the newer one"
            )
        key, newer_by = tuple(key or ()), tuple(newer_by or ())
        named = [*key, *newer_by, delete_when if operation is None else operation]
        if len({*named}) < len(named) or "" in named:
            raise ConfigError(f"{what}: expected different columns for key, newer_by and the operation, found {named}")
        return cls(key, newer_by, operation, delete_when, "mark" if on_delete == "mark" else "delete")

    @property
    def flag(self) -> str:
        """The column that tells whether a row deletes."""
        flag = self.operation or self.delete_when
        assert flag is not None  # noqa: S101 - `of` made it
        return flag

    def check(self, schema: Any, what: str) -> None:
        """Compare with the columns of a chunk. Raises `PermanentError`."""
        for name in (*self.key, *self.newer_by, self.flag):
            if name not in schema.names:
                raise PermanentError(f"{what}: column {name!r} of the change stream is not among {schema.names}")
        kind, wanted = schema.field(self.flag).type, "text" if self.operation else "boolean"
        if not (is_text(kind) if self.operation else pa.types.is_boolean(kind)):
            raise PermanentError(f"{what}: column {self.flag!r} is {kind}, expected a {wanted} column")

    def refused(self, table: pa.Table) -> dict[int, str]:
        """Rows that cannot be applied, with the reason by row of the table: an unknown operation, a NULL."""
        found: dict[int, str] = {}
        if self.operation:
            for row, value in enumerate(text_bytes(table.column(self.operation))):
                if value is not None and value.decode(errors="replace") not in OPERATIONS:
                    known = ", ".join(OPERATIONS)
                    found.setdefault(row, f"operation {value.decode(errors='replace')!r} is unknown, expected {known}")
        for name in (self.flag, *self.key, *self.newer_by):
            nulls: list[bool] = array_of(table.column(name)).is_null().to_pylist()
            for row in (row for row, is_null in enumerate(nulls) if is_null):
                found.setdefault(row, f"column {name!r} of the change stream is NULL")
        for name in (name for name in self.newer_by if pa.types.is_floating(table.schema.field(name).type)):
            for row, is_nan in enumerate(_compute.is_nan(array_of(table.column(name))).to_pylist()):
                if is_nan:
                    found.setdefault(row, f"column {name!r} of the change stream is NaN")
        return found

    def deletes(self, table: pa.Table) -> list[bool]:
        """Whether each row deletes. Of rows that `refused` names, the answer means nothing."""
        if self.operation:
            return [value == b"d" for value in text_bytes(table.column(self.operation))]
        return [bool(value) for value in array_of(table.column(self.flag)).to_pylist()]

    def newest(self, table: pa.Table) -> list[int]:
        """The row that counts for each key, ascending: the newest; of equal versions a delete, else the first one.

        Two keys are the same if their values are equal in Arrow; texts are compared as bytes. `refused` must name none
        of the rows.
        """
        deletes = self.deletes(table)
        keys, versions = values_by_row(table, self.key), values_by_row(table, self.newer_by)
        best: dict[tuple[Any, ...], int] = {}
        for row, key in enumerate(keys):
            known = best.setdefault(key, row)
            if (versions[row], deletes[row]) > (versions[known], deletes[known]):
                best[key] = row
        return sorted(best.values())


def values_by_row(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of some columns, by row."""
    columns = [_values_of(table.column(name)) for name in names]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _values_of(column: Any) -> list[Any]:
    """The values of a column; moments as numbers."""
    array = array_of(column)
    if is_text(array.type):
        return text_bytes(array)
    if pa.types.is_temporal(array.type) and array.type.bit_width in {32, 64}:
        array = as_numbers(array)
    return array.to_pylist()  # type: ignore[no-any-return]


def warn_of_repeated_keys(rows: int, keys: int, what: str) -> None:
    """Warn, once in this process, of a plain upsert's rows that have fewer keys. `what`: the sink, without secrets."""
    if keys < rows:
        warn_once(
            f"{what}: several rows at once have one key, and without newer_by the row that comes last stays. Segments "
            "of a batch have no order. Pass newer_by, a column that tells which row is the newest"
        )
