"""An upsert into a table of PostgreSQL, and the number of its rows that the table drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal_sink_backends.sql.base.dialect import STORED
from wal_sink_backends.sql.base.dropped import Dropped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal_sink_backends.sql.base.dialect import Replacing
    from wal_sink_backends.sql.postgresql.dialect import Postgresql
    from wal_sink_backends.sql.postgresql.session import Session

_SENT = "pg_temp.wal_sink_rows"


class Upsert:
    """Writes through a temporary table; appends if there is no key. Of several rows with one key the newest counts, and
    of these the last one.

    Rows are written in the order of their keys, so that all writers lock them in the same order.
    """

    def __init__(
        self, dialect: Postgresql, session: Session, table: str, columns: Sequence[str], replacing: Replacing
    ) -> None:
        self._session = session
        named, quoted = dialect.named(table), [dialect.quote(column) for column in columns]
        names = {column: f"c{number}" for number, column in enumerate(columns)}
        keys = ", ".join(names[column] for column in replacing.key) or "number"
        age = names.get(replacing.newer_by or "")
        first = f"{age} DESC NULLS LAST, " if age else ""
        self._newest = f"SELECT DISTINCT ON ({keys}) * FROM {_SENT} ORDER BY {keys}, {first}number DESC"  # noqa: S608
        insert = (
            f"INSERT INTO {named} AS {STORED} ({', '.join(quoted)}) SELECT {', '.join(names.values())} "  # noqa: S608
            f"FROM ({self._newest}) AS newest ORDER BY {keys} "
        )
        self._merge, self._replaces = insert, bool(replacing.key)
        if self._replaces:
            self._merge = insert + dialect.on_conflict(columns, replacing)
            self._insist = insert + dialect.insisting(columns, replacing)
            self._settle = self._settling(dialect, named, names, replacing)
        typed = ", ".join(f"{column} AS {name}" for column, name in zip(quoted, names.values(), strict=True))
        of_columns = f"SELECT {typed}, 0::bigint AS number FROM {named} WITH NO DATA"  # noqa: S608 - quoted
        session.execute(f"CREATE TEMPORARY TABLE wal_sink_rows ON COMMIT DROP AS {of_columns}")

    def put(self, rows: Sequence[str]) -> Dropped | None:
        """Write some rows; the dropped ones, None if there are none.

        PostgreSQL does not count rows that are older than the stored ones, rows of a repeated key, and rows with only
        key columns whose key is there already. Only if the count is lower than that of the rows, more is checked.
        """
        self._session.execute(f"TRUNCATE {_SENT}")
        self._session.copy(f"COPY {_SENT} FROM STDIN", [f"{row}\t{number}" for number, row in enumerate(rows)])
        written = self._session.execute(self._merge).rowcount
        if written == len(rows):
            return None
        if not self._replaces:
            return Dropped(len(rows), written)
        ((keys,),) = self._session.execute(f"SELECT count(*) FROM ({self._newest}) AS newest").fetchall()  # noqa: S608
        dropped = 0 if written == keys else self._dropped(len(rows))
        return Dropped(keys, keys - dropped) if dropped else None

    def _dropped(self, sent: int) -> int:
        """The number of dropped rows.

        Rows that are not in the table as they were sent, and not older than the stored ones, are written again in the
        way that counts. A trigger that alters rows, or another writer, lets them be counted; a trigger that drops rows
        does not.
        """
        unsettled = sent - self._session.execute(self._settle).rowcount
        return unsettled - self._session.execute(self._insist).rowcount if unsettled else 0

    def _settling(self, dialect: Postgresql, named: str, names: dict[str, str], replacing: Replacing) -> str:
        """The statement that deletes those sent rows which need no further check.

        They are not the newest of their key, are in the table as they were sent, or are older than the stored ones.
        """
        pairs = {f"{STORED}.{dialect.quote(column)}": f"newest.{name}" for column, name in names.items()}
        same_key = " AND ".join(f"{STORED}.{dialect.quote(key)} = newest.{names[key]}" for key in replacing.key)
        same_row = f"ROW({', '.join(pairs)})::record *= ROW({', '.join(pairs.values())})::record"
        older = ""
        if replacing.newer_by is not None:
            theirs, ours = f"{STORED}.{dialect.quote(replacing.newer_by)}", f"newest.{names[replacing.newer_by]}"
            older = f" OR ({theirs} IS NOT NULL AND ({ours} IS NULL OR {theirs} > {ours}))"
        there = f"SELECT FROM {named} AS {STORED} WHERE {same_key} AND ({same_row}{older})"
        return (
            f"DELETE FROM {_SENT} WHERE number NOT IN "  # noqa: S608 - quoted
            f"(SELECT number FROM ({self._newest}) AS newest WHERE NOT EXISTS ({there}))"
        )
