"""Upserts into a Delta table: the rows of a batch, one for each key, and the clauses of the MERGE that applies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink_backends.common.changes import Changes, values_by_row, warn_of_repeated_keys

if TYPE_CHECKING:
    from wal_sink_backends.delta.table import Table

SOURCE, TARGET = "s", "t"
"""The names of the rows and of the table in the clauses of MERGE."""


@dataclass(frozen=True, slots=True)
class Upserts:
    """How rows replace others. Plain data, pickled with the sink."""

    what: str
    """The sink, for messages."""
    key: tuple[str, ...]
    newer_by: tuple[str, ...]
    changes: Changes | None
    """Of a change stream, whose deletes mark rows."""

    @classmethod
    def of(
        cls, what: str, key: Sequence[str], newer_by: Sequence[str], delete_when: str | None, on_delete: str
    ) -> Upserts:
        """The arguments of a sink. Raises `ConfigError` for what cannot work."""
        key, newer_by = _names(key), _names(newer_by)
        if not key or len({*key, *newer_by}) < len(key) + len(newer_by) or "" in (*key, *newer_by):
            raise ConfigError(f"{what}: expected different columns for key and newer_by, found {key} and {newer_by}")
        if delete_when is not None and on_delete != "mark":
            raise ConfigError(
                f"{what}: delete_when needs on_delete='mark': a deleted row is not remembered, so an older row of its "
                "key would bring it back"
            )
        made = Changes.of(
            what, key=key, newer_by=newer_by, operation=None, delete_when=delete_when, on_delete=on_delete
        )
        return cls(what, key, newer_by, made)

    def check(self, schema: pa.Schema, what: str) -> None:
        """Compare with the columns of a batch. Raises `PermanentError`."""
        if self.changes is not None:
            self.changes.check(schema, what)
        for name in (*self.key, *self.newer_by):
            if name not in schema.names:
                raise PermanentError(f"{what}: column {name!r} of key or newer_by is not among {schema.names}")
            kind = schema.field(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                raise PermanentError(f"{what}: column {name!r} of key or newer_by is {kind}. Cast it in the query")

    def folded(self, tables: Iterable[pa.Table], what: str) -> pa.Table:
        """One row for each key. In memory is a segment, and at most twice the rows that are left.

        Raises `PermanentError` for NULL in a key, or where a change stream has it in a version or in its flag.
        """
        parts: list[pa.Table] = []
        kept = 0
        for table in tables:
            self.check(table.schema, what)
            self._refuse_nulls(table, what)
            parts.append(table)
            if sum(part.num_rows for part in parts) > 2 * kept:
                parts = [self._fold(parts)]
                kept = parts[0].num_rows
        return self._fold(parts)

    def _fold(self, parts: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(parts, promote_options="default")
        return table.take(pa.array(self._newest(table), pa.int64()))

    def _refuse_nulls(self, table: pa.Table, what: str) -> None:
        if self.changes is not None:
            refused = self.changes.refused(table)
            if refused:
                raise PermanentError(f"{what}: {len(refused)} rows cannot be applied: {next(iter(refused.values()))}")
        for name in self.key:
            if nulls := table.column(name).null_count:
                raise PermanentError(f"{what}: key column {name!r} is NULL in {nulls} rows. Filter them in the query")

    def _newest(self, table: pa.Table) -> list[int]:
        if self.changes is not None:
            return self.changes.newest(table)
        keys, versions = values_by_row(table, self.key), values_by_row(table, self.newer_by)
        best: dict[tuple[Any, ...], int] = {}
        for row, key in enumerate(keys):
            known = best.setdefault(key, row)
            if _age(versions[row]) >= _age(versions[known]):
                best[key] = row
        return sorted(best.values())

    def merge(self, table: Table, paths: Sequence[str], positions: Mapping[str, int], told: Mapping[str, Any]) -> None:
        """Commit the rows of some files with positions, as `Table.append` commits files. VACUUM deletes the files: the
        library deletes while it holds Python's lock.
        """
        rows = self.folded(map(table.read, paths), f"batch {told['batch']}: {self.what}")
        if not self.newer_by:
            warn_of_repeated_keys(told["rows"], rows.num_rows, self.what)
        if not table.merge(rows, self.same_key, self.updates(rows.column_names), positions, told):
            table.append([], positions, told)

    # The clauses of MERGE.

    @property
    def same_key(self) -> str:
        return " AND ".join(f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}" for name in self.key)

    def updates(self, columns: Sequence[str]) -> list[tuple[str, Mapping[str, str]]]:
        """The conditions under which a stored row gets other values, with the new value of each column."""
        every = {quoted(name): f"{SOURCE}.{quoted(name)}" for name in columns if name not in self.key}
        if self.changes is None:
            return [(self._is_newer(or_equal=True), every)]
        flag = f"{SOURCE}.{quoted(self.changes.flag)}"
        marked = {name: every[name] for name in map(quoted, (*self.newer_by, self.changes.flag))}
        return [
            (f"{flag} AND ({self._is_newer(or_equal=True)})", marked),
            (f"NOT {flag} AND ({self._is_newer(or_equal=False)})", every),
        ]

    def _is_newer(self, *, or_equal: bool) -> str:
        """Whether a row is newer than the stored one, by the first column of the version in which they differ. NULL is
        the oldest.
        """
        condition = "true" if or_equal else "false"
        for name in reversed(self.newer_by):
            theirs, ours = f"{TARGET}.{quoted(name)}", f"{SOURCE}.{quoted(name)}"
            is_newer = f"({ours} IS NOT NULL AND ({theirs} IS NULL OR {ours} > {theirs}))"
            is_equal = f"({ours} = {theirs} OR ({ours} IS NULL AND {theirs} IS NULL))"
            condition = f"({is_newer} OR ({is_equal} AND {condition}))"
        return condition


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _age(version: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, 0 if value is None else value) for value in version]


def quoted(name: str) -> str:
    """A column's name in a clause of MERGE."""
    return '"' + name.replace('"', '""') + '"'
