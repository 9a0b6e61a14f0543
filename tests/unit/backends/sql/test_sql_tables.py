"""`SqlSink` and descriptions of tables that no server of the tests gives: MySQL 8, rare engines."""

from __future__ import annotations

from typing import Any

import pytest

from wal_sink_backends.sql.mariadb.dialect import definition_of, problem_of, problem_of_key
from wal_sink_backends.sql.sink import SqlSink


class Said:
    """A session of which every statement has the answer given here: a make-believe of `information_schema`."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self._rows = rows

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> Said:  # noqa: ARG002
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None


def key_problem(*rows: tuple[Any, ...]) -> str | None:
    said: Any = Said(*rows)
    return problem_of_key(said, ("db", "flights"), {"id", "name"}, {"id"})


PRIMARY = ("PRIMARY", "id", None, "")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([PRIMARY], None),
        ([PRIMARY, ("by_name", None, None, None)], "unique index 'by_name' is not the index of the key"),
        ([("by_id", None, None, None)], "needs a primary key or unique index of ['id']; found ['by_id']"),
        ([("by_both", "id", None, ""), ("by_both", None, None, None)], "needs a primary key or unique index"),
        ([("start", "id", 4, "")], "needs a primary key or unique index"),
        ([PRIMARY, ("number", "nr", None, "auto_increment")], None),
        ([PRIMARY, ("number", None, None, None), ("number", "nr", None, "auto_increment")], None),
    ],
    ids=["a key", "an expression", "only one", "with a column", "a prefix", "a number", "a number and more"],
)
def test_an_index_over_an_expression_is_no_key_and_may_not_be_met(
    rows: list[tuple[Any, ...]], problem: str | None
) -> None:
    """MySQL 8 gives NULL for the column of such a part. No MySQL runs here: these answers are made up."""
    found = key_problem(*rows)
    assert (found is None) == (problem is None), found
    assert problem is None or problem in str(found)


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("CREATE TABLE `t` (`id` int) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4", None),
        ("CREATE TABLE `t` (`a ENGINE=x` int COMMENT 'it''s ENGINE=\\'y\\'') ENGINE=InnoDB", None),
        ("CREATE TABLE `t` (`id` int) ENGINE=ROCKSDB", "t has the engine ROCKSDB; expected ENGINE=InnoDB"),
        (
            (
                "CREATE TABLE `t` (`id` int) ENGINE=InnoDB\n/*!50100 PARTITION BY HASH (`id`)\n"
                "(PARTITION p0 ENGINE = InnoDB,\n PARTITION p1 COMMENT = ')' ENGINE = MyISAM) */"
            ),
            "t has the engine MyISAM; expected ENGINE=InnoDB for every partition",
        ),
        ("CREATE TABLE `t` (`id` int)", "t has an engine that the server does not name"),
        ("CREATE ALGORITHM=UNDEFINED SQL SECURITY DEFINER VIEW `t` AS select 1 AS `id`", "t is a view"),
        ("CREATE THING `t` ENGINE=InnoDB", "t is of an unknown kind"),
        ("", None),
    ],
)
def test_only_innodb_by_name_passes_for_every_partition(definition: str, problem: str | None) -> None:
    found = problem_of("t", definition)
    assert (found is None) == (problem is None), found
    assert problem is None or str(found).startswith(problem)


def test_the_next_number_is_no_part_of_a_definition() -> None:
    text = (
        "CREATE TABLE `t` (\n  `id` int AUTO_INCREMENT COMMENT 'AUTO_INCREMENT=3 '\n) ENGINE=InnoDB {}DEFAULT CHARSET=x"
    )
    said: list[Any] = [Said(("t", text.format(next_number))) for next_number in ("", "AUTO_INCREMENT=7 ")]
    assert {definition_of(one, "`t`") for one in said} == {text.format("")}


def test_the_json_of_mysql_is_a_document_and_that_of_mariadb_a_text() -> None:
    """MariaDB shows the type as `longtext`."""
    dialect = SqlSink("mysql://etl@db/shop", "flights")._dialect
    assert dialect.documents & {"json", "longtext", "varchar(3)"} == {"json"}
