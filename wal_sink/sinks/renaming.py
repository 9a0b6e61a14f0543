"""`Delivery.columns`: the names under which one sink gets the columns, and the columns that it does not get.

The WAL and its dead letters keep the names of the query. Rows are renamed where a sink is called (`SinkSession`), so
keys and digests of chunks do not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink.errors import PermanentError

if TYPE_CHECKING:
    from wal_sink.sinks.base import SinkContext
    from wal_sink.sinks.chunk import Chunk


@dataclass(frozen=True, slots=True)
class Renaming:
    """The columns of one sink. Plain data, sent to executors."""

    names: tuple[tuple[str, str | None], ...] = ()
    """By the name in the query: the name in the target; None leaves the column out. Others keep their names."""

    @classmethod
    def of(cls, columns: Mapping[str, str | None] | None) -> Renaming:
        """That of `Delivery.columns`."""
        return cls(tuple((columns or {}).items()))

    def places(self, staged: Sequence[str]) -> list[tuple[int, str]]:
        """Of each column that the sink gets: its place among the staged ones, and its name. Raises `PermanentError`."""
        if not self.names:
            return list(enumerate(staged))
        wanted = dict(self.names)
        if unknown := [name for name in wanted if name not in staged]:
            raise PermanentError(f"columns: the query has no column {unknown[0]!r}, only {list(staged)}")
        renamed = [(place, wanted.get(name, name)) for place, name in enumerate(staged)]
        found = [(place, name) for place, name in renamed if name is not None]
        names = [name for _, name in found]
        if not names:
            raise PermanentError("columns: no column is left. Keep at least one")
        if twice := [name for name in names if names.count(name) > 1]:
            raise PermanentError(
                f"columns: two columns have the name {twice[0]!r} after renaming. Rename or leave out one"
            )
        return found

    def table(self, table: pa.Table) -> pa.Table:
        """The rows as the sink gets them; no value is copied."""
        if not self.names:
            return table
        places = self.places(table.column_names)
        return table.select([place for place, _ in places]).rename_columns([name for _, name in places])

    def chunk(self, chunk: Chunk) -> Chunk:
        """The chunk as the sink gets it, under the same key."""
        return replace(chunk, table=self.table(chunk.table)) if self.names else chunk

    def schema(self, schema: Any) -> Any:
        """The Arrow schema of the rows that the sink gets; None stays None."""
        if schema is None or not self.names:
            return schema
        return pa.schema([schema.field(place).with_name(name) for place, name in self.places(schema.names)])

    def spark_schema(self, text: str) -> str:
        """The JSON of the Spark schema of the rows that the sink gets; empty text stays empty."""
        if not text or not self.names:
            return text
        schema = json.loads(text)
        fields = schema["fields"]
        places = self.places([field["name"] for field in fields])
        return json.dumps({**schema, "fields": [{**fields[place], "name": name} for place, name in places]})

    def context(self, context: SinkContext) -> SinkContext:
        """The context with which the sink is opened. One for a question may name no columns."""
        if not (self.names and context.columns):
            return context
        columns = tuple(name for _, name in self.places(context.columns))
        return replace(context, columns=columns, spark_schema=self.spark_schema(context.spark_schema))


SAME = Renaming()
"""Every column, under its own name."""
