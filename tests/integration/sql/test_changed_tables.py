"""`SqlSink` notices a table that was altered or made anew since it was described, within the writing transaction."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import DatabaseServer, MariadbServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base.dialect import TableAltered


def decimals(*values: float) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.float64())})


@pytest.mark.parametrize(
    "change",
    [
        ("ALTER TABLE flights {} id {} REAL",),
        ("DROP TABLE flights", "CREATE TABLE flights (id REAL)"),
        ("ALTER TABLE flights RENAME TO older", "CREATE TABLE flights (id REAL)"),
    ],
    ids=["altered", "made anew", "renamed"],
)
def test_a_column_that_would_now_alter_values(server: DatabaseServer, database: str, change: tuple[str, ...]) -> None:
    alter = ("ALTER", "TYPE") if isinstance(server, PostgresqlServer) else ("MODIFY", "")
    real = "REAL" if isinstance(server, PostgresqlServer) else "FLOAT"
    with opened(sink_to(server, database)) as sink:
        sink.write(chunk(decimals(0.5)))
        told = r"column 'id' is declared '(real|float)'\. This type would alter"
        if isinstance(server, PostgresqlServer) and len(change) > 1:
            told = "another table has this name now"
        as_owner(server, database, *(statement.format(*alter).replace("REAL", real) for statement in change))
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(decimals(0.1), first=1))
        assert sink.last(SLOT) == Position(SLOT, 0, 1, "a")
    assert (0.1,) not in stored(server, database)


def test_a_table_that_took_the_place_of_another_gets_rows_after_a_start(server: DatabaseServer, database: str) -> None:
    """PostgreSQL gives every table a number. The look before a start learns it, and copies of the sink have it."""
    as_owner(server, database, "CREATE TABLE flights (id BIGINT)")
    looked = sink_to(server, database)
    looked.examine(None)
    as_owner(server, database, "ALTER TABLE flights RENAME TO older", "CREATE TABLE flights (id BIGINT)")
    with opened(pickle.loads(pickle.dumps(looked))) as sink:  # noqa: S301 - made here
        if isinstance(server, PostgresqlServer):
            with pytest.raises(PermanentError, match=r"another table has this name now .* start again"):
                sink.write(chunk(ids(1)))
            looked.examine(None)
        with opened(looked) as started:
            assert started.write(chunk(ids(1))) is None
    assert stored(server, database) == [(1,)]


def test_a_table_that_is_gone_is_not_made_again_by_a_new_process_unless_it_may(
    server: DatabaseServer, database: str
) -> None:
    after = Position(SLOT, 0, 1, "a")
    with opened(sink_to(server, database)) as sink:
        sink.write(chunk(ids(1)))
    as_owner(server, database, "DROP TABLE flights")
    later = chunk(ids(2), batch=1, segment="b", after=after)
    with opened(sink_to(server, database)) as sink:
        with pytest.raises(PermanentError, match=r"the table is gone, but wal_sink_ledger .* up to batch 0"):
            sink.write(later)
        assert sink.last(SLOT) == after, "the connection is still good"
    with opened(sink_to(server, database, recreated_table="accept")) as sink:
        assert sink.write(later) is None
    assert stored(server, database) == [(2,)]


def test_a_table_that_another_segment_of_the_first_batch_makes_meanwhile_is_no_lost_one(
    server: DatabaseServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process saw no table, and then the other one made it and wrote its rows."""
    with opened(sink_to(server, database)) as late, opened(sink_to(server, database)) as other:
        refuse = late._refuse_lost_table

        def refuse_after_the_other(*args: Any) -> None:
            other.write(chunk(ids(1)))
            refuse(*args)

        monkeypatch.setattr(late, "_refuse_lost_table", refuse_after_the_other)
        assert late.write(chunk(ids(2), segment="b", slot=f"{SLOT.rpartition('/')[0]}/1")) is None
    assert stored(server, database) == [(1,), (2,)]


def test_a_table_that_became_one_without_transactions(mariadb: MariadbServer, maria: str) -> None:
    with opened(sink_to(mariadb, maria)) as sink:
        sink.write(chunk(ids(1)))
        mariadb.query(maria, "ALTER TABLE flights ENGINE=MyISAM")
        with pytest.raises(PermanentError, match="flights has the engine MyISAM"):
            sink.write(chunk(ids(2), first=1))
    assert stored(mariadb, maria) == [(1,)]


def test_nobody_alters_the_table_between_the_look_and_the_rows(mariadb: MariadbServer, maria: str) -> None:
    """Rows in a table without transactions could not be taken back: the look holds the definition."""
    with opened(sink_to(mariadb, maria)) as sink:
        sink.write(chunk(ids(1)))
        dialect: Any = sink._dialect
        connection: Any = sink._connection
        refused = []
        insert = type(dialect).insert

        def altered_first(*arguments: Any, **named: Any) -> Any:
            mariadb.query(maria, "SET lock_wait_timeout = 1")
            try:
                mariadb.query(maria, "ALTER TABLE flights ENGINE=MyISAM")
            except Exception as error:  # noqa: BLE001 - of the driver: it waited for the transaction in vain
                refused.append(str(error))
            return insert(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(dialect), "insert", altered_first)
            assert sink.write(chunk(ids(2), first=1)) is None
        assert sink._connection is connection
    assert ["Lock wait timeout" in one for one in refused] == [True]
    assert mariadb.query(
        maria, f"SELECT engine FROM information_schema.tables WHERE table_schema = '{maria}' AND table_name = 'flights'"
    ) == [("InnoDB",)]


def test_a_table_changed_between_the_look_and_the_rows_is_noticed(postgresql: PostgresqlServer, pg: str) -> None:
    """PostgreSQL takes rows back: one more look after them is enough."""
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(decimals(0.5)))
        dialect: Any = sink._dialect
        insert = type(dialect).insert

        def altered_first(*arguments: Any, **named: Any) -> Any:
            as_owner(postgresql, pg, "ALTER TABLE flights ALTER id TYPE real")
            return insert(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(dialect), "insert", altered_first)
            with pytest.raises(PermanentError, match=r"column 'id' is declared 'real'\. This type would alter"):
                sink.write(chunk(decimals(0.1), first=1))
    assert stored(postgresql, pg) == [(0.5,)]


def test_rows_are_not_refused_for_what_the_table_was_for_a_moment(postgresql: PostgresqlServer, pg: str) -> None:
    """A row counts as refused only where the table is as it was described; else it is described again."""
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        dialect: Any = sink._dialect
        insert = type(dialect).insert
        calls: list[int] = []

        def narrowed_first(*arguments: Any, **named: Any) -> Any:
            calls.append(len(calls))
            if len(calls) == 1:
                as_owner(postgresql, pg, "ALTER TABLE flights ALTER id TYPE smallint")
            return insert(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(dialect), "insert", narrowed_first)
            refused = sink.write(chunk(ids(100_000), first=1))
        assert isinstance(refused, Rejected)
        assert len(calls) == 2


def test_a_look_at_the_table_costs_few_statements(
    server: DatabaseServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(sink_to(server, database)) as sink:
        sink.write(chunk(ids(0)))
        session: Any = type(sink._connection)
        statements: list[str] = []
        execute = session.execute

        def counted(self: Any, statement: str, *values: Any) -> Any:
            statements.append(statement)
            return execute(self, statement, *values)

        monkeypatch.setattr(session, "execute", counted)
        sink.write(chunk(ids(1), first=1))
    looks = [one for one in statements if "pg_class" in one or "SHOW CREATE" in one or "WHERE FALSE" in one]
    assert len(looks) == (2 if isinstance(server, PostgresqlServer) else 3)


def test_a_table_that_is_altered_while_it_is_described_may_be_tried_again(
    server: DatabaseServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_owner(server, database, "CREATE TABLE flights (id BIGINT)")
    with opened(sink_to(server, database)) as sink:
        dialect: Any = sink._dialect
        check_table = type(dialect).check_table
        numbers = iter(range(10))

        def altered_after(*arguments: Any) -> Any:
            as_owner(server, database, f"ALTER TABLE flights ADD COLUMN more{next(numbers)} INTEGER")
            return check_table(*arguments)

        monkeypatch.setattr(type(dialect), "check_table", altered_after)
        with pytest.raises(TableAltered, match="was altered while its description was read"):
            sink.write(chunk(ids(1)))
    assert stored(server, database) == []


def test_a_table_that_is_gone_is_not_made_anew(server: DatabaseServer, database: str) -> None:
    """Its rows are gone, and the ledger says that they are there."""
    with opened(sink_to(server, database)) as sink:
        sink.write(chunk(ids(1)))
        as_owner(server, database, "DROP TABLE flights")
        with pytest.raises(
            PermanentError, match="the table no longer exists, and the rows that this process wrote to it are lost"
        ):
            sink.write(chunk(ids(2), first=1))


def test_a_table_that_is_altered_again_and_again_may_be_tried_again(postgresql: PostgresqlServer, pg: str) -> None:
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        dialect: Any = sink._dialect
        insert = type(dialect).insert
        numbers = iter(range(10))

        def altered_first(*arguments: Any, **named: Any) -> Any:
            as_owner(postgresql, pg, f"ALTER TABLE flights ADD COLUMN more{next(numbers)} integer")
            return insert(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(dialect), "insert", altered_first)
            with pytest.raises(TableAltered, match=r"was altered while rows were written to it\. Nothing was written"):
                sink.write(chunk(ids(2), first=1))
        assert stored(postgresql, pg) == [(1,)]
        assert sink.write(chunk(ids(2), first=1)) is None
    assert stored(postgresql, pg) == [(1,), (2,)]
