"""Rows that are written to SQLite one by one, so that each is known to be there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base.dialect import STORED, Connection, Dialect, Replacing

if TYPE_CHECKING:
    Count: TypeAlias = Callable[[Sequence[Any]], int]
    """Writes a row. Returns 1 if the table has it, or something newer; 0 if the table drops it."""

_DIGIT = re.compile(r"[0-9]")


def each(count: Count) -> Count:
    """The function that does with rows what another one does with a row."""
    return lambda rows: sum(map(count, rows))


class RowWriter:
    """Statements for the rows of one table, and the functions that run them for a row."""

    def __init__(
        self, dialect: Dialect, connection: Connection, table: str, columns: Sequence[str], replacing: Replacing
    ) -> None:
        self._dialect, self._connection, self._replacing = dialect, connection, replacing
        self._table, self._columns, self._named = table, columns, dialect.quote(table)
        self._sent = {column: f"?{at}" for at, column in enumerate(columns, 1)}
        self._ours = dialect.ages(replacing, self._sent.__getitem__)
        self._stored = dialect.ages(replacing, dialect.quote)
        last = f"?{len(columns)}"  # SQLite takes no value that a statement does not name
        same = (f"{dialect.quote(name)} = {self._sent[name]}" for name in replacing.key)
        self._same_key = " AND ".join([f"{last} IS {last}", *same])
        marks = ", ".join("?" for _ in columns)
        self._insert = f"INSERT INTO {self._named} AS {STORED} ({dialect.listed(columns)}) VALUES ({marks})"  # noqa: S608 - quoted

    def insert(self, rows: Sequence[Any]) -> int:
        return int(self._connection.executemany(self._insert, rows).rowcount)

    def upsert(self, row: Sequence[Any]) -> int:
        conflict = self._dialect.on_conflict(self._columns, self._replacing)
        return int(self._connection.execute(f"{self._insert} {conflict}", row).rowcount)

    def replacing(self) -> Count:
        """The function that inserts a row, or replaces the one with its key.

        SQLite does not count a row that is older than the stored one or has only key columns, so such a row is written
        again in the way that counts.
        """
        dialect, execute, replacing = self._dialect, self._connection.execute, self._replacing
        upsert = f"{self._insert} {dialect.on_conflict(self._columns, replacing)}"
        insist = f"{self._insert} {dialect.insisting(self._columns, replacing)}"
        there = " AND ".join(f"{dialect.quote(column)} IS {value}" for column, value in self._sent.items())
        if replacing.newer_by:
            there += f" OR ({self._newer_than_sent(strict=not replacing.strict)})"
        look = f"SELECT 1 FROM {self._named} WHERE {self._same_key} AND ({there})"  # noqa: S608 - quoted
        compared = [self._table, *([replacing.deleted] if replacing.deleted else [])]
        checks = [self._checking_forms(table) for table in compared]
        remembered = replacing.deleted and (
            f"SELECT 1 FROM {dialect.quote(replacing.deleted)} WHERE {self._same_key} "  # noqa: S608 - quoted
            f"AND ({self._newer_than_sent(strict=False)})"
        )

        def count(row: Sequence[Any]) -> int:
            for check in checks:
                check(row)
            if remembered and execute(remembered, row).fetchone():
                return 1
            if execute(upsert, row).rowcount or execute(look, row).fetchone():
                return 1
            return int(execute(insist, row).rowcount)

        return count

    def deleting(self) -> Count:
        """The function that remembers a delete, and deletes a row that is as old or older."""
        execute, deleted = self._connection.execute, self._replacing.deleted or ""
        check, as_old = self._checking_forms(self._table), f"{self._same_key} AND ({self._as_old()})"
        delete = f"DELETE FROM {self._named} WHERE {as_old}"  # noqa: S608 - quoted
        look = f"SELECT 1 FROM {self._named} WHERE {as_old}"  # noqa: S608 - quoted
        own = replace(self._replacing, deleted=None, strict=False)
        remember = RowWriter(self._dialect, self._connection, deleted, self._columns, own).replacing()

        def count(row: Sequence[Any]) -> int:
            check(row)
            remember(row)
            execute(delete, row)
            return 0 if execute(look, row).fetchone() else 1

        return count

    def marking(self, marks: Sequence[str]) -> Count:
        """The function that marks a row that is as old or older, or inserts the row that is sent."""
        execute, check = self._connection.execute, self._checking_forms(self._table)
        changes = ", ".join(f"{self._dialect.quote(name)} = {self._sent[name]}" for name in marks)
        update = f"UPDATE {self._named} SET {changes} WHERE {self._same_key} AND ({self._as_old()})"  # noqa: S608 - quoted
        older = self._dialect.newer(self._ours, self._stored, strict=True)
        look = f"SELECT {older} FROM {self._named} WHERE {self._same_key}"  # noqa: S608 - quoted

        def count(row: Sequence[Any]) -> int:
            check(row)
            if execute(update, row).rowcount:
                return 1
            stored = execute(look, row).fetchone()
            return int(not stored[0]) if stored else self.insert([row])

        return count

    def _as_old(self) -> str:
        return self._dialect.newer(self._ours, self._stored, strict=False)

    def _newer_than_sent(self, *, strict: bool) -> str:
        return self._dialect.newer(self._stored, self._ours, strict=strict)

    def _checking_forms(self, table: str) -> Callable[[Sequence[Any]], None]:
        """A function that refuses a row if a part of its version has another form than the stored one."""
        names = [name for name in self._replacing.newer_by if name not in self._replacing.texts]
        named = f"{self._dialect.listed(names)} FROM {self._dialect.quote(table)}"
        of_age, places = f"SELECT {named} WHERE {self._same_key}", [list(self._columns).index(name) for name in names]

        def check(row: Sequence[Any]) -> None:
            stored = self._connection.execute(of_age, row).fetchone() if names else None
            for name, at, age in zip(names, places, stored or (), strict=False):
                _refuse_other_form([age, row[at]], table, name)

        return check


def _refuse_other_form(ages: Sequence[Any], table: str, column: str) -> None:
    """Refuse to compare a stored age with a sent one of another form: as texts, 23:00 in one form may precede 09:00 in
    the other.
    """
    forms = [_form_of(age) for age in ages if age is not None]
    if len(set(forms)) > 1:
        raise PermanentError(
            f"table {table!r}: newer_by column {column!r} holds a value of the form {forms[0]!r}, but the query sends "
            f"{forms[1]!r}, and SQLite would compare them as text. Convert the stored values to the second form. "
            "Texts of datetime() in UTC become timestamps by strftime('%Y-%m-%dT%H:%M:%f000Z', column)"
        )


def _form_of(age: Any) -> str:
    if isinstance(age, (int, float)) or age == "NaN":
        return "number"
    return _DIGIT.sub("0", age) if isinstance(age, str) else type(age).__name__
