"""Rows that PostgreSQL takes through a temporary table: upserts, deletes and marks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wal_sink_backends.sql.base.dialect import STORED, Dialect, Replacing
from wal_sink_backends.sql.base.values import Dropped

if TYPE_CHECKING:
    from wal_sink_backends.sql.base.dialect import Put
    from wal_sink_backends.sql.postgresql.session import Session


class Upsert:
    """Writes through a temporary table; appends if there is no key. Of several rows with one key the newest counts, and
    of these the last one.

    Rows are written in the order of their keys, so that all writers lock them in the same order.
    """

    def __init__(
        self, dialect: Dialect, session: Session, table: str, columns: Sequence[str], replacing: Replacing
    ) -> None:
        self._session, self._dialect, self._replacing = session, dialect, replacing
        self._named, quoted = dialect.named(table), [dialect.quote(column) for column in columns]
        self._names = names = {column: f"c{number}" for number, column in enumerate(columns)}
        name = f"wal_sink_rows_{zlib.crc32(table.encode())}"  # a transaction may write to the table of deletes, too
        self._sent = f"pg_temp.{name}"
        keys = ", ".join(names[column] for column in replacing.key) or "number"
        first = "".join(f"{age} DESC NULLS LAST, " for age in dialect.ages(replacing, names.__getitem__))
        last = "ASC" if replacing.strict else "DESC"
        self._newest = (
            f"SELECT DISTINCT ON ({keys}) * FROM {self._sent} AS newest {self._remembered()}"  # noqa: S608 - quoted
            f"ORDER BY {keys}, {first}number {last}"
        )
        self._insert = (
            f"INSERT INTO {self._named} AS {STORED} ({', '.join(quoted)}) SELECT {', '.join(names.values())} "  # noqa: S608
            f"FROM ({self._newest}) AS newest"
        )
        self._merge, self._replaces = f"{self._insert} ORDER BY {keys} ", bool(replacing.key)
        if self._replaces:
            self._insist = self._merge + dialect.insisting(columns, replacing)
            self._merge += dialect.on_conflict(columns, replacing)
            self._settle = self._settling()
        typed = ", ".join(f"{column} AS {name}" for column, name in zip(quoted, names.values(), strict=True))
        of_columns = f"SELECT {typed}, 0::bigint AS number FROM {self._named} WITH NO DATA"  # noqa: S608 - quoted
        session.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ON COMMIT DROP AS {of_columns}")

    def put(self, rows: Sequence[str]) -> Dropped | None:
        """Write some rows; the dropped ones, None if there are none.

        PostgreSQL does not count rows that are older than the stored ones, rows of a repeated key, and rows with only
        key columns whose key is there already. Only if the count is lower than that of the rows, more is checked.
        """
        self._send(rows)
        return self._write(len(rows))

    def _write(self, sent: int) -> Dropped | None:
        written = self._session.execute(self._merge).rowcount
        if written == sent:
            return None
        if not self._replaces:
            return Dropped(sent, written)
        ((keys,),) = self._session.execute(f"SELECT count(*) FROM ({self._newest}) AS newest").fetchall()  # noqa: S608
        dropped = 0 if written == keys else self._dropped(sent)
        return Dropped(keys, keys - dropped) if dropped else None

    def _send(self, rows: Sequence[str]) -> None:
        self._session.execute(f"TRUNCATE {self._sent}")
        self._session.copy(f"COPY {self._sent} FROM STDIN", [f"{row}\t{number}" for number, row in enumerate(rows)])

    def _same_key(self, stored: str) -> str:
        quote, names = self._dialect.quote, self._names
        return " AND ".join(f"{stored}.{quote(key)} = newest.{names[key]}" for key in self._replacing.key)

    def _ages(self, stored: str) -> tuple[list[str], list[str]]:
        """The version that was sent, and the stored one."""
        dialect, replacing = self._dialect, self._replacing
        sent = dialect.ages(replacing, lambda name: f"newest.{self._names[name]}")
        return sent, dialect.ages(replacing, lambda name: f"{stored}.{dialect.quote(name)}")

    def _remembered(self) -> str:
        """The clause that leaves out rows of which a delete is remembered that is as new or newer."""
        if self._replacing.deleted is None:
            return ""
        (sent, stored), named = self._ages("deleted"), self._dialect.named(self._replacing.deleted)
        newer = self._dialect.newer(stored, sent, strict=False)
        found = f"SELECT FROM {named} AS deleted WHERE {self._same_key('deleted')} AND ({newer})"
        return f"WHERE NOT EXISTS ({found}) "

    def deleting(self, table: str) -> Put:
        """The function that writes deletes, and deletes the rows of a table that are as old or older."""
        condition = f"{self._same_key(STORED)} AND ({self._dialect.newer(*self._ages(STORED), strict=False)})"
        rest = f"({self._newest}) AS newest"
        look = f"SELECT count(*) FROM {table} AS {STORED} JOIN {rest} ON {condition}"  # noqa: S608 - quoted

        def put(rows: Sequence[str]) -> Dropped | None:
            self._send(rows)
            self._session.execute(f"DELETE FROM {table} AS {STORED} USING {rest} WHERE {condition}")  # noqa: S608 - quoted
            ((left,),) = self._session.execute(look).fetchall()
            return Dropped(len(rows), len(rows) - left) if left else self._write(len(rows))

        return put

    def marking(self, marks: Sequence[str]) -> Put:
        """The function that marks the stored rows, and inserts those whose key is not there."""
        changes = ", ".join(f"{self._dialect.quote(name)} = newest.{self._names[name]}" for name in marks)
        sent, stored = self._ages(STORED)
        as_old, older = (self._dialect.newer(sent, stored, strict=strict) for strict in (False, True))
        table, rest = f"{self._named} AS {STORED}", f"({self._newest}) AS newest"
        same_key = self._same_key(STORED)
        update = f"UPDATE {table} SET {changes} FROM {rest} WHERE {same_key} AND ({as_old})"  # noqa: S608 - quoted
        insert = f"{self._insert} WHERE NOT EXISTS (SELECT FROM {table} WHERE {same_key})"
        there = f"SELECT count(*) FROM {rest} JOIN {table} ON {same_key} AND NOT coalesce({older}, false)"  # noqa: S608

        def put(rows: Sequence[str]) -> Dropped | None:
            self._send(rows)
            self._session.execute(update)
            self._session.execute(insert)
            ((sent,),) = self._session.execute(f"SELECT count(*) FROM {rest}").fetchall()  # noqa: S608 - quoted
            ((kept,),) = self._session.execute(there).fetchall()
            return Dropped(sent, kept) if kept < sent else None

        return put

    def _dropped(self, sent: int) -> int:
        """The number of dropped rows.

        Rows that are not in the table as they were sent, and not older than the stored ones, are written again in the
        way that counts. A trigger that alters rows, or another writer, lets them be counted; a trigger that drops rows
        does not.
        """
        unsettled = sent - self._session.execute(self._settle).rowcount
        return unsettled - self._session.execute(self._insist).rowcount if unsettled else 0

    def _settling(self) -> str:
        """The statement that deletes those sent rows which need no further check.

        They are not the newest of their key, are in the table as they were sent, or are older than the stored ones.
        """
        pairs = {f"{STORED}.{self._dialect.quote(column)}": f"newest.{name}" for column, name in self._names.items()}
        same_row = f"ROW({', '.join(pairs)})::record *= ROW({', '.join(pairs.values())})::record"
        older = ""
        if self._replacing.newer_by:
            sent, stored = self._ages(STORED)
            older = f" OR ({self._dialect.newer(stored, sent, strict=not self._replacing.strict)})"
        there = f"SELECT FROM {self._named} AS {STORED} WHERE {self._same_key(STORED)} AND ({same_row}{older})"
        return (
            f"DELETE FROM {self._sent} WHERE number NOT IN "  # noqa: S608 - quoted
            f"(SELECT number FROM ({self._newest}) AS newest WHERE NOT EXISTS ({there}))"
        )
