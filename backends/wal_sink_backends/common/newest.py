"""Rows with versions, for targets with keys that are no SQL database: which values can be compared, what is stored.

Texts are compared byte by byte, and so are dates and timestamps in ISO 8601: those of one column have one length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.json_rows import plain_values
from wal_sink_backends.common.changes import Changes
from wal_sink_backends.common.columns import array_of, is_text, stored_type

_IS: Any = pa.types
DELETES_KEPT = 1000
"""Batches for which a sink remembers deletes, if it is not told otherwise."""
NUMBER, MOMENT, TEXT = "n", "m", "t"
"""Forms of a version's columns."""


@dataclass(frozen=True, slots=True)
class Events:
    """The rows of a chunk."""

    stored: pa.Table
    """Their columns that the target gets."""
    deletes: list[bool]
    refused: dict[int, str]
    """Rows that cannot be applied, with the reason. Nothing else is said of them."""
    forms: str
    """The form of each column of the version, a letter each."""


@dataclass(frozen=True, slots=True)
class NewestWins:
    """A row replaces the stored one by their versions. Plain data, pickled with the sink."""

    newer_by: tuple[str, ...]
    """Columns that together are the version, the most important one first."""
    changes: Changes | None
    """None: every row is an upsert, and one of the same version replaces the stored row."""
    deletes_kept: int

    @classmethod
    def of(
        cls,
        what: str,
        *,
        key: Sequence[str] | None,
        newer_by: Sequence[str] | str,
        operation: str | None,
        delete_when: str | None,
        on_delete: str,
        deletes_kept: int = DELETES_KEPT,
    ) -> NewestWins | None:
        """The arguments of a sink; None if it compares no versions. Raises `ConfigError` for what cannot work.

        `key`: None if only the target tells it; rows without it are then refused in another place.
        """
        names = (newer_by,) if isinstance(newer_by, str) else tuple(newer_by)
        changes = Changes.of(
            what, key=key, newer_by=names, operation=operation, delete_when=delete_when, on_delete=on_delete
        )
        named = [*names, *{*(key or ())}]
        if len({*named}) < len(named) or "" in names or (names and key is not None and not key):
            raise ConfigError(f"{what}: newer_by={newer_by!r}: expected names of columns other than the key's")
        if deletes_kept < 1:
            raise ConfigError(f"{what}: deletes_kept={deletes_kept}: expected a number of batches, 1 or more")
        return cls(names, changes, deletes_kept) if names else None

    @property
    def remembers(self) -> bool:
        """Whether deletes are remembered. A marked row remembers itself."""
        return self.changes is not None and self.changes.on_delete == "delete"

    @property
    def mark(self) -> str | None:
        """The column that a delete sets in a row that stays."""
        return self.changes.flag if self.changes is not None and self.changes.on_delete == "mark" else None

    def read(self, table: pa.Table, what: str, *, key: Collection[str] = ()) -> Events:
        """The rows of a chunk. Raises `PermanentError` for columns that do not fit."""
        if in_key := [name for name in self.newer_by if name in key]:
            raise PermanentError(f"{what}: newer_by column {in_key[0]!r} is in the key, so it tells no versions apart")
        if self.changes is not None:
            self.changes.check(table.schema, what)
        forms = "".join(self._form(table.schema, name, what) for name in self.newer_by)
        refused = {} if self.changes is None else self.changes.refused(table)
        for name, form in zip(self.newer_by, forms, strict=True):
            column = table.column(name)
            nulls: list[bool] = array_of(column).is_null().to_pylist()
            for row in (row for row, is_null in enumerate(nulls) if is_null):
                refused.setdefault(row, f"newer_by column {name!r} is NULL")
            for row, text in enumerate(plain_values(column, name) if form == MOMENT else ()):
                if text and not text[0].isdecimal():
                    refused.setdefault(row, f"newer_by column {name!r} is beyond the years 0000 to 9999: {text}")
        if self.changes is None:
            return Events(table, [False] * table.num_rows, refused, forms)
        stored = table if self.mark else table.drop_columns([self.changes.flag])
        return Events(stored, self.changes.deletes(table), refused, forms)

    def other_newer_by(self, what: str, stored: Sequence[str]) -> PermanentError:
        """The error for remembered deletes whose versions are other columns than this sink's."""
        return PermanentError(
            f"{what}: the versions of remembered deletes are newer_by={[*stored]}, but this sink has "
            f"newer_by={[*self.newer_by]}. They cannot be compared. Nothing was written. Start with the same newer_by, "
            "or fill a new target, under another name of the sink"
        )

    def _form(self, schema: Any, name: str, what: str) -> str:
        if name not in schema.names:
            raise PermanentError(f"{what}: newer_by column {name!r} is not among the columns {schema.names}")
        kind = stored_type(schema.field(name).type)
        if _IS.is_integer(kind) or _IS.is_decimal(kind):
            return NUMBER
        if _IS.is_timestamp(kind) or _IS.is_date(kind):
            return MOMENT
        if is_text(kind):
            return TEXT
        raise PermanentError(
            f"{what}: newer_by column {name!r} is {kind}, expected a whole number, a decimal, a date, a timestamp or "
            "a text. Cast the column in the query"
        )


def too_old(what: str, batch_id: int, covered: int) -> PermanentError:
    """The error for a batch that comes after the deletes of its time were forgotten."""
    return PermanentError(
        f"{what}: deletes are remembered from batch {covered} on, so rows of batch {batch_id} might bring deleted rows "
        "back. Nothing was written. Load the target anew from its source, or leave this batch out. A higher "
        "deletes_kept helps later deletes only"
    )
