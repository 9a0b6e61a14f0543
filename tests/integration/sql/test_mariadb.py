"""`SqlSink` on MariaDB: its types, engines, indexes, limits, modes and rights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import chunk, ids
from tests.support.servers.databases import USER, MariadbServer
from tests.support.sql_chunks import as_owner, opened, sink_to, stored, write
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base.dialect import LEDGER
from wal_sink_backends.sql.mariadb.dialect import UNIQUE


def test_numbers_that_mariadb_cannot_hold_are_rejected(mariadb: MariadbServer, maria: str) -> None:
    table = pa.table({"v": pa.array([1.5, math.nan, math.inf, None])})
    (rejected,) = write(sink_to(mariadb, maria), chunk(table))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2}
    assert "column 'v' is nan" in rejected.reasons[1]


def test_years_beyond_the_calendar_of_mariadb_are_rejected(mariadb: MariadbServer, maria: str) -> None:
    (rejected,) = write(sink_to(mariadb, maria), chunk(pa.table({"d": pa.array([0, 10**8], pa.date32())})))
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1}


def test_tables_without_transactions_are_refused(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id BIGINT) ENGINE=Aria")
    with pytest.raises(PermanentError, match="flights has the engine Aria; expected ENGINE=InnoDB for every partition"):
        write(sink_to(mariadb, maria), chunk(ids(1)))


def test_a_second_unique_index_would_replace_other_rows(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (nr INT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, other BIGINT)")
    table = pa.table({"id": [1, 2], "other": [7, 7]})
    write(sink_to(mariadb, maria, mode="upsert", key="id"), chunk(table))
    mariadb.query(maria, "ALTER TABLE flights ADD UNIQUE second (other, nr), ADD UNIQUE third (other, id)")
    with pytest.raises(PermanentError, match="unique index 'third' is not the index of the key"):
        write(sink_to(mariadb, maria, mode="upsert", key="id"), chunk(table, first=2))


def test_a_null_that_mariadb_would_replace_by_a_default_is_rejected(mariadb: MariadbServer, maria: str) -> None:
    as_owner(mariadb, maria, "CREATE TABLE flights (Id BIGINT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(6) NOT NULL)")
    instants = pa.array([3_000_000, 1_000_000, None, 2_000_000], pa.timestamp("us", "UTC"))
    rows = chunk(pa.table({"id": [7, None, 8, 9], "at": instants}))
    (rejected,) = write(sink_to(mariadb, maria), rows)
    reason = "column '{}' is NULL, but the database would replace the NULL"
    assert rejected == Rejected({1: reason.format("id"), 2: reason.format("at")})
    assert stored(mariadb, maria) == []
    assert write(sink_to(mariadb, maria), rows.without([1, 2])) == [None]
    assert stored(mariadb, maria) == [(7,), (9,)]


@pytest.mark.parametrize("kept", ["STORED", "VIRTUAL"])
def test_null_in_a_generated_column_is_rejected(mariadb: MariadbServer, maria: str, kept: str) -> None:
    """MariaDB takes it without an error and has what it computes; any other value it refuses."""
    as_owner(mariadb, maria, f"CREATE TABLE flights (id INT, v INT GENERATED ALWAYS AS (id + 1) {kept})")
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([None, None], pa.int32())})
    reason = "column 'v' is NULL, but the database would replace the NULL"
    assert write(sink_to(mariadb, maria), chunk(rows)) == [Rejected({0: reason, 1: reason})]
    assert stored(mariadb, maria) == []
    assert write(sink_to(mariadb, maria), chunk(rows.select(["id"]))) == [None]
    assert stored(mariadb, maria, "id, v") == [(1, 2), (2, 3)]


def test_an_enum_would_take_the_text_of_a_number_for_a_place(mariadb: MariadbServer, maria: str) -> None:
    as_owner(mariadb, maria, "CREATE TABLE flights (name ENUM('a', 'b'))")
    with pytest.raises(
        PermanentError, match=r"column 'name' is declared \"enum\('a','b'\)\"\. This type would alter text"
    ):
        write(sink_to(mariadb, maria), chunk(pa.table({"name": ["2"]})))


def test_a_row_larger_than_the_server_takes_is_rejected(mariadb: MariadbServer, maria: str) -> None:
    """The server of the tests takes 4 MiB at once; what comes in several statements is one transaction all the same."""
    sink = sink_to(mariadb, maria)
    with opened(sink):
        texts = ["x" * (3 << 20), "y" * (5 << 20), "z" * (2 << 20), "w"]
        rejected = sink.write(chunk(pa.table({"v": texts})))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {1}
        assert sink.write(chunk(pa.table({"v": texts})).without([1])) is None
    assert mariadb.query(maria, "SELECT count(*), sum(length(v)) FROM flights") == [(3, (5 << 20) + 1)]


def test_values_are_strict_whatever_the_server_is(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(2))")
    mariadb.query("mysql", "SET GLOBAL sql_mode = ''")
    try:
        (rejected,) = write(sink_to(mariadb, maria), chunk(pa.table({"id": [0, 1], "name": ["ab", "abc"]})))
        assert isinstance(rejected, Rejected)
        assert set(rejected.reasons) == {1}
        write(sink_to(mariadb, maria), chunk(pa.table({"id": [0], "name": ["ab"]})))
    finally:
        mariadb.query("mysql", "SET GLOBAL sql_mode = DEFAULT")
    assert stored(mariadb, maria, "id, name") == [(0, "ab")]


def test_constraints_hold_whatever_the_server_has_switched_off(mariadb: MariadbServer, maria: str) -> None:
    switches = ("check_constraint_checks", "foreign_key_checks", "unique_checks")
    mariadb.query(maria, "CREATE TABLE parents (id INT PRIMARY KEY)")
    mariadb.query(maria, "INSERT INTO parents VALUES (1), (2), (3)")
    mariadb.query(
        maria,
        "CREATE TABLE flights (id INT CHECK (id < 9), other INT UNIQUE, FOREIGN KEY (id) REFERENCES parents (id))",
    )
    try:
        for switch in switches:
            mariadb.query("mysql", f"SET GLOBAL {switch} = 0")
        table = pa.table({"id": [1, 2, 4, 9], "other": [7, 7, 8, 9]})
        (rejected,) = write(sink_to(mariadb, maria), chunk(table))
    finally:
        for switch in switches:
            mariadb.query("mysql", f"SET GLOBAL {switch} = 1")
    assert isinstance(rejected, Rejected)
    assert set(rejected.reasons) == {1, 2, 3}
    assert stored(mariadb, maria) == []


@pytest.mark.parametrize("completion", ["CHAIN", "RELEASE"])
def test_a_commit_ends_a_transaction_and_nothing_else(mariadb: MariadbServer, maria: str, completion: str) -> None:
    """With RELEASE the server hangs up after each COMMIT and ROLLBACK, so that no table could be made."""
    mariadb.query("mysql", f"SET GLOBAL completion_type = '{completion}'")
    try:
        with opened(sink_to(mariadb, maria)) as sink:
            for number in range(3):
                assert sink.write(chunk(ids(number), first=number)) is None
    finally:
        mariadb.query("mysql", "SET GLOBAL completion_type = 'NO_CHAIN'")
    assert stored(mariadb, maria) == [(0,), (1,), (2,)]


def test_no_answer_of_the_ledger_is_cut_short(mariadb: MariadbServer, maria: str) -> None:
    slots = [f"wal/default/{number}" for number in range(3)]
    mariadb.query("mysql", "SET GLOBAL sql_select_limit = 1")
    try:
        with opened(sink_to(mariadb, maria)) as sink:
            for slot in slots:
                sink.write(chunk(ids(1), slot=slot))
            assert sink.positions(slots) == {slot: Position(slot, 0, 1, "a") for slot in slots}
    finally:
        mariadb.query("mysql", f"SET GLOBAL sql_select_limit = {(1 << 64) - 1}")


def test_a_ledger_that_takes_two_slots_for_one_is_refused(mariadb: MariadbServer, maria: str) -> None:
    """As a ledger does that was converted with its database: the second sink's rows would count as the first one's."""
    with opened(sink_to(mariadb, maria, "older")) as sink:
        sink.write(chunk(ids(1), slot="wal/Orders/0"))
    mariadb.query(maria, f"ALTER TABLE {LEDGER} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    with opened(sink_to(mariadb, maria)) as sink:
        for ask in (lambda: sink.write(chunk(ids(1), slot="wal/orders/0")), lambda: sink.last("wal/orders/0")):
            with pytest.raises(
                PermanentError, match=r"found a row for slot 'wal/Orders/0', expected one of .*wal/orders/0"
            ):
                ask()


def test_with_the_least_rights(mariadb: MariadbServer, maria: str) -> None:
    mariadb.query(maria, "CREATE TABLE flights (id BIGINT)")
    mariadb.query(maria, f"REVOKE ALL ON {maria}.* FROM {USER}@'%'")
    mariadb.query(maria, f"GRANT INSERT ON {maria}.flights TO {USER}@'%'")
    with pytest.raises(
        PermanentError, match="ledger does not exist yet, and this user has no right to create it"
    ) as caught:
        write(sink_to(mariadb, maria, create_table=False), chunk(ids(1)))
    ddl, grant = str(caught.value).partition("Run as another user: ")[2].split("; ")
    for statement in (ddl, grant.replace("this user", f"{USER}@'%'")):
        mariadb.query(maria, statement)
    assert write(sink_to(mariadb, maria, create_table=False), chunk(ids(1)), chunk(ids(2), first=1)) == [None, None]
    assert stored(mariadb, maria) == [(1,), (2,)]


def test_an_index_over_an_expression_is_seen(mariadb: MariadbServer, maria: str) -> None:
    """Of MySQL 8, which cannot run here: the question is put to made-up tables that answer as MySQL documents it."""
    mariadb.query(maria, "CREATE TABLE columns (table_schema TEXT, table_name TEXT, column_name TEXT, extra TEXT)")
    parts = "index_name TEXT, column_name TEXT, sub_part INT, non_unique INT"
    mariadb.query(maria, f"CREATE TABLE statistics (table_schema TEXT, table_name TEXT, {parts})")
    mariadb.query(maria, "INSERT INTO columns VALUES ('db', 'flights', 'id', '')")
    mariadb.query(maria, "INSERT INTO statistics VALUES ('db', 'flights', 'PRIMARY', 'id', NULL, 0)")
    mariadb.query(maria, "INSERT INTO statistics VALUES ('db', 'flights', 'lower_name', NULL, NULL, 0)")
    question = UNIQUE.replace("information_schema.", f"{maria}.").replace("%s", "'{}'").format("db", "flights")
    assert sorted(mariadb.query(maria, question)) == [("PRIMARY", "id", None, ""), ("lower_name", None, None, None)]


def test_the_largest_and_smallest_floats_are_kept(mariadb: MariadbServer, maria: str) -> None:
    """The shortest text of the largest is beyond it, as a double."""
    bits = np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FFFFE, 0x00000001, 0x00800000, 0x3DCCCCCD], np.uint32)
    values = bits.view(np.float32)
    as_owner(mariadb, maria, "CREATE TABLE flights (n INT, v DOUBLE)")
    table = pa.table({"n": pa.array(range(len(values)), pa.int32()), "v": pa.array(values)})
    assert write(sink_to(mariadb, maria), chunk(table)) == [None]
    found = mariadb.query(maria, "SELECT v FROM flights ORDER BY n")
    assert [np.float32(value) for (value,) in found] == list(values)


@pytest.mark.parametrize(("declared", "value"), [("float", pa.scalar(16777216, pa.float32())), ("tinytext", "a  ")])
def test_a_column_that_would_alter_a_value_is_refused(
    mariadb: MariadbServer, maria: str, declared: str, value: Any
) -> None:
    """A FLOAT is read with six digits; a tinytext drops blanks behind its 255 bytes."""
    as_owner(mariadb, maria, f"CREATE TABLE flights (v {declared})")
    with pytest.raises(PermanentError, match=f"declared '{declared}'. This type would alter"):
        write(sink_to(mariadb, maria), chunk(pa.table({"v": pa.array([value])})))
