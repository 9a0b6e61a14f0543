"""Change streams of `SqlSink` on servers: the newest version of each key is there, whatever is late."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.change_history import KEY, NEWER_BY, Model, Row, deliveries, history
from tests.support.chunks import chunk
from tests.support.servers.databases import DatabaseServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to

STORED = "SELECT shop, id, file, pos, note FROM flights"
STREAM: dict[str, Any] = {"mode": "upsert", "key": KEY, "newer_by": NEWER_BY}


@pytest.mark.parametrize("on_delete", ["delete", "mark"])
@pytest.mark.parametrize("seed", range(4))
def test_a_change_stream_ends_as_its_model(server: DatabaseServer, database: str, seed: int, on_delete: str) -> None:
    way: dict[str, Any] = {"operation": "op"} if on_delete == "delete" else {"delete_when": "gone"}
    model = Model(mark=on_delete == "mark")
    with opened(sink_to(server, database, on_delete=on_delete, **way, **STREAM)) as sink:
        for one, changes in deliveries(seed, history(seed, per_id=2), flag="gone" if model.mark else ""):
            assert sink.write(one) is None
            model.apply(changes)
    found = server.query(database, STORED.replace("note", "note, gone" if model.mark else "note"))
    assert sorted(Row(*values) for values in found) == model.rows


def test_a_version_of_several_columns_in_a_plain_upsert(server: DatabaseServer, database: str) -> None:
    """Column by column, NULL the oldest, an equal one replaces; within a chunk as between two."""
    versions = [None, Decimal("1.50"), Decimal("10.25")]
    rows = [(day, at) for day in (None, 1, 2) for at in versions]
    pairs = list(itertools.product(range(9), repeat=2))

    def table(side: int) -> pa.Table:
        given = [(number, *rows[pair[side]], side) for number, pair in enumerate(pairs)]
        columns = [pa.array(values) for values in zip(*given, strict=True)]
        return pa.table(dict(zip(("id", "day", "at", "mark"), columns, strict=True)))

    options: dict[str, Any] = {"mode": "upsert", "key": "id", "newer_by": ("day", "at")}
    with opened(sink_to(server, database, **options)) as sink:
        assert sink.write(chunk(table(0))) is None
        assert sink.write(chunk(table(1), first=len(pairs))) is None
    with opened(sink_to(server, database, "together", **options)) as sink:
        assert sink.write(chunk(pa.concat_tables([table(0), table(1)]), slot="wal/default/1")) is None
    due = [(number, int(second >= first)) for number, (first, second) in enumerate(pairs)]
    for name in ("flights", "together"):
        assert server.query(database, f"SELECT id, mark FROM {name} ORDER BY id") == due, name


def test_ties_and_texts_on_servers(server: DatabaseServer, database: str) -> None:
    """At equality a delete wins, in both orders. Texts are compared byte by byte, whatever their collation."""
    text = (
        'text COLLATE "und-x-icu"' if isinstance(server, PostgresqlServer) else "varchar(9) COLLATE utf8mb4_general_ci"
    )
    as_owner(server, database, f"CREATE TABLE flights (id bigint PRIMARY KEY, file {text})")
    events = [(1, "a", "c"), (1, "a", "d"), (2, "a", "d"), (2, "a", "c"), (3, "B", "c"), (3, "a", "d"), (4, "a", "c")]
    events += [(4, "B", "d"), (5, "a", "d"), (5, "B", "c")]
    with opened(sink_to(server, database, mode="upsert", key="id", newer_by="file", operation="op")) as sink:
        for number, (key, file, op) in enumerate(events):
            rows = pa.table({"id": [key], "file": [file], "op": [op]})
            assert sink.write(chunk(rows, segment=str(number), slot=f"wal/default/{number}")) is None
    assert server.query(database, "SELECT id, file FROM flights") == [(4, "a")]
