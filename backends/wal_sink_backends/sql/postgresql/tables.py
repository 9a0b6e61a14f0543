"""PostgreSQL's description of a table: its kind and that of every partition, and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wal_sink_backends.sql.base.dialect import LEDGER, Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal_sink_backends.sql.postgresql.session import Session

_TABLES = """
    WITH RECURSIVE parts (root, oid, is_root) AS (
        SELECT given.root, to_regclass(given.named)::oid, true
        FROM unnest(%s::text[], %s::text[]) AS given (root, named)
        UNION ALL
        SELECT parts.root, below.inhrelid, false
        FROM parts JOIN pg_class c ON c.oid = parts.oid AND c.relkind = 'p'
        JOIN pg_inherits below ON below.inhparent = parts.oid
    )
    SELECT parts.root, parts.is_root, c.oid::bigint, c.relname::text, c.relkind::text, c.relpersistence::text,
           am.amname::text, parts.is_root AND row_security_active(c.oid),
           EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3'),
           (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull,
                                        a.atthasdef, a.attidentity, a.attgenerated), ',' ORDER BY a.attnum)
            FROM pg_attribute a
            WHERE a.attrelid = c.oid AND parts.is_root AND a.attnum > 0 AND NOT a.attisdropped)
    FROM parts JOIN pg_class c ON c.oid = parts.oid LEFT JOIN pg_am am ON am.oid = c.relam
    ORDER BY 1, 3
"""
"""Reads `pg_inherits` without locks, unlike `pg_partition_tree`, so that it waits for no ALTER of a partition."""
_KINDS = {"f": "a foreign table", "v": "a view", "m": "a materialized view"}
_WHY = "rows and position would not be kept together; expected an ordinary, logged table"


class _Relation(NamedTuple):
    """A row of the answer."""

    root: str
    is_root: bool
    oid: int
    name: str
    kind: str
    persistence: str
    method: str | None
    is_row_secured: bool
    has_rule: bool
    columns: str | None

    def problem(self) -> str | None:
        """Why the table is refused; None if it is not. An unknown kind is refused too."""
        which = self.name if self.is_root else f"{self.name}, a partition of {self.root},"
        if self.kind not in {"r", "p"}:
            return f"{which} is {_KINDS.get(self.kind, f'of the unknown kind {self.kind!r}')}: {_WHY}"
        if self.persistence == "u":
            return f"{which} is UNLOGGED: a crash of the server would empty it. ALTER TABLE … SET LOGGED"
        if self.persistence != "p":
            return f"{which} is temporary, or of the unknown persistence {self.persistence!r}: {_WHY}"
        if self.kind == "r" and self.method != "heap":
            return f"{which} has the access method {self.method!r}, expected heap: {_WHY}"
        if self.has_rule:
            return f"{which} has a rule ON INSERT, but COPY does not follow rules. Use a trigger, or drop the rule"
        return None


def look(session: Session, table: str, named: str, ledger: str) -> Look:
    """The table, the ledger and all their partitions. `named` and `ledger` are quoted names."""
    rows = [_Relation(*row) for row in session.execute(_TABLES, ([table, LEDGER], [named, ledger])).fetchall()]
    problems = (problem for row in rows if (problem := row.problem()))
    its = next((row for row in rows if row.is_root and row.root == table), None)
    session.is_row_secured = its is not None and its.is_row_secured
    return Look(repr(rows), next(problems, None), its and its.oid)


_MISSING = """
    WITH RECURSIVE a (name, number, type, is_needed) AS (
        SELECT attname::text, attnum, atttypid, attnotnull FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
        WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND NOT atthasdef AND attidentity = ''
              AND NOT attname = ANY(%s) AND typdefault IS NULL
        UNION ALL
        SELECT name, number, typbasetype, typnotnull FROM a JOIN pg_type t ON t.oid = a.type AND t.typtype = 'd'
    )
    SELECT ARRAY(SELECT name FROM a GROUP BY name, number HAVING bool_or(is_needed) ORDER BY number)
"""
"""COPY leaves NULL in a column of a NOT NULL domain that gets no value."""


def mandatory(session: Session, named: str, columns: Sequence[str]) -> list[str]:
    """Columns other than these that must have a value and have no default."""
    ((missing,),) = session.execute(_MISSING, (named, list(columns))).fetchall()
    found: list[Any] = missing
    return found
