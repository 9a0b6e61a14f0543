"""`SqlSink` with `evolve="add"`: columns come once, with others at work, killed, faster or older."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Chunk, Position
from tests.support.chunks import chunk, ids
from tests.support.servers.databases import DatabaseServer, PostgresqlServer
from tests.support.side_by_side import side_by_side
from tests.support.sql_chunks import as_owner, opened, sink_to
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.sink import SqlSink

NEW = pa.table(
    {
        "id": pa.array([2], pa.int64()),
        "note": ["é"],
        "amount": pa.array([1.5]),
        "seen": pa.array([0], pa.timestamp("us", "UTC")),
        "tags": pa.array([["x"]], pa.list_(pa.string())),
    }
)
DIED = 9


@dataclass
class Database:
    """A database of one kind, reached as the sink's user and as a person."""

    sink: Callable[..., SqlSink]
    query: Callable[[str], list[tuple[Any, ...]]]
    alter: Callable[[str], object]

    def columns(self, table: str = "flights") -> list[str]:
        with opened(self.sink(table)) as sink:
            return list(sink._dialect.columns(sink._connection, table))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "rows.db"

        def query(statement: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as connection, connection:
                return connection.execute(statement).fetchall()

        def to_file(table: str = "flights", **options: Any) -> SqlSink:
            return SqlSink(f"sqlite:///{path}", table, **{"evolve": "add", **options})

        yield Database(to_file, query, query)
        return
    server: DatabaseServer = request.getfixturevalue(request.param)
    name = server.new_database()

    def to_server(table: str = "flights", **options: Any) -> SqlSink:
        return sink_to(server, name, table, **{"evolve": "add", **options})

    yield Database(to_server, partial(server.query, name), partial(as_owner, server, name))


def one_with(name: str, value: Any, number: int) -> Chunk:
    table = pa.table({"id": pa.array([number], pa.int64()), name: pa.array([value])})
    return chunk(table, segment=f"s{number}", slot=f"wal/default/{number}")


def test_columns_that_come_are_null_in_old_rows_and_old_programs_go_on(database: Database) -> None:
    """kafka-connect-jdbc#1193, clickhouse-kafka-connect#277: a new column of the source comes into the table."""
    with opened(database.sink()) as sink:
        sink.write(chunk(ids(1)))
        found = sink.examine(NEW.schema)[1].found
        assert "The next delivery adds columns: ALTER TABLE" in found
        assert database.columns() == ["id"]
        assert sink.write(chunk(NEW, first=1)) is None
        assert sink.write(chunk(ids(3), first=2)) is None
        assert "adds columns" not in sink.examine(NEW.schema)[1].found
    with opened(database.sink(evolve="refuse")) as older:
        assert older.write(chunk(ids(4), first=3)) is None
        assert older.write(chunk(NEW.slice(0, 1), first=4)) is None
    assert database.query("SELECT id, note, amount FROM flights ORDER BY id, note") == [
        (1, None, None),
        (2, "é", 1.5),
        (2, "é", 1.5),
        (3, None, None),
        (4, None, None),
    ]
    with opened(database.sink("anew")) as sink:
        sink.write(chunk(NEW, slot="wal/default/1"))
    assert (
        database.query("SELECT id, note, amount, tags FROM anew")
        == database.query("SELECT id, note, amount, tags FROM flights WHERE id = 2")[:1]
    )


def test_four_tasks_of_two_sinks_add_their_columns_at_once(database: Database) -> None:
    """Two bring the same new columns, in another order each; all of a sink bring one more that the other has, too."""
    with opened(database.sink()) as sink:
        sink.write(chunk(ids(0)))
    numbers = itertools.count(1)

    def deliver() -> None:
        number = next(numbers)
        sink_name, task = ("default", "other")[number % 2], number // 2
        rows = NEW.set_column(0, "id", pa.array([number], pa.int64())).append_column(sink_name, pa.array([number]))
        one = chunk(rows.select(rows.column_names[:: -1 if task % 2 else 1]), slot=f"wal/{sink_name}/{task + 1}")
        with opened(database.sink()) as sink:
            wait_until(partial(patiently, sink, one), "the chunk was written")

    side_by_side(8, deliver)
    assert sorted(database.columns()) == ["amount", "default", "id", "note", "other", "seen", "tags"]
    assert database.query("SELECT id, note FROM flights ORDER BY id") == [(0, None), *((n, "é") for n in range(1, 9))]


def patiently(sink: SqlSink, one: Chunk) -> bool:
    try:
        assert sink.write(one) is None
    except PermanentError:
        raise
    except Exception as error:  # noqa: BLE001 - the core tries again after anything else
        print("again", error)  # noqa: T201
        return False
    return True


def test_a_kill_at_each_statement_loses_and_doubles_nothing(database: Database) -> None:
    """The process dies before its first statement, before its second one, and so on, until one lives to the end."""
    number, ended = 0, DIED
    while ended == DIED:
        number += 1
        table, slot = f"t{number}", f"wal/default/{number}"
        with opened(database.sink(table)) as sink:
            sink.write(chunk(ids(1), slot=slot))
        after = Position(slot, 0, 1, "a")
        one = chunk(NEW, batch=1, segment="b", slot=slot, after=after)
        if not (child := os.fork()):
            write_and_die(database.sink(table), one, number)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, DIED)
        with opened(database.sink(table)) as sink:
            wait_until(partial(patiently, sink, one), "the chunk was written")
        assert database.columns(table) == NEW.column_names
        assert database.query(f"SELECT id, note FROM {table} ORDER BY id") == [(1, None), (2, "é")]
    assert number > 10


def write_and_die(to: SqlSink, one: Chunk, at: int) -> None:
    numbers = itertools.count(1)

    def step(*_: Any) -> int:
        return os._exit(DIED) if next(numbers) == at else 0

    try:
        with opened(to) as sink:
            connection: Any = sink._connection
            if isinstance(connection, sqlite3.Connection):
                connection.set_trace_callback(step)
            else:
                execute = connection.execute
                connection.execute = lambda *given: step() or execute(*given)
            assert sink.write(one) is None
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize(("kind", "fits"), [("BIGINT", True), ("TEXT", False)])
def test_a_column_that_another_process_adds_meanwhile(
    database: Database, kind: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(database.sink()) as sink:
        sink.write(chunk(ids(1)))
        dialect: Any = sink._dialect
        add = type(dialect).add_columns

        def add_later(*given: Any) -> None:
            database.alter(f"ALTER TABLE flights ADD COLUMN more {kind}")
            add(*given)

        monkeypatch.setattr(type(dialect), "add_columns", add_later)
        later = one_with("more", 5, 2)
        if fits:
            assert sink.write(later) is None
        else:
            told = "column 'more' is declared 'text'. This type would alter integer values"
            with pytest.raises(PermanentError, match=f"(?i){told}"):
                sink.write(later)
    assert database.query("SELECT id, more FROM flights ORDER BY id") == [(1, None), (2, 5)][: 1 + fits]


@pytest.mark.parametrize(
    ("options", "name", "value", "told"),
    [
        (
            {"evolve": "refuse"},
            "more",
            5,
            r"no column 'more', only \['id'\].*ADD COLUMN.*or pass evolve='add', or drop",
        ),
        ({}, "more", None, r"no column 'more', only \['id'\]\. Add the column to the table \(ALTER [^)]*\), or drop"),
        ({"mode": "upsert", "key": "id", "newer_by": "more"}, "more", 5, r"\(ALTER TABLE [^)]*\), or drop or rename"),
        ({"mode": "upsert", "key": "more"}, "more", 5, r"\(ALTER TABLE [^)]*\), or drop or rename"),
        ({}, "xmin", 5, "cannot be added: .*Run as another user: ALTER TABLE"),
    ],
    ids=["refuse", "no type", "version", "key", "reserved"],
)
def test_columns_that_do_not_come(
    database: Database, options: dict[str, Any], name: str, value: Any, told: str
) -> None:
    if name == "xmin" and "postgresql" not in database.sink()._dialect.address:
        pytest.skip("a name that PostgreSQL keeps for itself")
    with opened(database.sink()) as sink:
        sink.write(chunk(ids(1)))
    with opened(database.sink(**options)) as sink, pytest.raises(PermanentError, match=told):
        sink.write(one_with(name, value, 2))
    assert database.columns() == ["id"]
    assert database.query("SELECT id FROM flights") == [(1,)]


def test_a_name_that_differs_only_in_case(database: Database) -> None:
    with opened(database.sink()) as sink:
        sink.write(one_with("ä", 5, 1))
        twins = is_another(sink)
        told = "no column 'Ä', only 'ä', in another case" if twins else "expected columns with names that differ"
        both = pa.table({"id": [2], "Ä": [1]} | ({} if twins else {"ä": [2]}))
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(both, segment="s2", slot="wal/default/2"))
    assert sorted(database.columns()) == ["id", "ä"]


def is_another(sink: SqlSink) -> bool:
    """Whether the two names are two columns of this database."""
    return sink._dialect.fold("Ä") != "ä"


@pytest.mark.parametrize("server", ["postgresql", "mariadb"], indirect=True)
def test_others_do_not_wait_long_for_a_column(server: DatabaseServer) -> None:
    """risingwave#16839: a column that comes does not hold up others. A transaction holds the table. It gives up soon,
    so that those behind it in the queue pass, and tries again.
    """
    name = server.new_database()
    as_owner(server, name, "CREATE TABLE flights (id BIGINT)")
    reader = server.connect(name)
    cursor = reader.cursor()
    cursor.execute("BEGIN")
    cursor.execute("SELECT id FROM flights")
    with opened(sink_to(server, name, evolve="add")) as sink:
        with pytest.raises(Exception, match=r"lock timeout|Lock wait timeout") as raised:
            sink.write(chunk(NEW))
        assert not isinstance(raised.value, PermanentError)
        cursor.execute("ROLLBACK")
        reader.close()
        assert sink.write(chunk(NEW)) is None


def test_a_user_without_the_right_is_told_the_statement(postgresql: PostgresqlServer, pg: str) -> None:
    postgresql.query(pg, "CREATE TABLE flights (id BIGINT)")
    postgresql.query(pg, "GRANT ALL ON flights TO PUBLIC")
    told = r'must be owner of table flights.*Run as another user: ALTER TABLE "public"\."flights" ADD COLUMN'
    with opened(sink_to(postgresql, pg, evolve="add")) as sink, pytest.raises(PermanentError, match=told):
        sink.write(chunk(NEW))
