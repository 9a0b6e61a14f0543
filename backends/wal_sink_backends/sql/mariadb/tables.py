"""A table as MariaDB and MySQL describe it: its kind, the engine of every partition, its unique indexes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wal_sink_backends.sql.mariadb.session import driver, number_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from wal_sink_backends.sql.mariadb.session import Session

_NO_SUCH_TABLE = 1146
_UNFIT = frozenset({_NO_SUCH_TABLE, 1054, 1364})
"""No such table, no such column, a column that needs a value: the table has changed since it was described."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)
_ENGINE = re.compile(r"\bENGINE\s*=\s*(\S+?)(?=[\s,;)*]|$)", re.IGNORECASE)
_NEXT_NUMBER = re.compile(r"^(\) .*?)\bAUTO_INCREMENT=\d+ ", re.MULTILINE)
_ENGINES = frozenset({"innodb"})
"""Other transactional engines may lose their connection before COMMIT (FEDERATED), or commit separately."""


def definition_of(session: Session, named: str) -> str:
    """The CREATE statement of a table, without the next AUTO_INCREMENT number; empty if there is no table."""
    try:
        row = session.execute(f"SHOW CREATE TABLE {named}").fetchone()
    except driver().MySQLError as error:
        if number_of(error) == _NO_SUCH_TABLE:
            return ""
        raise
    return _NEXT_NUMBER.sub(r"\1", str(row[1])) if row else ""


def problem_of(name: str, definition: str) -> str | None:
    """Why a table is refused, by its CREATE statement. An unknown engine is refused too."""
    bare = _QUOTED.sub("?", definition)
    if not definition:
        return None  # the table is missing, and the sink makes it
    if not re.match(r"CREATE TABLE\b", bare):
        what = "a view" if re.match(r"CREATE .*\bVIEW\b", bare, re.DOTALL) else "of an unknown kind"
        return f"{name} is {what}, not a table; expected a table with ENGINE=InnoDB"
    if re.search(r"\bSEQUENCE=1\b", bare):
        return f"{name} is a sequence, not a table; expected a table with ENGINE=InnoDB"
    engines = _ENGINE.findall(bare)
    others = [engine for engine in engines if engine.lower() not in _ENGINES]
    if others or not engines:
        kept = f"kept by {others[0]}" if others else "of an engine that the server does not name"
        return (
            f"{name} is {kept}; expected ENGINE=InnoDB for every partition: only InnoDB commits rows and position "
            "together"
        )
    return None


def hold(session: Session, named: str, listed: str, columns: int) -> bool:
    """Lock the definition until the end of the transaction by an INSERT of no rows, which needs no further right.

    False if the table cannot take the columns.
    """
    nothing = f"SELECT {', '.join(['NULL'] * columns)} FROM DUAL WHERE FALSE"  # noqa: S608 - no foreign text
    try:
        session.execute(f"INSERT /* holds the definition */ INTO {named} ({listed}) {nothing}")
    except driver().MySQLError as error:
        if number_of(error) in _UNFIT:
            return False
        raise
    return True


UNIQUE = """
    SELECT s.index_name, s.column_name, s.sub_part, c.extra FROM information_schema.statistics s
    LEFT JOIN information_schema.columns c USING (table_schema, table_name, column_name)
    WHERE s.table_schema = %s AND s.table_name = %s AND s.non_unique = 0
"""
"""The columns of unique indexes. A part over an expression (MySQL 8) has no column name."""


def problem_of_key(session: Session, at: tuple[Any, str], given: Collection[str], key: set[str]) -> str | None:
    """The problem of a table's unique indexes, by folded names; None if there is none.

    MariaDB replaces a row that collides in any unique index, so only the key's index may collide. A part that is not a
    whole column (a prefix, an expression) never belongs to the key.
    """
    indexes: dict[str, set[str]] = {}
    safe = set()
    for index, column, cut, extra in session.execute(UNIQUE, at).fetchall():
        part = f"a part of {column}" if column is None or cut is not None else column.lower()
        indexes.setdefault(index, set()).add(part)
        if column is not None and "auto_increment" in (extra or "") and column.lower() not in given:
            safe.add(index)
    if key not in indexes.values():
        return f"upsert needs a primary key or unique index of {sorted(key)}; found {sorted(indexes) or 'none'}"
    others = sorted(index for index, its in indexes.items() if its != key and index not in safe)
    if others:
        return (
            f"unique index {others[0]!r} is not the index of the key, but MariaDB would also replace rows that collide "
            "in this index. Drop the index, or use its columns as the key"
        )
    return None
