"""`SqlSink` refuses every kind of table, and of ledger, that would not keep rows and position in one transaction."""

from __future__ import annotations

import pytest

from tests.support.chunks import SLOT, chunk, ids
from tests.support.servers.databases import DatabaseServer, MariadbServer, PostgresqlServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from wal_sink.errors import PermanentError

PARTED = "CREATE TABLE flights (id bigint) PARTITION BY RANGE (id)"
LOW = "CREATE {} TABLE low PARTITION OF flights FOR VALUES FROM (0) TO (10) {}"
FOREIGN = (
    "CREATE EXTENSION IF NOT EXISTS postgres_fdw",
    "CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1')",
)
HANDLER = "CREATE ACCESS METHOD strange TYPE TABLE HANDLER heap_tableam_handler"
RULE = "CREATE RULE aside AS ON INSERT TO flights DO INSTEAD NOTHING"
INSTEAD = (
    "CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "CREATE TRIGGER drop_it INSTEAD OF INSERT ON flights FOR EACH ROW EXECUTE FUNCTION drop_it()",
)


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        ((*FOREIGN, "CREATE FOREIGN TABLE flights (id bigint) SERVER elsewhere"), "flights is a foreign table"),
        (("CREATE VIEW flights AS SELECT 1::bigint AS id", *INSTEAD), "flights is a view"),
        (("CREATE TABLE base (id bigint)", "CREATE VIEW flights AS SELECT * FROM base"), "flights is a view"),
        (("CREATE MATERIALIZED VIEW flights AS SELECT 1::bigint AS id",), "flights is a materialized view"),
        (("CREATE SEQUENCE flights",), "flights is of the unknown kind 'S'"),
        ((PARTED, LOW.format("UNLOGGED", "")), "low, a partition of flights, is UNLOGGED"),
        (
            (
                PARTED,
                LOW.format("", "PARTITION BY RANGE (id)"),
                "CREATE UNLOGGED TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5)",
            ),
            "lowest, a partition of flights, is UNLOGGED",
        ),
        (
            (
                PARTED,
                *FOREIGN,
                "CREATE FOREIGN TABLE low PARTITION OF flights FOR VALUES FROM (0) TO (10) SERVER elsewhere",
            ),
            "low, a partition of flights, is a foreign table",
        ),
        ((HANDLER, "CREATE TABLE flights (id bigint) USING strange"), "flights has the access method 'strange'"),
        (("CREATE TABLE flights (id bigint)", RULE), "flights has a rule ON INSERT"),
    ],
    ids=[
        *("foreign table", "view with a trigger", "plain view", "materialized view", "sequence", "unlogged partition"),
        *("unlogged nested partition", "foreign partition", "access method", "rule"),
    ],
)
def test_other_kinds_of_postgresql_are_refused(
    postgresql: PostgresqlServer, pg: str, statements: tuple[str, ...], told: str
) -> None:
    for statement in statements:
        postgresql.query(pg, statement)
    columns = "last_value" if "SEQUENCE" in statements[0] else "id"
    postgresql.query(pg, "GRANT ALL ON ALL TABLES IN SCHEMA public TO etl")
    with opened(sink_to(postgresql, pg)) as sink:
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(ids(1).rename_columns([columns])))
        assert sink.last(SLOT) is None


def test_partitions_that_are_logged_are_written_to(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, PARTED, LOW.format("", "PARTITION BY RANGE (id)"))
    as_owner(postgresql, pg, "CREATE TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5)")
    assert write(sink_to(postgresql, pg), chunk(ids(1, 2))) == [None]
    assert stored(postgresql, pg) == [(1,), (2,)]


def test_an_unlogged_ledger_is_refused(postgresql: PostgresqlServer, pg: str) -> None:
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        postgresql.query(pg, "ALTER TABLE wal_sink_ledger SET UNLOGGED")
        with pytest.raises(PermanentError, match="wal_sink_ledger is UNLOGGED"):
            sink.write(chunk(ids(2), first=1))


@pytest.fixture
def federated(mariadb: MariadbServer) -> None:
    if not mariadb.query("mysql", "SELECT 1 FROM information_schema.engines WHERE engine = 'FEDERATED'"):
        mariadb.query("mysql", "INSTALL SONAME 'ha_federatedx'")


@pytest.mark.usefixtures("federated")
def test_a_federated_table_is_refused(mariadb: MariadbServer, maria: str) -> None:
    """Its connection may end before COMMIT: the rows are lost, and the ledger says that they are there."""
    mariadb.query(maria, "CREATE TABLE other (id BIGINT)")
    to = f"mysql://root@127.0.0.1:{mariadb.port}/{maria}/other"
    mariadb.query(maria, f"CREATE TABLE flights (id BIGINT) ENGINE=FEDERATED CONNECTION='{to}'")
    with opened(sink_to(mariadb, maria)) as sink:
        with pytest.raises(PermanentError, match=r"flights has the engine FEDERATED; expected .*InnoDB"):
            sink.write(chunk(ids(1)))
        assert sink.last(SLOT) is None
    assert mariadb.query(maria, "SELECT * FROM other") == []


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (("CREATE TABLE base (id BIGINT)", "CREATE VIEW flights AS SELECT * FROM base"), "flights is a view"),
        (("CREATE SEQUENCE flights",), "flights is a sequence"),
        (
            ("CREATE TABLE flights (id BIGINT) ENGINE=Aria PARTITION BY HASH (id) PARTITIONS 3",),
            "flights has the engine Aria",
        ),
        (("CREATE TABLE flights (id BIGINT) ENGINE=MyISAM",), "flights has the engine MyISAM"),
    ],
    ids=["view", "sequence", "partitions", "MyISAM"],
)
def test_other_kinds_of_mariadb_are_refused(
    mariadb: MariadbServer, maria: str, statements: tuple[str, ...], told: str
) -> None:
    for statement in statements:
        mariadb.query(maria, statement)
    column = "next_not_cached_value" if "SEQUENCE" in statements[0] else "id"
    with opened(sink_to(mariadb, maria)) as sink:
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(ids(1).rename_columns([column])))
        assert sink.last(SLOT) is None


def test_partitions_of_innodb_are_written_to(mariadb: MariadbServer, maria: str) -> None:
    comment = "COMMENT 'ENGINE=Aria, it\\'s said'"
    mariadb.query(
        maria, f"CREATE TABLE flights (id BIGINT {comment}) ENGINE=InnoDB PARTITION BY HASH (id) PARTITIONS 3"
    )
    assert write(sink_to(mariadb, maria), chunk(ids(1, 2))) == [None]
    assert stored(mariadb, maria) == [(1,), (2,)]


def test_a_ledger_without_transactions_is_refused(mariadb: MariadbServer, maria: str) -> None:
    with opened(sink_to(mariadb, maria)) as sink:
        sink.write(chunk(ids(1)))
        mariadb.query(maria, "ALTER TABLE wal_sink_ledger ENGINE=MyISAM")
        with pytest.raises(PermanentError, match="wal_sink_ledger has the engine MyISAM"):
            sink.write(chunk(ids(2), first=1))
    assert stored(mariadb, maria) == [(1,)]


@pytest.mark.parametrize("name", ["public.orders", '"ORDERS"', "`orders`", "[orders]", "shop.public.orders"])
def test_a_name_that_reads_like_a_schema_and_a_table_makes_none(
    server: DatabaseServer, database: str, name: str
) -> None:
    with pytest.raises(PermanentError, match=r"no table has exactly the name .*(schema=|without the quotes)"):
        write(sink_to(server, database, name), chunk(ids(1)))
    own = "" if isinstance(server, PostgresqlServer) else f" AND table_schema = '{database}'"
    named = f"SELECT table_name FROM information_schema.tables WHERE table_name LIKE '%rders%'{own}"
    assert server.query(database, named) == []


def test_a_partition_that_becomes_unlogged_is_noticed(postgresql: PostgresqlServer, pg: str) -> None:
    as_owner(postgresql, pg, PARTED, LOW.format("", ""))
    with opened(sink_to(postgresql, pg)) as sink:
        sink.write(chunk(ids(1)))
        postgresql.query(pg, "ALTER TABLE low SET UNLOGGED")
        with pytest.raises(PermanentError, match="low, a partition of flights, is UNLOGGED"):
            sink.write(chunk(ids(2), first=1))
