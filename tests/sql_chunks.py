"""Chunks by hand, and what brings them to a server and looks at it, for tests of `SqlSink`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tests.databases import PASSWORD_VARIABLE, USER, PostgresqlServer, Server
from wal_sink.chunk import Chunk, Position
from wal_sink.sink import Rejected, SinkContext
from wal_sink_backends.sql import SqlSink

SLOT = "wal/default/0"
CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)


def chunk(
    table: pa.Table, *, batch: int = 0, first: int = 0, segment: str = "a", term: int = 1, slot: str = SLOT
) -> Chunk:
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(slot, batch, end, segment),
        term=term,
    )


def ids(*values: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@contextmanager
def opened(sink: SqlSink) -> Iterator[SqlSink]:
    sink.open(CONTEXT)
    try:
        yield sink
    finally:
        sink.close()


def sink_to(
    server: Server, database: str, table: str = "flights", *, port: int | None = None, **options: Any
) -> SqlSink:
    return SqlSink(server.url(database, port=port), table, password_env=PASSWORD_VARIABLE, **options)


def write(sink: SqlSink, *chunks: Chunk) -> list[Rejected | None]:
    with opened(sink):
        return [sink.write(one) for one in chunks]


def stored(server: Server, database: str, columns: str = "id") -> list[tuple[Any, ...]]:
    return server.query(database, f"SELECT {columns} FROM flights ORDER BY 1")


def as_owner(server: Server, database: str, *statements: str) -> None:
    """As the user the sink connects as, where tables have owners."""
    for statement in statements:
        if isinstance(server, PostgresqlServer):
            server.query(database, f"SET ROLE {USER}")
        server.query(database, statement)
        if isinstance(server, PostgresqlServer):
            server.query(database, "RESET ROLE")
